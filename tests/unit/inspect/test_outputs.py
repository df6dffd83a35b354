"""Expected output lengths, from history."""

from __future__ import annotations

import random

import pytest

from xds_control.inspect import TokenEstimator
from xds_control.policy.inspect import TokensPolicy


def test_without_history_the_assumed_length_is_capped() -> None:
    estimator = TokenEstimator(TokensPolicy(output_tokens=300))
    assert estimator.expected_output("m", "high", None) == 300
    assert estimator.expected_output("m", "high", 20) == 20
    assert estimator.expected_output("m", "high", 10_000) == 300
    assert estimator.expected_output("m", "high", 0) == 0


def test_each_class_learns_its_own_length() -> None:
    estimator = TokenEstimator()
    rng = random.Random(1)
    for _ in range(400):
        estimator.observe_output("m", "chat", int(rng.expovariate(1 / 80)) + 1)
        estimator.observe_output("m", "batch", int(rng.expovariate(1 / 900)) + 1)
    assert estimator.expected_output("m", "chat", None) == pytest.approx(80, rel=0.2)
    assert estimator.expected_output("m", "batch", None) == pytest.approx(900, rel=0.2)
    # An unknown class of a known model takes the model's mean.
    assert estimator.expected_output("m", "new", None) == pytest.approx(490, rel=0.2)
    # E[min(X, 100)] of the exponential is 900 (1 - exp(-100/900)).
    assert estimator.expected_output("m", "batch", 100) == pytest.approx(94.7, rel=0.1)
    assert estimator.expected_output("other", "chat", None) == 256


def test_old_answers_are_forgotten() -> None:
    estimator = TokenEstimator(TokensPolicy(memory_requests=50))
    for _ in range(300):
        estimator.observe_output("m", "", 1000)
    for _ in range(300):
        estimator.observe_output("m", "", 10)
    assert estimator.expected_output("m", "", None) < 20


def test_a_single_answer_does_not_decide() -> None:
    estimator = TokenEstimator(TokensPolicy(output_tokens=200))
    estimator.observe_output("m", "", 100_000)
    assert estimator.expected_output("m", "", None) < 50_000
    estimator.observe_output("m", "", -5)
    assert estimator.expected_output("m", "", 50) <= 50


def test_histories_are_merged_from_other_processors() -> None:
    source, target = TokenEstimator(), TokenEstimator()
    for _ in range(200):
        source.observe_output("m", "chat", 40)
    for _ in range(3):
        target.merge(source.export(), "p1")
    assert target.expected_output("m", "chat", None) == pytest.approx(
        source.expected_output("m", "chat", None), rel=0.1
    )
    assert target.export()["output"] == []
    assert target.export(without="p2")["output"] == source.export()["output"]
