"""Names that both sides of the admin service use: of its metadata, and of what can be asked for by kind."""

from __future__ import annotations

from typing import Final

CODE_KEY: Final = "xds-control-code"
"""Trailing metadata that carries our stable error code."""
USER_KEY: Final = "xds-control-user"
"""Metadata by which a caller says who it is, where nothing is authenticated."""

EVENT_KINDS: Final = ("state", "override", "policy", "xds")
"""Kinds of events."""
NOTABLE: Final = ("slow", "failed", "fell-back", "rejected", "sampled")
"""Why a request is kept."""
STATES: Final = ("new", "probing", "warming", "ready", "suspect", "ejected", "draining", "gone")
"""States of endpoints, in the order of a life."""
LOG_LEVELS: Final = ("debug", "info", "warning", "error")
LOG_FORMATS: Final = ("auto", "json", "text")
