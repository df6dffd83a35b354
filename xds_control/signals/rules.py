"""The rules of an adapter's table at work: each keeps what it needs of earlier pages and fills in its signal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from xds_control.signals.adapter import (
    Combine,
    Difference,
    Gauge,
    Latency,
    Quotient,
    Rate,
    Ratio,
    Rule,
    SumOfRatios,
    Term,
)
from xds_control.signals.exposition import Page, Series
from xds_control.signals.windows import Change, HistogramTrack, Tally, Window, quantile, share_within

Unusable = Literal["missing", "spoiled"]
Rows = Mapping[Any, float]


class Context:
    """One page while the rules read it. vanished: families of which series are missing without explanation."""

    __slots__ = ("_ranks", "_rows", "_spoiled", "_vanished", "at", "resets")

    def __init__(self, page: Page, at: float, ranks: bool, vanished: set[str]) -> None:
        self._rows = page.rows
        self._spoiled = page.spoiled
        self._ranks = ranks
        self._vanished = vanished
        self.at = at
        self.resets = 0

    def series(self, term: Term) -> Mapping[Series, float] | Unusable:
        """The term's series, ranks and all; "missing" when no family has any, "spoiled" when one is unusable."""
        everything = not term.where and not term.unless and term.part == "value"
        for family in term.families:
            if family in self._vanished:
                return "spoiled"
            bad = self._spoiled.get(family)
            if bad is not None and any(term.fits(series) for series in bad):
                return "spoiled"
            rows = self._rows.get(family)
            if rows is None:
                continue
            if everything and next(iter(rows)).part == "value":
                return rows
            fitting = {series: value for series, value in rows.items() if term.fits(series)}
            if fitting:
                return fitting
        return "missing"

    def rows(self, term: Term) -> Rows | Unusable:
        """The term's series; of ranks that repeat one value only one is left."""
        found = self.series(term)
        if isinstance(found, str) or not self._ranks:
            return found
        return _one_of_each(found)

    def histogram(self, families: tuple[str, ...]) -> tuple[str, Rows, Mapping[Any, Series] | None] | Unusable:
        """The first of the families that is on the page, its series, and which series stands for each group."""
        for family in families:
            if family in self._vanished or family in self._spoiled:
                return "spoiled"
            rows = self._rows.get(family)
            if rows is None:
                continue
            if not self._ranks:
                return family, rows, None
            return family, _one_of_each(rows), {series.group: series for series in rows}
        return "missing"


def _one_of_each(rows: Mapping[Series, float]) -> Rows:
    """One value for each group of ranks. The furthest one: ranks are written one after the other."""
    kept: dict[object, float] = {}
    for series, value in rows.items():
        group = series.group
        before = kept.get(group)
        if before is None or value > before:
            kept[group] = value
    return kept


def _combine(how: Combine, values: list[float]) -> float:
    match how:
        case "sum":
            return sum(values)
        case "max":
            return max(values)
        case "min":
            return min(values)
        case "mean":
            return sum(values) / len(values)


class RuleState:
    """One rule of one endpoint."""

    def __init__(self, signal: str) -> None:
        self.signal = signal

    def evaluate(self, page: Context, values: dict[str, float]) -> bool:
        """Sets the signal if it has a value now. True when the page has the rule's families: no other rule is asked."""
        raise NotImplementedError

    def forget(self) -> None:
        """The process is another one now: earlier pages say nothing."""


class _Gauge(RuleState):
    def __init__(self, rule: Gauge, combine: Combine) -> None:
        super().__init__(rule.signal)
        self._rule = rule
        self._how = combine

    def evaluate(self, page: Context, values: dict[str, float]) -> bool:
        rule = self._rule
        rows = page.rows(rule.term)
        if rows == "missing":
            return False
        if isinstance(rows, str):
            return True
        total = _combine(self._how, _scaled(rows, rule.term))
        for term in rule.plus:
            more = page.rows(term)
            if more == "missing":
                continue
            if isinstance(more, str):
                return True
            total += _combine(self._how, _scaled(more, term))
        values[self.signal] = total
        return True


def _scaled(rows: Rows, term: Term) -> list[float]:
    if term.scale == 1.0 and term.offset == 0.0:
        return list(rows.values())
    return [value * term.scale + term.offset for value in rows.values()]


class _Pairs(RuleState):
    """Quotient and difference: two terms, paired by labels."""

    def __init__(self, rule: Quotient | Difference, combine: Combine) -> None:
        super().__init__(rule.signal)
        self._rule = rule
        self._terms = (rule.over, rule.under) if isinstance(rule, Quotient) else (rule.whole, rule.less)
        self._how = combine

    def evaluate(self, page: Context, values: dict[str, float]) -> bool:
        first, second = page.series(self._terms[0]), page.series(self._terms[1])
        if first == "missing" or second == "missing":
            return False
        if isinstance(first, str) or isinstance(second, str):
            return True
        left, right = self._paired(first, self._terms[0]), self._paired(second, self._terms[1])
        found: list[float] = []
        for key, value in left.items():
            other = right.get(key)
            if other is None:
                continue
            if isinstance(self._rule, Difference):
                found.append(value - other)
            elif other > 0:
                found.append(value / other)
        if found:
            values[self.signal] = _combine(self._how, found)
        return True

    def _paired(self, rows: Mapping[Series, float], term: Term) -> dict[tuple[str, ...], float]:
        paired: dict[tuple[str, ...], float] = {}
        for series, value in rows.items():
            key = tuple(series.labels.get(label, "") for label in self._rule.match)
            paired[key] = paired.get(key, 0.0) + value * term.scale + term.offset
        return paired


class _Counters:
    """Several counters side by side over one window."""

    def __init__(self, terms: tuple[Term, ...], span: float) -> None:
        self._terms = terms
        self._tallies = [Tally() for _ in terms]
        self._window = Window(span)

    def feed(self, page: Context, needed: tuple[int, ...]) -> tuple[float, list[float], list[bool]] | Unusable | None:
        """Seconds, scaled increases and which terms moved on this page; None while there is nothing to compare with."""
        found = [page.rows(term) for term in self._terms]
        if any(found[index] == "missing" for index in needed):
            return "missing"
        if "spoiled" in found:
            return "spoiled"
        moved = []
        for tally, rows in zip(self._tallies, found, strict=True):
            change = Change.SAME if isinstance(rows, str) else tally.feed(rows)
            if change is Change.RESET:
                page.resets += 1
                self._window.clear()
            moved.append(change is Change.MOVED)
        seen = self._window.feed(page.at, tuple(tally.total for tally in self._tallies))
        if seen is None:
            return None
        span, increases = seen
        return span, [grown * term.scale for grown, term in zip(increases, self._terms, strict=True)], moved

    def forget(self) -> None:
        for tally in self._tallies:
            tally.forget()
        self._window.clear()


class _Rate(RuleState):
    def __init__(self, rule: Rate, span: float) -> None:
        super().__init__(rule.signal)
        self._plus = len(rule.terms)
        self._counters = _Counters((*rule.terms, *rule.minus), span)

    def evaluate(self, page: Context, values: dict[str, float]) -> bool:
        found = self._counters.feed(page, (0,))
        if found == "missing":
            return False
        if found is None or isinstance(found, str):
            return True
        span, grown, _ = found
        values[self.signal] = max(0.0, sum(grown[: self._plus]) - sum(grown[self._plus :])) / span
        return True

    def forget(self) -> None:
        self._counters.forget()


class _Ratio(RuleState):
    def __init__(self, rule: Ratio, span: float) -> None:
        super().__init__(rule.signal)
        self._over = len(rule.over)
        self._counters = _Counters((*rule.over, *rule.under), span)
        self.value: float | None = None

    def evaluate(self, page: Context, values: dict[str, float]) -> bool:
        found = self._counters.feed(page, (0, self._over))
        if found == "missing":
            return False
        if found is None or isinstance(found, str):
            self.value = None
            return True
        _, grown, moved = found
        under = sum(grown[self._over :])
        self.value = sum(grown[: self._over]) / under if under > 0 else None
        # Without new observations the last value stays as it is and grows old.
        if self.value is not None and any(moved[self._over :]):
            values[self.signal] = self.value
        return True

    def forget(self) -> None:
        self._counters.forget()
        self.value = None


class _SumOfRatios(RuleState):
    def __init__(self, rule: SumOfRatios, span: float) -> None:
        super().__init__(rule.signal)
        self._parts = [_Ratio(part, span) for part in rule.parts]

    def evaluate(self, page: Context, values: dict[str, float]) -> bool:
        fresh: dict[str, float] = {}
        present = [part.evaluate(page, fresh) for part in self._parts]
        if not all(present):
            return False
        known = [part.value for part in self._parts if part.value is not None]
        if fresh and len(known) == len(self._parts):
            values[self.signal] = sum(known)
        return True

    def forget(self) -> None:
        for part in self._parts:
            part.forget()


class _Latency(RuleState):
    def __init__(self, rule: Latency, span: float, target: float | None, min_observations: int) -> None:
        super().__init__(rule.signal)
        self._rule = rule
        self._span = span
        self._target = target
        self._min = min_observations
        self._family = ""
        self._track = HistogramTrack(span)

    def evaluate(self, page: Context, values: dict[str, float]) -> bool:
        found = page.histogram(self._rule.families)
        if found == "missing":
            return False
        if isinstance(found, str):
            return True
        family, rows, series = found
        if family != self._family:
            self._family = family
            self._track = HistogramTrack(self._span)
        delta = self._track.feed(rows, series, page.at)
        if self._track.change is Change.RESET:
            page.resets += 1
        if delta is None or self._track.change is not Change.MOVED or delta.observations <= 0:
            return True
        scale = self._rule.scale
        if delta.total is not None:
            values[self.signal] = delta.total / delta.observations * scale
        else:
            median = quantile(delta.bounds, delta.counts, delta.observations, 0.5)
            if median is not None:
                values[self.signal] = median * scale
        if self._rule.attainment is not None and self._target is not None and delta.observations >= self._min:
            share = share_within(delta.bounds, delta.counts, delta.observations, self._target / scale)
            if share is not None and delta.bounds:
                values[self._rule.attainment] = share.estimate
        return True

    def forget(self) -> None:
        self._track.forget()


def compile_rule(
    rule: Rule, *, window_s: float, target: float | None, kv_combine: Combine, min_observations: int
) -> RuleState:
    """The working form of a rule for one endpoint."""
    match rule:
        case Gauge():
            return _Gauge(rule, kv_combine if rule.signal == "kv_usage" else rule.combine)
        case Quotient() | Difference():
            return _Pairs(rule, kv_combine if rule.signal == "kv_usage" else rule.combine)
        case Rate():
            return _Rate(rule, window_s)
        case Ratio():
            return _Ratio(rule, window_s)
        case SumOfRatios():
            return _SumOfRatios(rule, window_s)
        case Latency():
            return _Latency(rule, window_s, target, min_observations)
