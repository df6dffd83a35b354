"""Calibration: the plan, and what results mean."""

from __future__ import annotations

import pytest

from xds_control.policy.capacity import Calibration
from xds_control.weights.calibrate import Result, Step, analyse, plan, prompt


def answer(step: int, start: float, prefill_s: float, tokens: int, tpot_s: float, prompt_tokens: int = 1000) -> Result:
    first = start + prefill_s
    return Result(step, start, first, first + (tokens - 1) * tpot_s, prompt_tokens, tokens)


def test_the_plan_is_the_policys() -> None:
    steps = plan(Calibration(prompt_tokens=500, output_tokens=64, prefill_requests=3, concurrency=(1, 8), rounds=2))
    assert steps == (
        Step("prefill", 1, 4, 500, 1),
        Step("decode", 1, 2, 16, 64),
        Step("decode", 8, 2, 16, 64),
    )
    assert sum(s.requests for s in steps) == 4 + 2 + 16


def test_prompts_share_no_beginning() -> None:
    texts = [prompt(step, number, 50) for step in range(3) for number in range(20)]
    assert len({text[:40] for text in texts}) == len(texts)
    assert all(len(text.split()) == 50 for text in texts)
    assert prompt(1, 2, 50) == texts[22]
    later = [prompt(step, number, 50, run=77) for step in range(3) for number in range(20)]
    assert len({text[:40] for text in texts + later}) == 2 * len(texts), "a server may hold the prompts of the last run"


def test_rates_from_results() -> None:
    policy = Calibration(prompt_tokens=1000, output_tokens=100, prefill_requests=3, concurrency=(1, 4))
    steps = plan(policy)
    results = [answer(0, 0.0, 2.0, 1, 0.0)]  # cold: not counted
    results += [answer(0, 2.0 + i, s, 1, 0.0) for i, s in enumerate((0.1, 0.11, 0.9))]
    results += [answer(1, 10.0 + 2 * i, 0.05, 100, 0.010) for i in range(2)]
    results += [answer(2, 20.0, 0.05, 100, 0.016) for _ in range(8)]
    report = analyse(steps, results)
    assert report.ok
    assert report.prefill_tps == pytest.approx(1000 / 0.11)
    assert [x.concurrency for x in report.levels] == [1, 4]
    assert [x.tokens_per_s for x in report.levels] == pytest.approx([100.0, 250.0])
    assert report.decode_tps == pytest.approx(250.0)
    assert report.batch == 4.0
    assert not report.saturated
    rates = report.rates(7.0, policy)
    assert rates is not None
    assert rates.capacity == pytest.approx(1.0 / (0.11 + 100 / 250.0))
    assert rates.at == 7.0


def test_saturation_is_when_more_requests_bring_no_more_tokens() -> None:
    steps = plan(Calibration(concurrency=(1, 4, 16), prefill_requests=1))
    results = [answer(0, float(i), 0.1, 1, 0.0) for i in range(2)]
    results += [answer(1, 5.0, 0.1, 50, 0.010)] * 2
    results += [answer(2, 6.0, 0.1, 50, 0.020)] * 8
    results += [answer(3, 9.0, 0.1, 50, 0.080)] * 32
    report = analyse(steps, results)
    assert report.saturated
    assert report.decode_tps == pytest.approx(200.0)
    assert report.batch == 4.0


def test_failures_are_counted_and_impossible_figures_are_failures() -> None:
    steps = plan(Calibration(concurrency=(1,), prefill_requests=1))
    results = [
        Result(0, 0.0, None, 1.0, None, None, "HTTP 500"),
        Result(0, 1.0, None, 2.0, 10, 10),
        Result(1, 3.0, 2.0, 4.0, 10, 10),
        answer(1, 5.0, 0.1, 50, 0.010),
    ]
    report = analyse(steps, results)
    assert report.errors == {"HTTP 500": 1, "no token": 1, "times out of order": 1}
    assert (report.requests, report.failed, report.ok) == (4, 3, False)
    assert report.rates(0.0, Calibration()) is None
    assert analyse(steps, []).ok is False
