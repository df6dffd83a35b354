"""What the formula says in cases that can be worked out by hand."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from tests.unit.weights.build import bare, fast, item, no_gates, once, shares, weights
from xds_control.fleet.override import Override
from xds_control.fleet.snapshot import State
from xds_control.policy.capacity import CapacityPolicy
from xds_control.policy.weights import Curve, Gates, HalfLife, Stabilise, WeightsPolicy
from xds_control.signals.catalogue import CATALOGUE
from xds_control.weights import WeightEngine, warnings
from xds_control.weights.capacity import declared_capacity, lookup_gpu
from xds_control.weights.curves import normalise
from xds_control.weights.spec import SPECS
from xds_control.weights.stabilise import equalise, push_delay
from xds_control.weights.waterfill import factors, horizon_arrivals, level


def test_kv_cache_94_percent_full_leaves_12_percent() -> None:
    result = once(bare(), [item(0, 0.0, {"kv_usage": 0.94}), *(item(i, 0.0, {"kv_usage": 0.3}) for i in (1, 2, 3))])
    first, second = shares(result)[:2]
    assert first / second == pytest.approx(0.12, abs=1e-4)
    assert result.endpoints[0].why.startswith("KV cache 94 % full: weight 1000000 → ")


def test_water_level_fills_the_emptiest_first() -> None:
    capacity, queue = np.array([1.0, 1.0, 2.0]), np.array([4.0, 0.0, 0.0])
    # 6 requests over capacity 3 come to level 2: the loaded endpoint, at 4, stays dry.
    assert level(capacity, queue, 6.0) == pytest.approx(2.0)
    assert level(capacity, queue, 12.0) == pytest.approx(4.0)
    assert level(capacity, queue, 16.0) == pytest.approx(5.0)
    assert factors(capacity, queue, 16.0, 0.1, 2.0) == pytest.approx([0.25, 1.25, 1.25])


def test_longer_horizon_is_gentler() -> None:
    capacity, queue = np.ones(4), np.array([20.0, 10.0, 10.0, 10.0])
    short = factors(capacity, queue, 50.0, 0.01, 9.0)
    long = factors(capacity, queue, 500.0, 0.01, 9.0)
    assert short[0] < long[0] < 1.0


def test_horizon_is_two_service_times_of_work_in_service() -> None:
    # By Little's law the arrivals of two service times are twice the number in service.
    assert horizon_arrivals(50.0, 1.0, 5.0, 2.0, 128.0, 0.25) == 100.0
    assert horizon_arrivals(50.0, 60.0, 5.0, 2.0, 128.0, 0.25) == 600.0
    assert horizon_arrivals(0.0, 1.0, 5.0, 2.0, 128.0, 0.25) == 32.0


def test_balanced_load_on_unequal_capacities_gives_shares_by_capacity() -> None:
    # A card three times as fast with as many slots: in balance both run as many requests at once.
    load = {"running": 30.0, "waiting": 0.0, "max_running": 64.0}
    assert shares(once(bare(), [item(0, 0.0, load, capacity=3.0), item(1, 0.0, load)])) == pytest.approx([0.75, 0.25])
    # A replica three times as large: in balance it runs three times as many.
    large = {"running": 90.0, "waiting": 0.0, "max_running": 192.0}
    assert shares(once(bare(), [item(0, 0.0, large, capacity=3.0), item(1, 0.0, load)])) == pytest.approx([0.75, 0.25])


def test_waiting_counts_by_how_long_it_will_take() -> None:
    slots = {"running": 64.0, "max_running": 64.0}
    rows = [item(0, 0.0, {**slots, "waiting": 8.0}, capacity=4.0), item(1, 0.0, {**slots, "waiting": 8.0})]
    fast, slow = (
        next(f.factor for f in e.explanation.factors if f.name == "load") for e in once(bare(), rows).endpoints
    )
    assert slow < fast


def test_the_longer_queue_gets_less() -> None:
    rows = [item(0, 0.0, {"running": 30.0, "waiting": 20.0}), item(1, 0.0, {"running": 30.0, "waiting": 0.0})]
    first, second = shares(once(bare(), rows))
    assert 0.3 < first / second < 0.8


@pytest.mark.parametrize(
    ("shape", "value", "expected"),
    [
        ("linear", 0.75, 0.5),
        ("power", 0.75, 0.25),
        ("threshold", 0.74, 1.0),
        ("threshold", 0.76, 0.0),
        ("sigmoid", 0.75, 0.5),
        ("inverse", 1.0, 0.5),
        ("linear", 0.2, 1.0),
        ("linear", 2.0, 0.0),
        ("sigmoid", 0.5, 1.0),
        ("sigmoid", 1.0, 0.0),
    ],
)
def test_shapes(shape: str, value: float, expected: float) -> None:
    curve = msgspec.convert({"signal": "kv_usage", "shape": shape, "good": 0.5, "bad": 1.0}, Curve)
    assert float(normalise(curve, np.array([value]))[0]) == pytest.approx(expected, abs=1e-9)


def test_table_and_effective_capacity() -> None:
    table = Curve(signal="kv_usage", shape="table", points=((0.0, 1.0), (0.5, 0.8), (1.0, 0.2)))
    assert normalise(table, np.array([0.25, 0.75, 9.0])) == pytest.approx([0.9, 0.5, 0.2])
    hits = Curve(signal="kv_hit_ratio", shape="effective-capacity", good=1.0, bad=0.0, prefill_share=0.5)
    # With half of the work in prefill, a full hit doubles what an endpoint can do.
    no_hit, full_hit = normalise(hits, np.array([0.0, 1.0]))
    assert full_hit / no_hit == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"good": 1.0, "bad": 1.0}, "must differ"),
        ({"shape": "table"}, "at least two"),
        ({"shape": "table", "points": [[1, 0.5], [0, 0.4]]}, "must rise"),
        ({"shape": "table", "points": [[0, 0.5], [1, 1.4]]}, "between 0 and 1"),
        ({"shape": "table", "points": [[0, 0.5], [1, 0.9], [2, 0.1]]}, "only rise or only fall"),
    ],
)
def test_curves_that_make_no_sense_are_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=message):
        msgspec.convert({"signal": "kv_usage", **fields}, Curve)


def test_gates_with_crossed_thresholds_are_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="would flap"):
        msgspec.convert({"kv": {"enter": 0.9, "leave": 0.95}}, Gates)


def test_custom_profile_needs_something() -> None:
    with pytest.raises(msgspec.ValidationError, match="needs `curves`"):
        msgspec.convert({"profile": "custom", "waterfill": {"enabled": False}}, WeightsPolicy)
    with pytest.raises(msgspec.ValidationError, match="`custom` only"):
        msgspec.convert({"curves": [{"signal": "kv_usage"}]}, WeightsPolicy)


def test_legacy_linear_is_the_sum_of_three() -> None:
    signals = [
        {"gpu_util": 0.5, "running": 16.0, "waiting": 0.0, "ttft": 0.2, "max_running": 32.0},
        {"gpu_util": 0.0, "running": 0.0, "waiting": 0.0, "ttft": 0.1, "max_running": 32.0},
    ]
    result = once(bare(profile="legacy-linear"), [item(i, 0.0, s) for i, s in enumerate(signals)])
    (response,) = [f.factor for f in result.endpoints[0].explanation.factors if f.name == "response"]
    assert response == pytest.approx(0.4 * 0.5 + 0.3 * 0.5 + 0.3 * 0.5)
    assert [t.name for t in result.endpoints[0].explanation.terms] == ["gpu_util", "occupancy", "ttft"]


def test_topsis_against_fixed_ideals() -> None:
    curves = (Curve(signal="a", floor=0.0, good=1.0, bad=0.0), Curve(signal="b", floor=0.0, good=1.0, bad=0.0))
    policy = bare(profile="custom", combiner="topsis", curves=curves)
    result = once(policy, [item(0, 0.0, {"a": 1.0, "b": 0.0}), item(1, 0.0, {"a": 1.0, "b": 1.0})])
    (response,) = [f.factor for f in result.endpoints[0].explanation.factors if f.name == "response"]
    assert response == pytest.approx(0.5)


def test_signals_fade_and_lapse_to_the_pools_mean() -> None:
    def share(age: float) -> float:
        stale = item(0, 100.0, {"kv_usage": 0.95}, age=age)
        rest = [item(i, 100.0, {"kv_usage": 0.2}) for i in (1, 2)]
        return shares(once(bare(), [stale, *rest], 100.0))[0]

    fresh, half, fading, gone = share(0.0), share(5.0), share(7.5), share(10.0)
    assert fresh == pytest.approx(half)
    assert half < fading < gone
    assert gone == pytest.approx(1 / 3, abs=1e-5)


def test_names_and_age_limits_are_the_catalogues() -> None:
    for name, spec in SPECS.items():
        if name == "occupancy":
            continue
        entry = CATALOGUE[name]
        assert spec.age_limit_s == entry.age_limit_s, name
        assert (spec.low, spec.high) == (entry.low, entry.high), name
        if name != "max_running":
            assert spec.lower_better == (entry.better == "lower"), name


def test_near_equal_weights_are_made_equal_and_keep_their_order() -> None:
    values = np.array([100.0, 104.0, 106.0, 130.0, 60.0])
    got = equalise(values, 0.07)
    assert got.sum() == pytest.approx(values.sum())
    assert got[0] == got[1] == got[2]
    assert got[4] < got[0] < got[3]


def test_push_times_are_spread_but_repeatable() -> None:
    policy = Stabilise(push_interval_s=1.0, push_jitter=0.1)
    delays = [push_delay(policy, "pool/a", k) for k in range(50)]
    assert delays == [push_delay(policy, "pool/a", k) for k in range(50)]
    assert min(delays) >= 0.9
    assert max(delays) <= 1.1
    assert len(set(delays)) > 40
    assert delays != [push_delay(policy, "pool/b", k) for k in range(50)]


def test_pin_drain_and_eject_by_operator() -> None:
    def order(kind: str, weight: int | None = None) -> Override:
        return Override(kind=kind, weight=weight, by="ann", reason="test")  # type: ignore[arg-type]

    rows = [
        item(0, 0.0, override=order("pin", 77)),
        item(1, 0.0, override=order("drain")),
        item(2, 0.0, override=order("eject")),
        item(3, 0.0, override=order("pin", 0)),
        item(4, 0.0),
    ]
    got = once(WeightsPolicy(), rows).endpoints
    assert [(e.weight, e.health, e.pickable) for e in got] == [
        (77, "healthy", True),
        (0, "draining", False),
        (0, "removed", False),
        (0, "draining", False),
        (10_000, "healthy", True),
    ]
    assert got[0].why == "pinned to weight 77 by ann"
    assert got[2].why == "ejected by ann: test"


def test_states_and_where_they_stand() -> None:
    rows = [item(i, 0.0, state=state) for i, state in enumerate(State)]
    got = dict(zip(State, once(WeightsPolicy(), rows).endpoints, strict=True))
    assert got[State.READY].weight > 0
    assert got[State.READY].priority == 0
    assert got[State.SUSPECT].priority == 1
    assert not got[State.SUSPECT].pickable
    assert got[State.DRAINING].health == "draining"
    for state in (State.NEW, State.PROBING, State.WARMING, State.EJECTED, State.GONE):
        assert (got[state].weight, got[state].health, got[state].pickable) == (0, "removed", False)


def test_a_pool_is_never_empty() -> None:
    def serving(*states: State) -> list[bool]:
        got = once(WeightsPolicy(), [item(i, 0.0, state=s) for i, s in enumerate(states)]).endpoints
        return [e.weight > 0 and e.priority == 0 and e.health == "healthy" for e in got]

    assert serving(State.SUSPECT, State.EJECTED) == [True, False]
    assert serving(State.NEW, State.EJECTED) == [True, False]
    assert serving(State.EJECTED, State.EJECTED) == [True, True]
    assert serving(State.DRAINING, State.GONE) == [False, False]
    off = WeightsPolicy(serve_unproven=False)
    assert all(e.priority == 1 for e in once(off, [item(0, 0.0, state=State.SUSPECT)]).endpoints)


def test_a_pool_without_endpoints() -> None:
    result = once(WeightsPolicy(), [])
    assert result.endpoints == ()
    assert result.localities == ()


def test_ramp_of_a_new_endpoint() -> None:
    def first(age: float) -> float:
        rows = [item(0, 100.0, since=100.0 - age), item(1, 100.0), item(2, 100.0)]
        got = shares(once(bare(slow_start=WeightsPolicy().slow_start), rows, 100.0))
        return got[0] / got[1]

    assert [first(a) for a in (0.0, 15.0, 30.0, 99.0)] == pytest.approx([0.1, 0.5, 1.0, 1.0], rel=1e-4)


def test_declared_and_table_capacities() -> None:
    policy = CapacityPolicy(gpu_models={"WARP-9": 4.0, "L40S": 0.9})
    assert declared_capacity(item(0, 0.0, capacity=2.0).endpoint, policy).value == 2.0

    def of(model: str, gpus: int = 1) -> float:
        fields = {"gpu_model": model, "gpus": tuple(f"GPU-{i}" for i in range(gpus))}
        return declared_capacity(item(0, 0.0, fields=fields).endpoint, policy).value

    assert of("NVIDIA A100-SXM4-80GB") == 1.0
    assert of("NVIDIA H100 80GB HBM3") > of("NVIDIA H100 PCIe") > of("NVIDIA A100-SXM4-80GB")
    assert of("Tesla T4") < of("NVIDIA L4") < of("NVIDIA L40S") == 0.9
    assert of("Warp-9 Drive") == 4.0
    assert of("NVIDIA H100 80GB HBM3 MIG 1g.10gb") == pytest.approx(of("NVIDIA H100 80GB HBM3") / 7)
    assert of("NVIDIA A100-SXM4-80GB", 4) == pytest.approx(1.0 + 3 * 0.9)
    assert of("something else") == 1.0
    assert lookup_gpu("NVIDIA L4", {}) == ("L4", 0.24)
    assert lookup_gpu("AMD Instinct MI300X", {}) == ("MI300X", 3.3)


def test_fast_settings_follow_a_full_cache_within_a_second_and_let_it_back() -> None:
    engine = WeightEngine(fast())
    lost = back = None
    for k in range(150):
        now = k * 0.1
        kv = 0.95 if 2.0 <= now < 8.0 else 0.3
        rows = [
            item(0, now, {"kv_usage": kv, "running": 4.0}),
            *(item(i, now, {"kv_usage": 0.3, "running": 4.0}) for i in (1, 2, 3)),
        ]
        got = weights(engine.tick(rows, now))
        if lost is None and got[0] < 0.4 * got[1]:
            lost = now
        if now > 8.0 and back is None and got[0] == got[1]:
            back = now
    assert lost is not None
    assert lost - 2.0 <= 1.0
    assert back is not None
    assert back - 8.0 <= 4.0


def test_default_settings_follow_a_full_cache_within_a_few_seconds() -> None:
    engine = WeightEngine(WeightsPolicy())
    lost = None
    for k in range(100):
        now = k * 0.2
        kv = 0.95 if now >= 5.0 else 0.3
        got = weights(
            engine.tick([item(0, now, {"kv_usage": kv}), *(item(i, now, {"kv_usage": 0.3}) for i in (1, 2, 3))], now)
        )
        if lost is None and got[0] < 0.5 * got[1]:
            lost = now
    assert lost is not None
    assert lost - 5.0 <= 3.0


def test_the_default_carries_no_warning_and_aggressive_forms_do() -> None:
    assert warnings(WeightsPolicy()) == []
    assert warnings(WeightsPolicy(profile="memory")) == []
    assert "feeds on itself" in warnings(WeightsPolicy(profile="cache", cache_form="squared"))[0]
    assert "legacy-linear" in warnings(WeightsPolicy(profile="legacy-linear"))[0]
    steep = WeightsPolicy(profile="custom", curves=(Curve(signal="kv_usage", shape="power", power=3.0),))
    assert "exponent of 3" in warnings(steep)[0]
    unknown = WeightsPolicy(profile="custom", curves=(Curve(signal="nonsense"),))
    assert "no such signal" in warnings(unknown)[0]
    hasty = WeightsPolicy(half_life=HalfLife(worsen_s=0.1), stabilise=Stabilise(push_interval_s=0.1, max_step=10.0))
    assert "follow noise" in warnings(hasty)[0]


def test_new_policy_goes_on_from_the_pushed_weights() -> None:
    old = WeightEngine(WeightsPolicy(gates=no_gates()))
    rows = [item(0, 0.0, {"kv_usage": 0.99}), item(1, 0.0, {"kv_usage": 0.1})]
    before = weights(old.tick(rows, 0.0))
    assert before[0] < before[1] / 5
    new = WeightEngine(WeightsPolicy(profile="custom", curves=(Curve(signal="ttft"),), gates=no_gates()))
    new.adopt(old)
    first = weights(new.tick([item(0, 2.0, {"kv_usage": 0.99}), item(1, 2.0, {"kv_usage": 0.1})], 2.0))
    # The new policy does not look at the cache, and gets to equal weights in steps of at most 2.
    assert before[0] < first[0] <= 2.01 * before[0]
