"""Any other engine: the policy says which metric is which signal."""

from __future__ import annotations

from xds_control.policy.signals import GenericMapping, MetricMapping
from xds_control.signals.adapter import Adapter, Gauge, Latency, Rate, Ratio, Rule, Term
from xds_control.signals.exposition import normalise

_ATTAINMENT = {"ttft": "ttft_attainment", "tpot": "tpot_attainment"}


def generic_adapter(name: str, mapping: GenericMapping) -> Adapter:
    """The adapter that a mapping describes."""
    return Adapter(
        name,
        tuple(_rule(one) for one in mapping.signals),
        model_labels=tuple(mapping.model_labels),
        model_families=tuple(normalise(one.metric) for one in mapping.signals if one.kind == "gauge"),
        same=tuple(mapping.repeated_labels),
        path=mapping.path,
    )


def _rule(one: MetricMapping) -> Rule:
    term = Term(
        (normalise(one.metric),),
        where={label: tuple(values) for label, values in one.labels.items()},
        scale=one.scale,
        offset=one.offset,
    )
    match one.kind:
        case "gauge":
            return Gauge(one.signal, term, one.combine)
        case "counter":
            return Rate(one.signal, (term,))
        case "ratio":
            under = Term((normalise(one.over),), where={k: tuple(v) for k, v in one.over_labels.items()})
            return Ratio(one.signal, (term,), (under,))
        case "histogram":
            return Latency(one.signal, (normalise(one.metric),), _ATTAINMENT.get(one.signal), one.scale)
