"""A Prometheus histogram as the demo engine keeps it: counts per bucket, made cumulative when shown."""

from __future__ import annotations

from bisect import bisect_left


class Histogram:
    """`bounds` are the finite upper bounds, ascending; one more bucket counts what is above them."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    @property
    def count(self) -> int:
        return sum(self.counts)

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value
