from __future__ import annotations

import asyncio
import dataclasses
import math
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from tests.unit.admin.backend import A, B, C, FakeBackend
from tests.unit.admin.conftest import WALL, Served
from xds_control.admin.keys import CODE_KEY, USER_KEY
from xds_control.admin.server import MAX_CALLS
from xds_control.admin.service import ROLES, SERVICE, Role
from xds_control.proto import admin_pb2 as pb


async def refused(call: Any) -> tuple[str, str, str]:
    """(gRPC status, our code, message) of a call that is refused."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    error = caught.value
    codes = [value for key, value in error.trailing_metadata() or () if key == CODE_KEY]
    return error.code().name, str(codes[0]) if codes else "", error.details() or ""


async def test_status(served: Served) -> None:
    served.backend.serve(A, 6)
    status = await served.stub.GetStatus(pb.GetStatusRequest())
    assert (status.version, status.epoch, status.policy_version) == ("0.1.0", "epoch-1", "policy-1")
    assert (status.pools, status.endpoints, sum(status.endpoint_states.values())) == (2, 3, 3)
    assert (status.xds_clients, status.xds_clients_behind, status.processors, status.agents) == (1, 1, 2, 1)
    assert status.ready
    assert status.uptime_s == pytest.approx(served.backend.now - 900.0)
    assert status.requests_per_s == pytest.approx(6.0)


async def test_status_is_answered_before_the_first_snapshot(served: Served) -> None:
    served.backend.core.snapshot = None
    status = await served.stub.GetStatus(pb.GetStatusRequest())
    assert (status.ready, status.endpoints) == (False, 0)
    assert (await refused(served.stub.ListEndpoints(pb.ListEndpointsRequest())))[:2] == ("UNAVAILABLE", "not-ready")


async def test_pools(served: Served) -> None:
    served.backend.serve(A, 5)
    pools = (await served.stub.ListPools(pb.ListPoolsRequest())).pools
    assert [(pool.name, pool.endpoints) for pool in pools] == [("chat", 2), ("code", 1)]
    assert list(pools[0].models) == ["llama"]
    assert pools[0].traffic.requests == 5
    assert pools[0].traffic.classes["high"].slo_attainment == 1.0
    assert pools[0].traffic.classes["high"].ttft.p50 == pytest.approx(0.3, rel=0.02)
    assert not pools[1].HasField("traffic")
    one = (await served.stub.ListPools(pb.ListPoolsRequest(pool="code"))).pools
    assert [pool.name for pool in one] == ["code"]


async def test_endpoints(served: Served) -> None:
    served.backend.load(A, running=3, kv_usage=0.5)
    served.backend.serve(A, 6)
    served.backend.tick()
    answer = await served.stub.ListEndpoints(pb.ListEndpointsRequest())
    assert answer.epoch == "epoch-1"
    assert [(one.pool, one.address) for one in answer.endpoints] == [("chat", A), ("chat", B), ("code", C)]
    first = answer.endpoints[0]
    assert (first.name, first.role) == ("alpha", "both")
    signals = {one.name: one for one in first.signals}
    assert signals["running"].value == 3
    kv = signals["kv_usage"]
    assert (kv.unit, kv.normalised, kv.source) == ("ratio", 0.5, "push")
    assert kv.age_s == pytest.approx(0.2)
    assert (first.traffic.requests, first.traffic.share) == (6, 1.0)
    assert not first.HasField("explanation")
    assert first.weight_share + answer.endpoints[1].weight_share == pytest.approx(1.0)


async def test_explanations_multiply(served: Served) -> None:
    served.backend.load(A, running=3, kv_usage=0.5)
    served.backend.tick()
    answer = await served.stub.ListEndpoints(pb.ListEndpointsRequest(endpoint=A, explain=True))
    (one,) = answer.endpoints
    explanation = one.explanation
    assert math.prod(factor.factor for factor in explanation.factors) == pytest.approx(explanation.raw)
    assert explanation.weight == one.weight
    assert explanation.why


async def test_signals_of_all_sources(served: Served) -> None:
    backend = served.backend
    backend.core.store.put(A, "kv_usage", 0.9, backend.now, "vllm")
    backend.load(A, kv_usage=0.2)
    answer = await served.stub.ListEndpoints(pb.ListEndpointsRequest(endpoint=A, all_sources=True))
    both = [one for one in answer.endpoints[0].signals if one.name == "kv_usage"]
    assert {one.source for one in both} == {"push", "vllm"}
    assert [one.source for one in both if one.used] == ["push"]
    assert [one.source for one in both if one.disagrees] == ["vllm"]


async def test_endpoints_are_found_by_name(served: Served) -> None:
    by_name = await served.stub.ListEndpoints(pb.ListEndpointsRequest(endpoint="beta"))
    assert [one.address for one in by_name.endpoints] == [B]
    twice = await refused(served.stub.ListEndpoints(pb.ListEndpointsRequest(endpoint="alpha")))
    assert twice[:2] == ("NOT_FOUND", "endpoint-unknown")
    assert A in twice[2]
    assert C in twice[2]
    in_pool = await served.stub.ListEndpoints(pb.ListEndpointsRequest(endpoint="alpha", pool="code"))
    assert [one.address for one in in_pool.endpoints] == [C]
    nearly = await refused(served.stub.ListEndpoints(pb.ListEndpointsRequest(endpoint="betta")))
    assert "did you mean beta?" in nearly[2]


async def test_an_endpoint_without_a_name_of_its_own_is_offered_once(served: Served) -> None:
    core = served.backend.core
    core.set_endpoints([dataclasses.replace(one, name=one.address) for one in core.endpoints], served.backend.now)
    served.backend.settle()
    refusal = await refused(served.stub.ListEndpoints(pb.ListEndpointsRequest(endpoint=A[:-1])))
    hint = refusal[2].partition("did you mean ")[2].rstrip("?").split(" or ")
    assert A in hint
    assert len(hint) == len(set(hint))


@pytest.mark.parametrize(
    ("request_", "status", "code"),
    [
        (pb.ListEndpointsRequest(pool="nope"), "NOT_FOUND", "not-found"),
        (pb.ListEndpointsRequest(states=["well"]), "INVALID_ARGUMENT", "bad-request"),
    ],
)
async def test_wrong_filters_say_so(served: Served, request_: pb.ListEndpointsRequest, status: str, code: str) -> None:
    assert (await refused(served.stub.ListEndpoints(request_)))[:2] == (status, code)


async def test_names_that_are_gone_are_still_found_in_the_past(served: Served) -> None:
    served.backend.add_event("state", "10.9.9.9:1", "draining", "gone", "away")
    answer = await served.stub.ListEvents(pb.ListEventsRequest(endpoint="10.9.9.9:1", kind="state"))
    assert [one.after for one in answer.events] == ["gone"]


async def test_events(served: Served) -> None:
    backend = served.backend
    newest = (await served.stub.ListEvents(pb.ListEventsRequest())).newest
    backend.add_event("state", A, "ready", "suspect", "no heartbeat")
    backend.add_event("state", C, "ready", "ejected", "Xid 79")
    backend.add_event("policy", reason="pushed")
    answer = await served.stub.ListEvents(pb.ListEventsRequest(after=newest))
    assert [(e.kind, e.endpoint, e.after) for e in answer.events] == [
        ("state", A, "suspect"),
        ("state", C, "ejected"),
        ("policy", "", ""),
    ]
    assert answer.newest == newest + 3
    assert answer.events[0].at_unix_s == pytest.approx(WALL + backend.now)
    mine = await served.stub.ListEvents(pb.ListEventsRequest(pool="code", limit=1))
    assert [e.endpoint for e in mine.events] == [C]
    named = await served.stub.ListEvents(pb.ListEventsRequest(after=newest, endpoint="beta"))
    assert not named.events


async def test_snapshots_and_what_moved(served: Served) -> None:
    backend = served.backend
    before = backend.core.snapshot
    assert before is not None
    await served.stub.Pin(pb.PinRequest(endpoint=B, weight=7))
    backend.tick()
    after = backend.core.snapshot
    assert after is not None
    answer = await served.stub.ListSnapshots(pb.ListSnapshotsRequest(endpoint="beta", since=before.version))
    (entry,) = answer.snapshots
    assert [(move.endpoint, move.weight) for move in entry.moves] == [(B, 7)]
    same = await served.stub.CompareSnapshots(pb.CompareSnapshotsRequest(older=before.version))
    assert B in {move.endpoint for move in same.moves}
    gone = await refused(served.stub.CompareSnapshots(pb.CompareSnapshotsRequest(older=9999)))
    assert gone[:2] == ("NOT_FOUND", "not-found")


async def test_watch_sends_all_then_what_changes(served: Served) -> None:
    backend = served.backend
    watch = served.stub.Watch(pb.WatchRequest(interval_s=0.05))
    first = await watch.read()
    assert first.full
    assert [one.address for one in first.endpoints] == [A, B, C]
    assert not first.events
    backend.load(A, running=1)  # signals alone are no news
    backend.tick()
    await served.stub.Pin(pb.PinRequest(endpoint=C, weight=3))
    backend.tick()
    message = await watch.read()
    while C not in {one.address for one in message.endpoints}:
        message = await watch.read()
    assert not message.full
    assert {one.weight for one in message.endpoints if one.address == C} == {3}
    backend.core.set_endpoints([e for e in backend.core.endpoints if e.address != B], backend.now)
    for _ in range(2000):
        backend.tick(1.0)
        if B not in {one.endpoint.address for one in backend.core.snapshot.pools["chat"].endpoints}:  # type: ignore[union-attr]
            break
    while B not in message.removed:
        message = await watch.read()
    watch.cancel()


async def test_watch_of_events(served: Served) -> None:
    watch = served.stub.Watch(pb.WatchRequest(events_only=True, pool="chat", interval_s=0.05, after_event=0))
    first = await watch.read()
    assert first.full
    assert not first.endpoints
    served.backend.add_event("state", C, "ready", "suspect")
    served.backend.add_event("state", A, "ready", "suspect")
    message = await watch.read()
    assert [event.endpoint for event in message.events] == [A]
    watch.cancel()
    unknown = served.stub.Watch(pb.WatchRequest(endpoint="nobody"))
    assert (await refused(unknown.read()))[:2] == ("NOT_FOUND", "endpoint-unknown")


async def test_orders(served: Served) -> None:
    backend = served.backend
    who = ((USER_KEY, "ada"),)
    answer = await served.stub.Drain(pb.DrainRequest(endpoint="beta", ttl_s=60, reason="new driver"), metadata=who)
    assert not answer.HasField("before")
    assert (answer.override.kind, answer.override.by, answer.override.reason) == ("drain", "ada", "new driver")
    assert answer.override.ttl_s == pytest.approx(60)
    address, order, by, reason = backend.orders[-1]
    assert order is not None
    assert (address, order.kind, order.until, by, reason) == (B, "drain", backend.now + 60, "ada", "new driver")
    backend.tick()
    (shown,) = (await served.stub.ListEndpoints(pb.ListEndpointsRequest(endpoint=B))).endpoints
    assert (shown.state, shown.weight, shown.pickable, shown.override.by) == ("draining", 0, False, "ada")
    pinned = await served.stub.Pin(pb.PinRequest(endpoint=A, weight=0), metadata=who)
    assert (pinned.override.kind, pinned.override.weight, pinned.override.HasField("ttl_s")) == ("pin", 0, False)
    cleared = await served.stub.Undrain(pb.UndrainRequest(endpoint=B), metadata=who)
    assert (cleared.before.kind, cleared.HasField("override")) == ("drain", False)
    assert backend.orders[-1][:3] == (B, None, "ada")
    assert (await served.stub.Eject(pb.EjectRequest(endpoint=A))).before.kind == "pin"
    assert (await served.stub.Clear(pb.ClearRequest(endpoint=A))).before.kind == "eject"
    audit = await served.stub.ListAudit(pb.ListAuditRequest())
    assert [entry.action for entry in audit.entries] == ["clear", "eject", "clear", "pin", "drain"]


@pytest.mark.parametrize(
    ("method", "request_", "status", "code"),
    [
        ("Drain", pb.DrainRequest(), "INVALID_ARGUMENT", "bad-request"),
        ("Drain", pb.DrainRequest(endpoint="nobody"), "NOT_FOUND", "endpoint-unknown"),
        ("Drain", pb.DrainRequest(endpoint="beta", ttl_s=0), "INVALID_ARGUMENT", "bad-request"),
        ("Drain", pb.DrainRequest(endpoint="beta", ttl_s=math.nan), "INVALID_ARGUMENT", "bad-request"),
        ("Drain", pb.DrainRequest(endpoint="beta", reason="x" * 5000), "INVALID_ARGUMENT", "bad-request"),
        ("Undrain", pb.UndrainRequest(endpoint="beta"), "FAILED_PRECONDITION", "no-order"),
        ("Clear", pb.ClearRequest(endpoint="beta"), "FAILED_PRECONDITION", "no-order"),
        ("ExplainRequest", pb.ExplainRequestRequest(), "INVALID_ARGUMENT", "bad-request"),
        ("ExplainRequest", pb.ExplainRequestRequest(request_id="gone"), "NOT_FOUND", "not-found"),
        ("GetPolicy", pb.GetPolicyRequest(version="v9"), "NOT_FOUND", "not-found"),
        ("RollbackPolicy", pb.RollbackPolicyRequest(), "UNIMPLEMENTED", "not-offered"),
        ("SetLogLevel", pb.SetLogLevelRequest(level="loud"), "INVALID_ARGUMENT", "bad-request"),
        ("ListEvents", pb.ListEventsRequest(kind="nope"), "INVALID_ARGUMENT", "bad-request"),
        ("ListEvents", pb.ListEventsRequest(pool="nope"), "NOT_FOUND", "not-found"),
        ("ListEvents", pb.ListEventsRequest(endpoint="nobody"), "NOT_FOUND", "endpoint-unknown"),
        ("ListSnapshots", pb.ListSnapshotsRequest(pool="nope"), "NOT_FOUND", "not-found"),
        ("ListSnapshots", pb.ListSnapshotsRequest(endpoint="nobody"), "NOT_FOUND", "endpoint-unknown"),
        ("ListRequests", pb.ListRequestsRequest(notable=["odd"]), "INVALID_ARGUMENT", "bad-request"),
        ("ListAudit", pb.ListAuditRequest(endpoint="nobody"), "NOT_FOUND", "endpoint-unknown"),
    ],
)
async def test_refusals_carry_a_status_and_a_code(
    served: Served, method: str, request_: Any, status: str, code: str
) -> None:
    assert (await refused(getattr(served.stub, method)(request_)))[:2] == (status, code)
    assert served.backend.orders == []


async def test_an_undrain_leaves_other_orders_alone(served: Served) -> None:
    await served.stub.Pin(pb.PinRequest(endpoint=A, weight=5))
    refusal = await refused(served.stub.Undrain(pb.UndrainRequest(endpoint=A)))
    assert refusal[1] == "no-order"
    assert "pin" in refusal[2]


async def test_a_fault_inside_tells_nothing(served: Served) -> None:
    served.backend.broken = True
    status, code, message = await refused(served.stub.GetStatus(pb.GetStatusRequest()))
    assert (status, code) == ("INTERNAL", "internal")
    assert "secret" not in message
    served.backend.broken = False
    assert (await served.stub.GetStatus(pb.GetStatusRequest())).ready


async def test_clients_and_processors(served: Served) -> None:
    (client,) = (await served.stub.ListClients(pb.ListClientsRequest())).clients
    assert (client.node_id, client.protocol, client.lag_s) == ("envoy-1", "delta", 3.0)
    assert [(one.type, one.version_sent, one.version_acked, one.last_error) for one in client.types] == [
        ("CDS", "v1", "v1", ""),
        ("EDS", "v2", "v1", "bad weight"),
    ]
    first, second = (await served.stub.ListProcessors(pb.ListProcessorsRequest())).processors
    assert (first.name, first.streams, first.outstanding) == ("node/0", 3, 4)
    assert first.last_report_age_s == pytest.approx(0.1)
    assert not second.HasField("last_report_age_s")


async def test_explaining_hides_secrets(served: Served) -> None:
    request = pb.ExplainRequestRequest(request=pb.HttpRequest(path="/v1/chat/completions?key=s3cr3t", body=b"{}"))
    answer = await served.stub.ExplainRequest(request)
    assert answer.explanation.decision.pool == "chat"
    assert answer.explanation.why == "pool chat by rule 'default'; Envoy chooses by weights"
    assert b"s3cr3t" not in answer.SerializeToString()


async def test_policies_pass_through_with_the_caller(served: Served) -> None:
    request = pb.PushPolicyRequest(files=[pb.PolicyFile(name="p.yaml", text="x")], expect_version="policy-1")
    answer = await served.stub.PushPolicy(request, metadata=((USER_KEY, "ada"),))
    assert answer.accepted
    assert served.backend.pushed == [(request, "ada")]
    await served.stub.PushPolicy(request)
    assert served.backend.pushed[-1][1].startswith("ipv4:127.0.0.1")


async def test_log_level(served: Served) -> None:
    answer = await served.stub.SetLogLevel(pb.SetLogLevelRequest(level="debug"))
    assert answer.level == "debug"
    assert (await served.stub.GetLogLevel(pb.GetLogLevelRequest())).level == "debug"


async def test_health_and_reflection_are_on(served: Served) -> None:
    async with grpc.aio.insecure_channel(served.address) as channel:
        checker: Any = health_pb2_grpc.HealthStub(channel)
        health = await checker.Check(health_pb2.HealthCheckRequest(service=SERVICE))
        assert health.status == health_pb2.HealthCheckResponse.SERVING
        stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)  # type: ignore[arg-type]
        asked = reflection_pb2.ServerReflectionRequest(file_containing_symbol=SERVICE)
        call = stub.ServerReflectionInfo(iter([asked]))
        answer = await call.read()
        assert answer.file_descriptor_response.file_descriptor_proto


def test_every_method_has_a_role() -> None:
    assert len(ROLES) == len(pb.DESCRIPTOR.services_by_name["Admin"].methods)
    changing = {name.rpartition("/")[2]: role for name, role in ROLES.items() if role is not Role.VIEW}
    assert changing == {
        **dict.fromkeys(("Drain", "Undrain", "Pin", "Eject", "Clear"), Role.OPERATE),
        **dict.fromkeys(("PushPolicy", "RollbackPolicy", "SetShadow", "ClearShadow", "SetLogLevel"), Role.ADMIN),
    }


def test_the_backend_of_the_tests_is_one() -> None:
    from xds_control.admin.backend import Backend

    checked: Backend = FakeBackend()
    assert checked.snapshot() is None


async def test_errors_are_counted_by_code(served: Served) -> None:
    await refused(served.stub.Drain(pb.DrainRequest(endpoint="nobody")))
    await refused(served.stub.Drain(pb.DrainRequest()))
    served.backend.broken = True
    await refused(served.stub.GetStatus(pb.GetStatusRequest()))
    assert served.service.errors == {"endpoint-unknown": 1, "bad-request": 1, "internal": 1}


async def test_calls_at_once_are_bounded_and_room_comes_back(served: Served) -> None:
    watches = [served.stub.Watch(pb.WatchRequest()) for _ in range(MAX_CALLS)]
    for watch in watches:
        await watch.read()
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await served.stub.GetStatus(pb.GetStatusRequest())
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    for watch in watches:
        watch.cancel()
    for _ in range(200):
        try:
            assert (await served.stub.GetStatus(pb.GetStatusRequest())).ready
            return
        except grpc.aio.AioRpcError:
            await asyncio.sleep(0.02)
    raise AssertionError("no room came back")
