"""Workloads and traces: reproducible, of the shape that they claim, and errors that say where."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.shared import shared_path
from xds_control.policy.inspect import InspectPolicy
from xds_control.sim.facts import BYTES_PER_TOKEN, Inspection, prompt_bytes
from xds_control.sim.request import Request
from xds_control.sim.traces import TraceError, load_trace
from xds_control.sim.workloads import WORKLOADS


@pytest.mark.parametrize("name", list(WORKLOADS))
def test_a_seed_makes_a_workload(name: str) -> None:
    one, two, other = (WORKLOADS[name](400, 20, seed) for seed in (1, 1, 2))
    shape = [(r.at, r.prompt, r.output, tuple(r.keys)) for r in one.requests]
    assert shape == [(r.at, r.prompt, r.output, tuple(r.keys)) for r in two.requests]
    assert shape != [(r.at, r.prompt, r.output, tuple(r.keys)) for r in other.requests]
    assert all(r.prompt >= 1 and r.output >= 1 and len(r.keys) <= r.prompt // r.block for r in one.requests)
    assert [r.index for r in one.requests] == list(range(len(one.requests)))


@pytest.mark.parametrize("name", [n for n in WORKLOADS if n not in ("multi-turn", "bursty")])
def test_the_rate_is_as_asked(name: str) -> None:
    assert WORKLOADS[name](3000, 20, 1).rate == pytest.approx(20, rel=0.08)


def test_bursts_are_bursts_and_tails_are_tails() -> None:
    gaps = np.diff([r.at for r in WORKLOADS["bursty"](8000, 20, 1).requests])
    assert gaps.std() / gaps.mean() == pytest.approx(4.0, rel=0.2)
    prompts = [r.prompt for r in WORKLOADS["heavy"](8000, 20, 1).requests]
    assert max(prompts) > 15 * np.mean(prompts)


def test_groups_share_exactly_their_prefix() -> None:
    requests = WORKLOADS["shared-prefix"](300, 20, 1).requests
    groups: dict[str, list[Request]] = {}
    for request in requests:
        groups.setdefault(request.client, []).append(request)
    one, two, *_ = next(g for g in groups.values() if len(g) > 1)
    shared = one.head // one.block
    assert list(one.keys[:shared]) == list(two.keys[:shared])
    assert not set(one.keys[shared:]) & set(two.keys[shared:])


def test_a_turn_repeats_the_turn_before_and_its_answer() -> None:
    requests = WORKLOADS["multi-turn"](400, 20, 1).requests
    follow = next(r for r in requests if r.after is not None)
    before = requests[follow.after or 0]
    whole = [*before.keys, *before.answer_keys]
    assert list(follow.keys[: len(whole)]) == whole
    assert follow.prompt > before.prompt + before.output
    assert follow.session == before.session


def test_equal_prefixes_have_equal_bytes_and_keys_and_others_have_not() -> None:
    a = Request(0, 0.0, 1000, 1, list(range(1, 16)), 64)
    b = Request(1, 0.0, 1000, 1, [*range(1, 11), *range(50, 55)], 64)
    shared = 10 * 64 * BYTES_PER_TOKEN
    assert len(prompt_bytes(a)) == 1000 * BYTES_PER_TOKEN
    assert prompt_bytes(a)[:shared] == prompt_bytes(b)[:shared]
    inspection = Inspection(InspectPolicy(), 0.0, 1.0, 1)
    one, two = inspection.facts(a), inspection.facts(b)
    common = sum(x == y for x, y in zip(one.prefix_keys, two.prefix_keys, strict=False))
    assert one.prefix_keys[:common] == two.prefix_keys[:common]
    assert 384 <= one.prefix_tokens[common - 1] <= 640
    assert one.prompt_tokens == 1000


def test_estimates_may_be_off_by_a_factor() -> None:
    request = Request(3, 0.0, 1000, 1, list(range(1, 16)), 64)
    facts = Inspection(InspectPolicy(), 0.05, 2.0, 1).facts(request)
    assert facts.prompt_tokens == pytest.approx(2000, rel=0.051)


def test_mooncake_keeps_its_hash_ids() -> None:
    load = load_trace(shared_path("traces/mooncake_conversation_trace.jsonl"), 500, 5.0, 1)
    assert len(load.requests) == 500
    assert load.rate == pytest.approx(5.0, rel=0.01)
    assert len({r.keys[0] for r in load.requests if r.keys}) == 1, "every request of it begins alike"
    assert len({r.at for r in load.requests}) == 500, "times are spread inside the recording's steps"


@pytest.mark.parametrize(
    ("name", "prompt"),
    [
        ("azure_llm_2023_code.csv", 2048),
        ("azure_llm_2023_conv.csv", 1155),
        ("arxiv_summarization_lengths.csv", None),
        ("vtc_arena_trace_lengths.csv", None),
        ("servegen_msmall_rates_48h.csv", None),
        ("fixture_dynamo_agentic_mooncake.jsonl", None),
    ],
)
def test_traces_are_read(name: str, prompt: int | None) -> None:
    load = load_trace(shared_path(f"traces/{name}"), None if prompt else 800, None, 1)
    requests = load.requests
    assert requests
    assert min(r.at for r in requests) >= 0
    assert [r.at for r in requests] == sorted(r.at for r in requests)
    if prompt is not None:
        assert np.mean([r.prompt for r in requests]) == pytest.approx(prompt, rel=0.02)


def test_an_own_file_with_times_prefixes_and_sessions(tmp_path: Path) -> None:
    path = tmp_path / "own.csv"
    path.write_text(
        "arrival_s,prompt_tokens,output_tokens,prefix,prefix_tokens,session\n"
        "5.0,700,10,sys,640,a\n6.5,900,20,sys,640,a\n6.0,100,5,,,b\n"
    )
    first, middle, last = load_trace(path).requests
    assert [first.at, middle.at, last.at] == [0.0, 1.0, 1.5]
    assert list(first.keys[:10]) == list(last.keys[:10])
    assert first.session == last.session != middle.session


def test_recorded_outcomes_are_a_workload(tmp_path: Path) -> None:
    path = tmp_path / "recorded.jsonl"
    rows = [
        {"ended_unix_s": 100.0 + i, "e2e_s": 2.0, "prompt_tokens": 50, "completion_tokens": 7, "tenant": "t"}
        for i in range(3)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    load = load_trace(path)
    assert [r.at for r in load.requests] == [0.0, 1.0, 2.0]
    assert load.requests[0].client == "t"


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ('{"prompt_tokens": 1,\n', ":1: not JSON"),
        ("[1]\n", ":1: not an object"),
        ("", "no requests"),
        ('{"prompt_tokens": "many", "output_tokens": 1}\n', "many"),
        ('{"prompt_tokens": 5}\n', "none of the columns"),
        ('{"prompt_tokens": -5, "output_tokens": 1}\n', "negative"),
    ],
)
def test_files_that_cannot_be_read_say_why(tmp_path: Path, content: str, what: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(content)
    with pytest.raises(TraceError, match=what):
        load_trace(path)
    with pytest.raises(TraceError, match="cannot be read"):
        load_trace(tmp_path / "absent.csv")
