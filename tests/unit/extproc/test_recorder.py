"""What processors keep of requests: the notable ones and a sample, bounded, and nothing that was said in them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from types import MappingProxyType
from typing import Any
from unittest.mock import Mock

import pytest

from xds_control.admin import request_calls
from xds_control.admin.backend import NotReady, ProcessorFacts, Unknown
from xds_control.extproc.decision import Decision, Immediate
from xds_control.extproc.edge import ExtProcEdge
from xds_control.extproc.recorder import MAX_RUNNING, Recorder
from xds_control.extproc.request import RequestView
from xds_control.extproc.requests_service import RequestsService
from xds_control.extproc.state import ProcessorState
from xds_control.fleet.endpoint import Endpoint
from xds_control.fleet.readings import ModelInfo
from xds_control.fleet.snapshot import EndpointSnapshot, PoolSnapshot, Snapshot, State
from xds_control.inspect.facts import RequestFacts
from xds_control.policy.classes import ClassesPolicy
from xds_control.policy.load import encode_policy, parse_policy, policy_version
from xds_control.policy.processes import RequestRecords
from xds_control.proto import admin_pb2 as pb
from xds_control.proto import fleet_pb2
from xds_control.signals.finished import Finished

A, B = "10.0.0.1:80", "10.0.0.2:80"
NOTHING: dict[str, Any] = dict.fromkeys(
    (
        *("prompt_bytes", "prompt_tokens_est", "output_tokens_est", "matched_tokens", "prompt_tokens"),
        *("completion_tokens", "cached_tokens", "ttft_s", "decode_s", "e2e_s", "queue_s"),
    )
)


def ended(identifier: str, **values: Any) -> Finished:
    base: dict[str, Any] = {
        **dict.fromkeys(("pool", "model", "tenant", "api", "processor", "pick"), ""),
        "endpoint": A,
        "service_class": "high",
        "kind": "ok",
        "ok": True,
        "streamed": True,
        "status": 200,
        "attempts": 1,
        **NOTHING,
    }
    return Finished(id=identifier, **{**base, **values})


def decided(identifier: str, **values: Any) -> Decision:
    return Decision(identifier, RequestFacts(), pool="chat", destinations=(A,), service_class="high", **values)


def recorder(**values: Any) -> Recorder:
    return Recorder(RequestRecords(**{"sample_share": 0.0, **values}), ClassesPolicy().by_name())


@pytest.mark.parametrize(
    ("outcome", "why"),
    [
        ({}, None),
        ({"kind": "timeout", "ok": False}, "failed"),
        ({"kind": "backpressure", "ok": False}, "failed"),
        ({"kind": "4xx", "ok": False}, None),
        ({"endpoint": B}, "fell-back"),
        ({"ttft_s": 1.5}, "slow"),
        ({"ttft_s": 0.5, "decode_s": 10.0, "completion_tokens": 11}, "slow"),
        ({"ttft_s": 0.5, "decode_s": 0.5, "completion_tokens": 11}, None),
    ],
)
def test_what_is_notable(outcome: dict[str, Any], why: str | None) -> None:
    made = recorder()
    made.on_decision(decided("x"), 1.0)
    assert made.find("x") is not None
    made.on_finished(ended("x", pick=A, attempts=1, **outcome))
    assert [one.notable for one in made.newest()] == ([] if why is None else [why])
    kept = made.find("x")
    assert kept is not None
    assert kept.outcome is not None


def test_what_others_decided_is_kept_when_notable() -> None:
    made = recorder()
    made.on_finished(ended("y", processor="p1"), 5.0)
    made.on_finished(ended("z", processor="p1", kind="reset", pool="chat", pick=B, e2e_s=2.0), 5.0)
    assert made.find("y") is not None
    (kept,) = made.newest()
    assert (kept.decided, kept.at, kept.decision.pool, kept.decision.destinations) == (None, 3.0, "chat", (B,))


def test_refusals_are_kept_at_once() -> None:
    made = recorder()
    made.on_decision(decided("x", immediate=Immediate(429, "shed", b"{}")), 1.0)
    assert made.newest()[0].notable == "rejected"


def test_samples_and_bounds() -> None:
    made = recorder(sample_share=0.5, sampled=3, notable=2)
    for number in range(20):
        made.on_decision(decided(str(number)), float(number))
        made.on_finished(ended(str(number)))
    assert [one.decision.id for one in made.newest()] == ["19", "17", "15"]
    for number in range(20, 30):
        made.on_decision(decided(str(number)), float(number))
        made.on_finished(ended(str(number), kind="reset"))
    made.on_decision(decided("slow"), 0.0)
    made.on_finished(ended("slow", ttft_s=9.0))
    assert [one.notable for one in made.newest()] == ["failed", "failed", "sampled", "sampled", "sampled", "slow"]


def test_running_requests_are_bounded() -> None:
    made = recorder()
    for number in range(MAX_RUNNING + 10):
        made.on_decision(decided(str(number)), 0.0)
    assert made.find("9") is None
    assert made.find("10") is not None


def test_bodies_are_not_held() -> None:
    made = recorder()
    made.on_decision(decided("x", body=b"a secret prompt"), 0.0)
    kept = made.find("x")
    assert kept is not None
    assert kept.decision.body is None


SECRET = "between control and its processors"
POLICY = f"""
version: xds-control/v1
pools:
- {{name: chat, models: [m], endpoints: [{{address: "{A}"}}, {{address: "{B}"}}]}}
routing:
  rules:
  - {{name: no-batch, when: "headers['x-batch'] == '1'", reject: {{status: 403, reason: no-batch, message: "No."}}}}
"""
BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "the secret word is xyzzy"}]}).encode()


def state() -> ProcessorState:
    policy = parse_policy(POLICY)
    members = tuple(
        EndpointSnapshot(Endpoint(address=one, pool="chat"), State.READY, 100, 0, True, 1.0, {}, ModelInfo())
        for one in (A, B)
    )
    snapshot = Snapshot("e", 1, 0.0, MappingProxyType({"chat": PoolSnapshot("chat", ("m",), members)}), "v")
    made = ProcessorState("p0", 0.0)
    message = fleet_pb2.WatchResponse(full=True, secret=SECRET)
    message.policy.version, message.policy.json = policy_version(policy), encode_policy(policy)
    made.on_message(snapshot, message, 0.0)
    return made


@pytest.fixture
async def processor() -> AsyncIterator[tuple[ProcessorState, ProcessorFacts]]:
    made = state()
    assert made.decider is not None
    assert made.policy is not None
    edge = ExtProcEdge(lambda: made.decider, made.policy.ext_proc)  # type: ignore[arg-type,return-value]
    edge.add_generic_rpc_handlers((RequestsService(made).handler(),))
    address = await edge.start("127.0.0.1:0")
    yield made, ProcessorFacts("p0", address, "0", 0.0, None, 0, "")
    await edge.stop(0.0)


async def test_a_request_is_tried_with_its_candidates(processor: tuple[ProcessorState, ProcessorFacts]) -> None:
    made, facts = processor
    request = pb.ExplainRequestRequest(request=pb.HttpRequest(path="/v1/chat/completions", body=BODY))
    answer = await request_calls.explain([facts], request, SECRET)
    one = answer.explanation
    assert (one.dry_run, one.decision.pool, one.facts.model, one.endpoints) == (True, "chat", "m", 2)
    assert {candidate.endpoint for candidate in one.candidates} == {A, B}
    assert one.decision.destinations
    assert "xyzzy" not in str(answer)
    assert made.recorder is not None
    assert made.recorder.newest() == []


async def test_a_request_is_tried_by_one_processor_whoever_is_away(
    processor: tuple[ProcessorState, ProcessorFacts], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, facts = processor
    counted = Mock(wraps=made.dry_run)
    monkeypatch.setattr(made, "dry_run", counted)
    gone = ProcessorFacts("p1", "127.0.0.1:1", "0", 0.0, None, 0, "")
    request = pb.ExplainRequestRequest(request=pb.HttpRequest(path="/v1/chat/completions", body=BODY))
    answer = await request_calls.explain([gone, facts, facts, facts], request, SECRET)
    assert answer.explanation.dry_run
    assert counted.call_count == 1
    with pytest.raises(NotReady, match="no processor answers: p1, p1"):
        await request_calls.explain([gone, gone], request, SECRET)


async def test_a_recorded_request_is_found_and_listed(processor: tuple[ProcessorState, ProcessorFacts]) -> None:
    made, facts = processor
    assert made.decider is not None
    headers = {":path": "/v1/chat/completions", ":method": "POST", "x-batch": "1"}
    refused = made.decider.decide(RequestView(headers, BODY), 1.0)
    found = await request_calls.explain([facts], pb.ExplainRequestRequest(request_id=refused.id), SECRET)
    assert found.explanation.decision.reason == "rejected:no-batch"
    assert found.explanation.decision.status == 403
    listed = await request_calls.list_requests([facts], pb.ListRequestsRequest(notable=["rejected"]), SECRET)
    assert [one.id for one in listed.requests] == [refused.id]
    assert not (await request_calls.list_requests([facts], pb.ListRequestsRequest(notable=["slow"]), SECRET)).requests
    assert "xyzzy" not in str(listed)


async def test_a_request_that_turns_out_notable_has_the_candidates_of_its_pick(
    processor: tuple[ProcessorState, ProcessorFacts],
) -> None:
    made, facts = processor
    assert made.decider is not None
    assert made.recorder is not None
    assert made.picker is not None
    view = RequestView({":path": "/v1/chat/completions", ":method": "POST"}, BODY)
    decision = made.decider.decide(view, 1.0)
    assert not made.picker.picker.records.newest()  # it was not sampled
    made.recorder.on_finished(ended(decision.id, kind="5xx", ok=False, pick=decision.destinations[0]), 2.0)
    found = await request_calls.explain([facts], pb.ExplainRequestRequest(request_id=decision.id), SECRET)
    one = found.explanation
    assert one.notable == "failed"
    assert [candidate.endpoint for candidate in one.candidates] == list(decision.destinations)
    assert len(one.candidates) == one.endpoints == 2
    pick = one.candidates[0]
    parts = (pick.wait_s, pick.prefill_s, pick.interference_s, pick.decode_s, pick.memory_s, pick.fixed_s)
    assert sum(parts) == pytest.approx(pick.cost_s)


async def test_only_control_may_ask(processor: tuple[ProcessorState, ProcessorFacts]) -> None:
    _made, facts = processor
    for wrong in ("", "guess"):
        listed = await request_calls.list_requests([facts], pb.ListRequestsRequest(), wrong)
        assert list(listed.unreachable) == ["p0"]


async def test_what_nobody_has_is_said_so(processor: tuple[ProcessorState, ProcessorFacts]) -> None:
    _made, facts = processor
    gone = ProcessorFacts("p1", "127.0.0.1:1", "0", 0.0, None, 0, "")
    with pytest.raises(Unknown, match="no processor keeps a request 'nope'; p1 did not answer"):
        await request_calls.explain([facts, gone], pb.ExplainRequestRequest(request_id="nope"), SECRET)
    with pytest.raises(NotReady):
        await request_calls.explain([], pb.ExplainRequestRequest(request_id="nope"), SECRET)
    listed = await request_calls.list_requests([facts, gone], pb.ListRequestsRequest(), SECRET)
    assert list(listed.unreachable) == ["p1"]


def test_ids_go_on_counting_over_policies() -> None:
    made = state()
    assert made.decider is not None
    view = RequestView({":path": "/v1/chat/completions", ":method": "POST"}, BODY)
    first = made.decider.decide(view, 1.0).id
    changed = parse_policy(POLICY + "log: {level: debug}\n")
    message = fleet_pb2.WatchResponse()
    message.policy.version, message.policy.json = policy_version(changed), encode_policy(changed)
    assert made.snapshot is not None
    made.on_message(made.snapshot, message, 1.0)
    assert made.decider.decide(view, 1.0).id != first
