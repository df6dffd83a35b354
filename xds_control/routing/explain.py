"""Why a request went where it went: the candidates with their cost parts, and a ring of sampled decisions."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from xds_control.routing.pick import Pick


@dataclass(frozen=True, slots=True)
class Candidate:
    """One endpoint as it stood for a request. Parts in seconds add up to `cost_s`; excluded: why it was out, or ""."""

    address: str
    cost_s: float
    expected_ttft_s: float
    wait_s: float
    prefill_s: float
    kv_wait_s: float
    interference_s: float
    decode_s: float
    memory_s: float
    fixed_s: float
    matched_tokens: int
    in_flight: float
    speed: float
    score: float | None = None
    excluded: str = ""


@dataclass(slots=True)
class Record:
    """One decision with what it was made from. No prompt text."""

    at: float
    pool: str
    id: str
    model: str
    prompt_tokens: int
    output_tokens: int
    prefix_blocks: int
    session: bool
    pick: Pick
    candidates: list[Candidate] = field(default_factory=list)
    total: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Plain values, the cheapest candidates first."""
        pick = self.pick
        return {
            "at": self.at,
            "id": self.id,
            "pool": self.pool,
            "model": self.model,
            "prompt_tokens": self.prompt_tokens,
            "output_tokens": self.output_tokens,
            "prefix_blocks": self.prefix_blocks,
            "session": self.session,
            "addresses": list(pick.addresses),
            "prefill": pick.prefill,
            "reason": pick.reason,
            "profile": pick.profile,
            "matched_tokens": pick.matched_tokens,
            "expected_ttft_s": pick.expected_ttft_s,
            "cost_s": pick.cost_s,
            "why": self.why(),
            "endpoints": self.total,
            "candidates": [
                {name: getattr(candidate, name) for name in Candidate.__slots__} for candidate in self.candidates
            ],
        }

    def why(self) -> str:
        """The choice in one sentence."""
        pick = self.pick
        if not pick.addresses:
            return f"no endpoint: {pick.reason}"
        text = f"{pick.addresses[0]} by {pick.reason}"
        if pick.matched_tokens:
            text += f", {pick.matched_tokens} of {self.prompt_tokens} prompt tokens believed cached there"
        text += f", expected time to first token {pick.expected_ttft_s * 1000:.0f} ms"
        rivals = [c for c in self.candidates if c.address != pick.addresses[0] and not c.excluded]
        if rivals and pick.reason in ("least-cost", "prefix", "tie", "session"):
            best = min(rivals, key=lambda c: c.cost_s)
            gap = best.cost_s - pick.cost_s
            if abs(gap) < 5e-5:
                text += f"; {best.address} costs the same"
            elif gap > 0:
                text += f"; next best {best.address} costs {_milliseconds(gap)} more"
            else:
                text += f"; {best.address} costs {_milliseconds(-gap)} less, within the bound"
        return text


def _milliseconds(seconds: float) -> str:
    """Milliseconds, with one decimal place where there are few."""
    return f"{seconds * 1000:.0f} ms" if seconds >= 0.01 else f"{seconds * 1000:.1f} ms"


class Records:
    """The newest decisions that were kept."""

    def __init__(self, limit: int) -> None:
        self._ring: deque[Record] = deque(maxlen=max(0, limit))

    def keep(self, record: Record) -> None:
        """Adds one, dropping the oldest when full."""
        self._ring.append(record)

    def newest(self, count: int = 100) -> list[Record]:
        """The newest first."""
        return list(self._ring)[: -count - 1 : -1]

    def find(self, identifier: str) -> Record | None:
        """The record of a decision id, None when it was not kept."""
        return next((record for record in reversed(self._ring) if record.id == identifier), None)
