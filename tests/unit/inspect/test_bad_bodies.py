"""Bodies as the wild sends them: each has a defined result, and reading one never costs more than its length."""

from __future__ import annotations

import json
from typing import Any

import pytest

from xds_control.inspect import BodyProblem, Inspector, TokenEstimator
from xds_control.inspect.repair import close_truncated
from xds_control.policy.inspect import InspectPolicy

CHAT = "/v1/chat/completions"
P = BodyProblem


@pytest.fixture(scope="module")
def inspector() -> Inspector:
    return Inspector(InspectPolicy(), TokenEstimator())


def chat(content: str, **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": content}], **more}


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"", P.EMPTY),
        (b" ", P.NOT_JSON),
        (b"null", P.WRONG_SHAPE),
        (b"[]", P.WRONG_SHAPE),
        (b'"x"', P.WRONG_SHAPE),
        (b"1", P.WRONG_SHAPE),
        (b"{}", P.WRONG_SHAPE),
        (b"hello", P.NOT_JSON),
        (b"\xff\xfe{\x00}\x00", P.NOT_JSON),
        (b'{"model":"m","messages":{}}', P.WRONG_SHAPE),
        (b'{"model":"m","messages":"x"}', P.WRONG_SHAPE),
        (b'{"model":"m","messages":[]}', P.WRONG_SHAPE),
        (b'{"model":"m","messages":null}', P.WRONG_SHAPE),
        (b'{"model":"m","messages":["x"]}', P.WRONG_SHAPE),
        (b'{"model":"m","messages":[{"content":[["x"]]}]}', P.WRONG_SHAPE),
        (b'{"model":"m","messages":[{"content":{"a":1}}]}', P.NONE),
        (b'{"model":"m","messages":[{"content":5}]}', P.NONE),
        (b'{"model":"m","messages":[{}]}', P.NONE),
        (b'{"model":"m","messages":[{"role":null,"content":null}]}', P.NONE),
        (b'{"model":"m","messages":[{"role":"user","content":"x"}],}', P.NOT_JSON),
        (b'{"model":"m", // no\n"messages":[]}', P.NOT_JSON),
        (b"{" + b'"a":[' * 10_000, P.NOT_JSON),
        (b'{"a":' + b"[" * 10_000 + b"]" * 10_000 + b"}", P.TOO_DEEP),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, P.TOO_DEEP),
        (b"[" * 1_000_000, P.WRONG_SHAPE),
    ],
)
def test_problem(inspector: Inspector, body: bytes, problem: BodyProblem) -> None:
    facts = inspector.inspect(CHAT, {}, body)
    assert facts.problem is problem, facts.detail
    assert facts.body_bytes == len(body)
    assert problem is P.NONE or facts.prefix_keys == ()


@pytest.mark.parametrize(
    "text",
    ["a\ud83d", "\ud83d\ude00\ude00", "x" * 5000 + "\udfff"],
    ids=["cut emoji", "extra half", "long"],
)
def test_lone_surrogates_are_read(inspector: Inspector, text: str) -> None:
    facts = inspector.inspect(CHAT, {}, json.dumps(chat(text)).encode())
    assert facts.problem is P.NONE
    assert facts.model == "m"
    assert facts.prefix_keys
    assert facts.model_span is not None


def test_invalid_utf8_is_read(inspector: Inspector) -> None:
    body = b'{"messages":[{"role":"user","content":"a\xff\xfeb"}],"model":"m"}'
    facts = inspector.inspect(CHAT, {}, body)
    assert (facts.problem, facts.model) == (P.NONE, "m")
    start, end = facts.model_span or (0, 0)
    assert body[start:end] == b'"m"'


def test_byte_order_mark(inspector: Inspector) -> None:
    body = b"\xef\xbb\xbf" + json.dumps(chat("x")).encode()
    facts = inspector.inspect(CHAT, {}, body)
    assert (facts.problem, facts.model) == (P.NONE, "m")
    start, end = facts.model_span or (0, 0)
    assert body[start:end] == b'"m"'


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "9" * 5000])
def test_numbers_out_of_range_do_not_hide_the_rest(inspector: Inspector, number: str) -> None:
    text = '{"temperature":?,"max_tokens":?,"model":"m","messages":[{"content":"x"}]}'
    facts = inspector.inspect(CHAT, {}, text.replace("?", number).encode())
    assert (facts.problem, facts.model, facts.temperature, facts.max_output_tokens) == (P.NONE, "m", None, None)


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ('"100"', 100),
        ("100.0", 100),
        ("1e2", 100),
        ("-5", None),
        ("1.5", None),
        ("9223372036854775808", None),
        ("null", None),
        ("[1]", None),
        ('"x"', None),
        ("true", 1),
    ],
)
def test_numbers_are_coerced_as_engines_do(inspector: Inspector, written: str, read: int | None) -> None:
    body = b'{"max_tokens":%s,"model":"m","messages":[{"content":"x"}]}' % written.encode()
    assert inspector.inspect(CHAT, {}, body).max_output_tokens == read


@pytest.mark.parametrize(
    ("written", "read"),
    [("true", True), ('"true"', True), ("1", True), ('"on"', True), ("false", False), ("null", False), ("0", False)],
)
def test_flags_are_coerced_as_engines_do(inspector: Inspector, written: str, read: bool) -> None:
    body = b'{"stream":%s,"model":"m","messages":[{"content":"x"}]}' % written.encode()
    assert inspector.inspect(CHAT, {}, body).stream is read


@pytest.mark.parametrize("model", ["null", "5", "[]", "{}", '""'])
def test_odd_models(inspector: Inspector, model: str) -> None:
    body = b'{"model":%s,"messages":[{"content":"x"}]}' % model.encode()
    facts = inspector.inspect(CHAT, {}, body)
    assert facts.problem is P.NONE
    assert facts.model == ("5" if model == "5" else "")


def test_trailing_data(inspector: Inspector) -> None:
    whole = json.dumps(chat("x")).encode()
    for rest in (b"x", b"{}", b"\n" + whole, b"]"):
        facts = inspector.inspect(CHAT, {}, whole + rest)
        assert (facts.problem, facts.model) == (P.TRAILING, "m")
    assert inspector.inspect(CHAT, {}, whole + b" \r\n\t").problem is P.NONE


def test_half_a_body_gives_what_is_there(inspector: Inspector) -> None:
    text = "the quick brown fox " * 1000
    whole = json.dumps(chat(text, stream=True)).encode()
    full = inspector.inspect(CHAT, {}, whole)
    half = inspector.inspect(CHAT, {}, whole[: len(whole) // 2])
    assert (half.problem, half.model) == (P.TRUNCATED, "m")
    assert len(half.prefix_keys) >= len(full.prefix_keys) // 3
    assert half.prefix_keys == full.prefix_keys[: len(half.prefix_keys)]


def test_every_cut_is_closed() -> None:
    whole = json.dumps(
        {"a": "x\\\n\u00e9\ud83d", "b": [1.5, True, None, {"c": "d"}], "e": {}, "f": [], "g": -1e-7}, ensure_ascii=True
    ).encode()
    for length in range(1, len(whole)):
        closed = close_truncated(whole[:length])
        assert closed is not None, whole[:length]
        value = json.loads(closed)
        assert set(value) <= {"a", "b", "e", "f", "g"}, closed
    assert close_truncated(whole) is None
    assert close_truncated(b"") is None
    assert close_truncated(b"]") is None
    assert close_truncated(b"{]") is None
    assert close_truncated(b"[" * 1000) is None


@pytest.mark.parametrize(
    ("body", "keys"),
    [
        (b'{"model":"a","messages":[{"content":"x"}],"model":"b"}', ("model",)),
        (b'{"model":"a","mod\\u0065l":"b","messages":[{"content":"x"}]}', ("model",)),
        (b'{"model":"b","messages":[{"content":"x"}],"metadata":{"model":"a","messages":"x"}}', ()),
        (b'{"model":"b","messages":[{"content":"x"}],"x":{"a":1,"a":2}}', ()),
        (b'{"model":"b","messages":[{"content":"y"}],"stream":true,"stream":false,"messages":[{"content":"x"}]}', ...),
    ],
)
@pytest.mark.parametrize("padding", [0, 500, 50_000])
def test_keys_that_repeat(inspector: Inspector, body: bytes, keys: Any, padding: int) -> None:
    body = body.replace(b'"x"', b'"%s"' % (b"x" * (padding + 1)))
    facts = inspector.inspect(CHAT, {}, body)
    assert facts.model == "b"  # the last wins, as in the engines
    assert facts.ambiguous == (("messages", "stream") if keys is ... else keys) or set(facts.ambiguous) == {
        "messages",
        "stream",
    }
    if not keys:
        start, end = facts.model_span or (0, 0)
        assert body[start:end] == b'"b"'


def test_repeated_keys_hidden_behind_large_unknown_fields(inspector: Inspector) -> None:
    filler = b'"%s":"%s",' % (b"f" * 10, b"x" * 20_000)
    body = b'{"model":"a",' + filler + b'"messages":[{"content":"x"}],"model":"b"}'
    assert inspector.inspect(CHAT, {}, body).ambiguous == ("model",)
    many = b"".join(b'"k%d":%d,' % (number, number) for number in range(60_000))
    body = b'{"model":"a",' + many + b'"messages":[{"content":"x"}],"model":"b"}'
    facts = inspector.inspect(CHAT, {}, body)
    assert "model" in facts.ambiguous
    assert facts.model == "b"


def test_what_is_one_item_in_many_pieces_stays_linear(inspector: Inspector) -> None:
    """Once took time with the square of the number of messages."""
    messages = [{"role": "user", "content": [{"type": "new", "n": number}]} for number in range(20_000)]
    facts = inspector.inspect(CHAT, {}, json.dumps({"model": "m", "messages": messages}).encode())
    assert (facts.problem, facts.messages) == (P.NONE, 20_000)
    items = [{"type": "new", "n": number} for number in range(20_000)]
    facts = inspector.inspect("/v1/responses", {}, json.dumps({"model": "m", "input": items}).encode())
    assert facts.problem is P.NONE
    assert facts.prefix_keys


def test_the_number_of_members_is_limited(inspector: Inspector) -> None:
    body = b'{"model":"m","messages":[' + b",".join([b"{}"] * 1_200_000) + b"]}"
    assert inspector.inspect(CHAT, {}, body).problem is P.TOO_LARGE
    generous = Inspector(InspectPolicy(max_items=1 << 21), TokenEstimator())
    assert generous.inspect(CHAT, {}, body).messages == 1_200_000


def test_limits(inspector: Inspector) -> None:
    small = Inspector(InspectPolicy(max_decoded_bytes=1024, max_lenient_bytes=2000), TokenEstimator())
    facts = small.inspect(CHAT, {"x-session-id": "s"}, json.dumps(chat("x" * 2000)).encode())
    assert facts.problem is P.TOO_LARGE
    assert facts.session_source == "header:x-session-id"
    long = b'{"model":"m","temperature":NaN,"messages":[{"content":"%s"}]}' % (b"x" * (1 << 20))
    assert inspector.inspect(CHAT, {}, long).problem is P.NOT_JSON
    assert inspector.inspect(CHAT, {}, long.replace(b"NaN", b"1")).problem is P.NONE
    assert inspector.inspect(CHAT, {}, long.replace(b"NaN", b"1")[:-10]).problem is P.TRUNCATED
