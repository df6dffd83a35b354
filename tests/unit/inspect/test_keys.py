"""Prefix and session keys: what shares them, what must not, what they cost."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from typing import Any

import pytest

from tests.bench import corpora
from xds_control.inspect import Inspector, TokenEstimator
from xds_control.inspect.keys import chain, session_key
from xds_control.policy.inspect import InspectPolicy

CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def inspector() -> Inspector:
    return Inspector(InspectPolicy(), TokenEstimator())


def keys(inspector: Inspector, body: Any, path: str = CHAT) -> tuple[int, ...]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    facts = inspector.inspect(path, {}, data)
    assert facts.problem == "", facts.detail
    assert len(facts.prefix_keys) == len(facts.prefix_tokens)
    assert list(facts.prefix_tokens) == sorted(facts.prefix_tokens)
    return facts.prefix_keys


def shared(first: tuple[int, ...], second: tuple[int, ...]) -> int:
    count = 0
    for one, other in zip(first, second, strict=False):
        if one != other:
            break
        count += 1
    return count


def chat(user: str, system: str = "You are helpful.", **more: Any) -> dict[str, Any]:
    return {
        "model": "m",
        "messages": [{"role": "system", "content": system}, {"role": "user", "content": user}],
        **more,
    }


TOOLS = [
    {"type": "function", "function": {"name": "f", "description": "does é", "parameters": {"type": "object", "a": [1]}}}
]
TOOLS_OTHER_ORDER = [
    {"function": {"parameters": {"a": [1], "type": "object"}, "description": "does é", "name": "f"}, "type": "function"}
]


def test_one_system_prompt_shares_a_key_however_short_it_is(inspector: Inspector) -> None:
    first, second = keys(inspector, chat("hello")), keys(inspector, chat("a different question"))
    assert shared(first, second) == 1
    assert shared(first, keys(inspector, chat("hello", "You are rude."))) == 0


def test_the_order_of_keys_white_space_and_escapes_do_not_matter(inspector: Inspector) -> None:
    text = 'Ünïcode 中文 "quoted"\n' * 300
    first = chat(text, tools=TOOLS, temperature=0.5)
    turned = {"temperature": 0.1, "tools": TOOLS_OTHER_ORDER}
    turned["messages"] = [dict(reversed(message.items())) for message in first["messages"]]
    turned["model"] = "m"
    expected = keys(inspector, json.dumps(first).encode())
    assert len(expected) > 5
    for body in (
        json.dumps(first, ensure_ascii=False, indent=2).encode(),
        json.dumps(turned).encode(),
        json.dumps(turned, ensure_ascii=False, separators=(",", ":")).encode(),
    ):
        assert keys(inspector, body) == expected


def test_a_string_and_a_list_of_one_text_part_are_the_same_prompt(inspector: Inspector) -> None:
    parts = {
        "model": "m",
        "messages": [
            {"role": "developer", "content": [{"type": "text", "text": "You are helpful."}]},
            {"role": "user", "content": [{"type": "text", "text": "hello"}]},
        ],
    }
    assert keys(inspector, parts) == keys(inspector, chat("hello"))


def test_anthropic_and_openai_share_the_prefix_of_one_engine(inspector: Inspector) -> None:
    body = {
        "model": "m",
        "max_tokens": 5,
        "system": "You are helpful.",
        "messages": [{"role": "user", "content": "hello"}],
    }
    assert keys(inspector, body, "/v1/messages") == keys(inspector, chat("hello"))


@pytest.mark.parametrize(
    "other",
    [
        {"model": "n"},
        {"cache_salt": "s"},
        {"extra_key": "s"},
        {"lora_path": "l"},
        {"tools": TOOLS},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"reasoning_effort": "high"},
    ],
    ids=lambda other: next(iter(other)),
)
def test_nothing_is_shared_across_what_changes_the_cache(inspector: Inspector, other: dict[str, Any]) -> None:
    text = "word " * 1000
    assert shared(keys(inspector, chat(text)), keys(inspector, chat(text, **other))) == 0


def test_salts_cannot_be_confused_by_moving_a_boundary(inspector: Inspector) -> None:
    assert shared(keys(inspector, chat("x", model="a\0b")), keys(inspector, chat("x", model="a", lora_path="b"))) == 0


def test_a_conversation_keeps_its_keys_as_it_grows(inspector: Inspector) -> None:
    rng = random.Random(1)
    messages = [{"role": "system", "content": corpora.english(rng, 3000)}]
    before: tuple[int, ...] = ()
    for turn in range(12):
        messages.append({"role": "user", "content": corpora.english(rng, 900)})
        now = keys(inspector, {"model": "m", "messages": messages})
        assert shared(before, now) == len(before), turn
        before = now
        messages.append({"role": "assistant", "content": corpora.english(rng, 1500)})
    assert len(before) > 15


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
        {"type": "file", "file": {"file_data": "AAAA"}},
        {"type": "not_known_yet", "payload": {"deep": ["AAAA"]}},
        {"type": "image", "source": {"type": "base64", "data": "AAAA"}},
        {"type": "tool_result", "content": [{"type": "not_known_yet", "x": "AAAA"}]},
    ],
    ids=lambda part: part["type"],
)
def test_media_and_unknown_parts_are_told_apart_by_content(inspector: Inspector, part: dict[str, Any]) -> None:
    def body(data: str) -> bytes:
        text = json.dumps(part).replace("AAAA", data)
        return b'{"model":"m","messages":[{"role":"user","content":[%s,{"type":"text","text":"%s"}]}]}' % (
            text.encode(),
            b"x" * 5000,
        )

    first = keys(inspector, body("AAAA"))
    assert first == keys(inspector, body("AAAA"))
    assert shared(first, keys(inspector, body("AAAB"))) == 0


def test_large_media_are_recognised_by_length_head_and_tail() -> None:
    inspector = Inspector(InspectPolicy(media_digest_bytes=1024), TokenEstimator())

    def body(data: str) -> dict[str, Any]:
        return {"model": "m", "messages": [{"content": [{"type": "image_url", "image_url": {"url": data}}]}]}

    data = "".join(random.Random(1).choices("ABCDEFGH", k=10_000))
    first = keys(inspector, body(data))
    for other in ("X" + data[1:], data[:-1] + "X", data + "A"):
        assert shared(first, keys(inspector, body(other))) == 0


def test_tool_calls_keep_invalid_arguments_apart(inspector: Inspector) -> None:
    def body(arguments: Any) -> dict[str, Any]:
        call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
        return {
            "model": "m",
            "messages": [
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "user", "content": "x" * 3000},
            ],
        }

    first = keys(inspector, body('{"a": '))
    assert shared(first, keys(inspector, body('{"a": 1'))) == 0
    assert keys(inspector, body({"a": 1, "b": 2})) == keys(inspector, body({"b": 2, "a": 1}))


@pytest.mark.parametrize("size", [1, 100, 1023, 1024, 1025, 30_000, 400_000, 1 << 20, 5 << 20, 64 << 20])
def test_blocks_grow_so_that_long_prompts_cost_few_hashes(size: int) -> None:
    data = bytes(size)
    found, ends = chain(b"", data, 1, 1024, 0.03125, 256)
    assert len(found) == len(ends) == len(set(found))
    assert ends == sorted(set(ends))
    assert 0 < ends[-1] <= size
    assert len(found) <= 256
    if size <= 1 << 20:
        assert len(found) <= 160
        assert size - ends[-1] <= max(1024, size * 0.04) or size < 1024
    if size > 2048:
        shorter, shorter_ends = chain(b"", data[: size // 2], 1, 1024, 0.03125, 256)
        assert found[: len(shorter)] == shorter
        assert ends[: len(shorter)] == shorter_ends


@pytest.mark.parametrize(
    ("block", "growth", "limit"), [(64, 0.0, 50), (64, 1.0, 4096), (1 << 20, 0.1, 1), (512, 0.5, 3)]
)
@pytest.mark.parametrize("head", [0, 1, 511, 512, 513, 100_000])
@pytest.mark.parametrize("body", [0, 1, 512, 100_000])
def test_chains_of_every_setting_are_sound(block: int, growth: float, limit: int, head: int, body: int) -> None:
    rng = random.Random(head + body)
    first, second = rng.randbytes(head), rng.randbytes(body)
    found, ends = chain(first, second, 7, block, growth, limit)
    assert len(found) == len(ends) <= limit
    assert bool(found) is bool(head + body)
    assert all(0 < end <= head + body for end in ends)
    if head and len(found) < limit:
        assert head in ends
    other, _ = chain(first, second + b"more", 7, block, growth, limit)
    full = [key for key, end in zip(found, ends, strict=True) if end % 1 == 0 and (end < head + body or end == head)]
    assert other[: len(full)] == full


def test_keys_are_the_same_in_every_process(inspector: Inspector) -> None:
    body = json.dumps(chat("x" * 3000, tools=TOOLS)).encode()
    headers = {"x-session-id": "abc"}
    here = inspector.inspect(CHAT, headers, body)
    program = (
        "import sys; from xds_control.inspect import *; from xds_control.policy.inspect import InspectPolicy\n"
        "f = Inspector(InspectPolicy(), TokenEstimator()).inspect(sys.argv[1], {'x-session-id': 'abc'}, "
        "sys.stdin.buffer.read())\n"
        "print(f.session_key, *f.prefix_keys)"
    )
    there = subprocess.run(
        [sys.executable, "-c", program, CHAT], input=body, capture_output=True, check=True, env={"PYTHONHASHSEED": "77"}
    )
    assert there.stdout.split() == [str(key).encode() for key in (here.session_key, *here.prefix_keys)]
    # Pinned: a change of these numbers empties every router's memory of what is cached where.
    assert session_key("abc") == 17476368418248482856
    assert keys(inspector, chat("hello"))[0] == 6095710955847102810


def test_prefix_tokens_count_images_where_they_stand(inspector: Inspector) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:,AAAA"}}
    text = {"type": "text", "text": "word " * 2000}
    body = {"model": "m", "messages": [{"role": "user", "content": [text, image, image, text]}]}
    facts = inspector.inspect(CHAT, {}, json.dumps(body).encode())
    steps = [after - before for before, after in zip(facts.prefix_tokens, facts.prefix_tokens[1:], strict=False)]
    assert sum(step > 1500 for step in steps) == 1
    assert facts.prompt_tokens == pytest.approx(facts.prefix_tokens[-1], rel=0.2)
    assert facts.images == 2
