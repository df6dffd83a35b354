"""From cumulative counts to what happened lately: rates, ratios and shares of observations over a window.

Everything is per endpoint and pure. A counter that went back, or a process that started anew, ends the
window: the value is absent until enough has been seen again.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from xds_control.signals.exposition import Series

CHECKPOINTS = 8
"""Cumulative counts are kept at so many moments of a window; a window is right to one part in so many."""


class Change(enum.Enum):
    """What a page meant for a set of counters."""

    FIRST = "first"
    SAME = "same"
    MOVED = "moved"
    RESET = "reset"


class Tally:
    """Sums the increases of a set of counter series. `total` only grows, until a reset sets it to 0."""

    __slots__ = ("_last", "total")

    def __init__(self) -> None:
        self._last: Mapping[object, float] | None = None
        self.total = 0.0

    def feed(self, rows: Mapping[object, float]) -> Change:
        """Takes the series of one page. A series that is new counts from its present value on."""
        last = self._last
        self._last = rows
        if last is None:
            return Change.FIRST
        if rows == last:
            return Change.SAME
        increase = 0.0
        for key, value in rows.items():
            before = last.get(key)
            if before is None:
                continue
            if value < before:
                self.total = 0.0
                return Change.RESET
            increase += value - before
        self.total += increase
        return Change.MOVED if increase else Change.SAME

    def forget(self) -> None:
        """Starts over with the next page."""
        self._last = None
        self.total = 0.0


class Moment(NamedTuple):
    """Cumulative counts at one time."""

    at: float
    counts: tuple[float, ...]


class Window:
    """Remembers cumulative counts at a few moments and tells their increase over about the last `span` seconds."""

    __slots__ = ("_moments", "span")

    def __init__(self, span: float) -> None:
        self.span = span
        self._moments: deque[Moment] = deque(maxlen=CHECKPOINTS + 3)

    def feed(self, at: float, counts: tuple[float, ...]) -> tuple[float, tuple[float, ...]] | None:
        """Seconds and increases since the start of the window; None on the first page, after a gap or a clock jump."""
        moments = self._moments
        if moments and not 0 < at - moments[-1].at <= 3 * self.span:
            moments.clear()
        if not moments:
            moments.append(Moment(at, counts))
            return None
        while len(moments) > 1 and moments[1].at <= at - self.span:
            moments.popleft()
        base = moments[0]
        if at - moments[-1].at >= self.span / CHECKPOINTS:
            moments.append(Moment(at, counts))
        return at - base.at, tuple(now - then for now, then in zip(counts, base.counts, strict=True))

    def clear(self) -> None:
        """Forgets everything."""
        self._moments.clear()


class Share(NamedTuple):
    """The share of observations at or under a bound: best estimate, and what it is at least and at most."""

    estimate: float
    low: float
    high: float
    observations: float


def share_within(bounds: Sequence[float], counts: Sequence[float], total: float, target: float) -> Share | None:
    """Share of a histogram's observations that are ≤ target.

    bounds: finite upper bounds in rising order; counts: cumulative counts at them; total: all observations.
    Inside a bucket observations are taken to lie evenly. Over the last finite bound nothing is known but
    the range, and the lower end is the estimate. None without observations.
    """
    if total <= 0:
        return None
    under, lower = 0.0, 0.0
    highest = 0.0
    for bound, raw in zip(bounds, counts, strict=True):
        # Bucket counters are read one after the other while the engine goes on: never let one fall below its left.
        count = highest = min(total, max(highest, raw))
        if target < bound:
            width = bound - lower
            part = (target - lower) / width if width > 0 and target > lower else 0.0
            return Share((under + part * (count - under)) / total, under / total, count / total, total)
        under, lower = count, bound
        if target == bound:
            return Share(under / total, under / total, under / total, total)
    return Share(under / total, under / total, 1.0, total)


def quantile(bounds: Sequence[float], counts: Sequence[float], total: float, q: float) -> float | None:
    """The q-quantile (0..1) by linear interpolation, cut at the last finite bound. None without observations."""
    if total <= 0 or not bounds:
        return None
    rank = q * total
    under, lower, highest = 0.0, 0.0, 0.0
    for bound, raw in zip(bounds, counts, strict=True):
        count = highest = max(highest, raw)
        if count >= rank:
            inside = count - under
            return bound if inside <= 0 else lower + (bound - lower) * (rank - under) / inside
        under, lower = count, bound
    return bounds[-1]


class HistogramDelta(NamedTuple):
    """A histogram's increase over the window. `total` seconds or units is None when the page has no `_sum`."""

    span: float
    bounds: tuple[float, ...]
    counts: tuple[float, ...]
    observations: float
    total: float | None


class HistogramTrack:
    """The increase of a histogram over a window, summed over its series (ranks, models, streaming or not).

    `change` says what the last page meant.
    """

    __slots__ = ("_counts", "_has_count", "_has_sum", "_keys", "_last", "_layout", "_window", "change")

    def __init__(self, span: float) -> None:
        self._window = Window(span)
        self._last: Mapping[object, float] | None = None
        self._keys: dict[object, int] = {}
        self._layout: tuple[float, ...] = ()
        self._counts: list[float] = []
        self._has_count = self._has_sum = False
        self.change = Change.FIRST

    def feed(self, rows: Mapping[Any, float], series: Mapping[Any, Series] | None, at: float) -> HistogramDelta | None:
        """Takes one page's series, None when there is no increase to tell of.

        rows has series as keys, or their groups, with `series` giving one series for each group.
        """
        last = self._last
        if last is None or len(rows) != len(last):
            self.change = Change.FIRST if last is None else Change.RESET
            self._begin(rows, series)
            self._window.feed(at, tuple(self._counts))
            return None
        moved = rows != last
        if moved:
            counts, keys = self._counts, self._keys
            for key, value in rows.items():
                before = last.get(key)
                if before is None or value < before:
                    self._begin(rows, series)
                    self._window.feed(at, tuple(self._counts))
                    self.change = Change.RESET
                    return None
                if value != before:
                    counts[keys[key]] += value - before
            self._last = rows
        self.change = Change.MOVED if moved else Change.SAME
        found = self._window.feed(at, tuple(self._counts))
        if found is None:
            return None
        span, increase = found
        bounds = self._layout
        n = len(bounds)
        top, count, total = increase[n], increase[n + 1], increase[n + 2]
        observations = count if self._has_count else top
        return HistogramDelta(span, bounds, increase[:n], observations, total if self._has_sum else None)

    def _begin(self, rows: Mapping[Any, float], groups: Mapping[Any, Series] | None) -> None:
        """Lays the series out: finite bounds in order, +Inf, count, sum; without bounds that only some groups have."""
        self._window.clear()
        seen: dict[float, int] = {}
        for key in rows:
            bound = (groups[key] if groups is not None else key).bound
            if bound is not None and bound != float("inf"):
                seen[bound] = seen.get(bound, 0) + 1
        most = max(seen.values(), default=0)
        layout = tuple(sorted(bound for bound, times in seen.items() if times == most))
        place = {bound: index for index, bound in enumerate(layout)}
        n = len(layout)
        spare = n + 3  # where bounds go that are left out
        self._keys = {}
        for key in rows:
            series: Series = groups[key] if groups is not None else key
            if series.part == "bucket":
                bound = series.bound
                self._keys[key] = n if bound == float("inf") else place.get(bound if bound is not None else -1.0, spare)
            else:
                self._keys[key] = n + 1 if series.part == "count" else n + 2
        self._has_count = n + 1 in self._keys.values()
        self._has_sum = n + 2 in self._keys.values()
        self._layout = layout
        self._counts = [0.0] * (n + 4)
        self._last = rows

    def forget(self) -> None:
        """Starts over with the next page."""
        self._last = None
        self._window.clear()
