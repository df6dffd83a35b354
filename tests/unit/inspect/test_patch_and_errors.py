"""Rewriting the model in place, and errors in each API's own form."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from xds_control.inspect import Inspector, TokenEstimator
from xds_control.inspect.errors import error_body
from xds_control.inspect.patch import replace_model
from xds_control.policy.inspect import InspectPolicy

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "x"}]


@pytest.fixture(scope="module")
def inspector() -> Inspector:
    return Inspector(InspectPolicy(), TokenEstimator())


def patch(inspector: Inspector, body: bytes, new: str = "new", path: str = CHAT) -> bytes | None:
    return replace_model(body, inspector.inspect(path, {}, body), new)


@pytest.mark.parametrize("seed", range(30))
def test_only_the_model_changes_wherever_it_stands(inspector: Inspector, seed: int) -> None:
    rng = random.Random(seed)
    fields: dict[str, Any] = {
        "model": rng.choice(["m", "org/name:adapter", "ü", 'a"b\\c', "model"]),
        "messages": [{"role": "user", "content": '"model":"m" ' * rng.choice((1, 50, 5000))}],
        "metadata": {"model": "other", "deep": [{"model": "m"}]},
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"model": {"model": "m"}}}}],
        "unknown": {"model": "m", "x": "y" * rng.choice((1, 500, 20_000))},
        "stop": ["model", '"model":'],
    }
    names = list(fields)
    rng.shuffle(names)
    indent = rng.choice((None, 1, 4))
    body = json.dumps({name: fields[name] for name in names}, indent=indent, ensure_ascii=rng.random() < 0.5).encode()
    new = rng.choice(["n", "much-longer/name", 'q"uote\\', "é中"])
    patched = patch(inspector, body, new)
    assert patched is not None
    assert json.loads(patched) == {**fields, "model": new}
    at = next(place for place, (one, other) in enumerate(zip(body, patched, strict=False)) if one != other)
    old_end = len(body) - at
    assert sum(one == other for one, other in zip(body[::-1], patched[::-1], strict=False)) >= 0
    assert body[:at] == patched[:at]
    assert old_end > 0


@pytest.mark.parametrize(
    ("body", "path"),
    [
        (b'{"text":"x"}', "/generate"),
        (b'{"inputs":"x"}', "/generate"),
        (b'{"text_input":"x"}', "/v2/models/m/generate"),
        (b'{"model":null,"messages":[{"content":"x"}]}', CHAT),
        (b'{"model":5,"messages":[{"content":"x"}]}', CHAT),
        (b'{"model":"a","model":"b","messages":[{"content":"x"}]}', CHAT),
        (b'{"model":"a","mod\\u0065l":"b","messages":[{"content":"x"}]}', CHAT),
        (b'{"model":"a","messages":[{"content":"x"}]}', "/openai/deployments/d/chat/completions"),
        (b"not json", CHAT),
        (b"", CHAT),
    ],
)
def test_what_cannot_be_patched_is_left_alone(inspector: Inspector, body: bytes, path: str) -> None:
    assert patch(inspector, body, path=path) is None


def test_a_model_that_nobody_named_is_put_first(inspector: Inspector) -> None:
    body = b'\xef\xbb\xbf {"messages":[{"content":"x"}]}'
    patched = patch(inspector, body)
    assert patched is not None
    assert json.loads(patched) == {"model": "new", "messages": [{"content": "x"}]}
    assert patched.endswith(body[5:])


def test_a_model_written_with_escapes_is_patched(inspector: Inspector) -> None:
    body = b'{"mod\\u0065l":"\\u0061b","messages":[{"content":"x"}],"metadata":{"model":"ab"}}'
    patched = patch(inspector, body)
    assert patched is not None
    assert json.loads(patched)["model"] == "new"
    assert json.loads(patched)["metadata"] == {"model": "ab"}


def test_another_body_is_not_patched(inspector: Inspector) -> None:
    body = json.dumps({"model": "m", "messages": MESSAGES}).encode()
    facts = inspector.inspect(CHAT, {}, body)
    assert replace_model(b"x" + body, facts, "n") is None
    assert replace_model(body[:12], facts, "n") is None
    assert replace_model(b"", facts, "n") is None
    assert replace_model(body, facts, "n") == body.replace(b'"m"', b'"n"')


def test_bodies_that_only_the_tolerant_reader_reads_are_patched(inspector: Inspector) -> None:
    body = b'{"temperature":NaN,"model":"m","messages":[{"content":"\\ud83d"}]}'
    assert patch(inspector, body) == body.replace(b'"m"', b'"new"')
    truncated = patch(inspector, body[:-9])
    assert truncated == body[:-9].replace(b'"m"', b'"new"')


def test_equal_envelopes_with_prompts_of_other_lengths(inspector: Inspector) -> None:
    for size in (300, 5000, 300, 40_000, 1):
        body = b'{"messages":[{"content":"%s"}],"model":"m"}' % (b"x" * size)
        assert patch(inspector, body) == body.replace(b'"m"', b'"new"')


@pytest.mark.parametrize(
    ("api", "status", "path", "value"),
    [
        ("openai.chat", 400, ("error", "type"), "invalid_request_error"),
        ("openai.chat", 404, ("error", "code"), "model-unknown"),
        ("openai.chat", 413, ("error", "type"), "request_too_large"),
        ("openai.completions", 429, ("error", "type"), "rate_limit_error"),
        ("openai.chat", 500, ("error", "type"), "server_error"),
        ("", 400, ("error", "message"), "no such model"),
        ("vllm.generate", 400, ("error", "param"), None),
        ("anthropic.messages", 400, ("error", "type"), "invalid_request_error"),
        ("anthropic.messages", 413, ("error", "type"), "request_too_large"),
        ("anthropic.messages", 404, ("type",), "error"),
        ("anthropic.messages", 429, ("error", "type"), "rate_limit_error"),
        ("anthropic.messages", 503, ("error", "type"), "overloaded_error"),
        ("anthropic.messages", 500, ("error", "type"), "api_error"),
        ("ollama.chat", 404, ("error",), "no such model (model-unknown)"),
        ("triton.generate", 400, ("error",), "no such model (model-unknown)"),
        ("kserve.infer", 400, ("error",), "no such model (model-unknown)"),
        ("tgi.generate", 429, ("error_type",), "overloaded"),
        ("tgi.generate", 400, ("error_type",), "validation"),
        ("sglang.generate", 400, ("error", "code"), "model-unknown"),
        ("llamacpp.completion", 503, ("error", "code"), 503),
        ("gemini.generate", 404, ("error", "status"), "NOT_FOUND"),
        ("gemini.generate", 500, ("error", "code"), 500),
        ("bedrock.converse", 429, ("__type",), "ThrottlingException"),
        ("cohere.chat", 400, ("message",), "no such model (model-unknown)"),
    ],
)
def test_errors_have_the_form_of_the_api(api: str, status: int, path: tuple[str, ...], value: Any) -> None:
    body, content_type = error_body(api, status, "model-unknown", "no such model")
    assert content_type == "application/json"
    found = json.loads(body)
    assert "no such model" in body.decode()
    for name in path:
        found = found[name]
    assert found == value


def test_grpc_errors_have_no_body() -> None:
    assert error_body("grpc.vllm", 400, "x", "y") == (b"", "application/grpc")
