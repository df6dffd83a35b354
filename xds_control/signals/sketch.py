"""A mergeable, bounded quantile sketch with logarithmic buckets.

Bucket i holds values in (g^(i-1), g^i] with g = 1.02, so a quantile is within 1 % of a value
that was really observed. Merging is adding bucket counts: windows of many processors add up to
exactly the sketch that one observer of everything would hold.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from xds_control.proto import fleet_pb2

GROWTH = 1.02
LOWEST = -700
"""Index of the first bucket: about 1e-6. Smaller values count as zeros."""
HIGHEST = 700
"""Index of the last bucket: about 1e6. Larger values are held there."""

_PER_LOG = 1.0 / math.log(GROWTH)
_LEAST = GROWTH**LOWEST
_MOST = GROWTH**HIGHEST
_COUNT_LIMIT = 1 << 48  # no honest window counts more; keeps sums of hostile input finite

_log = math.log
_ceil = math.ceil


class Sketch:
    """Counts of non-negative values (seconds, ratios, tokens) from 1e-6 to 1e6, at most 1401 buckets."""

    __slots__ = ("_buckets", "_max", "_min", "_sum", "_total", "_zeros")

    def __init__(self) -> None:
        self._buckets: dict[int, int] = {}
        self._zeros = 0
        self._total = 0
        self._sum = 0.0
        self._min = math.inf
        self._max = 0.0

    @property
    def count(self) -> int:
        """Number of values held."""
        return self._total

    @property
    def sum(self) -> float:
        """Sum of the values (exact, not from buckets)."""
        return self._sum

    @property
    def mean(self) -> float | None:
        """Mean of the values; None when there is none."""
        return self._sum / self._total if self._total else None

    @property
    def min(self) -> float | None:
        """Smallest value; None when there is none."""
        return self._min if self._total else None

    @property
    def max(self) -> float | None:
        """Largest value; None when there is none."""
        return self._max if self._total else None

    @property
    def buckets(self) -> int:
        """How many buckets are in use."""
        return len(self._buckets)

    def add(self, value: float) -> bool:
        """Counts a value. False, and nothing changed, when it is negative, NaN or infinite."""
        if not 0.0 <= value <= 1.7e308:
            return False
        if value <= _LEAST:
            self._zeros += 1
        else:
            index = HIGHEST if value >= _MOST else _ceil(_log(value) * _PER_LOG)
            buckets = self._buckets
            buckets[index] = buckets.get(index, 0) + 1
        self._total += 1
        self._sum += value
        if value < self._min:
            self._min = value
        if value > self._max:
            self._max = value
        return True

    def merge(self, other: Sketch) -> None:
        """Adds everything that `other` holds."""
        if not other._total:
            return
        buckets = self._buckets
        for index, count in other._buckets.items():
            buckets[index] = buckets.get(index, 0) + count
        self._zeros += other._zeros
        self._total += other._total
        self._sum += other._sum
        if other._min < self._min:
            self._min = other._min
        if other._max > self._max:
            self._max = other._max

    def quantile(self, q: float) -> float | None:
        """Value below which a share `q` (0..1) of the values lies, within 1 %; None when there is none."""
        if not self._total:
            return None
        if q <= 0.0:
            return self._min
        if q >= 1.0:
            return self._max
        rank = q * (self._total - 1)
        seen = self._zeros
        if rank < seen:
            return max(0.0, self._min)
        for index in sorted(self._buckets):
            seen += self._buckets[index]
            if rank < seen:
                middle = 2.0 * GROWTH**index / (1.0 + GROWTH)
                return min(max(middle, self._min), self._max)
        return self._max

    def share_le(self, bound: float) -> float | None:
        """Share (0..1) of the values that are at most `bound`; within a bucket they are taken as evenly spread
        over its logarithm. None when there is none."""
        if not self._total:
            return None
        if bound >= self._max:
            return 1.0
        if not bound >= self._min:  # also NaN
            return 0.0
        seen = float(self._zeros)
        if bound > _LEAST:
            position = _log(bound) * _PER_LOG
            edge = _ceil(position)
            for index, count in self._buckets.items():
                if index < edge:
                    seen += count
                elif index == edge:
                    seen += count * (position - (edge - 1))
        return min(1.0, seen / self._total)

    def to_proto(self, into: fleet_pb2.Sketch) -> None:
        """Writes the sketch into an empty message, buckets in ascending order."""
        if not self._total:
            return
        order = sorted(self._buckets)
        into.index.extend(order)
        into.count.extend([self._buckets[index] for index in order])
        into.zeros = self._zeros
        into.sum = self._sum
        into.min = self._min
        into.max = self._max

    def merge_proto(self, message: fleet_pb2.Sketch) -> bool:
        """Adds what a message holds. False, and nothing changed, when it contradicts itself (different lengths,
        buckets out of range, counts beyond reason, numbers that are not finite)."""
        indices = list(message.index)
        counts = list(message.count)
        total = zeros = message.zeros
        if len(indices) != len(counts) or len(indices) > HIGHEST - LOWEST + 1:
            return False
        least, most, added = message.min, message.max, message.sum
        if not (0.0 <= least <= most <= 1.7e308 and 0.0 <= added <= 1.7e308):
            return False
        if indices:
            if min(indices) < LOWEST or max(indices) > HIGHEST or min(counts) <= 0:
                return False
            total += sum(counts)
        if total > _COUNT_LIMIT:
            return False
        if not total:
            return True
        buckets = self._buckets
        for index, count in zip(indices, counts, strict=True):
            buckets[index] = buckets.get(index, 0) + count
        self._zeros += zeros
        self._total += total
        self._sum += added
        if least < self._min:
            self._min = least
        if most > self._max:
            self._max = most
        return True

    @classmethod
    def from_proto(cls, message: fleet_pb2.Sketch) -> Sketch:
        """The sketch in a message; empty when the message contradicts itself."""
        sketch = cls()
        sketch.merge_proto(message)
        return sketch

    @classmethod
    def of(cls, values: Iterable[float]) -> Sketch:
        """A sketch of the given values."""
        sketch = cls()
        for value in values:
            sketch.add(value)
        return sketch

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sketch):
            return NotImplemented
        return self._buckets == other._buckets and self._zeros == other._zeros and self._total == other._total

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Sketch(count={self._total}, mean={self.mean}, p50={self.quantile(0.5)}, p99={self.quantile(0.99)})"
