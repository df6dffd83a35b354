"""What processors tell each other about picks, as plain values; the edge turns them into Fleet messages."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class PrefixAdd(NamedTuple):
    """A chain that an endpoint was sent. keys: its block hashes in order; tokens: up to and including each."""

    endpoint: str
    keys: tuple[int, ...]
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Outstanding:
    """Absolute, of one processor, or summed over several.

    requests: picks minus ends since the endpoint's last scrape (may be below zero: ends are seen where the access log
    goes). prefill_tokens: uncached prompt tokens sent and not expected to be read yet. decode_tokens: expected output
    of the requests counted. age_s: since it was counted, the mean by prefill tokens.
    """

    endpoint: str
    requests: int
    prefill_tokens: int
    decode_tokens: int
    age_s: float = 0.0


@dataclass(frozen=True, slots=True)
class RateState:
    """Increments of the learned speeds. endpoint: "" = the pool's."""

    pool: str
    endpoint: str
    state: bytes


@dataclass(slots=True)
class Share:
    """What `Picker.drain_share` gives: all since the last call, `outstanding` as it stands."""

    prefixes: list[PrefixAdd] = field(default_factory=list)
    outstanding: list[Outstanding] = field(default_factory=list)
    rates: list[RateState] = field(default_factory=list)


Peers = Share
"""The same, from the other processors: additions since the last message, outstanding work summed over them."""
