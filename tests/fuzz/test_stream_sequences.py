"""Sequences of ProcessingRequests, sensible and senseless, against the stream machine.

A few seconds by default: XDS_CONTROL_FUZZ_SECONDS lengthens it, roughly. Every failure found becomes a test of its own.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from itertools import pairwise

from envoy.config.core.v3 import base_pb2
from envoy.extensions.filters.http.ext_proc.v3 import processing_mode_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.extproc.support import DUPLEX, FirstPicker, body_of, common, decider_of, pieces
from xds_control.extproc.decide import Pick, Refusal
from xds_control.extproc.reading import RequestReader
from xds_control.extproc.stream import Stream, StreamError
from xds_control.extproc.wire import body_of as wire_body_of
from xds_control.inspect import TokenEstimator
from xds_control.policy import headers as names
from xds_control.policy.extproc import ExtProcPolicy
from xds_control.policy.inspect import InspectPolicy
from xds_control.policy.routing import ModelRoute, RoutingPolicy, Target

EXAMPLES = int(float(os.environ.get("XDS_CONTROL_FUZZ_SECONDS", "4")) * 50)
READER = RequestReader(InspectPolicy(), TokenEstimator())
fuzz = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))

MODES = processing_mode_pb2.ProcessingMode
modes = st.sampled_from(
    [MODES.NONE, MODES.STREAMED, MODES.BUFFERED, MODES.BUFFERED_PARTIAL, MODES.FULL_DUPLEX_STREAMED, 99]
)
policies = st.builds(
    ExtProcPolicy,
    max_body_bytes=st.sampled_from([1024, 1 << 20]),
    on_malformed=st.sampled_from(["pass", "reject"]),
    on_too_large=st.sampled_from(["pass", "reject"]),
    on_error=st.sampled_from(["abort", "continue"]),
    responses=st.sampled_from(["auto", "ignore", "observe"]),
    emit_decision=st.booleans(),
    subset_hint=st.booleans(),
)
routings = st.sampled_from(
    [
        RoutingPolicy(),
        RoutingPolicy(default_pool="pool-a"),
        RoutingPolicy(unknown_model=404),
        RoutingPolicy(models=(ModelRoute(prefix="", regex=".*", to=(Target(pool="pool-b", model="model-b"),)),)),
    ]
)
pickers = st.sampled_from([None, Pick(("10.0.0.1:80",)), Refusal(429, "full", "Full.", 1.0), RuntimeError("broken")])
bodies = st.one_of(
    st.binary(max_size=64),
    st.sampled_from([body_of("model-a"), body_of("model-b"), body_of("nobody"), b"", b"{", b"null", b"[" * 3000]),
    st.integers(0, 130_000).map(lambda size: b"z" * size),
)
header_maps = st.dictionaries(
    st.sampled_from(
        [":path", ":method", "x-original-path", "content-encoding", *names.RESERVED_REQUEST_HEADERS[:4], "x"]
    ),
    st.text(max_size=20) | st.sampled_from(["/v1/chat/completions", "/v1/messages", "gzip", "POST"]),
    max_size=6,
)


def stream_of(routing: RoutingPolicy, policy: ExtProcPolicy, picker: FirstPicker | None = None) -> Stream:
    """A stream that reads bodies with the real inspector."""
    decider = decider_of(routing=routing, extproc=policy, picker=picker)
    decider.inspector = READER
    return Stream(decider)


class _Fuzzed(FirstPicker):
    def pick(self, *args: object, **more: object) -> Pick | Refusal | None:
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


def headers_part(headers: dict[str, str], end: bool) -> ext_proc.HttpHeaders:
    values = [
        base_pb2.HeaderValue(key=name, raw_value=value.encode("utf-8", "replace")) for name, value in headers.items()
    ]
    return ext_proc.HttpHeaders(headers=base_pb2.HeaderMap(headers=values), end_of_stream=end)


@st.composite
def messages(draw: st.DrawFn) -> ext_proc.ProcessingRequest:
    """Any message, with or without a configuration, metadata and attributes."""
    message = ext_proc.ProcessingRequest()
    kind = draw(
        st.sampled_from(
            [
                "request_headers",
                "request_body",
                "request_trailers",
                "response_headers",
                "response_body",
                "response_trailers",
                "",
            ]
        )
    )
    if kind.endswith("headers"):
        getattr(message, kind).CopyFrom(headers_part(draw(header_maps), draw(st.booleans())))
    elif kind.endswith("body"):
        getattr(message, kind).CopyFrom(ext_proc.HttpBody(body=draw(bodies), end_of_stream=draw(st.booleans())))
    elif kind:
        getattr(message, kind).SetInParent()
    if draw(st.booleans()):
        message.protocol_config.request_body_mode = draw(modes)
        message.protocol_config.response_body_mode = draw(modes)
        message.protocol_config.send_body_without_waiting_for_header_response = draw(st.booleans())
    if draw(st.integers(0, 9)) == 0:
        message.observability_mode = True
    if draw(st.integers(0, 4)) == 0:
        hint = draw(st.sampled_from([["a:1"], [], "b:2", 3, None, True, {"x": [1]}]))
        message.metadata_context.filter_metadata["envoy.lb.subset_hint"].update(
            {"x-gateway-destination-endpoint-subset": hint}
        )
    if draw(st.integers(0, 4)) == 0:
        attributes = draw(
            st.dictionaries(
                st.sampled_from(["request.path", "n", "b"]), st.text(max_size=5) | st.booleans(), max_size=2
            )
        )
        message.attributes["envoy.filters.http.ext_proc"].update(attributes)
    return message


@fuzz
@given(policies, routings, pickers, st.lists(messages(), max_size=8))
def test_any_sequence_is_answered_or_refused_in_form(
    policy: ExtProcPolicy, routing: RoutingPolicy, picker: object, sequence: list[ext_proc.ProcessingRequest]
) -> None:
    chosen = None if picker is None else _Fuzzed(picker)  # type: ignore[arg-type]
    stream = stream_of(routing, policy, chosen)
    for message in sequence:
        done = stream.done
        try:
            found = stream.receive(message, 0.0)
        except StreamError:
            break
        assert not (done and found)
        assert not (message.observability_mode and found)
        for data in found:
            assert ext_proc.ProcessingResponse.FromString(data).WhichOneof("response")
    stream.closed()
    assert stream.done


@dataclass
class Told:
    """What a data plane knows after a sensible exchange."""

    answers: list[ext_proc.ProcessingResponse]
    stream: Stream


def exchange(
    mode: int, once: bool, cuts: list[int], body: bytes, trailers: bool, policy: ExtProcPolicy, routing: RoutingPolicy
) -> Told:
    """A request as Envoy shows it in a mode: every message that waits for an answer gets exactly one of its kind."""
    stream = stream_of(routing, policy)
    told = Told([], stream)

    def send(message: ext_proc.ProcessingRequest) -> list[ext_proc.ProcessingResponse]:
        read = wire_body_of(message.SerializeToString()) if message.HasField("request_body") else None
        found = stream.receive(message, 0.0) if read is None else stream.receive_body(*read, 0.0)
        parsed = [ext_proc.ProcessingResponse.FromString(data) for data in found]
        told.answers.extend(parsed)
        return parsed

    first = ext_proc.ProcessingRequest(
        request_headers=headers_part({":path": "/v1/chat/completions", ":method": "POST"}, False)
    )
    first.protocol_config.request_body_mode = mode
    first.protocol_config.send_body_without_waiting_for_header_response = once
    answered = send(first)
    waits = mode in (MODES.NONE, MODES.BUFFERED, MODES.BUFFERED_PARTIAL) or (mode == MODES.STREAMED and not once)
    assert [one.WhichOneof("response") for one in answered] == (["request_headers"] if waits else [])
    if mode == MODES.NONE or stream.done:
        return told
    edges = [0, *sorted({cut % (len(body) + 1) for cut in cuts}), len(body)]
    parts = [body[start:stop] for start, stop in pairwise(edges)] or [b""]
    if mode in (MODES.BUFFERED, MODES.BUFFERED_PARTIAL):
        parts = [body]
    for number, part in enumerate(parts):
        end = number == len(parts) - 1 and not trailers
        send(ext_proc.ProcessingRequest(request_body=ext_proc.HttpBody(body=part, end_of_stream=end)))
        if stream.done:
            break
    if trailers and not stream.done:
        send(ext_proc.ProcessingRequest(request_trailers=ext_proc.HttpTrailers()))
    return told


sensible_modes = st.sampled_from(
    [
        (MODES.NONE, False),
        (MODES.BUFFERED, False),
        (MODES.BUFFERED_PARTIAL, False),
        (MODES.STREAMED, False),
        (MODES.STREAMED, True),
        (MODES.FULL_DUPLEX_STREAMED, False),
    ]
)


@fuzz
@given(sensible_modes, st.lists(st.integers(0, 140_000), max_size=5), bodies, st.booleans(), policies, routings)
def test_sensible_exchanges_keep_the_protocol(
    mode: tuple[int, bool], cuts: list[int], body: bytes, trailers: bool, policy: ExtProcPolicy, routing: RoutingPolicy
) -> None:
    told = exchange(*mode, cuts, body, trailers, policy, routing)
    kinds = [one.WhichOneof("response") for one in told.answers]
    if "immediate_response" in kinds:
        assert kinds.index("immediate_response") == len(kinds) - 1
        assert told.stream.done
        json.loads(told.answers[-1].immediate_response.body)
        return
    ranks = {"request_headers": 0, "request_body": 1, "request_trailers": 2}
    order = [ranks[kind or ""] for kind in kinds]
    assert order == sorted(order)
    if mode == (DUPLEX, False):
        sent = pieces(told.answers)
        decision = told.stream.decision
        assert decision is not None
        assert b"".join(one.body for one in sent) == (body if decision.body is None else decision.body)
        assert all(len(one.body) <= 62_000 for one in sent)
        assert sum(one.end_of_stream for one in sent) == (0 if trailers else 1)
        assert kinds.count("request_headers") == 1
        assert kinds.count("request_trailers") == int(trailers)
    for one in told.answers:
        if one.HasField("request_trailers"):
            continue
        for option in common(one).header_mutation.set_headers:
            assert b"\n" not in option.header.raw_value


@fuzz
@given(st.binary(max_size=200))
def test_bytes_that_are_no_message(data: bytes) -> None:
    found = wire_body_of(data)
    stream = Stream(decider_of())
    try:
        if found is None:
            stream.receive(ext_proc.ProcessingRequest.FromString(data), 0.0)
        else:
            stream.receive_body(*found, 0.0)
    except (StreamError, DecodeError):
        return
