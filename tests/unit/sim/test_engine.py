"""The engine: its steps against a plain step-by-step reference, memory, prefix cache, preemption, queueing laws."""

from __future__ import annotations

import math
import random

import pytest

from tests.unit.sim.drive import drive, request
from xds_control.sim.engine import Engine, EngineSpec, Sequence
from xds_control.sim.request import Request


def reference(spec: EngineSpec, requests: list[Request]) -> list[tuple[float, float]]:
    """(first token, end) of each request, one step at a time; no cache, memory without end."""
    waiting = sorted(requests, key=lambda r: r.at)
    running: list[list[int]] = []  # [place, tokens read, tokens made]
    times = {r.index: [0.0, 0.0] for r in requests}
    place = {r.index: r for r in requests}
    now = 0.0
    queue: list[Request] = []
    while waiting or queue or running:
        while waiting and waiting[0].at <= now:
            queue.append(waiting.pop(0))
        if not queue and not running:
            now = waiting[0].at
            continue
        decoding = [s for s in running if s[1] >= place[s[0]].prompt]
        budget = spec.max_batched_tokens - len(decoding)
        left = budget - sum(place[s[0]].prompt - s[1] for s in running if s[1] < place[s[0]].prompt)
        while queue and len(running) < spec.max_seqs and left > 0:
            one = queue.pop(0)
            running.append([one.index, 0, 0])
            left -= one.prompt
        seconds, prefill = spec.step_s, []
        for s in running:
            chunk = min(place[s[0]].prompt - s[1], budget)
            if s not in decoding and chunk > 0:
                budget -= chunk
                prefill.append((s, chunk))
                seconds += chunk * spec.prefill_s + chunk * (s[1] + 0.5 * chunk) * spec.attention_s
        if decoding:
            context = sum(place[s[0]].prompt + s[2] for s in decoding)
            seconds += spec.decode_s + spec.sequence_s * (len(decoding) - 1) + spec.kv_s * context
        now += seconds
        for s in decoding:
            s[2] += 1
        for s, chunk in prefill:
            s[1] += chunk
            if s[1] >= place[s[0]].prompt:
                times[s[0]][0] = now
                s[2] = 1
        for s in [s for s in running if s[2] >= place[s[0]].output]:
            times[s[0]][1] = now
            running.remove(s)
    return [(times[r.index][0], times[r.index][1]) for r in requests]


@pytest.mark.parametrize("seed", range(6))
def test_runs_of_steps_take_as_long_as_their_steps_one_by_one(seed: int) -> None:
    rng = random.Random(seed)
    spec = EngineSpec(
        prefill_s=3e-5, attention_s=1e-9, decode_s=0.007, sequence_s=1e-4, kv_s=6e-8, step_s=0.002,
        kv_tokens=10**9, max_seqs=12, max_batched_tokens=512, caching=False,
    )  # fmt: skip
    at = 0.0
    requests = []
    for i in range(150):
        at += rng.expovariate(6.0)
        requests.append(request(i, at, rng.randrange(1, 2500), rng.randrange(1, 120)))
    seen = [(s.first, s.done) for s in drive(Engine(spec), requests)]
    for got, due in zip(seen, reference(spec, requests), strict=True):
        assert got == pytest.approx(due, abs=1e-7)


def test_no_token_is_lost_and_memory_comes_back() -> None:
    rng = random.Random(3)
    engine = Engine(EngineSpec(kv_tokens=6000, max_seqs=32, max_batched_tokens=512))
    requests = [
        request(
            i, i * 0.05, n := rng.randrange(50, 900), rng.randrange(1, 300), range(i * 100 + 1, i * 100 + 1 + n // 64)
        )
        for i in range(120)
    ]
    sequences = drive(engine, requests)
    assert all(s.done >= s.first >= s.arrived for s in sequences)
    assert engine.output_tokens == sum(r.output for r in requests)
    assert engine.prompt_tokens == sum(r.prompt for r in requests)
    assert engine.preemptions > 0, "the case must be tight enough to preempt"
    assert engine.kv.used == 0
    assert engine.kv.private == 0
    assert 0 < engine.kv.idle <= engine.kv.capacity


def test_memory_never_exceeds_its_size() -> None:
    rng = random.Random(5)
    engine = Engine(EngineSpec(kv_tokens=4096, max_seqs=16, max_batched_tokens=256))
    requests = [request(i, 0.0, rng.randrange(64, 1000), rng.randrange(10, 400)) for i in range(40)]
    for one in requests:
        engine.submit(Sequence(one), 0.0)
    while engine.wakes_at < math.inf:
        engine.end_step(engine.wakes_at)
        assert engine.kv.used + engine.kv.idle <= engine.kv.capacity
        assert engine.gauges(0.0).kv_usage <= 1.0


def test_a_prefix_that_is_cached_is_not_read_again() -> None:
    engine = Engine(EngineSpec(prefill_s=1e-3, decode_s=0.01, kv_tokens=65536))
    keys = list(range(1, 11))
    first, second, other = drive(
        engine,
        [
            request(0, 0.0, 640, 2, keys),
            request(1, 10.0, 640, 2, keys),
            request(2, 20.0, 640, 2, [*keys[:5], *range(90, 95)]),
        ],
    )
    assert first.cached == 0
    assert first.first == pytest.approx(0.640)
    # One token is always computed, so the last block is read again.
    assert second.cached == 576
    assert second.first - 10.0 == pytest.approx(0.064)
    assert other.cached == 320


def test_answers_are_cached_for_the_next_turn() -> None:
    engine = Engine(EngineSpec(kv_tokens=65536))
    turn = Request(0, 0.0, 640, 129, list(range(1, 11)), 64, answer_keys=[11, 12])
    follow = Request(1, 60.0, 832, 4, list(range(1, 14)), 64)
    _, second = drive(engine, [turn, follow])
    assert second.cached == 768


def test_the_least_recently_used_prefix_is_evicted_first() -> None:
    engine = Engine(EngineSpec(kv_tokens=2000, decode_s=0.001))
    a, b, c = (list(range(n, n + 12)) for n in (100, 200, 300))
    sequences = drive(
        engine,
        [request(i, 10.0 * i, 768, 2, keys) for i, keys in enumerate((a, b, a, c, a, b))],
    )
    # What was not used for longest goes first, and of that the deepest blocks.
    assert [s.cached for s in sequences] == [0, 0, 704, 0, 704, 384]


def test_a_full_queue_and_a_prompt_that_never_fits_are_refused() -> None:
    engine = Engine(EngineSpec(max_seqs=1, max_waiting=1, kv_tokens=1000))
    assert engine.submit(Sequence(request(0, 0, 10, 50)), 0.0)
    assert engine.submit(Sequence(request(1, 0, 10, 50)), 0.0)
    assert not engine.submit(Sequence(request(2, 0, 10, 50)), 0.0)
    assert not Engine(EngineSpec(kv_tokens=100)).submit(Sequence(request(0, 0, 90, 50)), 0.0)


def test_gauges_count_tokens_in_the_middle_of_a_run() -> None:
    engine = Engine(EngineSpec(prefill_s=1e-6, decode_s=0.1, kv_tokens=10000))
    engine.submit(Sequence(request(0, 0.0, 100, 50)), 0.0)
    engine.end_step(engine.wakes_at)
    start = engine.wakes_at - 4.9
    page = engine.gauges(start + 1.05)
    assert page.output_tokens == 11
    assert page.kv_usage == pytest.approx(111 / 10000)


def test_an_arrival_waits_for_the_step_that_is_under_way_not_for_the_run() -> None:
    engine = Engine(EngineSpec(prefill_s=1e-6, decode_s=0.1))
    long, late = drive(engine, [request(0, 0.0, 10, 1000), request(1, 5.03, 10, 1)])
    assert late.first < 5.3
    assert long.done > 90


def test_slowing_takes_hold_at_the_next_step() -> None:
    engine = Engine(EngineSpec(prefill_s=1e-9, decode_s=0.1))
    sequence = Sequence(request(0, 0.0, 1, 101))
    engine.submit(sequence, 0.0)
    engine.end_step(engine.wakes_at)
    engine.set_slow(3.0, 4.95)
    while engine.wakes_at < math.inf:
        engine.end_step(engine.wakes_at)
    assert sequence.done == pytest.approx(5.0 + 50 * 0.3, abs=0.01)


def test_death_loses_what_was_inside() -> None:
    engine = Engine(EngineSpec())
    sequences = [Sequence(request(i, 0.0, 100, 10)) for i in range(5)]
    for sequence in sequences:
        engine.submit(sequence, 0.0)
    assert set(engine.kill()) == set(sequences)
    assert engine.load == 0
    assert not engine.submit(Sequence(request(9, 0.0, 10, 10)), 1.0)
    assert engine.wakes_at == math.inf


def _waits(servers: int, load: float, count: int, seed: int) -> tuple[float, float]:
    """(mean wait, mean service) of an engine that is nothing but `servers` servers of exponential work."""
    rng = random.Random(seed)
    step, mean_steps = 0.001, 400
    spec = EngineSpec(
        prefill_s=1e-9, decode_s=step, sequence_s=0.0, kv_tokens=10**9, max_seqs=servers,
        max_batched_tokens=servers + 64, caching=False,
    )  # fmt: skip
    at, requests = 0.0, []
    for i in range(count):
        at += rng.expovariate(servers * load / (step * mean_steps))
        requests.append(request(i, at, 1, 1 + max(1, round(rng.expovariate(1.0 / mean_steps)))))
    sequences = drive(Engine(spec), requests)
    waits = [s.done - s.arrived - (s.request.output - 1) * step for s in sequences]
    return sum(waits) / count, step * sum(s.request.output - 1 for s in sequences) / count


def _erlang_wait(servers: int, load: float) -> float:
    """Mean wait of M/M/c in service times."""
    offered = servers * load
    terms = [offered**k / math.factorial(k) for k in range(servers)]
    last = offered**servers / math.factorial(servers) / (1 - load)
    return last / (sum(terms) + last) / (servers * (1 - load))


@pytest.mark.parametrize(("servers", "load"), [(1, 0.5), (1, 0.7), (4, 0.8), (8, 0.85)])
def test_one_engine_as_servers_of_exponential_work_waits_as_long_as_theory_says(servers: int, load: float) -> None:
    found = [_waits(servers, load, 30000, seed) for seed in (1, 2, 3)]
    wait = sum(w for w, _ in found) / 3
    service = sum(s for _, s in found) / 3
    assert wait / service == pytest.approx(_erlang_wait(servers, load), rel=0.15, abs=0.01)


def test_a_single_server_is_busy_exactly_as_long_as_its_work() -> None:
    rng = random.Random(1)
    spec = EngineSpec(prefill_s=1e-4, decode_s=0.01, kv_tokens=10**6, max_seqs=1, caching=False)
    requests = [request(i, i * 0.3, rng.randrange(1, 2000), rng.randrange(1, 40)) for i in range(200)]
    engine = Engine(spec)
    drive(engine, requests)
    assert engine.busy_s == pytest.approx(sum(r.prompt * 1e-4 + (r.output - 1) * 0.01 for r in requests))


@pytest.mark.parametrize(
    "wrong", [{"prefill_s": -1.0}, {"kv_s": -1e-9}, {"kv_tokens": 0}, {"max_seqs": 10, "max_batched_tokens": 10}]
)
def test_specs_that_cannot_be_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must"):
        EngineSpec(**wrong)  # type: ignore[arg-type]
