"""How an engine's page is described: a table of rules from metric families to catalogue signals."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from xds_control.fleet.readings import ModelInfo
from xds_control.signals.exposition import Kind, Part, Selector, Series

Combine = Literal["sum", "max", "mean", "min"]
NOTHING: Mapping[str, tuple[str, ...]] = {}


@dataclass(frozen=True, slots=True)
class Term:
    """Some series of one family.

    families: names in order of preference (normalised, with prefix); the first that has fitting series is used.
    where: label → values of which it must have one; "" also fits an absent label. unless: label → values it
    must not have. scale and offset bring the metric's unit to the catalogue's. part: of a histogram, its
    `sum` or `count`.
    """

    families: tuple[str, ...]
    where: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unless: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    scale: float = 1.0
    offset: float = 0.0
    part: Part = "value"

    def fits(self, series: Series) -> bool:
        """Whether a series of one of the families belongs to the term."""
        if series.part != self.part:
            return False
        labels = series.labels
        for label, allowed in self.where.items():
            if labels.get(label, "") not in allowed:
                return False
        return all(labels.get(label, "") not in refused for label, refused in self.unless.items())


@dataclass(frozen=True, slots=True)
class Gauge:
    """A signal that stands on the page. plus: further terms that are added when they are there."""

    signal: str
    term: Term
    combine: Combine = "sum"
    plus: tuple[Term, ...] = ()


@dataclass(frozen=True, slots=True)
class Quotient:
    """A signal that is one gauge over another, series by series (`match` = labels that pair them), then combined."""

    signal: str
    over: Term
    under: Term
    combine: Combine = "max"
    match: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Difference:
    """A signal that is one gauge minus another, series by series, then combined."""

    signal: str
    whole: Term
    less: Term
    combine: Combine = "min"
    match: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Rate:
    """A signal that is the growth of counters per second. minus: counters that are subtracted."""

    signal: str
    terms: tuple[Term, ...]
    minus: tuple[Term, ...] = ()


@dataclass(frozen=True, slots=True)
class Ratio:
    """A signal that is growth over growth in a window: a hit ratio, a mean duration.

    The first numerator and the first denominator must be there; the others are added when they are.
    """

    signal: str
    over: tuple[Term, ...]
    under: tuple[Term, ...]


@dataclass(frozen=True, slots=True)
class SumOfRatios:
    """A signal that is the sum of several means, for engines that only publish the parts."""

    signal: str
    parts: tuple[Ratio, ...]


@dataclass(frozen=True, slots=True)
class Latency:
    """A histogram of durations: its mean becomes `signal`, its share within the target `attainment`."""

    signal: str
    families: tuple[str, ...]
    attainment: str | None = None
    scale: float = 1.0


Rule = Gauge | Quotient | Difference | Rate | Ratio | SumOfRatios | Latency


@dataclass(frozen=True, slots=True)
class ConfigLabel:
    """A number that stands in a label of an info family; over several series it is summed or the largest is taken."""

    signal: str
    family: str
    label: str
    combine: Literal["sum", "max"] = "max"


@dataclass(frozen=True, slots=True)
class LoraLabels:
    """Adapters named in labels. Old label sets stay on the page: the one with the latest time as value is valid."""

    family: str
    running: str = "running_lora_adapters"
    waiting: str = "waiting_lora_adapters"
    maximum: str = "max_lora"


@dataclass(frozen=True, slots=True)
class ExtraResult:
    """What a page other than the metrics page says."""

    values: Mapping[str, float] = field(default_factory=dict)
    info: ModelInfo | None = None


@dataclass(frozen=True, slots=True)
class Extra:
    """Another page of the engine's API. read raises ValueError when the body is not what it should be.

    every: "scrape" fetches it with each metrics page, otherwise it is an interval in seconds.
    """

    name: str
    path: str
    read: Callable[[bytes], ExtraResult]
    every: float | Literal["scrape"]


@dataclass(frozen=True)
class Adapter:
    """Everything about one engine's page.

    rules: for one signal the first rule whose families are on the page decides.
    same: labels whose series repeat one value (tensor-parallel ranks). path: where the page usually is.
    main: for engines whose page is not exposition text, what reads it.
    """

    name: str
    rules: tuple[Rule, ...] = ()
    config: tuple[ConfigLabel, ...] = ()
    lora: LoraLabels | None = None
    model_labels: tuple[str, ...] = ("model_name",)
    model_families: tuple[str, ...] = ()
    started: tuple[str, ...] = ("process_start_time_seconds",)
    same: tuple[str, ...] = ()
    path: str = "/metrics"
    extras: tuple[Extra, ...] = ()
    main: Callable[[bytes], ExtraResult] | None = None

    @cached_property
    def selector(self) -> Selector:
        """The reader of these families, shared by all endpoints of the engine."""
        return Selector(self.families, self.same)

    @cached_property
    def families(self) -> dict[str, Kind]:
        """Every family that a rule names, and how it is read."""
        found: dict[str, Kind] = {}
        for rule in self.rules:
            if isinstance(rule, Latency):
                for family in rule.families:
                    found[family] = "histogram"
            else:
                for term in terms_of(rule):
                    for family in term.families:
                        if term.part != "value":
                            found[family] = "histogram"
                        else:
                            found.setdefault(family, "value")
        for config in self.config:
            found.setdefault(config.family, "value")
        for family in (*self.model_families, *self.started, *((self.lora.family,) if self.lora else ())):
            found.setdefault(family, "value")
        return found


def terms_of(rule: Rule) -> tuple[Term, ...]:
    """All terms of a rule."""
    match rule:
        case Gauge():
            return (rule.term, *rule.plus)
        case Quotient():
            return (rule.over, rule.under)
        case Difference():
            return (rule.whole, rule.less)
        case Rate():
            return (*rule.terms, *rule.minus)
        case Ratio():
            return (*rule.over, *rule.under)
        case SumOfRatios():
            return tuple(term for part in rule.parts for term in (*part.over, *part.under))
        case Latency():
            return ()
