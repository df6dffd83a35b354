"""Any other engine: the policy says which metric is which signal."""

from __future__ import annotations

import difflib

from xds_control.policy.signals import GenericMapping, MetricMapping, SignalsPolicy
from xds_control.signals.adapter import Adapter, Gauge, Latency, Rate, Ratio, Rule, Term
from xds_control.signals.catalogue import ENGINE, NOT_ENGINE, spec_of, unknown_names
from xds_control.signals.engines import ADAPTERS, ALIASES
from xds_control.signals.exposition import normalise

RESERVED = frozenset({"auto", "generic", *ADAPTERS, *ALIASES})
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


def problems(policy: SignalsPolicy) -> list[tuple[tuple[str | int, ...], str]]:
    """(YAML path below `signals`, sentence) for each name in the policy that does not exist."""
    found: list[tuple[tuple[str | int, ...], str]] = [
        (("age_limits_s", name), f"there is no signal {name!r}") for name in unknown_names(policy.age_limits_s)
    ]
    for engine, mapping in policy.engines.items():
        if engine in RESERVED:
            found.append(
                (("engines", engine), f"{engine!r} is an engine with an adapter of its own: choose another name")
            )
        for index, one in enumerate(mapping.signals):
            if spec_of(one.signal) is None:
                found.append((("engines", engine, "signals", index, "signal"), f"there is no signal {one.signal!r}"))
    for index, kind in enumerate(policy.ignore_sources):
        if kind != ENGINE and kind not in NOT_ENGINE:
            kinds = ", ".join(sorted({ENGINE, *NOT_ENGINE}))
            found.append((("ignore_sources", index), f"there is no kind of source {kind!r}; there are {kinds}"))
    return found


def unknown_engine(policy: SignalsPolicy, engine: str) -> str:
    """Why no metrics page can be read by this engine name; empty when one can."""
    known = {"auto", *ADAPTERS, *ALIASES, *policy.engines}
    if engine in known:
        return ""
    if engine == "generic":
        return "describe the engine's metrics in signals.engines.NAME, and write that NAME here"
    near = difflib.get_close_matches(engine, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are auto, {', '.join(sorted(known - {'auto', *ALIASES}))}"
    return f"there is no engine {engine!r}; {hint}"


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
