"""Headers of any content: every request is decided, and what we set can stand in a header."""

from __future__ import annotations

import json
from types import MappingProxyType

from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc
from hypothesis import given, settings
from hypothesis import strategies as st

from xds_control.extproc import answers
from xds_control.extproc.request import RequestView
from xds_control.extproc.state import ProcessorState
from xds_control.fleet.endpoint import Endpoint
from xds_control.fleet.readings import ModelInfo
from xds_control.fleet.snapshot import EndpointSnapshot, PoolSnapshot, Snapshot, State
from xds_control.policy.load import encode_policy, parse_policy, policy_version
from xds_control.proto import fleet_pb2

A, B = "10.0.0.1:80", "[fd00::1]:80"
POLICY = f"""
version: xds-control/v1
pools:
- {{name: chat, models: [m], endpoints: [{{address: "{A}"}}, {{address: "{B}"}}]}}
inspect: {{tenant_sources: [x-tenant], class_sources: [x-class], priority_headers: [x-prio]}}
picker: {{header: x-profile, profiles: {{default: {{session: {{token_header: x-tok}}}}}}}}
routing:
  unknown_model: default
  default_pool: chat
  rules:
  - {{name: r, when: "headers['x-batch'] == '1'", headers: {{x-a: b}}}}
ext_proc: {{emit_scores: true, emit_decision: true}}
"""
NAMES = (
    "x-tenant", "x-class", "x-prio", "x-profile", "x-tok", "x-tok-prefill", "x-slo-ttft-ms", "x-llm-d-slo-ttft-ms",
    "prefer", "x-request-id", "x-session-id", "content-encoding", "content-type", "content-length", "x-batch",
    "x-gateway-model-name-rewrite", "x-gateway-destination-endpoint", "test-epp-endpoint-selection", "traceparent",
    "x-gateway-inference-objective", "x-gateway-inference-fairness-id", "authorization", "cookie",
)  # fmt: skip
ODD = (
    "",
    "\r\nx-evil: 1",
    "\0",
    "\x85\u2028",
    "nan",
    "-1",
    "1e400",
    "9" * 30,
    "²",
    "٣",
    "é" * 300,
    "a" * 70_000,
    "[::1",
)
VALUES = st.sampled_from(ODD) | st.text(st.characters(codec="utf-8"), max_size=12) | st.integers().map(str)
PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/x", "", "/v1/models/m\r\n:generateContent")


def _state() -> ProcessorState:
    policy = parse_policy(POLICY)
    members = tuple(
        EndpointSnapshot(Endpoint(address=one, pool="chat"), State.READY, 100, 0, True, 1.0, {}, ModelInfo())
        for one in (A, B)
    )
    made = ProcessorState("p0", 0.0)
    message = fleet_pb2.WatchResponse(full=True)
    message.policy.version, message.policy.json = policy_version(policy), encode_policy(policy)
    pools = MappingProxyType({"chat": PoolSnapshot("chat", ("m",), members)})
    made.on_message(Snapshot("e", 1, 0.0, pools, "v"), message, 0.0)
    return made


STATE = _state()


@settings(max_examples=400, deadline=None)
@given(
    st.sampled_from(PATHS),
    st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=8),
    st.sampled_from(("m", *ODD)),
    VALUES,
    st.none() | st.lists(VALUES, max_size=3).map(tuple),
)
def test_every_request_is_decided(
    path: str, headers: dict[str, str], model: str, user: str, subset: tuple[str, ...] | None
) -> None:
    assert STATE.decider is not None
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": user}], "user": user}).encode()
    view = RequestView({":path": path, ":method": "POST", **headers}, body)
    view.subset = subset
    decision = STATE.decider.decide(view, 1.0)
    given = decision.immediate
    for data in (
        [answers.immediate_answer(given, decision)]
        if given is not None
        else [answers.headers_answer(decision), answers.body_answer(decision)]
    ):
        message = ext_proc.ProcessingResponse.FromString(data)
        for mutation in (
            message.immediate_response.headers,
            message.request_headers.response.header_mutation,
            message.request_body.response.header_mutation,
        ):
            for option in mutation.set_headers:
                text = option.header.raw_value.decode()
                assert text.isprintable(), option.header.key
                assert len(text) <= 1024, option.header.key
    STATE.window(1.0)
