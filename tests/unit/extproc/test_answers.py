from __future__ import annotations

from itertools import pairwise
from typing import Any
from unittest.mock import Mock

import pytest
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.extproc.support import common, set_headers
from xds_control.extproc import answers
from xds_control.extproc import usage as usage_module
from xds_control.extproc.decision import Decision, Immediate
from xds_control.extproc.wire import body_of, body_of_parts, joined
from xds_control.inspect.facts import RequestFacts
from xds_control.policy import headers as names

texts = st.text(max_size=300)
counts = st.integers(0, 1 << 52)
keys = st.integers(0, (1 << 64) - 1)
header_names = st.text(alphabet="abcdefghijklmnopqrstuvwxyz-", min_size=1, max_size=200)

decisions = st.builds(
    Decision,
    id=st.text(max_size=40),
    facts=st.builds(
        RequestFacts,
        api=st.sampled_from(["", "openai.chat"]),
        prompt_bytes=counts,
        prompt_tokens=counts,
        expected_output_tokens=counts,
        images=st.integers(0, 100),
        text_profile=counts,
        session_key=keys,
        prefix_keys=st.lists(keys, max_size=3).map(tuple),
    ),
    processor=st.text(max_size=20),
    pool=texts,
    rule=st.text(max_size=20),
    model=texts,
    service_class=texts,
    tenant=texts,
    headers=st.dictionaries(header_names, texts, max_size=12),
    drop_headers=st.lists(header_names, max_size=2).map(tuple),
    destinations=st.lists(st.sampled_from(["10.0.0.1:80", "[fd00::1]:8000"]), max_size=3).map(tuple),
    matched_tokens=counts,
    more_metadata=st.dictionaries(st.text(max_size=9).map(lambda key: f"more-{key}"), counts | texts, max_size=3),
    scores=st.none() | st.dictionaries(st.text(max_size=20), st.floats(allow_nan=False), max_size=3),
    clear_route_cache=st.booleans(),
    body=st.none() | st.binary(max_size=300),
)


def parsed(data: bytes) -> ext_proc.ProcessingResponse:
    return ext_proc.ProcessingResponse.FromString(data)


def metadata(response: ext_proc.ProcessingResponse) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for name, value in response.dynamic_metadata.fields.items():
        found[name] = dict(value.struct_value.items())
        scores = found[name].get(names.DESTINATION_SCORES)
        if scores is not None:
            found[name][names.DESTINATION_SCORES] = dict(scores.items())
    return found


@settings(max_examples=200, deadline=None)
@given(decisions)
def test_written_bytes_say_what_the_decision_says(decision: Decision) -> None:
    for response in (parsed(answers.body_answer(decision)), parsed(answers.headers_answer(decision))):
        sent = common(response)
        headers = dict(decision.headers)
        if decision.body is not None and response.HasField("request_body"):
            headers["content-length"] = str(len(decision.body))
            assert sent.body_mutation.body == decision.body
            assert sent.body_mutation.clear_body == (not decision.body)
        assert set_headers(response) == headers
        assert sent.clear_route_cache == decision.clear_route_cache
        assert metadata(response) == decision.metadata
        assert set(decision.drop_headers) <= set(sent.header_mutation.remove_headers)


@settings(max_examples=50, deadline=None)
@given(decisions, st.integers(400, 599), st.binary(max_size=300), st.dictionaries(header_names, texts, max_size=3))
def test_immediate_answers(decision: Decision, status: int, body: bytes, headers: dict[str, str]) -> None:
    response = parsed(answers.immediate_answer(Immediate(status, "why-not", body, headers), decision))
    sent = response.immediate_response
    assert sent.status.code == status
    assert (sent.body, sent.details) == (body, "why-not")
    got = {one.header.key: one.header.raw_value.decode() for one in sent.headers.set_headers}
    assert got == {names.REASON: "why-not", **headers}
    assert metadata(response) == decision.metadata


def test_lone_surrogates_are_replaced() -> None:
    decision = Decision("1", RequestFacts(), model="\ud83d", headers={"x-a": "\ud83d"})
    response = parsed(answers.body_answer(decision))
    assert set_headers(response) == {"x-a": "?"}
    assert metadata(response)[names.NAMESPACE][names.META_MODEL] == "?"


def test_constants_are_plain_continues() -> None:
    for data, kind in (
        (answers.CONTINUE_REQUEST_HEADERS, "request_headers"),
        (answers.CONTINUE_RESPONSE_HEADERS, "response_headers"),
        (answers.CONTINUE_REQUEST_BODY, "request_body"),
        (answers.CONTINUE_RESPONSE_BODY, "response_body"),
        (answers.CONTINUE_REQUEST_TRAILERS, "request_trailers"),
        (answers.CONTINUE_RESPONSE_TRAILERS, "response_trailers"),
    ):
        assert parsed(data).WhichOneof("response") == kind
        assert parsed(data).SerializeToString() == data
    removed = common(parsed(answers.STRIP_REQUEST_HEADERS)).header_mutation.remove_headers
    assert set(removed) == {*names.RESERVED_REQUEST_HEADERS, *names.CONTROL_REQUEST_HEADERS}


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=500), st.booleans(), st.integers(1, 200), st.booleans())
def test_pieces_add_up(body: bytes, end: bool, size: int, response: bool) -> None:
    found = [parsed(one) for one in answers.streamed_pieces(body, end, response, size)]
    kind = "response_body" if response else "request_body"
    sent = [getattr(one, kind).response.body_mutation.streamed_response for one in found]
    assert b"".join(one.body for one in sent) == body
    assert all(len(one.body) <= size for one in sent)
    assert [one.end_of_stream for one in sent] == [end and one is sent[-1] for one in sent]
    assert bool(sent) == (bool(body) or end)


def _cut(data: bytes, places: list[int]) -> list[bytes | memoryview]:
    edges = [0, *sorted({place % max(len(data), 1) for place in places} - {0}), len(data)]
    return [memoryview(data)[start:stop] for start, stop in pairwise(edges)]


@settings(max_examples=200, deadline=None)
@given(
    st.binary(max_size=400) | st.binary(min_size=100, max_size=100).map(lambda b: b * 700),
    st.booleans(),
    st.lists(st.integers(0, 80_000)),
)
def test_bodies_are_read_off_the_wire(body: bytes, end: bool, places: list[int]) -> None:
    data = ext_proc.ProcessingRequest(request_body=ext_proc.HttpBody(body=body, end_of_stream=end)).SerializeToString()
    if body:
        assert _read(body_of(data)) == (body, end)
    assert _read(body_of_parts(_cut(data, places))) in ((body, end), None)
    halves: list[bytes | memoryview] = [memoryview(data)[:50], memoryview(data)[50:]]
    assert _read(body_of_parts(halves)) == ((body, end) if len(data) > 52 else None)


def _read(found: tuple[list[bytes | memoryview], bool] | None) -> tuple[bytes, bool] | None:
    return None if found is None else (joined(found[0]), found[1])


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60))
def test_other_messages_are_left_to_the_parser(data: bytes) -> None:
    found = _read(body_of(data))
    if found is not None:
        message = ext_proc.ProcessingRequest.FromString(data)
        assert (message.request_body.body, message.request_body.end_of_stream) == found
        assert message.WhichOneof("request") == "request_body"


def test_message_with_more_in_it_is_left_to_the_parser() -> None:
    message = ext_proc.ProcessingRequest(request_body=ext_proc.HttpBody(body=b"x" * 100, end_of_stream=True))
    message.metadata_context.filter_metadata["envoy.lb"].update({"a": "b"})
    assert body_of(message.SerializeToString()) is None
    message.ClearField("metadata_context")
    message.observability_mode = True
    assert body_of(message.SerializeToString()) is None


@pytest.mark.parametrize(
    ("tail", "prompt"),
    [
        (b'","usage":{"prompt_tokens":5,"prompt_tokens_details":{"cached_tokens":3}}}', 5),
        (b'","usage":{"prompt_tokens":5},"x":{"usage":{y}}}', 5),
        (b'"usage":{"prompt_tokens":5}' + b'"usage":{x' * 400 + b"}" * 4096, None),
        (b'"usage":{' * 20_000, None),
    ],
)
def test_of_a_body_too_large_to_read_the_end_is_looked_at_a_few_times(
    monkeypatch: pytest.MonkeyPatch, tail: bytes, prompt: int | None
) -> None:
    counted = Mock(wraps=usage_module._decode_first)
    monkeypatch.setattr(usage_module, "_decode_first", counted)
    reader = usage_module.UsageReader(False)
    reader.feed(b'{"a":"' + bytes(9 << 20))
    reader.feed(tail, True)
    assert reader.usage.prompt == prompt
    assert counted.call_count <= 16
