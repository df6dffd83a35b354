"""Where the session key comes from; tenant, class and priority by header."""

from __future__ import annotations

import json
from typing import Any

import pytest

from xds_control.inspect import Inspector, TokenEstimator
from xds_control.inspect.keys import session_key
from xds_control.policy.inspect import DEFAULT_SESSION_SOURCES, InspectPolicy

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "x"}]


@pytest.fixture(scope="module")
def inspector() -> Inspector:
    return Inspector(InspectPolicy(), TokenEstimator())


def session(inspector: Inspector, headers: dict[str, str], path: str = CHAT, **body: Any) -> tuple[str, int]:
    facts = inspector.inspect(path, headers, json.dumps({"model": "m", "messages": MESSAGES, **body}).encode())
    return facts.session_source, facts.session_key


def nested(path: str, value: str) -> dict[str, Any]:
    body: Any = value
    for name in reversed(path.split(".")):
        body = {name: body}
    return dict(body)


@pytest.mark.parametrize("source", [source for source in DEFAULT_SESSION_SOURCES if source != "fingerprint"])
def test_every_source_is_read_and_gives_the_same_key(inspector: Inspector, source: str) -> None:
    kind, _, name = source.partition(":")
    headers = {name: "abc"} if kind == "header" else {}
    body = nested(name, "abc") if kind == "body" else {}
    assert session(inspector, headers, **body) == (source, session_key("abc"))


def test_the_first_source_in_order_wins(inspector: Inspector) -> None:
    headers: dict[str, str] = {}
    body: dict[str, Any] = {}
    for source in reversed(DEFAULT_SESSION_SOURCES):
        if source == "fingerprint":
            continue
        kind, _, name = source.partition(":")
        if kind == "header":
            headers[name] = source
        elif "." not in name:
            body[name] = source
        else:
            body.setdefault(name.split(".")[0], {})[name.split(".")[1]] = source
        assert session(inspector, headers, **body) == (source, session_key(source))


def test_a_conversation_may_be_an_object(inspector: Inspector) -> None:
    assert session(inspector, {}, "/v1/responses", input="x", conversation={"id": "c1"}) == (
        "body:conversation",
        session_key("c1"),
    )


@pytest.mark.parametrize("value", ["", "x" * 1025, None, [], {}, {"id": None}, True])
def test_unusable_values_are_passed_over(inspector: Inspector, value: Any) -> None:
    assert session(inspector, {}, conversation=value, prompt_cache_key="k")[0] == "body:prompt_cache_key"
    if isinstance(value, str):
        assert session(inspector, {"x-session-id": value}, prompt_cache_key="k")[0] == "body:prompt_cache_key"


def test_numbers_are_values(inspector: Inspector) -> None:
    assert session(inspector, {}, session_id=17) == ("body:session_id", session_key("17"))


def test_fingerprint_holds_for_a_conversation_and_not_beyond(inspector: Inspector) -> None:
    def of(*contents: str, system: str = "s") -> int:
        messages = [{"role": "system", "content": system}]
        messages += [{"role": "user" if n % 2 == 0 else "assistant", "content": c} for n, c in enumerate(contents)]
        source, key = session(inspector, {}, messages=messages)
        assert source == "fingerprint"
        return key

    first = of("hello")
    assert first == of("hello", "hi", "how are you?") == of("hello", "hi", "how are you?", "fine", "good")
    assert len({first, of("hello!"), of("hello", system="t"), of("hel", "lo")}) == 4


def test_requests_without_messages_have_no_fingerprint(inspector: Inspector) -> None:
    facts = inspector.inspect("/v1/completions", {}, b'{"model":"m","prompt":"abc"}')
    assert (facts.session_key, facts.session_source) == (0, "")


def test_headers_are_read_for_unknown_paths_and_unreadable_bodies(inspector: Inspector) -> None:
    headers = {"x-session-id": "abc", "x-tenant-id": "t", "x-service-class": "high", "x-vllm-priority": "-2"}
    for path, body in (("/other", b"x"), (CHAT, b"not json"), (CHAT, b"")):
        facts = inspector.inspect(path, headers, body)
        assert facts.session_key == session_key("abc")
        assert (facts.tenant, facts.service_class, facts.priority) == ("t", "high", -2)


def test_priority_of_the_header_overrides_the_body(inspector: Inspector) -> None:
    body = json.dumps({"model": "m", "messages": MESSAGES, "priority": 5}).encode()
    assert inspector.inspect(CHAT, {}, body).priority == 5
    assert inspector.inspect(CHAT, {"x-vllm-priority": "9"}, body).priority == 9
    assert inspector.inspect(CHAT, {"x-vllm-priority": "much"}, body).priority == 5


def test_sources_of_a_policy() -> None:
    policy = InspectPolicy(
        session_sources=("cookie:sid", "body:odd-name.a.b", "header:x-mine"),
        tenant_sources=("x-team",),
        class_sources=(),
        session_max_bytes=16,
    )
    mine = Inspector(policy, TokenEstimator())
    cookie = {"cookie": 'a=1; sid="v 1"; b=2'}
    assert session(mine, cookie) == ("cookie:sid", session_key("v 1"))
    odd: dict[str, Any] = {"odd-name": {"a": {"b": "z"}}}
    assert session(mine, {"cookie": "xsid=1"}, CHAT, **odd)[0] == "body:odd-name.a.b"
    assert session(mine, {"x-mine": "h"}, CHAT, **(odd | {"odd-name": {"a": 1}}))[0] == "header:x-mine"
    assert session(mine, {"x-mine": "h" * 17}) == ("", 0)
    assert mine.inspect(CHAT, {"x-team": "red", "x-service-class": "high"}, b"{}").tenant == "red"
    nothing = Inspector(InspectPolicy(session_sources=()), TokenEstimator())
    assert session(nothing, {"x-session-id": "a"}) == ("", 0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"session_sources": ("header:X-Upper",)}, "lower case"),
        ({"session_sources": ("query:a",)}, "none of"),
        ({"session_sources": ("body:",)}, "none of"),
        ({"tenant_sources": ("X-Tenant",)}, "not in lower case"),
    ],
)
def test_wrong_sources_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        InspectPolicy(**settings)
