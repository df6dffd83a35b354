"""Counters of the server (pure)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class ServerStats:
    """Since start. Keys of the counters are type abbreviations, of `ended` gRPC status names.

    refused: streams over the limit. unauthorised: calls without a valid token. abandoned: streams whose client took no
    bytes within the write deadline.
    """

    streams_opened: int = 0
    refused: int = 0
    unauthorised: int = 0
    abandoned: int = 0
    responses: Counter[str] = field(default_factory=Counter)
    bytes_sent: Counter[str] = field(default_factory=Counter)
    nacks: Counter[str] = field(default_factory=Counter)
    ended: Counter[str] = field(default_factory=Counter)
