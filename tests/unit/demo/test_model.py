from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xds_control.demo.model import EngineModel, ModelConfig, QueueFullError, Sequence


def config(**changes: object) -> ModelConfig:
    values: dict[str, object] = {
        "prefill_tps": 1000.0,
        "decode_s": 0.01,
        "decode_growth_s": 0.001,
        "kv_blocks": 100,
        "max_seqs": 8,
        "max_batched_tokens": 512,
    }
    return ModelConfig(**{**values, **changes})  # type: ignore[arg-type]


def sequence(prompt: int = 100, output: int = 10, text: str = "p", streaming: bool = False) -> Sequence:
    body = (text * (prompt * 4))[: prompt * 4].encode()
    return Sequence(
        prompt=body,
        prompt_tokens=prompt,
        output=b"out " * output,
        output_tokens=output,
        finish_reason="length",
        streaming=streaming,
    )


def run(model: EngineModel, until: float) -> list[Sequence]:
    """Wake exactly when the model asks for it."""
    seen: dict[Sequence, None] = {}
    while (wake := model.next_wake()) is not None and wake <= until:
        seen.update(dict.fromkeys(model.advance(wake)))
    seen.update(dict.fromkeys(model.advance(until)))
    return list(seen)


def test_one_request_takes_prefill_then_a_step_per_token() -> None:
    model = EngineModel(config())
    one = sequence(prompt=100, output=11)
    model.submit(5.0, one)
    run(model, 100.0)
    assert one.first_token == pytest.approx(5.1)
    assert one.finished == pytest.approx(5.1 + 10 * 0.01)
    assert one.done == "length"
    assert model.counters.ttft.count == 1
    assert model.counters.itl.count == 10
    assert model.counters.itl.total == pytest.approx(0.1)
    assert model.counters.generation_tokens == 11
    assert model.cache.usage == 0.0


def test_slow_engine_takes_that_many_times_as_long() -> None:
    model = EngineModel(config())
    model.slow = 3.0
    one = sequence(prompt=100, output=2)
    model.submit(0.0, one)
    run(model, 100.0)
    assert one.finished == pytest.approx(3 * 0.11)


def test_a_larger_batch_makes_each_token_slower_but_the_sum_faster() -> None:
    def finish(count: int) -> float:
        model = EngineModel(config(prefill_tps=1e9))
        batch = [sequence(prompt=4, output=50, text=str(i)) for i in range(count)]
        for one in batch:
            model.submit(0.0, one)
        run(model, 1000.0)
        return max(one.finished or 0.0 for one in batch)

    assert finish(1) < finish(8) < 8 * finish(1)


def test_prefill_of_one_delays_the_tokens_of_another() -> None:
    model = EngineModel(config())
    running = sequence(prompt=4, output=100, text="a")
    model.submit(0.0, running)
    model.advance(0.1)
    model.submit(0.1, sequence(prompt=400, output=1, text="b"))
    run(model, 10.0)
    # One gap of 0.41 s, in the bucket that ends at 0.5; all others are one plain step.
    bounds = dict(zip(model.counters.itl.bounds, model.counters.itl.counts, strict=False))
    assert bounds[0.5] == 1
    assert model.counters.itl.total == pytest.approx(98 * 0.01 + 0.41)


def test_long_prompts_are_prefilled_in_chunks_beside_decoding() -> None:
    model = EngineModel(config(max_batched_tokens=64))
    model.submit(0.0, sequence(prompt=4, output=200, text="a"))
    model.advance(0.05)
    long = sequence(prompt=640, output=1, text="b")
    model.submit(0.05, long)
    run(model, 50.0)
    # 63 tokens a step beside one decoding sequence: eleven chunks, each with a decode step.
    assert long.first_token is not None
    assert long.first_token - 0.05 == pytest.approx(0.64 + 11 * 0.01, abs=0.02)


def test_beyond_max_seqs_requests_wait_in_order() -> None:
    model = EngineModel(config(max_seqs=2))
    batch = [sequence(output=20, text=str(i)) for i in range(5)]
    for one in batch:
        model.submit(0.0, one)
    model.advance(0.15)
    assert len(model.running) == 2
    assert len(model.waiting) == 3
    run(model, 100.0)
    starts = [one.scheduled for one in batch]
    assert starts == sorted(starts, key=lambda at: at or 0.0)
    assert all(one.done == "length" for one in batch)


def test_max_queued_refuses() -> None:
    model = EngineModel(config(max_seqs=1, max_queued=1))
    for i in range(2):
        model.submit(0.0, sequence(text=str(i)))
    with pytest.raises(QueueFullError):
        model.submit(0.0, sequence(text="x"))
    assert model.counters.rejections == 1


def test_a_repeated_prompt_is_prefilled_from_the_cache_but_never_wholly() -> None:
    model = EngineModel(config())
    first, again = sequence(prompt=160), sequence(prompt=160)
    model.submit(0.0, first)
    run(model, 10.0)
    model.submit(10.0, again)
    run(model, 20.0)
    assert first.cached_tokens == 0
    assert again.cached_tokens == 144
    assert again.first_token == pytest.approx(10.0 + 0.016)
    assert model.counters.prefix_queries == 320
    assert model.counters.prefix_hits == 144


def test_the_next_turn_reuses_the_answer() -> None:
    model = EngineModel(config())
    first = sequence(prompt=100, output=60)
    model.submit(0.0, first)
    run(model, 10.0)
    longer = first.prompt + first.output + b"next"
    turn = Sequence(longer, 161, b"x   " * 4, 4, "stop", streaming=False)
    model.submit(10.0, turn)
    run(model, 20.0)
    assert turn.cached_tokens == 160


def test_another_salt_reuses_nothing() -> None:
    model = EngineModel(config())
    model.submit(0.0, sequence(prompt=160))
    run(model, 10.0)
    other = sequence(prompt=160)
    other.salt = 9
    model.submit(10.0, other)
    run(model, 20.0)
    assert other.cached_tokens == 0


def test_a_filled_cache_keeps_requests_waiting_until_it_is_released() -> None:
    model = EngineModel(config())
    model.cache.reserve(1.0)
    one = sequence()
    model.submit(0.0, one)
    assert model.next_wake() is None
    assert len(model.waiting) == 1
    assert model.cache.usage == 1.0
    model.cache.reserve(0.0)
    model.kick(5.0)
    run(model, 10.0)
    assert one.first_token == pytest.approx(5.1)


def test_too_little_room_preempts_the_youngest_which_ends_later_with_all_its_tokens() -> None:
    model = EngineModel(config(kv_blocks=9, prefix_caching=False))
    old, young = sequence(prompt=60, output=40, text="a"), sequence(prompt=60, output=40, text="b")
    model.submit(0.0, old)
    model.submit(0.0, young)
    run(model, 100.0)
    assert model.counters.preemptions == 1
    assert (old.preemptions, young.preemptions) == (0, 1)
    assert old.generated == young.generated == 40
    assert old.finished is not None
    assert young.finished is not None
    assert old.finished < young.finished
    assert model.counters.ttft.count == 2
    assert model.counters.generation_tokens == 80
    assert model.cache.free == 9


def test_abort_frees_blocks_whether_running_or_waiting() -> None:
    model = EngineModel(config(max_seqs=1))
    running, waiting = sequence(text="a"), sequence(text="b")
    model.submit(0.0, running)
    model.submit(0.0, waiting)
    model.abort(0.01, waiting)
    model.abort(0.02, running)
    assert not model.running
    assert not model.waiting
    assert model.cache.usage == 0.0
    assert model.counters.finished["abort"] == 2
    model.abort(0.03, running)
    assert model.counters.finished["abort"] == 2
    run(model, 1.0)
    assert model.next_wake() is None


def test_frozen_in_the_middle_of_a_step_it_goes_on_from_there() -> None:
    model = EngineModel(config())
    one = sequence(prompt=100, output=1)
    model.submit(0.0, one)
    model.freeze(0.04, True)
    assert model.next_wake() is None
    model.submit(5.0, sequence(text="b"))
    assert len(model.waiting) == 1
    model.freeze(10.0, False)
    run(model, 20.0)
    assert one.first_token == pytest.approx(10.06)


def test_nobody_streaming_means_no_wake_per_step() -> None:
    def wakes(streaming: bool) -> int:
        model = EngineModel(config())
        model.submit(0.0, sequence(output=100, streaming=streaming))
        count = 0
        while (wake := model.next_wake()) is not None:
            model.advance(wake)
            count += 1
        return count

    assert wakes(streaming=True) == 100
    assert wakes(streaming=False) <= 3


def test_news_is_kept_until_somebody_asks_for_it() -> None:
    model = EngineModel(config())
    one, left = sequence(prompt=100, output=1), sequence(text="c")
    model.submit(0.0, one)
    model.submit(1.0, left)
    model.abort(1.01, left)
    model.freeze(1.02, True)
    assert model.advance(1.03) == [one, left]
    assert model.advance(1.04) == []


def test_impossible_figures_are_refused() -> None:
    with pytest.raises(ValueError, match="prefill_tps"):
        config(prefill_tps=0.0)
    with pytest.raises(ValueError, match="max_batched_tokens"):
        config(max_batched_tokens=4)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(0, 0.5), st.integers(1, 200), st.integers(1, 30), st.integers(0, 3), st.booleans()),
        min_size=1,
        max_size=25,
    ),
    st.integers(16, 60),
)
def test_every_request_ends_with_all_its_tokens_and_no_block_is_lost(
    arrivals: list[tuple[float, int, int, int, bool]], blocks: int
) -> None:
    model = EngineModel(config(kv_blocks=blocks, max_seqs=4, max_batched_tokens=64))
    now = 0.0
    batch: list[Sequence] = []
    for gap, prompt, output, text, streaming in arrivals:
        now += gap
        run(model, now)
        one = sequence(prompt, output, "abcd"[text], streaming)
        model.submit(now, one)
        batch.append(one)
    run(model, now + 10_000.0)
    assert [one.generated for one in batch] == [one.output_tokens for one in batch]
    assert model.cache.usage == 0.0
    assert model.counters.generation_tokens == sum(one.output_tokens for one in batch)
    assert model.counters.prompt_tokens == sum(one.prompt_tokens for one in batch)
    assert model.counters.ttft.count == len(batch)
    assert model.counters.itl.count == sum(one.output_tokens - 1 for one in batch)
