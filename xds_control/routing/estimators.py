"""What speeds are estimated with: histograms, a regression, and prefill times by context. All decay and add up.

Pure arithmetic; `rates` says what is put in and why.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

_LOG_STEP = math.log(1.15)
PRIOR_WEIGHT = 2.0
"""Observations that the prior is worth."""
_LENGTHS = 7
"""Classes of context length, by octaves from 1,024 tokens."""
_ATTENTION = 3e-5
_ATTENTION_WEIGHT = 20.0 * 16_000.0**2
"""What a token of context adds to the prefill of a token: 2 to 5e-5 of it by the FLOPs of models of 8 to 70 billion
parameters. It is known well, and short prompts tell little of it: held as firmly as by 20 prompts of 16,000 tokens."""
_TOKEN_QUANTILE = 0.35


class Histogram:
    """Counts over logarithmic buckets: bucket i ends at `low` · 1.15^i."""

    __slots__ = ("counts", "low")
    BUCKETS = 96

    def __init__(self, low: float) -> None:
        self.low = low
        self.counts = [0.0] * self.BUCKETS

    @property
    def total(self) -> float:
        """All that was counted and has not faded."""
        return sum(self.counts)

    def add(self, value: float, weight: float) -> None:
        """Counts a value > 0; what is off the scale counts at its end."""
        place = int(math.log(value / self.low) / _LOG_STEP) + 1 if value > self.low else 0
        self.counts[min(place, self.BUCKETS - 1)] += weight

    def quantile(self, q: float, prior: float, weight: float) -> float:
        """The q-quantile, with a prior value that counts `weight`."""
        counts = list(self.counts)
        if weight > 0.0:
            place = int(math.log(prior / self.low) / _LOG_STEP) + 1 if prior > self.low else 0
            counts[min(place, self.BUCKETS - 1)] += weight
        rank = q * sum(counts)
        seen = 0.0
        for index, count in enumerate(counts):
            if count > 0.0 and seen + count >= rank:
                inside = (rank - seen) / count
                return self.low * math.exp(_LOG_STEP * (index - 1 + inside))
            seen += count
        return prior

    def decay(self, factor: float) -> None:
        """Makes everything seen so far count less."""
        self.counts = [count * factor for count in self.counts]

    def merge(self, counts: Sequence[float]) -> None:
        """Adds another's counts."""
        self.counts = [a + max(0.0, b) for a, b in zip(self.counts, counts, strict=True)]


class Fit:
    """Weighted least squares as sums: weights, normal matrix, right-hand side. Relative errors count, not absolute."""

    __slots__ = ("_scale", "count", "matrix", "right", "size")

    def __init__(self, scale: Sequence[float]) -> None:
        self.size = len(scale)
        self._scale = tuple(scale)
        self.matrix = [0.0] * (self.size * self.size)
        self.right = [0.0] * self.size
        self.count = 0.0

    def add(self, features: Sequence[float], value: float, trust: float = 1.0) -> None:
        """One observation of `value` > 0. trust: how much it counts."""
        weight = trust / (value * value)
        size = self.size
        row = [feature / scale for feature, scale in zip(features, self._scale, strict=True)]
        matrix, right = self.matrix, self.right
        for i in range(size):
            part = row[i] * weight
            right[i] += part * value
            base = i * size
            for j in range(size):
                matrix[base + j] += part * row[j]
        self.count += trust

    def decay(self, factor: float) -> None:
        """Makes everything seen so far count less."""
        self.matrix = [value * factor for value in self.matrix]
        self.right = [value * factor for value in self.right]
        self.count *= factor

    def solve(self, prior: Sequence[float]) -> list[float]:
        """Coefficients ≥ 0, by coordinate descent on the normal equations with the prior as extra observations."""
        size = self.size
        guess = [p * s for p, s in zip(prior, self._scale, strict=True)]
        matrix, right = list(self.matrix), list(self.right)
        typical = sum(guess) or 1e-9
        for i in range(size):
            # The prior pulls each coefficient on its own, with the weight of a few observations.
            seen = matrix[i * size + i]
            pull = PRIOR_WEIGHT * seen / self.count if seen > 0.0 and self.count > 0.0 else 1.0
            matrix[i * size + i] += pull
            right[i] += pull * guess[i]
        solution = list(guess)
        for _ in range(200):
            moved = 0.0
            for i in range(size):
                base = i * size
                rest = right[i] - sum(matrix[base + j] * solution[j] for j in range(size) if j != i)
                value = max(0.0, rest / matrix[base + i])
                moved = max(moved, abs(value - solution[i]))
                solution[i] = value
            if moved < 1e-9 * typical:
                break
        return [value / scale for value, scale in zip(solution, self._scale, strict=True)]

    def merge(self, other: Fit) -> None:
        """Adds another's observations."""
        self.matrix = [a + b for a, b in zip(self.matrix, other.matrix, strict=True)]
        self.right = [a + b for a, b in zip(self.right, other.right, strict=True)]
        self.count += other.count

    def to_list(self) -> list[float]:
        """All sums, flat."""
        return [self.count, *self.matrix, *self.right]

    def load(self, values: Sequence[float]) -> None:
        """Takes what `to_list` gave."""
        size = self.size
        self.count = values[0]
        self.matrix = list(values[1 : 1 + size * size])
        self.right = list(values[1 + size * size : 1 + size * size + size])


class PrefillTimes:
    """Times per uncached token by the context in which they were read, and the line through their low quantiles."""

    __slots__ = ("_contexts", "_times")

    def __init__(self) -> None:
        self._times = [Histogram(1e-7) for _ in range(_LENGTHS)]
        self._contexts = [0.0] * _LENGTHS

    def add(self, seconds: float, context: float, weight: float) -> None:
        """One prompt's seconds per uncached token. context: mean number of tokens before each of them."""
        place = min(_LENGTHS - 1, max(0, int(context) // 1024).bit_length())
        self._times[place].add(seconds, weight)
        self._contexts[place] += weight * context

    def decay(self, factor: float) -> None:
        """Makes everything seen so far count less."""
        for times in self._times:
            times.decay(factor)
        self._contexts = [value * factor for value in self._contexts]

    def solve(self, prior: float) -> tuple[float, float]:
        """Seconds per token without context, and the share of it that each token of context adds."""
        # Normal equations of seconds = a + b · context, relative errors; the prior counts as observations of each.
        total = aa = ab = bb = ay = by = 0.0
        for times, contexts in zip(self._times, self._contexts, strict=True):
            weight = times.total
            if weight <= 1e-6:
                continue
            seconds = times.quantile(_TOKEN_QUANTILE, prior, 0.0)
            context = contexts / weight
            total += weight
            weight /= seconds * seconds
            aa += weight
            ab += weight * context
            bb += weight * context * context
            ay += weight * seconds
            by += weight * context * seconds
        pull = PRIOR_WEIGHT * (aa / total if total > 0.0 else 1.0 / (prior * prior))
        aa += pull
        ay += pull * prior
        # The prior of attention is a share of the level, so it joins once there is one.
        level = ay / aa
        for _ in range(3):
            pull = _ATTENTION_WEIGHT / level**2
            held_bb, held_by = bb + pull, by + pull * _ATTENTION * level
            slope = max(0.0, (held_by * aa - ay * ab) / (held_bb * aa - ab * ab))
            level = max((ay - ab * slope) / aa, 0.2 * ay / aa)
        return level, slope / level

    def sparse(self) -> list[tuple[int, float]]:
        """What is not zero, by place; the contexts come first."""
        flat = [*self._contexts, *(count for times in self._times for count in times.counts)]
        return [(place, value) for place, value in enumerate(flat) if value != 0.0]

    def merge(self, values: Iterable[tuple[int, float]]) -> None:
        """Adds what another's `sparse` gave."""
        for place, value in values:
            if place < _LENGTHS:
                self._contexts[place] += max(0.0, value)
            else:
                number, bucket = divmod(place - _LENGTHS, Histogram.BUCKETS)
                if number < _LENGTHS:
                    self._times[number].counts[bucket] += max(0.0, value)
