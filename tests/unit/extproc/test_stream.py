from __future__ import annotations

import json
import sys

import pytest
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc

from tests.unit.extproc.support import (
    BUFFERED,
    DUPLEX,
    NONE,
    PARTIAL,
    STREAMED,
    FirstPicker,
    Peer,
    body_of,
    common,
    decider_of,
    headers_message,
    metadata,
    pieces,
    pool,
    set_headers,
)
from xds_control.extproc.decide import Pick, Refusal
from xds_control.extproc.decision import Decision, Hold
from xds_control.extproc.modes import Mode
from xds_control.extproc.stream import ProtocolViolation, Stream, StreamError
from xds_control.policy import headers as names
from xds_control.policy.extproc import ExtProcPolicy
from xds_control.policy.routing import RoutingPolicy

REMOVED = {*names.RESERVED_REQUEST_HEADERS, *names.CONTROL_REQUEST_HEADERS}


def test_buffered_body_routes_by_model_and_ends_the_stream() -> None:
    peer = Peer(decider_of(), BUFFERED)
    (first,) = peer.headers()
    assert first.WhichOneof("response") == "request_headers"
    assert not set_headers(first)
    assert set(common(first).header_mutation.remove_headers) == REMOVED
    (second,) = peer.body(body_of("model-b"))
    assert second.WhichOneof("response") == "request_body"
    assert set_headers(second)[names.POOL] == "pool-b"
    assert set_headers(second)[names.MODEL] == "model-b"
    assert common(second).clear_route_cache
    assert metadata(second)[names.NAMESPACE][names.META_POOL] == "pool-b"
    assert not common(second).HasField("body_mutation")
    assert peer.stream.done


def test_without_protocol_config_bodies_are_buffered() -> None:
    peer = Peer(decider_of())
    peer.headers()
    assert peer.stream.mode is Mode.BUFFERED
    (answer,) = peer.body(body_of())
    assert set_headers(answer)[names.POOL] == "pool-a"


def test_header_only_request_is_decided_on_its_headers() -> None:
    peer = Peer(decider_of(routing=RoutingPolicy(default_pool="pool-b")), BUFFERED)
    (answer,) = peer.headers({":method": "GET", ":path": "/v1/models"}, end=True)
    assert answer.WhichOneof("response") == "request_headers"
    assert set_headers(answer)[names.POOL] == "pool-b"
    assert set(common(answer).header_mutation.remove_headers) == REMOVED
    assert peer.stream.done


@pytest.mark.parametrize("mode", [NONE, STREAMED])
def test_modes_that_show_no_body_in_time_are_decided_on_headers(mode: int) -> None:
    peer = Peer(decider_of(routing=RoutingPolicy(default_pool="pool-b")), mode)
    (answer,) = peer.headers()
    assert answer.WhichOneof("response") == "request_headers"
    assert set_headers(answer)[names.POOL] == "pool-b"


def test_streamed_pieces_each_get_an_answer_when_observed() -> None:
    peer = Peer(decider_of(extproc=ExtProcPolicy(responses="observe")), STREAMED)
    peer.headers()
    for end in (False, False, True):
        (answer,) = peer.body(b"x", end=end)
        assert answer.WhichOneof("response") == "request_body"
        assert not common(answer).HasField("body_mutation")


def test_streamed_once_answers_only_headers_after_the_end() -> None:
    body = body_of("model-b")
    peer = Peer(decider_of(), STREAMED, send_body_without_waiting_for_header_response=True)
    assert peer.headers() == []
    assert peer.body(body[:7], end=False) == []
    (answer,) = peer.body(body[7:])
    assert answer.WhichOneof("response") == "request_headers"
    assert set_headers(answer)[names.POOL] == "pool-b"
    assert "content-length" not in set_headers(answer)
    assert peer.stream.done


def test_partial_body_that_is_cut_is_not_called_malformed() -> None:
    decider = decider_of(extproc=ExtProcPolicy(on_malformed="reject"), routing=RoutingPolicy(default_pool="pool-a"))
    peer = Peer(decider, PARTIAL)
    peer.headers()
    (answer,) = peer.body(body_of()[:10], end=False)
    assert set_headers(answer)[names.POOL] == "pool-a"
    assert not answer.HasField("immediate_response")


@pytest.mark.parametrize(("size", "count"), [(0, 1), (1, 1), (62_000, 1), (62_001, 2), (125_000, 3)])
def test_full_duplex_echoes_the_body_in_pieces(size: int, count: int) -> None:
    body = b"x" * size
    peer = Peer(decider_of(), DUPLEX)
    assert peer.headers() == []
    for start in range(0, max(size, 1), 50_000):
        answers = peer.body(body[start : start + 50_000], end=start + 50_000 >= size)
    assert answers[0].WhichOneof("response") == "request_headers"
    assert set_headers(answers[0])["content-length"] == str(size)
    found = pieces(answers)
    assert len(found) == count
    assert b"".join(one.body for one in found) == body
    assert [one.end_of_stream for one in found] == [False] * (count - 1) + [True]


def test_full_duplex_body_ended_by_trailers() -> None:
    body = body_of("model-b")
    peer = Peer(decider_of(), DUPLEX)
    peer.headers()
    assert peer.body(body, end=False) == []
    answers = peer.trailers()
    assert [one.WhichOneof("response") for one in answers] == ["request_headers", "request_body", "request_trailers"]
    assert set_headers(answers[0])[names.POOL] == "pool-b"
    assert "content-length" not in set_headers(answers[0])
    assert [one.end_of_stream for one in pieces(answers)] == [False]


@pytest.mark.parametrize("mode", [BUFFERED, DUPLEX])
def test_what_comes_after_the_end_of_the_body_is_ignored(mode: int) -> None:
    peer = Peer(decider_of(extproc=ExtProcPolicy(responses="observe")), mode)
    peer.headers()
    peer.body(body_of("model-b"))
    assert peer.body(b"tail") == []
    assert peer.body(b"", end=True) == []
    decision = peer.stream.decision
    assert decision is not None
    assert decision.pool == "pool-b"


def test_rewritten_body_goes_out_with_its_length() -> None:
    routing = _alias_routing()
    peer = Peer(decider_of(routing=routing), BUFFERED)
    peer.headers()
    (answer,) = peer.body(body_of("gpt-4"))
    mutated = common(answer).body_mutation.body
    assert json.loads(mutated)["model"] == "model-a"
    assert set_headers(answer)["content-length"] == str(len(mutated))
    assert set_headers(answer)[names.MODEL] == "model-a"

    peer = Peer(decider_of(routing=routing), DUPLEX)
    peer.headers()
    answers = peer.body(body_of("gpt-4"))
    sent = b"".join(one.body for one in pieces(answers))
    assert json.loads(sent)["model"] == "model-a"
    assert set_headers(answers[0])["content-length"] == str(len(sent))


def test_body_that_cannot_be_replaced_keeps_its_model() -> None:
    peer = Peer(decider_of(routing=_alias_routing()), STREAMED, send_body_without_waiting_for_header_response=True)
    peer.headers()
    (answer,) = peer.body(body_of("gpt-4"))
    assert set_headers(answer)[names.POOL] == "pool-a"
    assert set_headers(answer)[names.MODEL] == "gpt-4"


def _alias_routing() -> RoutingPolicy:
    from xds_control.policy.routing import ModelRoute, Target

    return RoutingPolicy(models=(ModelRoute(model="gpt-4", to=(Target(pool="pool-a", model="model-a"),)),))


@pytest.mark.parametrize(
    ("path", "shape"),
    [
        ("/v1/chat/completions", lambda body: body["error"]["code"]),
        ("/v1/messages", lambda body: {"not_found_error": "model_not_found"}[body["error"]["type"]]),
        ("/api/chat", lambda body: "model_not_found" if "does not exist" in body["error"] else body),
    ],
)
def test_unknown_model_is_404_in_the_form_of_the_api(path: str, shape: object) -> None:
    peer = Peer(decider_of(), BUFFERED)
    peer.headers({":path": path})
    (answer,) = peer.body(body_of("nobody"))
    immediate = answer.immediate_response
    assert immediate.status.code == 404
    assert shape(json.loads(immediate.body)) == "model_not_found"  # type: ignore[operator]
    sent = {one.header.key: one.header.raw_value for one in immediate.headers.set_headers}
    assert sent["content-type"] == b"application/json"
    assert sent[names.REASON] == b"model-not-found"
    assert metadata(answer)[names.NAMESPACE][names.META_MODEL] == "nobody"
    assert peer.stream.done


def test_unknown_model_may_go_to_the_default_pool() -> None:
    peer = Peer(decider_of(routing=RoutingPolicy(default_pool="pool-b")), BUFFERED)
    peer.headers()
    (answer,) = peer.body(body_of("nobody"))
    assert set_headers(answer)[names.POOL] == "pool-b"


def test_malformed_body_passes_or_is_refused() -> None:
    peer = Peer(decider_of(), BUFFERED)
    peer.headers()
    (answer,) = peer.body(b"{nope")
    assert not answer.HasField("immediate_response")
    assert names.POOL not in set_headers(answer)

    peer = Peer(decider_of(extproc=ExtProcPolicy(on_malformed="reject")), BUFFERED)
    peer.headers()
    (answer,) = peer.body(b"{nope")
    assert answer.immediate_response.status.code == 400
    assert json.loads(answer.immediate_response.body)["error"]["code"] == "body-not-json"


def test_too_large_duplex_body_is_refused_or_echoed_as_it_comes() -> None:
    limits = ExtProcPolicy(max_body_bytes=1024, on_too_large="reject")
    peer = Peer(decider_of(extproc=limits), DUPLEX)
    peer.headers()
    assert peer.body(b"x" * 1000, end=False) == []
    (answer,) = peer.body(b"x" * 100, end=False)
    assert answer.immediate_response.status.code == 413
    assert peer.stream.done

    limits = ExtProcPolicy(max_body_bytes=1024, on_too_large="pass")
    peer = Peer(decider_of(extproc=limits), DUPLEX)
    peer.headers()
    peer.body(b"x" * 1000, end=False)
    first = peer.body(b"y" * 100, end=False)
    assert first[0].WhichOneof("response") == "request_headers"
    assert "content-length" not in set_headers(first[0])
    later = [*peer.body(b"z" * 70_000, end=False), *peer.body(b"", end=True)]
    found = pieces([*first, *later])
    assert b"".join(one.body for one in found) == b"x" * 1000 + b"y" * 100 + b"z" * 70_000
    assert [one.end_of_stream for one in found] == [False, False, False, True]
    assert peer.stream.done


@pytest.mark.parametrize("mode", [DUPLEX, STREAMED])
def test_bodies_that_wait_for_their_rest_are_bounded_together(mode: int) -> None:
    limits = ExtProcPolicy(max_buffered_bytes=1 << 20, on_malformed="reject", on_too_large="reject")
    decider = decider_of(extproc=limits)
    beginning = b'{"model": "model-b", "prompt": "'
    peers = [Peer(decider, mode, send_body_without_waiting_for_header_response=True) for _ in range(3)]
    for peer in peers:
        peer.headers()
        assert peer.body(beginning + b"y" * 400_000, end=False) == [] or peer is peers[2]
    first, second, cut = peers
    assert cut.stream.decision is not None
    assert cut.stream.decision.immediate is None
    assert (first.stream.decision, second.stream.decision) == (None, None)
    assert decider.buffered.bytes == 2 * (len(beginning) + 400_000)
    if mode == DUPLEX:
        found = pieces([*cut.sent, *cut.body(b"z" * 100_000 + b'"}', end=True)])
        assert b"".join(one.body for one in found) == beginning + b"y" * 400_000 + b"z" * 100_000 + b'"}'
        assert found[-1].end_of_stream
    first.stream.closed()
    assert decider.buffered.bytes == len(beginning) + 400_000
    second.body(b'"}')
    assert decider.buffered.bytes == 0
    after = decider_of(extproc=limits)
    after.continue_from(decider)
    assert after.buffered is decider.buffered


def test_a_body_in_tiny_pieces_or_in_views_takes_little_more_than_its_size() -> None:
    peer = Peer(decider_of(), DUPLEX)
    peer.headers()
    for _ in range(20_000):
        assert peer.body(b"ab", end=False) == []
    read = bytes(256_000)
    for at in range(0, 200_000, 20_000):  # each the only piece of its read that is ours
        assert peer.stream.receive_body([memoryview(bytes(read))[at : at + 9_000]], False, 0.0) == []
    assert peer.stream.receive_body([memoryview(read)], False, 0.0) == []
    kept = peer.stream._body
    views = [one for one in kept if isinstance(one, memoryview)]
    assert len(views) == 1
    assert sum(map(sys.getsizeof, kept)) < 1.2 * (40_000 + 90_000)
    last = peer.stream.receive_body([b"end"], True, 0.0)
    found = pieces([ext_proc.ProcessingResponse.FromString(one) for one in last])
    assert b"".join(one.body for one in found) == b"ab" * 20_000 + bytes(90_000 + 256_000) + b"end"


def test_pick_is_in_header_and_metadata_alike() -> None:
    chosen = Pick(("10.9.0.1:8000", "[fd00::2]:8000"), matched_tokens=128, headers={names.PREFILL: "10.9.0.7:8000"})
    peer = Peer(decider_of(picker=FirstPicker(chosen)), BUFFERED)
    peer.headers()
    (answer,) = peer.body(body_of())
    expected = "10.9.0.1:8000,[fd00::2]:8000"
    assert set_headers(answer)[names.DESTINATION] == expected
    assert metadata(answer)[names.LB_NAMESPACE] == {names.DESTINATION: expected}
    assert set_headers(answer)[names.PREFILL] == "10.9.0.7:8000"
    assert metadata(answer)[names.NAMESPACE][names.META_MATCHED_TOKENS] == 128
    assert metadata(answer)[names.NAMESPACE][names.META_PICK] == "10.9.0.1:8000"


def test_scores_are_sent_on_request() -> None:
    chosen = Pick(("10.9.0.1:8000",), scores={"10.9.0.1:8000": 0.75, "10.9.0.2:8000": 0.0})
    peer = Peer(decider_of(picker=FirstPicker(chosen), extproc=ExtProcPolicy(emit_scores=True)), BUFFERED)
    peer.headers()
    (answer,) = peer.body(body_of())
    scores = metadata(answer)[names.LB_NAMESPACE][names.DESTINATION_SCORES]
    assert dict(scores.items()) == chosen.scores  # type: ignore[attr-defined]


def test_refusal_of_the_picker_is_an_answer() -> None:
    refusal = Refusal(429, "saturated", "The pool is full.", retry_after_s=1.2, peer_reason="rejected-saturated")
    peer = Peer(decider_of(picker=FirstPicker(refusal)), DUPLEX)
    peer.headers()
    (answer,) = peer.body(body_of())
    sent = {one.header.key: one.header.raw_value for one in answer.immediate_response.headers.set_headers}
    assert answer.immediate_response.status.code == 429
    assert sent["retry-after"] == b"2"
    assert sent["x-llm-d-request-dropped-reason"] == b"rejected-saturated"


@pytest.mark.parametrize(
    ("hint", "expected"),
    [
        (["10.9.0.1:8000", 12345, "10.9.0.2:8000"], ("10.9.0.1:8000", "10.9.0.2:8000")),
        ("10.9.0.2:8000, [fd00::2]:8000", ("10.9.0.2:8000", "[fd00::2]:8000")),
        ([], ()),
        ("", ()),
        (None, None),
    ],
)
@pytest.mark.parametrize("end", [True, False])
def test_subset_hint_is_a_list_or_a_text(hint: object, expected: object, end: bool) -> None:
    picker = FirstPicker(None)
    peer = Peer(decider_of(picker=picker, routing=RoutingPolicy(default_pool="pool-a")), DUPLEX)
    peer.headers(end=end, subset=hint)
    if not end:
        peer.body(body_of())
    assert picker.subsets == [expected]


def test_subset_hint_can_be_switched_off() -> None:
    picker = FirstPicker(None)
    peer = Peer(decider_of(picker=picker, extproc=ExtProcPolicy(subset_hint=False)), BUFFERED)
    peer.headers(subset=[])
    peer.body(body_of())
    assert picker.subsets == [None]


def test_reserved_headers_of_clients_change_nothing() -> None:
    peer = Peer(decider_of(), BUFFERED)
    peer.headers({names.POOL: "pool-b", names.DESTINATION: "10.6.6.6:1"})
    (answer,) = peer.body(body_of("model-a"))
    assert set_headers(answer)[names.POOL] == "pool-a"
    assert names.DESTINATION not in set_headers(answer)


def test_client_text_in_headers_is_made_harmless() -> None:
    routing = RoutingPolicy(default_pool="pool-a")
    peer = Peer(decider_of(routing=routing), BUFFERED)
    peer.headers()
    (answer,) = peer.body(body_of("evil\r\nx-admin: 1" + "y" * 5000))
    value = set_headers(answer)[names.MODEL]
    assert "\r" not in value
    assert "\n" not in value
    assert len(value) == 256


def test_response_phases_are_answered_when_sent() -> None:
    peer = Peer(decider_of(), DUPLEX, response_body_mode=DUPLEX)
    peer.headers()
    peer.body(body_of())
    assert not peer.stream.done
    (headers,) = peer.send(ext_proc.ProcessingRequest(response_headers=ext_proc.HttpHeaders()))
    assert headers.WhichOneof("response") == "response_headers"
    (piece,) = peer.send(ext_proc.ProcessingRequest(response_body=ext_proc.HttpBody(body=b"data: 1\n\n")))
    streamed = piece.response_body.response.body_mutation.streamed_response
    assert (streamed.body, streamed.end_of_stream) == (b"data: 1\n\n", False)
    (last,) = peer.send(ext_proc.ProcessingRequest(response_body=ext_proc.HttpBody(end_of_stream=True)))
    assert last.response_body.response.body_mutation.streamed_response.end_of_stream
    assert peer.stream.done


def test_buffered_response_bodies_are_left_alone() -> None:
    peer = Peer(decider_of(extproc=ExtProcPolicy(responses="observe")), BUFFERED, response_body_mode=BUFFERED)
    peer.headers()
    peer.body(body_of())
    peer.send(ext_proc.ProcessingRequest(response_headers=ext_proc.HttpHeaders()))
    (answer,) = peer.send(ext_proc.ProcessingRequest(response_body=ext_proc.HttpBody(body=b"{}", end_of_stream=True)))
    assert answer.WhichOneof("response") == "response_body"
    assert not common(answer).HasField("body_mutation")


def test_response_of_a_request_that_was_never_shown() -> None:
    peer = Peer(decider_of(), BUFFERED)
    (answer,) = peer.send(ext_proc.ProcessingRequest(response_headers=ext_proc.HttpHeaders()))
    assert answer.WhichOneof("response") == "response_headers"


def test_body_without_headers_is_answered() -> None:
    peer = Peer(decider_of(), BUFFERED)
    (answer,) = peer.body(body_of())
    assert answer.WhichOneof("response") == "request_body"
    assert set_headers(answer)[names.POOL] == "pool-a"


def test_observability_mode_is_never_answered() -> None:
    peer = Peer(decider_of(), BUFFERED)
    message = headers_message()
    message.observability_mode = True
    assert peer.send(message) == []


def test_headers_that_come_twice_are_a_violation() -> None:
    peer = Peer(decider_of(), BUFFERED)
    peer.headers()
    with pytest.raises(ProtocolViolation):
        peer.headers()


def test_empty_message_is_a_violation() -> None:
    with pytest.raises(ProtocolViolation):
        Stream(decider_of()).receive(ext_proc.ProcessingRequest(), 0.0)


class _Broken(FirstPicker):
    def pick(self, *args: object, **more: object) -> Pick | Refusal | None:
        raise RuntimeError("broken")


def test_fault_ends_the_stream_with_an_error_never_cleanly() -> None:
    peer = Peer(decider_of(picker=_Broken(None)), BUFFERED)
    peer.headers()
    with pytest.raises(StreamError, match="broken"):
        peer.body(body_of())
    assert not peer.stream.done


@pytest.mark.parametrize("mode", [BUFFERED, DUPLEX, STREAMED])
def test_fault_may_be_answered_as_nothing_to_change(mode: int) -> None:
    decider = decider_of(picker=_Broken(None), extproc=ExtProcPolicy(on_error="continue"))
    peer = Peer(decider, mode, send_body_without_waiting_for_header_response=True)
    peer.headers()
    body = body_of()
    answers = peer.body(body)
    assert peer.stream.done
    assert isinstance(peer.stream.failure, RuntimeError)
    assert not set_headers(answers[0])
    if mode == DUPLEX:
        assert b"".join(one.body for one in pieces(answers)) == body
        assert pieces(answers)[-1].end_of_stream


class _Gate:
    def admit(self, decision: Decision, headers: object, now: float) -> Hold:
        return Hold(key=decision.id)


@pytest.mark.parametrize("mode", [BUFFERED, DUPLEX])
def test_held_request_is_answered_when_it_is_let_in(mode: int) -> None:
    decider = decider_of()
    decider.admission = _Gate()
    peer = Peer(decider, mode)
    peer.headers()
    assert peer.body(body_of("model-b")) == []
    assert peer.stream.held is not None
    answers = [ext_proc.ProcessingResponse.FromString(one) for one in peer.stream.resume(None, 1.0)]
    assert set_headers(answers[0])[names.POOL] == "pool-b"
    assert peer.stream.held is None
    assert peer.stream.done


def test_held_request_can_be_refused() -> None:
    decider = decider_of()
    decider.admission = _Gate()
    peer = Peer(decider, BUFFERED)
    peer.headers()
    peer.body(body_of())
    (data,) = peer.stream.resume(Refusal(429, "queue-timeout", "Waited too long."), 1.0)
    assert ext_proc.ProcessingResponse.FromString(data).immediate_response.status.code == 429
    with pytest.raises(StreamError):
        peer.stream.resume(None, 2.0)


def test_decision_id_is_emitted_on_request() -> None:
    peer = Peer(decider_of(extproc=ExtProcPolicy(emit_decision=True, responses="observe")), BUFFERED)
    peer.headers()
    (answer,) = peer.body(body_of())
    chosen = set_headers(answer)[names.DECISION]
    assert chosen == metadata(answer)[names.NAMESPACE][names.META_ID]
    (headers,) = peer.send(ext_proc.ProcessingRequest(response_headers=ext_proc.HttpHeaders()))
    assert set_headers(headers)[names.DECISION] == chosen


def test_pool_of_one_takes_everything() -> None:
    peer = Peer(decider_of(pool("only", [])), BUFFERED)
    peer.headers()
    (answer,) = peer.body(body_of("whatever"))
    assert set_headers(answer)[names.POOL] == "only"
