"""Learning of speeds: true coefficients are found, noise and nonsense do no harm."""

from __future__ import annotations

import math
import random
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xds_control.policy.picker import RatesPolicy
from xds_control.routing.rates import PoolRates

TRUE = {"overhead": 0.015, "prefill": 4e-5, "base": 0.012, "sequence": 3e-4, "kv": 4e-8}


def feed(rates: PoolRates, rng: random.Random, count: int, address: str = "a", factor: float = 1.0) -> None:
    """Outcomes of an engine with the true coefficients, 5 % noise."""
    for _ in range(count):
        batch, kv, prefill = rng.randrange(1, 64), rng.randrange(0, 200_000), rng.choice((0, 0, 100, 400))
        step = TRUE["base"] + TRUE["sequence"] * batch + TRUE["kv"] * kv + TRUE["prefill"] * prefill
        rates.observe_step(address, step * factor * rng.gauss(1, 0.05), batch, kv, prefill)
        uncached, ahead = rng.randrange(50, 8000), rng.choice((0, 0, 1000, 4000))
        first = TRUE["overhead"] + TRUE["prefill"] * (uncached + ahead)
        rates.observe_first(address, first * factor * rng.gauss(1, 0.05), uncached, ahead)
        rates.observe_request(2.0, 1000, 100, uncached)


def test_coefficients_are_learned() -> None:
    rates, rng = PoolRates(RatesPolicy()), random.Random(1)
    for second in range(60):
        feed(rates, rng, 5)
        rates.refresh(float(second))
    now = rates.now
    assert now.prefill * rates.work(4000) == pytest.approx(4000 * TRUE["prefill"], rel=0.05)
    assert now.base == pytest.approx(TRUE["base"], rel=0.2)
    assert now.per_sequence == pytest.approx(TRUE["sequence"], rel=0.2)
    assert now.residence_s == pytest.approx(2.0, rel=0.1)
    assert rates.speed("a") == 1.0


def test_attention_is_told_from_prefill() -> None:
    rates, rng = PoolRates(RatesPolicy()), random.Random(7)
    bend = 4e-5
    for second in range(120):
        for _ in range(5):
            uncached, cached = int(600 * 2 ** (6 * rng.random())), rng.choice((0, 0, 4000))
            work = uncached * (1 + bend * (cached + uncached / 2))
            first = TRUE["overhead"] + TRUE["prefill"] * work
            rates.observe_first("a", first * rng.gauss(1, 0.05), uncached, 0.0, cached, TRUE["base"])
        rates.refresh(float(second))
    now = rates.now
    assert now.prefill == pytest.approx(TRUE["prefill"], rel=0.1)
    assert now.attention == pytest.approx(bend, rel=0.25)
    for length in (1000.0, 10_000.0, 35_000.0):
        assert now.prefill * rates.work(length) == pytest.approx(
            TRUE["prefill"] * length * (1 + bend * length / 2), rel=0.1
        )


def test_overload_does_not_make_prefill_look_free() -> None:
    rates, rng = PoolRates(RatesPolicy()), random.Random(8)
    for second in range(60):
        for _ in range(5):
            uncached = int(600 * 2 ** (6 * rng.random()))
            rates.observe_first("a", TRUE["prefill"] * uncached + rng.uniform(3.0, 9.0), uncached, 50_000.0)
        rates.refresh(float(second))
    assert rates.now.prefill * rates.work(10_000) >= 10_000 * TRUE["prefill"]
    assert rates.now.attention >= 0.0


@pytest.mark.parametrize("scale", [0.2, 5.0])
def test_priors_that_are_five_times_off_are_overcome(scale: float) -> None:
    policy = RatesPolicy(
        prefill_s_per_token=TRUE["prefill"] * scale,
        step_base_s=TRUE["base"] * scale,
        step_per_sequence_s=TRUE["sequence"] * scale,
    )
    rates, rng = PoolRates(policy), random.Random(2)
    for second in range(40):
        feed(rates, rng, 5)
        rates.refresh(float(second))
    assert rates.now.prefill * rates.work(4000) == pytest.approx(4000 * TRUE["prefill"], rel=0.1)


def test_relative_speeds_and_the_band() -> None:
    rates, rng = PoolRates(RatesPolicy()), random.Random(3)
    for second in range(60):
        for address, factor in (("a", 1.0), ("b", 1.0), ("c", 1.15), ("d", 2.5)):
            feed(rates, rng, 2, address, factor)
        rates.refresh(float(second))
    assert [rates.speed(name) for name in "abc"] == [1.0, 1.0, 1.0]
    assert rates.speed("d") == pytest.approx(2.5, rel=0.15)
    assert rates.now.prefill == pytest.approx(TRUE["prefill"], rel=0.15)


def test_a_newcomer_is_not_slow_because_the_priors_were_wrong() -> None:
    rates, rng = PoolRates(RatesPolicy(prefill_s_per_token=TRUE["prefill"] * 5)), random.Random(4)
    for second in range(40):
        feed(rates, rng, 3, "old")
        rates.refresh(float(second))
    for second in range(40, 50):
        feed(rates, rng, 3, "old")
        feed(rates, rng, 3, "new")
        rates.refresh(float(second))
    assert rates.speed("new") == 1.0


def test_declared_capacity_is_the_prior_of_the_speed() -> None:
    rates = PoolRates(RatesPolicy())
    assert rates.speed("x", 2.0) == pytest.approx(0.5)
    assert rates.speed("x", 1.1) == 1.0
    assert rates.speed("x") == 1.0


def test_shared_increments_give_what_one_would_have_learned() -> None:
    whole, parts, sum_of = (
        PoolRates(RatesPolicy()),
        [PoolRates(RatesPolicy()) for _ in range(4)],
        PoolRates(RatesPolicy()),
    )
    rng = random.Random(5)
    for number in range(200):
        state = rng.getstate()
        feed(whole, rng, 1)
        rng.setstate(state)
        feed(parts[number % 4], rng, 1)
    for part in parts:
        sum_of.merge(part.drain())
        assert part.drain() == {}
    for rates in (whole, sum_of):
        rates.refresh(1.0)
    assert sum_of.now.prefill == pytest.approx(whole.now.prefill, rel=1e-6)
    assert sum_of.observations == pytest.approx(whole.observations)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.sampled_from(["", "a"]), st.binary(max_size=400)))
def test_foreign_states_do_no_harm(states: dict[str, bytes]) -> None:
    rates = PoolRates(RatesPolicy())
    rates.merge(states)
    bad = struct.pack("<4d", math.nan, 1.0, math.inf, 1.0)
    rates.merge({"a": bad})
    rates.refresh(1.0)
    assert rates.now.prefill > 0
    assert math.isfinite(rates.speed("a"))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.floats(), st.floats(), st.floats(0, 1e9), st.floats(0, 1e9)), max_size=30))
def test_no_observation_makes_speeds_unusable(rows: list[tuple[float, float, float, float]]) -> None:
    rates = PoolRates(RatesPolicy())
    for tpot, ttft, one, other in rows:
        rates.observe_step("a", tpot, one, other, one)
        rates.observe_first("a", ttft, one, other)
    rates.refresh(1.0)
    now = rates.now
    assert 0 < now.prefill < math.inf
    assert 0 < now.base < math.inf
    assert 0 <= now.per_sequence < math.inf
    assert 0.05 <= rates.speed("a") <= 20


def test_estimates_that_are_wrong_on_the_whole_are_calibrated_and_small_errors_left() -> None:
    rates, rng = PoolRates(RatesPolicy()), random.Random(9)
    assert rates.calibration == 1.0
    for number in range(300):
        tokens = rng.randrange(500, 4000)
        rates.observe_estimate(tokens, tokens * 2.0 * rng.uniform(0.9, 1.1))
        rates.refresh(0.1 * number)
    assert rates.calibration == pytest.approx(0.5, rel=0.05)
    for number in range(600):
        tokens = rng.randrange(500, 4000)
        rates.observe_estimate(tokens, tokens * rng.uniform(0.9, 1.1))
        rates.refresh(30.0 + 0.1 * number)
    assert rates.calibration == 1.0


def test_learning_can_be_switched_off() -> None:
    rates = PoolRates(RatesPolicy(learn=False))
    feed(rates, random.Random(6), 50)
    rates.refresh(1.0)
    assert rates.now.prefill == RatesPolicy().prefill_s_per_token
