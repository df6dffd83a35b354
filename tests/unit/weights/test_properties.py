"""Properties of the weight formula: monotone, scale-free, bounded, deterministic, neutral about what is unknown."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.weights.build import bare, item, no_gates, once, shares, weights
from xds_control.fleet.rates import LearnedRates
from xds_control.fleet.snapshot import State
from xds_control.policy.weights import Curve, Profile, WeightsPolicy
from xds_control.weights import WeightEngine

RANGES: dict[str, tuple[float, float, bool]] = {  # low, high, lower is better
    "running": (0.0, 300.0, True),
    "waiting": (0.0, 60.0, True),
    "kv_usage": (0.0, 1.0, True),
    "slo_attainment": (0.0, 1.0, False),
    "error_rate": (0.0, 1.0, True),
    "kv_hit_ratio": (0.0, 1.0, False),
    "gpu_mem_used_ratio": (0.0, 1.0, True),
    "gpu_util": (0.0, 1.0, True),
    "decode_tps": (1.0, 5000.0, False),
    "ttft": (0.001, 30.0, True),
}
PROFILES: tuple[Profile, ...] = ("balanced", "memory", "cache", "slo", "legacy-linear")
SETTINGS = settings(max_examples=60, deadline=None)


@st.composite
def fleets(draw: st.DrawFn, least: int = 2) -> list[dict[str, float]]:
    """Signals of a few endpoints, each present or absent."""
    count = draw(st.integers(least, 5))
    return [
        {
            name: draw(st.floats(low, high, allow_subnormal=False))
            for name, (low, high, _) in RANGES.items()
            if draw(st.booleans())
        }
        for _ in range(count)
    ]


def custom(**changes: Any) -> WeightsPolicy:
    curves = (
        Curve(signal="kv_usage", shape="sigmoid", good=0.3, bad=1.0),
        Curve(signal="ttft", shape="inverse", good=0.0, bad=1.0, relative=True),
        Curve(signal="gpu_mem_used_ratio", shape="table", points=((0.0, 1.0), (0.8, 0.9), (1.0, 0.2))),
    )
    return bare(profile="custom", curves=curves, gates=no_gates(), **changes)


@given(fleet=fleets(), profile=st.sampled_from(PROFILES), signal=st.sampled_from(sorted(RANGES)), step=st.floats(0, 1))
@SETTINGS
def test_a_better_signal_never_costs_share(
    fleet: list[dict[str, float]], profile: Profile, signal: str, step: float
) -> None:
    low, high, lower_better = RANGES[signal]
    policy = bare(profile=profile, gates=no_gates())
    fleet[0].setdefault(signal, (low + high) / 2)
    better = [dict(row) for row in fleet]
    goal = low if lower_better else high
    better[0][signal] += (goal - better[0][signal]) * step
    before = shares(once(policy, [item(i, 0.0, row) for i, row in enumerate(fleet)]))
    after = shares(once(policy, [item(i, 0.0, row) for i, row in enumerate(better)]))
    assert after[0] >= before[0] - 3e-6


@given(
    fleet=fleets(), combiner=st.sampled_from(["product", "geometric-mean", "linear", "topsis"]), step=st.floats(0, 1)
)
@SETTINGS
def test_every_combiner_is_monotone(fleet: list[dict[str, float]], combiner: str, step: float) -> None:
    policy = custom(combiner=combiner)
    fleet[0].setdefault("ttft", 5.0)
    better = [dict(row) for row in fleet]
    better[0]["ttft"] *= 1.0 - 0.99 * step
    before = shares(once(policy, [item(i, 0.0, row) for i, row in enumerate(fleet)]))
    after = shares(once(policy, [item(i, 0.0, row) for i, row in enumerate(better)]))
    assert after[0] >= before[0] - 3e-6


@given(fleet=fleets(), capacity=st.floats(0.1, 20.0), factor=st.floats(1.0, 5.0))
@SETTINGS
def test_more_capacity_never_costs_share(fleet: list[dict[str, float]], capacity: float, factor: float) -> None:
    policy = bare(gates=no_gates())

    def run(own: float) -> list[float]:
        rows = [item(i, 0.0, row, capacity=own if i == 0 else 1.0) for i, row in enumerate(fleet)]
        return shares(once(policy, rows))

    assert run(capacity * factor)[0] >= run(capacity)[0] - 3e-6


@given(fleet=fleets(), power=st.integers(-8, 8), profile=st.sampled_from(PROFILES))
@SETTINGS
def test_only_ratios_of_capacity_count(fleet: list[dict[str, float]], power: int, profile: Profile) -> None:
    policy = bare(profile=profile)
    plain = once(policy, [item(i, 0.0, row, capacity=1.0 + i) for i, row in enumerate(fleet)])
    scaled = once(policy, [item(i, 0.0, row, capacity=(1.0 + i) * 2.0**power) for i, row in enumerate(fleet)])
    assert weights(scaled) == pytest.approx(weights(plain), abs=2)


@given(fleet=fleets(), order=st.randoms(use_true_random=False), profile=st.sampled_from(PROFILES))
@SETTINGS
def test_order_of_endpoints_does_not_matter(fleet: list[dict[str, float]], order: Any, profile: Profile) -> None:
    policy = WeightsPolicy(profile=profile)
    rows = [item(i, 0.0, row, capacity=1.0 + i % 3) for i, row in enumerate(fleet)]
    shuffled = list(rows)
    order.shuffle(shuffled)
    a, b = once(policy, rows), once(policy, shuffled)
    assert [(e.address, e.weight, e.gates, e.why) for e in a.endpoints] == [
        (e.address, e.weight, e.gates, e.why) for e in b.endpoints
    ]


@given(fleet=fleets(), profile=st.sampled_from(PROFILES))
@SETTINGS
def test_the_same_inputs_give_the_same_weights(fleet: list[dict[str, float]], profile: Profile) -> None:
    def run() -> list[list[int]]:
        engine = WeightEngine(WeightsPolicy(profile=profile), pool="p", seed="s")
        return [
            weights(engine.tick([item(i, t, dict(row)) for i, row in enumerate(fleet)], t))
            for t in (0.0, 0.5, 1.0, 1.7, 3.1)
        ]

    assert run() == run()


@given(fleet=fleets(), profile=st.sampled_from(PROFILES))
@SETTINGS
def test_weights_are_bounded(fleet: list[dict[str, float]], profile: Profile) -> None:
    policy = WeightsPolicy(profile=profile, gates=no_gates())
    got = weights(once(policy, [item(i, 0.0, row) for i, row in enumerate(fleet)]))
    assert sum(got) == pytest.approx(policy.scale * len(fleet), abs=len(fleet))
    assert max(got) <= min(got) * policy.stabilise.max_ratio * 1.08  # equal groups may widen it by the dead band


ODD = st.sampled_from([math.nan, math.inf, -math.inf, -1.0, 0.0, 1e308, -1e308, 5e-324, 1.0])


@given(
    rows=st.lists(st.dictionaries(st.sampled_from(sorted(RANGES)), ODD), min_size=1, max_size=4),
    age=st.sampled_from([0.0, -5.0, 9.9, 1e9, math.nan]),
    capacity=st.sampled_from([None, math.nan, math.inf, 5e-324, 1e308, 1.0]),
    learned=st.sampled_from([None, math.nan, math.inf, 0.0, -1.0, 1e-300, 1.0]),
    state=st.sampled_from(list(State)),
    profile=st.sampled_from(PROFILES),
    dt=st.sampled_from([0.0, -3.0, 1e-9, 0.2, 1e9]),
)
@settings(max_examples=150, deadline=None)
def test_no_input_makes_nan(
    rows: list[dict[str, float]],
    age: float,
    capacity: float | None,
    learned: float | None,
    state: State,
    profile: Profile,
    dt: float,
) -> None:
    engine = WeightEngine(WeightsPolicy(profile=profile))
    rates = None if learned is None else LearnedRates(capacity=learned, service_s=learned, slots=learned, at=0.0)
    for now in (10.0, 10.0 + dt):
        inputs = [
            item(i, now, row, age=age, capacity=capacity, learned=rates, state=state if i == 0 else State.READY)
            for i, row in enumerate(rows)
        ]
        result = engine.tick(inputs, now)
        for e in result.endpoints:
            assert 0 <= e.weight < 2**32
            assert math.isfinite(e.explanation.raw)
            assert all(math.isfinite(f.factor) for f in e.explanation.factors)
            assert "nan" not in e.why


@given(count=st.integers(1, 40), profile=st.sampled_from(PROFILES), load=st.floats(0, 50), kv=st.floats(0, 1))
@SETTINGS
def test_equal_endpoints_have_exactly_equal_weights(count: int, profile: Profile, load: float, kv: float) -> None:
    signals = {"running": load, "waiting": 0.0, "kv_usage": kv, "slo_attainment": 0.97, "ttft": 0.2}
    got = weights(once(WeightsPolicy(profile=profile), [item(i, 0.0, signals) for i in range(count)]))
    assert set(got) == {10_000}


@given(fleet=fleets(), profile=st.sampled_from(PROFILES))
@SETTINGS
def test_a_signal_that_nobody_has_changes_nothing(fleet: list[dict[str, float]], profile: Profile) -> None:
    policy = bare(profile=profile, gates=no_gates())
    rows = [{k: v for k, v in row.items() if k != "kv_usage"} for row in fleet]
    full = [{**row, "kv_usage": 0.2} for row in rows]  # the same good value everywhere tells nobody apart
    absent = shares(once(policy, [item(i, 0.0, row) for i, row in enumerate(rows)]))
    same = shares(once(policy, [item(i, 0.0, row) for i, row in enumerate(full)]))
    if profile == "legacy-linear":
        assert absent == same  # it does not look at this signal
    else:
        assert absent == pytest.approx(same, abs=3e-6)


@given(values=st.lists(st.floats(0.0, 1.0), min_size=2, max_size=6))
@SETTINGS
def test_an_endpoint_without_a_signal_stands_at_the_mean(values: list[float]) -> None:
    policy = bare(gates=no_gates())
    rows = [item(i, 0.0, {"kv_usage": v}) for i, v in enumerate(values)]
    result = once(policy, [*rows, item(99, 0.0, {})])
    unknown = shares(result)[-1]
    others = shares(result)[:-1]
    assert unknown == pytest.approx(sum(others) / len(others), rel=1e-4)


@given(fleet=fleets(), profile=st.sampled_from(PROFILES), ticks=st.integers(1, 4))
@SETTINGS
def test_factors_multiply_to_the_result_exactly(fleet: list[dict[str, float]], profile: Profile, ticks: int) -> None:
    engine = WeightEngine(WeightsPolicy(profile=profile))
    for k in range(ticks):
        now = 0.7 * k
        result = engine.tick(
            [item(i, now, row, capacity=1.0 + i, since=-5.0, request_rate=1.0 + 9 * i) for i, row in enumerate(fleet)],
            now,
        )
        for e in result.endpoints:
            explained = e.explanation
            assert explained.product() == explained.raw
            if explained.terms:
                total = math.fsum(t.factor for t in explained.terms)
                (response,) = [f.factor for f in explained.factors if f.name == "response"]
                assert max(total, 1e-3) == pytest.approx(response, rel=1e-12)
            assert explained.weight == e.weight
            if explained.stages:
                assert round(explained.stages[-1].value) == e.weight
