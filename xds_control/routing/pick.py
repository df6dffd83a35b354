"""What the picker answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

# Reason codes; stable, for metrics, records and clients.
LEAST_COST: Final = "least-cost"
PREFIX: Final = "prefix"
SESSION: Final = "session"
TIE: Final = "tie"
SCORED: Final = "scored"
NO_POOL: Final = "no-pool"
NO_ENDPOINTS: Final = "no-endpoints"
SUBSET_EMPTY: Final = "subset-empty"
SATURATED: Final = "saturated"
FILTERED: Final = "filtered"
SHED: Final = "predicted-too-slow"
SHEDDABLE: Final = "saturated-sheddable"
NOT_CACHED: Final = "not-cached"

_STATUS: Final = {
    NO_POOL: 503,
    NO_ENDPOINTS: 503,
    SUBSET_EMPTY: 503,
    SATURATED: 429,
    FILTERED: 429,
    SHED: 429,
    SHEDDABLE: 429,
    NOT_CACHED: 412,
}
_DROPPED: Final = {
    NO_POOL: "rejected-no-endpoints",
    NO_ENDPOINTS: "rejected-no-endpoints",
    SUBSET_EMPTY: "rejected-no-endpoints",
    SATURATED: "rejected-saturated",
    FILTERED: "rejected-saturated",
    SHED: "rejected-saturated",
    SHEDDABLE: "rejected-saturated",
    NOT_CACHED: "",
}


@dataclass(slots=True)
class Pick:
    """The choice for one request, or why there is none.

    addresses: the pick, then those that stand ready for a retry; () when there is none, and `reason` says why.
    matched_tokens: prompt tokens believed cached there. uncached_tokens: the rest.
    expected_ttft_s: expected time to first token; cost_s: total cost of the pick (`explain` has its parts); wait_s:
    its wait for the prefills ahead. Seconds.
    ahead_tokens, batch: uncached tokens ahead of it and requests in flight there at the pick; they travel in the
    request's metadata and come back with its outcome, for learning.
    prefill: prefill endpoint of a split request, "" otherwise. candidates: endpoints that could have been picked.
    shed: refused by prediction; retry_after_s says when to come again.
    token, prefill_token: opaque session tokens of the endpoints, "" when switched off.
    scores: score of every candidate where asked for, else None.
    trail: what the costs of `addresses` are made of, where the picker keeps it; see `routing.trail`.
    """

    addresses: tuple[str, ...] = ()
    reason: str = NO_ENDPOINTS
    profile: str = "default"
    matched_tokens: int = 0
    uncached_tokens: int = 0
    expected_ttft_s: float = 0.0
    cost_s: float = 0.0
    wait_s: float = 0.0
    ahead_tokens: int = 0
    batch: float = 0.0
    candidates: int = 0
    shed: bool = False
    retry_after_s: float = 0.0
    prefill: str = ""
    token: str = ""
    prefill_token: str = ""
    scores: Mapping[str, float] | None = None
    trail: bytes = b""

    @property
    def ok(self) -> bool:
        """Whether an endpoint was picked."""
        return bool(self.addresses)

    @property
    def address(self) -> str:
        """The pick itself, "" when there is none."""
        return self.addresses[0] if self.addresses else ""

    @property
    def destination(self) -> str:
        """The value of the destination header and metadata: the ordered list."""
        return ",".join(self.addresses)

    @property
    def status(self) -> int:
        """HTTP status of a refusal: 503 nobody may be picked, 429 nobody has room, 412 not cached; 0 when picked."""
        return 0 if self.addresses else _STATUS.get(self.reason, 503)

    @property
    def dropped_reason(self) -> str:
        """Reason in the words that Gateway API data planes know, "" when picked."""
        return "" if self.addresses else _DROPPED.get(self.reason, "rejected-no-endpoints")
