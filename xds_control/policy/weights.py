"""How weights are made: profile, curves, gates, stabilisers, locality (the `weights` section of the policy)."""

from __future__ import annotations

import itertools
from typing import Annotated, Literal

from xds_control.policy.base import Section, meta

Ratio = Annotated[float, meta("a share between 0 and 1", ge=0, le=1)]
Profile = Literal["balanced", "memory", "cache", "slo", "legacy-linear", "custom"]
Combiner = Literal["product", "geometric-mean", "linear", "topsis"]
Shape = Literal["linear", "power", "threshold", "sigmoid", "inverse", "effective-capacity", "table"]
GateAction = Literal["limit", "spill", "drain", "remove"]


class Curve(Section, frozen=True):
    """Turns one signal into a factor: 0 at its `bad` value, 1 at its `good` value, never under `floor`."""

    signal: Annotated[
        str,
        meta("name of a signal, or `occupancy` = (running + waiting) / slots", min_length=1, example="kv_usage"),
    ]
    shape: Annotated[Shape, meta("form of the curve between `bad` and `good`")] = "linear"
    good: Annotated[float, meta("value, in the signal's unit, from which the factor is 1", example=0.5)] = 0.0
    bad: Annotated[float, meta("value, in the signal's unit, from which the factor is its floor", example=1.0)] = 1.0
    weight: Annotated[
        float, meta("exponent under `product` and `geometric-mean`, share under `linear` and `topsis`", ge=0, le=10)
    ] = 1.0
    floor: Annotated[float, meta("least factor that this curve gives", ge=0, le=1)] = 0.1
    power: Annotated[float, meta("exponent of the shape `power`", gt=0, le=10)] = 2.0
    midpoint: Annotated[
        float, meta("where `threshold` and `sigmoid` turn, as a share of the way from bad to good", gt=0, lt=1)
    ] = 0.5
    steepness: Annotated[float, meta("steepness of `sigmoid`", gt=0, le=100)] = 10.0
    relative: Annotated[
        bool, meta("compare with the best value in the pool instead of `good` (shapes linear, power and inverse)")
    ] = False
    prefill_share: Annotated[
        float,
        meta("share of the work that a full cache hit saves, for `effective-capacity`", ge=0, lt=1),
    ] = 0.5
    points: Annotated[
        tuple[tuple[float, float], ...],
        meta("(signal value, factor) pairs of the shape `table`, values rising", example=[[0.0, 1.0], [1.0, 0.1]]),
    ] = ()

    def __post_init__(self) -> None:
        if self.good == self.bad:
            raise ValueError("`good` and `bad` must differ, they say which direction of the signal is better")
        if self.shape == "table":
            if len(self.points) < 2:
                raise ValueError("the shape `table` needs at least two `points`")
            xs = [x for x, _ in self.points]
            ys = [y for _, y in self.points]
            if any(b <= a for a, b in itertools.pairwise(xs)):
                raise ValueError("the values of `points` must rise")
            if any(not 0.0 <= y <= 1.0 for y in ys):
                raise ValueError("the factors of `points` must lie between 0 and 1")
            if ys != sorted(ys) and ys != sorted(ys, reverse=True):
                raise ValueError("the factors of `points` must only rise or only fall")


class Waterfill(Section, frozen=True):
    """Water-filling (Dahlin) of running and waiting work against slots: the fast, bounded answer to load."""

    enabled: Annotated[bool, meta("whether running and waiting requests move the weights")] = True
    horizon_service_times: Annotated[
        float,
        meta("how far ahead arrivals are filled in; longer is gentler, 2 buys almost all the gain", ge=0.5, le=100),
    ] = 2.0
    service_time_s: Annotated[
        float, meta("time one request takes, used until it has been learned", unit="s", gt=0, le=3600)
    ] = 5.0
    slots: Annotated[
        float, meta("requests that an endpoint of capacity 1 runs at once, until it is known", gt=0, le=100000)
    ] = 32.0
    least_horizon_slots: Annotated[
        float,
        meta(
            "least horizon as a share of the slots, so that one request on an idle pool does not move weights", ge=0.01
        ),
    ] = 0.25
    floor: Annotated[float, meta("least factor of water-filling", gt=0, le=1)] = 0.2
    ceiling: Annotated[float, meta("largest factor of water-filling", ge=1, le=10)] = 2.0


class Gate(Section, frozen=True):
    """A hard limit beside the weights, with one threshold to close it and another to open it again."""

    enabled: Annotated[bool, meta("whether this gate is watched")] = True
    enter: Annotated[float, meta("closes at this value or worse, in the unit of the gate")] = 0.0
    leave: Annotated[float, meta("opens again at this value or better")] = 0.0
    action: Annotated[
        GateAction,
        meta(
            "limit: the weight is cut; spill: only used when the rest fails; drain: no new requests; remove: not listed"
        ),
    ] = "spill"


class Gates(Section, frozen=True):
    """Which conditions take an endpoint out of the weights, and how."""

    gpu_memory: Annotated[
        Gate,
        meta("free GPU memory over the declared need: 1.2 closes at need + 20 %; absent need is never gated"),
    ] = Gate(enter=1.2, leave=1.3)
    kv: Annotated[Gate, meta("KV cache use while requests wait or are preempted")] = Gate(enter=0.95, leave=0.85)
    waiting: Annotated[Gate, meta("waiting requests", unit="requests")] = Gate(enter=64, leave=32, action="limit")
    slo_miss: Annotated[Gate, meta("share of requests that miss their SLO")] = Gate(
        enter=0.05, leave=0.03, action="limit"
    )
    error_rate: Annotated[Gate, meta("share of requests that fail by the endpoint's fault")] = Gate(
        enter=0.2, leave=0.05
    )
    throttled: Annotated[Gate, meta("GPU clocks held down by heat or power, 1 = throttled")] = Gate(
        enter=0.9, leave=0.1, action="limit"
    )
    asleep: Annotated[Gate, meta("engine asleep, 1 = asleep")] = Gate(enter=0.5, leave=0.5, action="drain")
    model_missing: Annotated[Gate, meta("model not loaded, 1 = not loaded")] = Gate(
        enter=0.5, leave=0.5, action="drain"
    )
    max_share: Annotated[
        float, meta("most endpoints of the pool that gates may take out; above it the least bad stay", ge=0, le=1)
    ] = 0.5
    limit_factor: Annotated[
        float, meta("factor of the weight while a gate with action `limit` is closed", gt=0, le=1)
    ] = 0.5
    return_factor: Annotated[
        float,
        meta("weight with which an endpoint comes back from spill or drain, as a share of its target", gt=0, le=1),
    ] = 0.25
    spill_as: Annotated[
        Literal["priority", "degraded"], meta("how Envoy is told of a spill: the next priority level, or DEGRADED")
    ] = "priority"

    def __post_init__(self) -> None:
        falling = {"gpu_memory"}
        for name in ("gpu_memory", "kv", "waiting", "slo_miss", "error_rate", "throttled", "asleep", "model_missing"):
            gate: Gate = getattr(self, name)
            if (gate.leave < gate.enter) if name in falling else (gate.leave > gate.enter):
                better = "at least" if name in falling else "at most"
                raise ValueError(f"gate `{name}`: `leave` must be {better} `enter`, or the gate would flap")


class HalfLife(Section, frozen=True):
    """Time constants of one signal's smoothing."""

    worsen_s: Annotated[float, meta("half-life while the value worsens; 0 = at once", unit="s", ge=0, le=3600)] = 1.0
    recover_s: Annotated[float, meta("half-life while the value improves; 0 = at once", unit="s", ge=0, le=3600)] = 5.0


class Fairness(Section, frozen=True):
    """Answers endpoints that get far more or far fewer requests than their weight says."""

    enabled: Annotated[bool, meta("whether observed shares correct the weights")] = True
    band: Annotated[float, meta("ratio of observed to due share inside which nothing happens", ge=1, le=100)] = 1.5
    gain: Annotated[float, meta("exponent of the correction outside the band", ge=0, le=1)] = 0.25
    limit: Annotated[float, meta("largest correction, up or down", ge=1, le=10)] = 1.25


class SlowStart(Section, frozen=True):
    """Ramp of an endpoint that becomes ready."""

    window_s: Annotated[float, meta("time to the full weight; 0 switches the ramp off", unit="s", ge=0, le=3600)] = 30.0
    least: Annotated[float, meta("factor at the start of the ramp", gt=0, le=1)] = 0.1
    aggression: Annotated[float, meta("1 = straight, larger = faster at first", gt=0, le=10)] = 1.0


class Stabilise(Section, frozen=True):
    """What keeps weights from flapping."""

    dead_band: Annotated[
        float,
        meta(
            "relative change of a weight under which nothing is pushed and near-equal weights are equal", ge=0, le=0.5
        ),
    ] = 0.07
    max_step: Annotated[
        float, meta("largest ratio by which a weight may move in one push", gt=1, le=100, example=2.0)
    ] = 2.0
    oscillation_guard: Annotated[bool, meta("halve the step of an endpoint each time its weight turns around")] = True
    least_gain: Annotated[float, meta("least share of the step that the oscillation guard leaves", gt=0, le=1)] = 0.125
    gain_recovery_s: Annotated[float, meta("time in which the guard gives back a halving", unit="s", gt=0, le=3600)] = (
        30.0
    )
    floor_share: Annotated[float, meta("least weight as a share of the endpoint's fair weight", ge=0, le=1)] = 0.02
    max_ratio: Annotated[float, meta("largest ratio between two endpoints' weights per capacity", ge=1, le=1000)] = 10.0
    push_interval_s: Annotated[
        float, meta("least time between two pushes of moved weights", unit="s", ge=0.05, le=300)
    ] = 1.0
    push_jitter: Annotated[float, meta("spread of the push times around the interval", ge=0, le=0.5)] = 0.1


class LocalityWeights(Section, frozen=True):
    """Balancing between localities."""

    mode: Annotated[
        Literal["flat", "weighted", "prefer-local"],
        meta(
            "flat: one locality as far as weights go; weighted: each locality weighs the sum of its endpoints; "
            "prefer-local: Envoys stay in their zone and spill over when it is short or busier than the rest"
        ),
    ] = "flat"
    spill_below: Annotated[
        float, meta("local share of capacity that must be in service, under it traffic leaves the zone", ge=0, le=1)
    ] = 0.7
    spill_ratio: Annotated[
        float, meta("how much busier than the pool a zone may be before it sends the surplus away", ge=1, le=10)
    ] = 1.3
    spill_occupancy: Annotated[float, meta("work per slot under which a zone never counts as busy", ge=0, le=10)] = 0.5


class WeightsPolicy(Section, frozen=True):
    """Weights of one pool: capacity × health × ramp × response × fairness, gated, stabilised, rounded."""

    profile: Annotated[
        Profile,
        meta("balanced: load, SLO and KV headroom; memory, cache, slo, legacy-linear; custom: `curves` and `combiner`"),
    ] = "balanced"
    combiner: Annotated[Combiner, meta("how the curves of the profile `custom` become one factor")] = "product"
    curves: Annotated[tuple[Curve, ...], meta("curves of the profile `custom`")] = ()
    cache_form: Annotated[
        Literal["effective-capacity", "raw", "squared"],
        meta("how the profile `cache` uses the KV hit ratio; raw and squared feed on themselves"),
    ] = "effective-capacity"
    waterfill: Annotated[Waterfill, meta("answer to running and waiting requests")] = Waterfill()
    error_floor: Annotated[float, meta("least health factor from a rising error rate", gt=0, le=1)] = 0.5
    gates: Annotated[Gates, meta("hard limits beside the weights")] = Gates()
    slow_start: Annotated[SlowStart, meta("ramp of an endpoint that becomes ready")] = SlowStart()
    fairness: Annotated[Fairness, meta("correction of observed shares")] = Fairness()
    stabilise: Annotated[Stabilise, meta("smoothing, dead band and limits of movement")] = Stabilise()
    half_life: Annotated[HalfLife, meta("smoothing of every signal that `half_lives` does not name")] = HalfLife()
    half_lives: Annotated[
        dict[str, HalfLife], meta("smoothing by signal name", example={"kv_usage": {"worsen_s": 0.2}})
    ] = {}
    age_limits_s: Annotated[
        dict[str, Annotated[float, meta("age limit", unit="s", gt=0)]],
        meta("age at which a signal counts for nothing, by name; from half of it on it fades", unit="s"),
    ] = {}
    locality: Annotated[LocalityWeights, meta("balancing between localities")] = LocalityWeights()
    scale: Annotated[
        int, meta("mean weight of a pool; 10000 keeps ratios to 1 % at the smallest weight", ge=100, le=1_000_000)
    ] = 10_000
    serve_unproven: Annotated[
        bool,
        meta("when no endpoint is ready, serve by the least bad (suspect, new, ejected) instead of by none"),
    ] = True

    def __post_init__(self) -> None:
        if self.profile == "custom" and not self.curves and not self.waterfill.enabled:
            raise ValueError("the profile `custom` needs `curves` or water-filling, or every weight is the capacity")
        if self.curves and self.profile != "custom":
            raise ValueError("`curves` are used by the profile `custom` only")
        if self.profile == "custom" and self.curves and not any(c.weight > 0 for c in self.curves):
            raise ValueError("at least one of the `curves` must have a weight above 0")
