"""What an operator has ordered for one endpoint. It outranks every rule and outlives a restart."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

Order = Literal["pin", "drain", "eject"]


@dataclass(frozen=True, slots=True)
class Override:
    """An order for one endpoint.

    kind: pin (its integer weight is `weight`), drain (no new requests), eject (out at once).
    weight: integer ≥ 0 for a pin, else None.
    until: monotonic seconds at which it lapses; None = until it is cleared.
    reason, by: why and who, for people and the audit.
    """

    kind: Order
    weight: int | None = None
    until: float | None = None
    reason: str = ""
    by: str = ""

    def __post_init__(self) -> None:
        if self.kind == "pin" and (self.weight is None or self.weight < 0):
            raise ValueError("a pin needs a weight of 0 or more")
        if self.kind != "pin" and self.weight is not None:
            raise ValueError(f"{self.kind} takes no weight")

    def lapsed(self, now: float) -> bool:
        """Whether its time is over."""
        return self.until is not None and now >= self.until

    def to_record(self, now: float, wall: float) -> dict[str, Any]:
        """Plain values for a store. Monotonic time dies with the process, so the end is kept as wall-clock seconds."""
        until = None if self.until is None else wall + (self.until - now)
        return {"kind": self.kind, "weight": self.weight, "until": until, "reason": self.reason, "by": self.by}

    @classmethod
    def from_record(cls, record: dict[str, Any], now: float, wall: float) -> Override:
        """The order that `to_record` wrote, on this process's clock. Raises ValueError on a record that is not one."""
        until = record.get("until")
        kind = record.get("kind")
        if kind not in ("pin", "drain", "eject") or not (until is None or math.isfinite(until)):
            raise ValueError(f"not an override: {record!r}")
        return cls(
            kind=kind,
            weight=record.get("weight"),
            until=None if until is None else now + (until - wall),
            reason=str(record.get("reason") or ""),
            by=str(record.get("by") or ""),
        )
