"""Ollama has no metrics page; what is loaded is all that it tells."""

from __future__ import annotations

from xds_control.signals.adapter import Adapter
from xds_control.signals.engines.pages import ollama_ps

OLLAMA = Adapter("ollama", path="/api/ps", main=ollama_ps)
