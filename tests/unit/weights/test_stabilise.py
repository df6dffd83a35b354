"""Stabilisers: dead band, step limit, oscillation guard, bounds, fairness, push times."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.weights.build import bare, item, no_gates, once, shares, weights
from xds_control.policy.weights import Fairness, Stabilise, WeightsPolicy
from xds_control.weights import WeightEngine
from xds_control.weights.stabilise import bound, gain, guard, moved, quantise, step, to_total


@given(
    start=st.lists(st.floats(1.0, 1e5), min_size=2, max_size=8),
    target=st.lists(st.floats(1.0, 1e5), min_size=8, max_size=8),
    turns=st.floats(0.0, 5.0),
)
@settings(max_examples=80, deadline=None)
def test_a_step_keeps_the_sum_and_stays_within_the_limit(start: list[float], target: list[float], turns: float) -> None:
    policy = Stabilise()
    a = to_total(np.array(start), 1e4)
    b = to_total(np.array(target[: len(start)]), 1e4)
    share = gain(np.full(len(start), turns), policy)
    got = step(a, b, share, policy)
    assert got.sum() == pytest.approx(1e4, rel=1e-6)
    reach = policy.max_step ** share[0]
    assert ((got <= a * reach * (1 + 1e-9)) & (got >= a / reach * (1 - 1e-9))).all()


def test_steps_arrive() -> None:
    policy = Stabilise()
    value, target = np.array([1000.0, 1000.0]), np.array([100.0, 1900.0])
    for _ in range(12):
        value = step(value, target, np.ones(2), policy)
    assert value == pytest.approx(target, rel=1e-3)


def test_ratio_and_floor_are_per_capacity() -> None:
    policy = Stabilise(max_ratio=10.0, floor_share=0.02)
    capacity = np.array([1.0, 100.0, 1.0])
    got = bound(np.array([50.0, 10_000.0, 0.001]), capacity, policy)
    assert (got / capacity).max() / (got / capacity).min() == pytest.approx(10.0)
    assert got[1] / got[0] > 100.0  # capacity itself is not squeezed


def test_the_guard_halves_from_the_second_turn_on_and_forgets() -> None:
    policy = Stabilise()
    turns, direction = np.zeros(1), np.zeros(1, dtype=np.int64)
    seen = []
    for k in range(6):
        up = k % 2 == 0
        start, target = (np.array([1.0]), np.array([1.4])) if up else (np.array([1.4]), np.array([1.0]))
        turns, direction = guard(turns, direction, start, target, target, 1.0, policy)
        seen.append(float(gain(turns, policy)[0]))
    assert seen[0] == seen[1] == 1.0
    assert seen[2] == pytest.approx(0.5, rel=0.1)
    assert seen[-1] == policy.least_gain
    calm, _ = guard(turns, direction, np.ones(1), np.ones(1), np.ones(1), 600.0, policy)
    assert gain(calm, policy) == pytest.approx([1.0])


def test_quantised_weights_keep_ratios_to_one_percent() -> None:
    values = np.array([10_000.0, 123.4, 200.0, 3333.3])
    got = quantise(values)
    assert got.min() >= 1
    ratios = got[:, None] / got[None, :]
    assert ratios == pytest.approx(values[:, None] / values[None, :], rel=0.01)
    assert quantise(np.array([0.0])) == [1]


def test_dead_band_holds_still() -> None:
    assert not moved(np.array([100, 100]), np.array([106, 94]), 0.07)
    assert moved(np.array([100, 100]), np.array([108, 92]), 0.07)
    engine = WeightEngine(WeightsPolicy())
    pushes = 0
    for k in range(100):
        now = k * 0.5
        wobble = 1.0 if k % 2 else 0.0
        rows = [item(i, now, {"running": 40.0 + (wobble if i == 0 else 0.0), "kv_usage": 0.3}) for i in range(4)]
        pushes += engine.tick(rows, now).changed
    assert pushes == 1


def test_pushes_keep_their_distance_but_exclusions_do_not_wait() -> None:
    engine = WeightEngine(WeightsPolicy(stabilise=Stabilise(push_interval_s=5.0, push_jitter=0.0)))
    times = []
    for k in range(200):
        now = k * 0.1
        kv = min(0.99, 0.3 + 0.05 * now)
        rows = [item(0, now, {"kv_usage": kv}), item(1, now, {"kv_usage": 0.3}), item(2, now, {"kv_usage": 0.3})]
        if 12.0 < now < 12.15:
            rows[2] = item(2, now, {"kv_usage": 0.99, "waiting": 3.0})
        result = engine.tick(rows, now)
        if result.changed:
            times.append((round(now, 1), result.reasons))
    moves = [t for t, reasons in times if reasons == ("weights moved",)]
    assert all(b - a >= 5.0 - 1e-6 for a, b in itertools.pairwise(moves))
    assert (12.1, ("an endpoint changed its standing",)) in [(t, r[:1]) for t, r in times]


def test_the_pools_total_is_constant() -> None:
    engine = WeightEngine(WeightsPolicy())
    for k in range(60):
        now = k * 0.5
        rows = [item(i, now, {"kv_usage": min(1.0, 0.02 * k * (i + 1)), "running": 5.0 * i}) for i in range(4)]
        assert sum(weights(engine.tick(rows, now))) == pytest.approx(40_000, abs=4)


def test_a_change_that_all_share_moves_nothing() -> None:
    engine = WeightEngine(WeightsPolicy())
    pushes = 0
    for k in range(60):
        now = k * 0.5
        rows = [
            item(i, now, {"kv_usage": min(1.0, 0.02 * k), "running": 2.0 * k, "max_running": 128.0}, capacity=1.0 + i)
            for i in range(3)
        ]
        pushes += engine.tick(rows, now).changed
    assert pushes == 1


def test_membership_changes_are_pushed_at_once() -> None:
    engine = WeightEngine(WeightsPolicy())
    assert engine.tick([item(0, 0.0), item(1, 0.0)], 0.0).changed
    assert not engine.tick([item(0, 0.1), item(1, 0.1)], 0.1).changed
    grown = engine.tick([item(i, 0.2) for i in range(3)], 0.2)
    assert grown.changed
    assert weights(grown) == [10_000] * 3
    shrunk = engine.tick([item(2, 0.3)], 0.3)
    assert shrunk.changed
    assert shrunk.moved == pytest.approx(2 / 3)


def test_leftovers_of_the_dead_band_are_levelled_at_rest() -> None:
    engine = WeightEngine(WeightsPolicy())
    last: list[int] = []
    for k in range(120):
        now = k * 0.5
        extra = 25.0 if now < 10.0 else 0.0
        rows = [item(i, now, {"running": 20.0 + (extra if i == 0 else 0.0)}) for i in range(4)]
        last = weights(engine.tick(rows, now))
    # Power of two choices in Envoy needs exact equality, not nearly.
    assert last == [10_000] * 4


def test_fairness_damps_the_overpicked_and_lifts_the_starved() -> None:
    policy = bare(fairness=Fairness())

    def run(rates: list[float]) -> list[float]:
        engine = WeightEngine(policy)
        engine.tick([item(i, 0.0) for i in range(3)], 0.0)
        result = engine.tick([item(i, 5.0, request_rate=r) for i, r in enumerate(rates)], 5.0)
        return [next(f.factor for f in e.explanation.factors if f.name == "fairness") for e in result.endpoints]

    assert run([10.0, 10.0, 10.0]) == [1.0, 1.0, 1.0]
    over, under, even = run([40.0, 1.0, 19.0])
    assert 0.8 <= over < 1.0 < under <= 1.25
    assert even == 1.0
    assert run([0.2, 0.0, 0.0]) == [1.0, 1.0, 1.0]  # too few requests to tell anything


def test_floor_keeps_a_trickle() -> None:
    policy = WeightsPolicy(gates=no_gates())
    rows = [item(0, 0.0, {"running": 500.0, "waiting": 60.0, "kv_usage": 1.0, "slo_attainment": 0.0})]
    rows += [item(i, 0.0, {"running": 1.0, "waiting": 0.0, "kv_usage": 0.1}) for i in (1, 2, 3)]
    got = shares(once(policy, rows))
    assert 0.02 < got[0] < 0.05
