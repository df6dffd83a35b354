"""Learned capacity, against engines whose physics is known."""

from __future__ import annotations

import dataclasses
import math
import random

import pytest

from xds_control.fleet.rates import LearnedRates
from xds_control.policy.capacity import Learning
from xds_control.weights.learn import CapacityLearner, Delivered


class Card:
    """An engine whose decode step takes slow · (g0 + g1 · batch) and whose prompt tokens take slow · p each."""

    def __init__(self, slow: float = 1.0, hit_ratio: float = 0.0) -> None:
        self.slow, self.hit_ratio = slow, hit_ratio

    def window(self, batch: float, seconds: float, rng: random.Random) -> Delivered:
        step = self.slow * (0.010 + 0.0005 * batch) * rng.uniform(0.95, 1.05)
        decoded = batch * seconds / step
        requests = max(1, round(decoded / 150))
        prompt = 600.0 * requests
        cached = prompt * self.hit_ratio
        prefill_s = self.slow * 0.0001 * (prompt - cached) * rng.uniform(0.9, 1.1) + 0.002 * requests
        return Delivered(
            requests=requests,
            prompt_tokens=prompt,
            cached_tokens=cached,
            completion_tokens=decoded,
            prefill_seconds=prefill_s,
            prefill_tokens=prompt - cached,
            decode_seconds=decoded * step,
            decode_tokens=decoded,
        )


def drive(
    learner: CapacityLearner, cards: dict[str, Card], loads: dict[str, float], start: float, seconds: float
) -> None:
    rng = random.Random(int(start))
    now = start
    while now < start + seconds:
        for name, card in cards.items():
            batch = loads[name] * rng.uniform(0.6, 1.4)
            learner.on_scrape(name, batch, 0.0, now)
            learner.on_window(name, card.window(batch, 1.0, rng), now)
        now += 1.0


def capacity(learner: CapacityLearner, name: str) -> float:
    rates = learner.rates(name)
    assert rates is not None
    assert rates.capacity is not None
    return rates.capacity


def test_relative_capacity_at_equal_load() -> None:
    learner = CapacityLearner(Learning())
    drive(learner, {"fast": Card(1.0), "slow": Card(2.0)}, {"fast": 20.0, "slow": 20.0}, 0.0, 60.0)
    assert capacity(learner, "fast") / capacity(learner, "slow") == pytest.approx(2.0, rel=0.1)


def test_relative_capacity_does_not_depend_on_who_is_loaded() -> None:
    """The slow card runs a small batch, so its step looks short; at equal batch it is still half as fast."""
    learner = CapacityLearner(Learning())
    drive(learner, {"fast": Card(1.0), "slow": Card(2.0)}, {"fast": 40.0, "slow": 6.0}, 0.0, 120.0)
    assert capacity(learner, "fast") / capacity(learner, "slow") == pytest.approx(2.0, rel=0.15)


def test_a_card_throttled_by_a_fifth_shows_within_a_minute() -> None:
    learner = CapacityLearner(Learning())
    cards, loads = {n: Card() for n in "abcd"}, dict.fromkeys("abcd", 20.0)
    drive(learner, cards, loads, 0.0, 120.0)
    before = capacity(learner, "a")
    assert before / capacity(learner, "b") == pytest.approx(1.0, abs=0.05)
    cards["a"].slow = 1.25
    drive(learner, cards, loads, 120.0, 60.0)
    after = learner.rates("a")
    assert after is not None
    assert capacity(learner, "a") / before == pytest.approx(0.8, abs=0.06)
    assert capacity(learner, "a") / capacity(learner, "b") == pytest.approx(0.8, abs=0.06)
    # And back.
    cards["a"].slow = 1.0
    drive(learner, cards, loads, 180.0, 100.0)
    assert capacity(learner, "a") / capacity(learner, "b") == pytest.approx(1.0, abs=0.05)


def test_a_better_hit_rate_is_a_higher_capacity() -> None:
    learner = CapacityLearner(Learning())
    drive(learner, {"hit": Card(hit_ratio=0.8), "miss": Card()}, {"hit": 20.0, "miss": 20.0}, 0.0, 60.0)
    assert capacity(learner, "hit") > 1.1 * capacity(learner, "miss")


def test_queueing_is_not_taken_for_slowness() -> None:
    learner = CapacityLearner(Learning())
    cards, loads = {"a": Card(), "b": Card()}, {"a": 20.0, "b": 20.0}
    drive(learner, cards, loads, 0.0, 60.0)
    before = capacity(learner, "a")
    rng = random.Random(5)
    for k in range(60):
        now = 60.0 + k
        for name in cards:
            seen = cards[name].window(20.0, 1.0, rng)
            queued = name == "a"
            if queued:  # times to first token are ten times as long because requests wait
                seen = dataclasses.replace(seen, prefill_seconds=seen.prefill_seconds * 10)
            learner.on_scrape(name, 20.0, 30.0 if queued else 0.0, now)
            learner.on_window(name, seen, now)
    assert capacity(learner, "a") == pytest.approx(before, rel=0.1)


def test_engines_own_figures_teach_until_access_logs_do() -> None:
    """Streams without token counts leave the access log without speeds; the engine's page has them."""
    learner = CapacityLearner(Learning())
    for k in range(60):
        for name, slow in (("a", 1.0), ("b", 2.0)):
            batch = 10.0 + k % 7
            tpot = slow * (0.010 + 0.0005 * batch)
            learner.on_scrape(name, batch, 0.0, float(k), tpot_s=tpot, decode_tps=batch / tpot)
    assert capacity(learner, "a") / capacity(learner, "b") == pytest.approx(2.0, rel=0.05)
    # The logs say otherwise: they are believed, although the page goes on.
    cards = {"a": Card(1.0), "b": Card(1.0)}
    for k in range(60, 180):
        drive(learner, cards, {"a": 12.0, "b": 12.0}, float(k), 1.0)
        learner.on_scrape("b", 12.0, 0.0, k + 0.5, tpot_s=0.04, decode_tps=300.0)
    assert capacity(learner, "a") / capacity(learner, "b") == pytest.approx(1.0, abs=0.08)


def test_confidence_grows_with_what_was_seen() -> None:
    learner = CapacityLearner(Learning(least_tokens=2000.0))
    assert learner.rates("a") is None
    learner.on_window("a", Delivered(requests=1, decode_tokens=200.0, decode_seconds=4.0, batch=1.0), 0.0)
    rates = learner.rates("a")
    assert rates is not None
    assert rates.confidence == pytest.approx(0.1)
    assert rates.service_s == pytest.approx(4.0)
    learner.on_window("a", Delivered(requests=9, decode_tokens=9000.0, decode_seconds=99.0, batch=9.0), 1.0)
    rates = learner.rates("a")
    assert rates is not None
    assert rates.confidence == 1.0
    assert rates.at == 1.0


def test_calibration_seeds_it_and_traffic_corrects_it() -> None:
    learner = CapacityLearner(Learning())
    learner.seed("a", LearnedRates(prefill_tps=8000.0, decode_tps=800.0), 0.0, 16.0)
    learner.seed("b", LearnedRates(prefill_tps=4000.0, decode_tps=400.0), 0.0, 16.0)
    assert capacity(learner, "a") / capacity(learner, "b") == pytest.approx(2.0, rel=1e-6)
    drive(learner, {"a": Card(), "b": Card()}, {"a": 16.0, "b": 16.0}, 1.0, 120.0)
    assert capacity(learner, "a") / capacity(learner, "b") == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -5.0, 0.0])
def test_figures_that_cannot_be_are_left_out(bad: float) -> None:
    learner = CapacityLearner(Learning())
    learner.on_scrape("a", bad, bad, 0.0)
    learner.on_window("a", Delivered(requests=1, decode_tokens=bad, decode_seconds=bad, prefill_seconds=bad), 0.0)
    assert learner.rates("a") is None
    learner.on_window("a", Delivered(requests=1, decode_tokens=100.0, decode_seconds=bad), 1.0)
    learner.on_window("a", Delivered(requests=1, decode_tokens=100.0, decode_seconds=1.0, batch=4.0), 2.0)
    rates = learner.rates("a")
    assert rates is not None
    assert rates.capacity is not None
    assert math.isfinite(rates.capacity)


def test_forgotten_endpoints_are_unknown() -> None:
    learner = CapacityLearner(Learning())
    learner.on_window("a", Delivered(requests=1, decode_tokens=100.0, decode_seconds=1.0, batch=4.0), 2.0)
    learner.forget("a")
    assert learner.rates("a") is None
