"""What goes wrong in a run, and when."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["death", "slow", "throttle", "cold", "blackout", "processor"]
KINDS: tuple[Kind, ...] = ("death", "slow", "throttle", "cold", "blackout", "processor")
_FACTOR = {"slow": 3.0, "throttle": 1.25}


@dataclass(frozen=True, slots=True)
class Fault:
    """death: the engine is gone and comes back empty. slow: three times slower. throttle: 20 % less speed. cold: the
    engine is not there before `at + seconds`. blackout: its pages cannot be read. processor: that processor is gone.

    at, seconds: of the simulation. target: index of the host or processor.
    """

    kind: Kind
    at: float
    seconds: float
    target: int = 0

    @property
    def factor(self) -> float:
        """By how much steps lengthen."""
        return _FACTOR.get(self.kind, 1.0)


def parse(text: str) -> Fault:
    """`kind:at:seconds[:target]`, as in `slow:60:120:3`. Raises ValueError."""
    parts = text.split(":")
    if len(parts) not in (3, 4) or parts[0] not in KINDS:
        raise ValueError(f"{text!r} is not kind:at:seconds[:target] with kind one of {', '.join(KINDS)}")
    try:
        at, seconds = float(parts[1]), float(parts[2])
        target = int(parts[3]) if len(parts) == 4 else 0
    except ValueError as error:
        raise ValueError(f"{text!r}: {error}") from error
    if at < 0 or seconds <= 0 or target < 0:
        raise ValueError(f"{text!r}: times and target must not be negative, and seconds positive")
    kind = next(k for k in KINDS if k == parts[0])
    return Fault(kind, at, seconds, target)
