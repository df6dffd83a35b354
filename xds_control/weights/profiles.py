"""Profiles: the named ways to answer signals, as water-filling, curves and a combiner; and what speaks against some."""

from __future__ import annotations

from dataclasses import dataclass

from xds_control.policy.weights import Combiner, Curve, WeightsPolicy
from xds_control.weights.spec import SPECS


@dataclass(frozen=True, slots=True)
class Form:
    """A profile, resolved. waterfill: whether queued work moves the weights."""

    waterfill: bool
    combiner: Combiner
    curves: tuple[Curve, ...]


# Full until half of the KV cache is used, then down: at 94 % an endpoint keeps 12 % of its weight.
KV_HEADROOM = Curve(signal="kv_usage", good=0.5, bad=1.0, floor=0.1)
SLO = Curve(signal="slo_attainment", good=1.0, bad=0.0, floor=0.5)


def form_of(policy: WeightsPolicy) -> Form:
    """The resolved form of a policy's profile."""
    fill = policy.waterfill.enabled
    match policy.profile:
        case "balanced":
            return Form(fill, "product", (SLO, KV_HEADROOM))
        case "memory":
            return Form(
                fill,
                "product",
                (
                    Curve(signal="kv_usage", good=0.0, bad=1.0, floor=0.05),
                    Curve(signal="gpu_mem_used_ratio", good=0.8, bad=1.0, floor=0.1, weight=0.5),
                ),
            )
        case "cache":
            return Form(fill, "product", (_hit_ratio(policy), KV_HEADROOM))
        case "slo":
            return Form(
                False,
                "product",
                (
                    Curve(signal="slo_attainment", good=1.0, bad=0.0, floor=0.1),
                    Curve(signal="decode_tps", shape="inverse", good=1.0, bad=0.0, relative=True, floor=0.1),
                ),
            )
        case "legacy-linear":
            return Form(
                False,
                "linear",
                (
                    Curve(signal="gpu_util", good=0.0, bad=1.0, floor=0.0, weight=0.4),
                    Curve(signal="occupancy", good=0.0, bad=1.0, floor=0.0, weight=0.3),
                    Curve(signal="ttft", shape="inverse", good=0.0, bad=1.0, relative=True, floor=0.0, weight=0.3),
                ),
            )
        case _:
            return Form(fill, policy.combiner, tuple(c for c in policy.curves if c.weight > 0.0))


def _hit_ratio(policy: WeightsPolicy) -> Curve:
    if policy.cache_form == "effective-capacity":
        return Curve(signal="kv_hit_ratio", shape="effective-capacity", good=1.0, bad=0.0, floor=0.1)
    return Curve(
        signal="kv_hit_ratio", good=1.0, bad=0.0, floor=0.1, weight=2.0 if policy.cache_form == "squared" else 1.0
    )


def warnings(policy: WeightsPolicy) -> list[str]:
    """Sentences about settings that are allowed but were measured to do harm. Empty for the default."""
    found: list[str] = []
    form = form_of(policy)
    if policy.profile == "cache" and policy.cache_form != "effective-capacity":
        found.append(
            f"weights.cache_form `{policy.cache_form}` feeds on itself: endpoints with hits get more requests "
            "and so more hits; squared, it cut goodput from 100 % to 47 % in simulation. Prefer `effective-capacity`"
        )
    for index, curve in enumerate(policy.curves):
        where = f"weights.curves[{index}] ({curve.signal})"
        exponent = curve.weight * (curve.power if curve.shape == "power" else 1.0)
        if form.combiner == "product" and exponent > 1.0:
            found.append(
                f"{where}: an effective exponent of {exponent:g} overreacts to late signals; over 1 never paid"
            )
        if curve.signal == "kv_hit_ratio" and curve.shape != "effective-capacity":
            found.append(f"{where}: a hit ratio used as it is feeds on itself; use the shape `effective-capacity`")
        if curve.shape == "threshold":
            found.append(f"{where}: a threshold moves weights in jumps; a gate has two thresholds and does not flap")
        if curve.floor == 0.0 and form.combiner != "linear":
            found.append(f"{where}: a floor of 0 lets one signal take an endpoint out; that is what gates are for")
        if curve.signal not in SPECS:
            found.append(
                f"{where}: the catalogue has no such signal; until something reports it the curve does nothing"
            )
    if policy.profile == "legacy-linear":
        found.append(
            "weights.profile `legacy-linear` adds GPU use, room and latency: GPU use says little about a "
            "batching engine, and a sum lets two good values hide a bad one. Prefer `balanced`"
        )
    stabilise = policy.stabilise
    if stabilise.push_interval_s < 0.5 and policy.half_life.worsen_s < 0.5 and stabilise.max_step > 4.0:
        found.append("weights.stabilise: fast pushes, short half-lives and large steps together follow noise")
    if stabilise.dead_band < 0.02:
        found.append(
            f"weights.stabilise.dead_band {stabilise.dead_band:g}: near-equal weights are sent as unequal, which "
            "switches Envoy's least_request from power of two choices to a weighted schedule"
        )
    if not stabilise.oscillation_guard:
        found.append("weights.stabilise.oscillation_guard is off: weights that turn around keep their full step")
    if policy.waterfill.horizon_service_times < 1.0 and form.waterfill:
        found.append("weights.waterfill.horizon_service_times under 1 reacts to load that is gone when requests arrive")
    if policy.gates.max_share > 0.8:
        found.append(f"weights.gates.max_share {policy.gates.max_share:g} lets gates take out most of a pool at once")
    return found
