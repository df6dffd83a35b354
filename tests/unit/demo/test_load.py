from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator

import pytest

from xds_control.demo.engine import DemoEngine, EngineConfig
from xds_control.demo.load import Load, quantile
from xds_control.demo.load_main import main
from xds_control.demo.model import ModelConfig
from xds_control.demo.traffic import TrafficConfig, arrivals

QUICK = TrafficConfig(rate=400.0, answer_tokens=8.0, user_tokens=10.0, system_tokens=64, seed=3)


@pytest.fixture
async def engine() -> AsyncIterator[DemoEngine]:
    timing = ModelConfig(prefill_tps=500_000.0, decode_s=0.001, decode_growth_s=0.0)
    one = DemoEngine(EngineConfig(name="one", timing=timing, record=500))
    await one.start()
    yield one
    await one.stop()


def test_the_same_seed_gives_the_same_arrivals() -> None:
    def first(seed: int) -> list[object]:
        return list(itertools.islice(arrivals(TrafficConfig(seed=seed)), 50))

    assert first(1) == first(1)
    assert first(1) != first(2)


def test_arrivals_have_the_rate_and_the_mix_that_was_asked_for() -> None:
    config = TrafficConfig(rate=50.0, models={"a": 3.0, "b": 1.0}, stream_share=0.25, turns=4.0, answer_tokens=80.0)
    some = list(itertools.islice(arrivals(config), 4000))
    assert len(some) / some[-1].at == pytest.approx(50.0, rel=0.1)
    assert sum(one.model == "a" for one in some) / len(some) == pytest.approx(0.75, abs=0.04)
    assert sum(one.stream for one in some) / len(some) == pytest.approx(0.25, abs=0.04)
    assert sum(one.goes_on for one in some) / len(some) == pytest.approx(0.75, abs=0.04)
    assert sum(one.max_tokens for one in some) / len(some) == pytest.approx(80.0, rel=0.1)
    assert len({one.system for one in some}) == 4


@pytest.mark.parametrize("wrong", [{"rate": 0.0}, {"turns": 0.5}, {"models": {}}, {"stream_share": 2.0}])
def test_impossible_traffic_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"must|needs"):
        TrafficConfig(**wrong)  # type: ignore[arg-type]


async def test_figures_agree_with_what_the_engine_counted(engine: DemoEngine) -> None:
    load = Load(engine.url, QUICK)
    summary = await load.run(count=120)
    counters = engine.model.counters
    assert (summary.sent, summary.answered, summary.failed, summary.skipped) == (120, 120, 0, 0)
    assert summary.prompt_tokens == counters.prompt_tokens
    assert summary.completion_tokens == counters.generation_tokens
    assert summary.cached_tokens == counters.prefix_hits
    assert summary.by_engine == {"one": 120}
    assert {one.stream for one in load.outcomes} == {True, False}
    streamed = [one for one in load.outcomes if one.stream and one.completion_tokens > 1]
    assert all(one.ttft_s is not None and one.tpot_s is not None for one in streamed)
    assert all((one.ttft_s or 0.0) <= one.total_s for one in load.outcomes)
    assert all(one.ttft_s is None for one in load.outcomes if not one.stream)
    assert summary.ttft_p50_s is not None
    assert summary.ttft_p90_s is not None
    assert summary.ttft_p50_s <= summary.ttft_p90_s


async def test_later_turns_carry_the_conversation_and_hit_the_cache(engine: DemoEngine) -> None:
    load = Load(engine.url, QUICK)
    await load.run(count=120)
    later = [one for one in load.outcomes if one.turn > 1]
    assert later
    assert sum(one.cached_tokens for one in later) > 0.7 * sum(one.prompt_tokens for one in later)
    by_session: dict[str, list[list[dict[str, str]]]] = {}
    for record in engine.requests:
        by_session.setdefault(record.headers["x-session-id"], []).append(json.loads(record.body)["messages"])
    turns = max(by_session.values(), key=len)
    assert len(turns) > 1
    for before, after in itertools.pairwise(turns):
        assert after[: len(before)] == before
        assert after[len(before)]["role"] == "assistant"


async def test_failures_are_counted_by_kind(engine: DemoEngine) -> None:
    engine.set_faults(fail_rate=0.3, fail_status=503, cut_rate=0.3)
    summary = await Load(engine.url, QUICK).run(count=100)
    assert summary.errors["http-503"] > 0
    assert summary.errors.get("broken", 0) > 0
    assert summary.answered + summary.failed == 100


async def test_a_hanging_server_is_a_timeout_and_in_flight_is_bounded(engine: DemoEngine) -> None:
    engine.set_faults(hang="engine")
    load = Load(engine.url, QUICK, max_in_flight=5, timeout_s=0.3)
    summary = await load.run(seconds=0.2)
    assert summary.errors == {"timeout": 5}
    assert summary.skipped > 0
    assert load.in_flight == 0


async def test_cancelled_it_leaves_nothing_open(engine: DemoEngine) -> None:
    engine.set_faults(hang="engine")
    load = Load(engine.url, QUICK)
    running = asyncio.create_task(load.run())
    while load.in_flight < 3:  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert load.in_flight == 0


def test_quantiles() -> None:
    assert quantile([], 0.5) is None
    assert quantile([1.0], 0.99) == 1.0
    assert quantile([float(i) for i in range(100)], 0.9) == 90.0


def test_command_line_prints_one_json_object_and_fails_with_failed_requests(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code = main(["--url", "http://127.0.0.1:9", "--rate", "50", "--seconds", "0.2"])
    printed = json.loads(capsys.readouterr().out)
    assert code == 1
    assert printed["failed"] == printed["sent"] > 0
    assert printed["errors"] == {"broken": printed["sent"]}
