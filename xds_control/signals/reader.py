"""Reads one endpoint's pages, one after the other, into signals. Pure: bytes and a time in, observations out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from xds_control.fleet.readings import ModelInfo
from xds_control.signals.adapter import Adapter, Combine, ExtraResult, Latency, Rate, Rule
from xds_control.signals.catalogue import CATALOGUE, admit
from xds_control.signals.engines import adapter_for, detect
from xds_control.signals.exposition import Page, Series, merge_counts
from xds_control.signals.facts import Facts
from xds_control.signals.rules import Context, RuleState, compile_rule


@dataclass(frozen=True, slots=True)
class SloTargets:
    """What the pool promises: seconds to the first token and per output token; None where nothing is promised."""

    ttft_s: float | None = None
    tpot_s: float | None = None


@dataclass(slots=True)
class Observations:
    """What one page said.

    at: when it was read (monotonic seconds). source: the adapter's name. values: signal → value in the
    catalogue's unit. info: what the engine serves, None when the page does not say. dropped: reason → how many
    values or pages were not used for it. recognised: whether the page is this engine's at all.
    """

    at: float
    source: str
    values: dict[str, float] = field(default_factory=dict)
    info: ModelInfo | None = None
    dropped: dict[str, int] = field(default_factory=dict)
    recognised: bool = False

    @property
    def restarted(self) -> bool:
        """Whether the page is another process's than the one before: what the old one said over windows is void."""
        return "restart" in self.dropped


class PageReader:
    """State of one endpoint between its pages: counters for rates, histograms for shares, restarts, missing series.

    adapter: an adapter, its name, or "auto" to recognise the engine on its first page.
    targets: against these the share of observations that met them is computed.
    window_s: over which ratios, means and shares are taken; rate_window_s: the same for rates.
    select: label → value; only series with these labels are this endpoint's (a page of many replicas or models).
    kv_combine: "max" or "mean" over ranks. min_observations: a share of fewer observations is not given.
    """

    def __init__(
        self,
        adapter: Adapter | str = "auto",
        *,
        targets: SloTargets | None = None,
        window_s: float = 30.0,
        rate_window_s: float = 10.0,
        select: Mapping[str, str] | None = None,
        kv_combine: Combine = "max",
        min_observations: int = 20,
    ) -> None:
        self._targets = targets or SloTargets()
        self._window = window_s
        self._rate_window = rate_window_s
        self._select = dict(select) if select else None
        self._kv_combine = kv_combine
        self._min_observations = min_observations
        self._rules: list[RuleState] = []
        self._facts: Facts | None = None
        self._sizes: dict[str, int] = {}
        self._missed: set[str] = set()
        self._last_at = -math.inf
        self._extra_info: dict[str, ModelInfo] = {}
        self.adapter: Adapter | None = None
        self.counts: dict[str, int] = {}
        if isinstance(adapter, Adapter):
            self._use(adapter)
        elif adapter != "auto":
            self._use(adapter_for(adapter))

    @property
    def source(self) -> str:
        """Under which name the values go: the adapter's, "auto" before one is recognised."""
        return self.adapter.name if self.adapter is not None else "auto"

    def feed(self, page: bytes, now: float) -> Observations:
        """Reads the metrics page as it was at `now` (monotonic seconds). Never raises: what is wrong is counted."""
        out = Observations(now, self.source)
        if self.adapter is None:
            name = detect(page)
            if name is None:
                return self._refuse(out, "unrecognised")
            self._use(adapter_for(name))
            out.source = name
        adapter = self.adapter
        assert adapter is not None
        if adapter.main is not None:
            return self._feed_main(adapter, page, now, out)
        if not page.endswith(b"\n"):
            # The format ends every line, the last one too: this page was cut, and what is missing cannot be known.
            return self._refuse(out, "partial" if page else "empty")
        read = adapter.selector.read(page)
        if self._select is not None:
            read = _selected(read, self._select)
        out.dropped = read.dropped
        if not read.rows and not read.spoiled:
            return self._refuse(out, "unrecognised")
        out.recognised = True
        if now <= self._last_at:
            merge_counts(out.dropped, {"clock": 1})
            self._restart()
        self._last_at = now
        vanished = self._vanished(read)
        if vanished:
            merge_counts(out.dropped, {"vanished": len(vanished)})
        assert self._facts is not None
        if self._facts.restarted(read):
            merge_counts(out.dropped, {"restart": 1})
            self._restart()
        context = Context(read, now, bool(adapter.same), vanished)
        decided: set[str] = set()
        for rule in self._rules:
            if rule.signal in decided:
                continue
            if rule.evaluate(context, out.values):
                decided.add(rule.signal)
        if context.resets:
            merge_counts(out.dropped, {"reset": context.resets})
        self._judge(out.values)
        out.info = self._facts.read(read, out.values, self._extra_info)
        self._admit(out)
        merge_counts(self.counts, out.dropped)
        return out

    def feed_extra(self, name: str, body: bytes, now: float) -> Observations:
        """Reads another page of the engine (`Extra.name`)."""
        out = Observations(now, self.source)
        extra = next((e for e in self.adapter.extras if e.name == name), None) if self.adapter is not None else None
        if extra is None:
            return self._refuse(out, "unknown_page")
        try:
            result = extra.read(body)
        except (ValueError, RecursionError):
            return self._refuse(out, "bad_" + name)
        return self._take(out, name, result)

    def _feed_main(self, adapter: Adapter, page: bytes, now: float, out: Observations) -> Observations:
        assert adapter.main is not None
        try:
            result = adapter.main(page)
        except (ValueError, RecursionError):
            return self._refuse(out, "unrecognised")
        if now <= self._last_at:
            merge_counts(out.dropped, {"clock": 1})
        self._last_at = now
        return self._take(out, "main", result)

    def _take(self, out: Observations, name: str, result: ExtraResult) -> Observations:
        out.recognised = True
        out.values = dict(result.values)
        if result.info is not None and self._facts is not None:
            self._extra_info[name] = result.info
            out.info = self._facts.merged(self._extra_info)
        self._admit(out)
        merge_counts(self.counts, out.dropped)
        return out

    def _use(self, adapter: Adapter) -> None:
        self.adapter = adapter
        self._facts = Facts(adapter)
        self._rules = [
            compile_rule(
                rule,
                window_s=self._rate_window if isinstance(rule, Rate) else self._window,
                target=self._target(rule),
                kv_combine=self._kv_combine,
                min_observations=self._min_observations,
            )
            for rule in adapter.rules
        ]

    def _target(self, rule: Rule) -> float | None:
        if isinstance(rule, Latency):
            if rule.attainment == "ttft_attainment":
                return self._targets.ttft_s
            if rule.attainment == "tpot_attainment":
                return self._targets.tpot_s
        return None

    def _judge(self, values: dict[str, float]) -> None:
        """An engine knows the shares that met each target, not those that met both: the smaller is an upper bound."""
        shares = [
            values[name]
            for name, target in (("ttft_attainment", self._targets.ttft_s), ("tpot_attainment", self._targets.tpot_s))
            if target is not None and name in values
        ]
        if shares:
            values["slo_attainment"] = min(shares)

    def _admit(self, out: Observations) -> None:
        for name, value in list(out.values.items()):
            spec = CATALOGUE.get(name)
            if spec is not None and spec.low <= value <= spec.high and value != math.inf:
                continue
            allowed = admit(name, value)
            if allowed is None:
                del out.values[name]
                merge_counts(out.dropped, {"out_of_range": 1})
            elif allowed != value:
                out.values[name] = allowed

    def _vanished(self, page: Page) -> set[str]:
        """Families that have fewer series than on the page before: believed only when the next page says so too."""
        gone: set[str] = set()
        sizes = {family: len(rows) for family, rows in page.rows.items()}
        for family, series in page.spoiled.items():
            sizes[family] = sizes.get(family, 0) + len(series)
        for family, size in self._sizes.items():
            if sizes.get(family, 0) < size and family not in self._missed:
                gone.add(family)
        self._missed = gone
        for family in gone:
            sizes[family] = self._sizes[family]
        self._sizes = sizes
        return gone

    def _restart(self) -> None:
        for rule in self._rules:
            rule.forget()

    def _refuse(self, out: Observations, reason: str) -> Observations:
        merge_counts(out.dropped, {reason: 1})
        merge_counts(self.counts, out.dropped)
        return out


def _selected(page: Page, select: Mapping[str, str]) -> Page:
    """The page with only those series that have the wanted labels, or none of these labels at all."""

    def mine(labels: Mapping[str, str]) -> bool:
        return all(labels.get(name, wanted) == wanted for name, wanted in select.items())

    rows = {
        family: kept
        for family, series in page.rows.items()
        if (kept := {one: value for one, value in series.items() if mine(one.labels)})
    }
    spoiled: dict[str, list[Series]] = {}
    for family, bad in page.spoiled.items():
        left = [one for one in bad if mine(one.labels)]
        if left:
            spoiled[family] = left
    return Page(rows, spoiled, page.dropped)
