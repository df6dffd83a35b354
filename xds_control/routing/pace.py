"""Which endpoints end fewer requests than they should, and so have become slow."""

from __future__ import annotations

import math
from collections.abc import Sequence

from xds_control.routing.slot import Slot

_SHORT_S = 2.5
_LONG_S = 60.0
_SEEN = 60.0
_PRIOR = 4.0
_SIGMAS = 2.5
_LEAST, _MOST = 1.5, 4.0
"""How an endpoint that ends too few requests is told: over so many seconds, held against so many seconds before, where
all ends are taken to be told here before so many were; with so many ends of doubt, when it lacks so many standard
deviations, and is at least so much slower. It is never taken for more than so much slower."""


def pace(slots: Sequence[Slot], residence_s: float, passed: float) -> None:
    """Holds the ends at each endpoint against its share of all ends, by the requests that run there.

    Requests that take long tell of it only when they end, but an endpoint that has become slow ends fewer of them
    at once. Only those count that are there long enough to end: where many have just come, none ends yet. Where
    others send requests too, a part of the ends is never told here: an endpoint is held against its own past.

    slots: those that decode. residence_s: how long a request usually is there. passed: seconds since the last call.
    """
    kept = math.exp(-min(passed, 1e3) / _SHORT_S)
    long_kept = math.exp(-min(passed, 1e3) / _LONG_S)
    grown = 1.0 - math.exp(-min(passed, 1e3) / max(0.1, residence_s))
    shares = []
    for slot in slots:
        count = slot.flight.count
        slot.usual += grown * (count - slot.usual)
        shares.append(min(count, slot.usual) * slot.pace / slot.step)
    whole = sum(shares)
    ends = sum(slot.ends for slot in slots)
    for slot, share in zip(slots, shares, strict=True):
        new = ends * share / whole if whole > 0.0 else 0.0
        told = min(1.0, (slot.long_done + _SEEN) / (slot.long_due + _SEEN))
        slot.due = slot.due * kept + new * told
        slot.done = slot.done * kept + slot.ends
        slot.long_due = slot.long_due * long_kept + new
        slot.long_done = slot.long_done * long_kept + slot.ends
        slot.ends = 0
        ratio = (slot.due + _PRIOR) / (slot.done + _PRIOR)
        sure = slot.due - slot.done > _SIGMAS * math.sqrt(slot.due)
        slot.pace = min(_MOST, ratio) if sure and ratio > _LEAST else 1.0
