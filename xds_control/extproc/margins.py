"""How clear the picks were, and how many were passed over: per pool, for metrics (pure)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

from xds_control.routing.trail import margin
from xds_control.signals.finished import Finished

NEWEST: Final = 512
"""Picks of each pool that the quantiles are of."""
EACH: Final = 8
"""One pick of so many is looked at."""
MOST_POOLS: Final = 1_000
QUANTILES: Final = (0.1, 0.5, 0.9)


class Margins:
    """margin: seconds by which the next best endpoint would have cost more; 0 where affinity chose a dearer one."""

    def __init__(self) -> None:
        self.passed_over: dict[str, int] = {}
        self._newest: dict[str, deque[float]] = {}
        self._count = EACH - 1

    def picked(self, pool: str, trail: bytes) -> None:
        """A pick was made."""
        self._count += 1
        if self._count < EACH:
            return
        self._count = 0
        found = margin(trail)
        if found is None:
            return
        kept = self._newest.get(pool)
        if kept is None:
            if len(self._newest) >= MOST_POOLS:
                return
            kept = self._newest[pool] = deque(maxlen=NEWEST)
        kept.append(found)

    def finished(self, one: Finished) -> None:
        """A request ended."""
        if one.pick and one.endpoint and one.pick != one.endpoint:
            known = self.passed_over
            if one.pool in known or len(known) < MOST_POOLS:
                known[one.pool] = known.get(one.pool, 0) + 1

    def quantiles(self) -> Iterator[tuple[str, float, float]]:
        """(pool, quantile, margin in seconds) of the newest picks."""
        for pool, kept in self._newest.items():
            found = sorted(max(0.0, margin) for margin in kept)
            for quantile in QUANTILES:
                yield pool, quantile, found[min(len(found) - 1, int(quantile * len(found)))]
