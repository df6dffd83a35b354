"""The server's edge: limits, deadlines, stuck clients, what is told about clients."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
import structlog
from envoy.service.discovery.v3 import discovery_pb2
from prometheus_client import CollectorRegistry, generate_latest

from tests.protocol.xds_client import assignment, connected, open_stream, until
from xds_control.errors import ConfigError
from xds_control.xds import (
    CDS,
    EDS,
    ClientStatus,
    Nack,
    SnapshotCache,
    XdsCollector,
    XdsPolicy,
    XdsServer,
    by_id,
)
from xds_control.xds import server as server_module
from xds_control.xds.session import Session


@pytest.fixture(autouse=True)
def _checks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "CHECK_INTERVAL_S", 0.05)


class Running:
    """A server with a cache; made anew with options."""

    def __init__(self) -> None:
        self.cache = SnapshotCache()
        self.server: XdsServer | None = None

    async def start(self, options: XdsPolicy | None = None, **more: Any) -> int:
        self.server = XdsServer(self.cache, options, **more)
        return await self.server.start("127.0.0.1:0")

    def put(self, name: str, weight: int = 1, group: str = "", endpoints: int = 1) -> None:
        self.cache.update(group, {EDS.type_url: {name: assignment(name, weight, endpoints)}})


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    made = Running()
    yield made
    if made.server is not None:
        await made.server.stop(0)


async def test_there_is_no_service_before_the_first_snapshot(running: Running) -> None:
    port = await running.start(node_group=by_id)
    async with connected(port) as channel:
        stream = open_stream(channel)
        await stream.ask("a", node="n1")
        code, details = await stream.end()
        assert code == "UNAVAILABLE"
        assert "no snapshot" in details
        running.cache.set("n1", {})
        stream = open_stream(channel)
        await stream.ask("a", node="n1")
        assert list((await stream.read()).removed_resources) == ["a"]
        # A group that is taken away ends its streams; others are not touched.
        other = open_stream(channel)
        running.put("a", group="n2")
        await other.ask("a", node="n2")
        await other.read()
        running.cache.clear("n1")
        assert (await stream.end())[0] == "UNAVAILABLE"
        await other.ask("b", node="n2")
        assert running.server is not None
        assert [c.node_id for c in running.server.clients()] == ["n2"]


async def test_a_node_function_that_fails_is_an_invalid_argument(running: Running) -> None:
    def group(node: Any) -> str:
        raise KeyError("team")

    running.cache.set("", {})
    port = await running.start(node_group=group)
    async with connected(port) as channel:
        stream = open_stream(channel)
        await stream.ask("a")
        assert (await stream.end())[0] == "INVALID_ARGUMENT"


async def test_streams_are_bounded_and_slots_come_back(running: Running) -> None:
    running.put("a")
    port = await running.start(XdsPolicy(max_streams=2))
    assert running.server is not None
    async with connected(port) as channel:
        first, second = open_stream(channel), open_stream(channel)
        for stream in (first, second):
            await stream.ask("a")
            await stream.read()
        third = open_stream(channel)
        assert (await third.end())[0] == "RESOURCE_EXHAUSTED"
        first.call.cancel()
        await until(lambda: len(running.server.clients()) == 1)  # type: ignore[union-attr]
        fourth = open_stream(channel)
        await fourth.ask("a")
        assert [r.name for r in (await fourth.read()).resources] == ["a"]
    assert running.server.stats.refused == 1


async def test_names_and_types_per_stream_are_bounded(running: Running) -> None:
    running.cache.set("", {})
    port = await running.start(XdsPolicy(max_names_per_stream=10, max_types_per_stream=3))
    async with connected(port) as channel:
        stream = open_stream(channel)
        await stream.ask(*(f"n{i}" for i in range(11)))
        assert (await stream.end())[0] == "RESOURCE_EXHAUSTED"
        stream = open_stream(channel)
        for number in range(4):
            request = discovery_pb2.DeltaDiscoveryRequest(type_url=f"example.com/t{number}")
            request.node.id = "n"
            await stream.call.write(request)
        assert (await stream.end())[0] == "RESOURCE_EXHAUSTED"


async def test_a_silent_stream_is_ended(running: Running) -> None:
    running.cache.set("", {})
    port = await running.start(XdsPolicy(first_request_deadline_s=0.2))
    async with connected(port) as channel:
        stream = open_stream(channel)
        await stream.call.wait_for_connection()
        assert (await stream.end())[0] == "DEADLINE_EXCEEDED"


async def test_a_client_that_does_not_read_harms_nobody_and_is_cut_off(running: Running) -> None:
    running.put("big", endpoints=2000)
    running.put("small")
    port = await running.start(XdsPolicy(write_deadline_s=1.0, stuck_after_s=0.3))
    server = running.server
    assert server is not None
    # It subscribes to many large resources and takes none of the bytes.
    names = [f"big{i}" for i in range(150)]
    running.cache.update("", {EDS.type_url: {n: assignment(n, endpoints=2000) for n in names}})
    async with connected(port, http2__bdp_probe=0) as stuck_channel, connected(port) as channel:
        stuck = open_stream(stuck_channel)
        await stuck.ask(*names, node="stuck")
        well = open_stream(channel)
        await well.ask("small", node="well")
        await well.ack(await well.read())
        await until(lambda: any(c.node_id == "stuck" and c.stuck for c in server.clients()), 5)
        # While it hangs the world goes on changing, for the others without delay.
        for weight in range(2, 12):
            running.put("small", weight)
            running.put("big0", weight, endpoints=2000)
            message = await well.read()
            assert [r.name for r in message.resources] == ["small"]
            await well.ack(message)
        hung = next(c for c in server.clients() if c.node_id == "stuck")
        assert hung.writing_s > 0
        assert hung.types[0].responses == 1, "one response, however often the world changed"
        await until(lambda: [c.node_id for c in server.clients()] == ["well"], 5)
        assert server.stats.abandoned == 1
        # When it wakes up it is told, and can come back.
        assert await asyncio.wait_for(_drained(stuck), 10) == "DEADLINE_EXCEEDED"
        again = open_stream(stuck_channel)
        await again.ask("small", node="stuck")
        assert [r.name for r in (await again.read()).resources] == ["small"]


async def _drained(stream: Any) -> str:
    try:
        while await stream.call.read() is not grpc.aio.EOF:
            pass
    except grpc.aio.AioRpcError as problem:
        return str(problem.code().name)
    return str((await stream.call.code()).name)


async def test_a_client_that_never_answers_is_listed_as_stuck_with_its_lag(running: Running) -> None:
    running.put("a")
    now = [100.0]
    port = await running.start(XdsPolicy(stuck_after_s=30.0), clock=lambda: now[0])
    server = running.server
    assert server is not None
    async with connected(port) as channel:
        stream = open_stream(channel)
        await stream.ask("a")
        message = await stream.read()
        now[0] = 110.0
        (status,) = server.clients()
        assert status.types[0].outstanding
        assert status.lag_s == pytest.approx(10.0)
        assert not status.stuck
        with structlog.testing.capture_logs() as logs:
            now[0] = 131.0
            assert server.clients()[0].stuck
            await asyncio.sleep(0.3)
        assert [e["event"] for e in logs] == ["xds.stuck"], "said once"
        await stream.ack(message)
        await until(lambda: not server.clients()[0].types[0].outstanding)
        (status,) = server.clients()
        assert status.lag_s == 0
        assert not status.stuck
        assert status.types[0].version_acked == status.types[0].version_sent != ""


async def test_a_nack_is_counted_listed_and_handed_on(running: Running) -> None:
    running.put("a")
    seen: list[tuple[ClientStatus, Nack]] = []
    port = await running.start(on_nack=lambda status, nack: seen.append((status, nack)))
    server = running.server
    assert server is not None
    registry = CollectorRegistry()
    registry.register(XdsCollector(server))
    async with connected(port) as channel:
        stream = open_stream(channel)
        await stream.ask("a")
        await stream.ack(await stream.read(), "Proto constraint validation failed")
        await until(lambda: bool(seen))
        status, nack = seen[0]
        assert (status.node_id, nack.type, nack.names) == ("n", EDS, ("a",))
        assert nack.message == "Proto constraint validation failed"
        (listed,) = server.clients()[0].types
        assert listed.rejected == ("a",)
        assert listed.last_error == nack.message
        assert listed.version_acked == ""
        text = generate_latest(registry).decode()
        assert 'xds_control_xds_nacks_total{type="EDS"} 1.0' in text
        assert 'xds_control_xds_rejecting{type="EDS"} 1.0' in text
        assert 'xds_control_xds_streams{protocol="delta",service="ADS"} 1.0' in text
        # The next version is taken: the error is history, the rejection over.
        running.put("a", 2)
        await stream.ack(await stream.read())
        await until(lambda: not server.clients()[0].types[0].rejected)
        assert server.clients()[0].types[0].last_error == nack.message


async def test_names_that_are_missing_can_be_made_on_demand(running: Running) -> None:
    running.cache.set("", {})
    asked: list[tuple[str, str, list[str]]] = []

    def missing(group: str, type_url: str, names: list[str]) -> None:
        asked.append((group, type_url, names))
        for name in names:
            if name != "never":
                running.put(name)

    port = await running.start(on_missing=missing)
    async with connected(port) as channel:
        stream = open_stream(channel)
        await stream.ask("made", "never")
        message = await stream.read()
        assert [r.name for r in message.resources] == ["made"]
        assert list(message.removed_resources) == ["never"]
    assert asked == [("", EDS.type_url, ["made", "never"])]


async def test_streams_end_at_their_age_and_not_all_at_once(running: Running) -> None:
    running.put("a")
    now = [0.0]
    port = await running.start(XdsPolicy(max_connection_age_s=1000.0, connection_age_jitter=0.5), clock=lambda: now[0])
    server = running.server
    assert server is not None
    async with connected(port) as channel:
        streams = [open_stream(channel) for _ in range(40)]
        for stream in streams:
            await stream.ask("a")
            await stream.ack(await stream.read())
        now[0] = 499.0
        await asyncio.sleep(0.2)
        assert len(server.clients()) == 40
        now[0] = 1000.0
        await asyncio.sleep(0.3)
        assert 5 <= len(server.clients()) <= 35
        now[0] = 1501.0
        await until(lambda: not server.clients())
        assert {(await s.end())[0] for s in streams} == {"OK"}


async def test_an_aged_connection_is_exchanged(running: Running) -> None:
    running.put("a")
    port = await running.start(XdsPolicy(max_connection_age_s=0.5, connection_age_jitter=0.2))
    async with connected(port) as channel:
        for _ in range(3):
            stream = open_stream(channel, wait=True)
            await stream.ask("a")
            await stream.ack(await stream.read())
            assert await stream.read() is grpc.aio.EOF
            assert (await stream.end())[0] == "OK"


async def test_stopping_tells_clients_to_go_elsewhere(running: Running) -> None:
    running.put("a")
    port = await running.start()
    assert running.server is not None
    async with connected(port) as channel:
        stream = open_stream(channel)
        await stream.ask("a")
        await stream.read()
        await running.server.stop(2)
        assert (await stream.end())[0] == "UNAVAILABLE"
    assert running.server.clients() == []


async def test_nothing_is_left_of_streams_however_they_end(running: Running) -> None:
    running.put("a")
    port = await running.start()
    server = running.server
    assert server is not None

    async def one(how: int) -> None:
        async with connected(port) as channel:
            stream = open_stream(channel)
            await stream.ask("a", node="" if how == 3 else "n")
            if how == 0:
                await stream.ack(await stream.read())
            elif how == 1:
                stream.call.cancel()
            elif how == 2:
                await stream.call.done_writing()
                await stream.read()
            elif how == 3:
                await stream.end()
            elif how == 4:
                await stream.read()
                await stream.call.write(discovery_pb2.DeltaDiscoveryRequest())
                await stream.end()

    await asyncio.gather(*(one(i % 5) for i in range(10)))
    await until(lambda: not server._sessions)
    gc.collect()
    tasks = len(asyncio.all_tasks())
    for _ in range(3):
        await asyncio.gather(*(one(i % 5) for i in range(20)))
    await until(lambda: not server._sessions and len(asyncio.all_tasks()) <= tasks)
    assert server._by_group == {}
    gc.collect()
    left = [o for o in gc.get_objects() if isinstance(o, Session) and o.id.startswith(server._boot)]
    # gRPC itself may hold on to the frame of the newest call, no more.
    assert len(left) <= 1


async def test_bytes_that_are_no_message_end_only_their_own_stream(running: Running) -> None:
    running.put("a")
    port = await running.start()
    async with connected(port) as channel:
        good = open_stream(channel)
        await good.ask("a")
        await good.ack(await good.read())
        method: Any = channel.stream_stream(
            "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources"
        )
        bad = method()
        await bad.write(b"\xff\xff\xff\xff not protobuf")
        code = await asyncio.wait_for(bad.code(), 10)
        assert code is not grpc.StatusCode.OK
        running.put("a", 2)
        assert [r.name for r in (await good.read()).resources] == ["a"]


async def test_two_servers_cannot_share_a_port(running: Running) -> None:
    port = await running.start()
    other = XdsServer(SnapshotCache())
    with pytest.raises(ConfigError, match=str(port)):
        await other.start(f"127.0.0.1:{port}")
    await other.stop(0)


async def test_it_listens_on_a_unix_socket(running: Running, tmp_path: Any) -> None:
    running.put("a")
    running.server = XdsServer(running.cache)
    address = f"unix:{tmp_path}/xds.sock"
    await running.server.start(address)
    async with grpc.aio.insecure_channel(address) as channel:
        stream = open_stream(channel)
        await stream.ask("a")
        assert [r.name for r in (await stream.read()).resources] == ["a"]


async def test_a_world_of_many_changes_reaches_a_slow_client_as_one(running: Running) -> None:
    running.put("a")
    port = await running.start()
    async with connected(port) as channel:
        stream = open_stream(channel)
        await stream.ask("a")
        message = await stream.read()
        for weight in range(2, 500):
            running.put("a", weight)
        await stream.ack(message)
        await stream.ack(await stream.read())
        assert running.server is not None
        await until(lambda: not running.server.clients()[0].types[0].outstanding)  # type: ignore[union-attr]
        assert running.server.clients()[0].types[0].responses == 2


async def test_the_empty_cluster_world_is_served(running: Running) -> None:
    running.cache.set("", {CDS.type_url: {}})
    port = await running.start()
    async with connected(port) as channel:
        stream = open_stream(channel)
        request = discovery_pb2.DeltaDiscoveryRequest(type_url=CDS.type_url)
        request.node.id = "n"
        await stream.call.write(request)
        message = await stream.read()
        assert (len(message.resources), message.type_url) == (0, CDS.type_url)


async def test_functions_of_the_user_that_fail_end_no_stream(running: Running) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("not mine")

    running.put("a")
    port = await running.start(on_nack=fail, on_missing=fail)
    async with connected(port) as channel:
        stream = open_stream(channel)
        await stream.ask("a", "missing")
        await stream.ack(await stream.read(), "bad")
        running.put("a", 2)
        assert [r.name for r in (await stream.read()).resources] == ["a"]


async def test_what_a_client_says_is_bounded(running: Running) -> None:
    running.put("a")
    port = await running.start(XdsPolicy(max_request_bytes=4 << 20))
    server = running.server
    assert server is not None
    async with connected(port) as channel:
        for metadata, kept in (("x" * 1000, True), ("x" * 2_000_000, False)):
            stream = open_stream(channel)
            request = discovery_pb2.DeltaDiscoveryRequest(type_url=EDS.type_url, resource_names_subscribe=["a"])
            request.node.id = "n"
            request.node.metadata.update({"x": metadata})
            request.node.extensions.add(name="y" * 100_000)
            await stream.call.write(request)
            if kept:
                message = await stream.read()
                await stream.ack(message, "long " * 100_000)
                await until(lambda: bool(server.clients()[0].types[0].last_error))
                assert len(server.clients()[0].types[0].last_error) < 5000
            else:
                assert (await stream.end())[0] == "RESOURCE_EXHAUSTED"
        stream = open_stream(channel)
        request = discovery_pb2.DeltaDiscoveryRequest(type_url=EDS.type_url)
        request.node.id = "z" * (5 << 20)
        await stream.call.write(request)
        assert (await stream.end())[0] == "RESOURCE_EXHAUSTED"


async def test_a_flood_of_requests_makes_no_flood_of_answers(running: Running) -> None:
    for number in range(20):
        running.put(f"r{number}")
    port = await running.start()
    server = running.server
    assert server is not None
    async with connected(port) as flood_channel, connected(port) as channel:
        flood, well = open_stream(flood_channel), open_stream(channel)
        await well.ask("r0", node="well")
        await well.ack(await well.read())
        for number in range(2000):
            await flood.ask(f"r{number % 20}", node="flood")
        running.put("r0", 5)
        assert [r.name for r in (await well.read()).resources] == ["r0"]
        (status,) = [c for c in server.clients() if c.node_id == "flood"]
        assert status.types[0].responses == 1
        await flood.ack(await flood.read())
        # All that was asked for meanwhile comes at once.
        assert len((await flood.read()).resources) == 20


async def test_stopping_does_not_wait_for_a_stuck_client(running: Running) -> None:
    names = [f"big{i}" for i in range(100)]
    running.cache.update("", {EDS.type_url: {n: assignment(n, endpoints=2000) for n in names}})
    port = await running.start()
    server = running.server
    assert server is not None
    async with connected(port, http2__bdp_probe=0) as channel:
        stuck = open_stream(channel)
        await stuck.ask(*names)
        await until(lambda: any(c.writing_s > 0.1 for c in server.clients()))
        await asyncio.wait_for(server.stop(0.3), 5)


async def test_five_hundred_streams_get_a_push_and_leave_nothing(running: Running) -> None:
    running.put("a")
    port = await running.start()
    server = running.server
    assert server is not None
    async with connected(port) as channel:
        streams = [open_stream(channel) for _ in range(500)]
        for number, stream in enumerate(streams):
            await stream.ask("a", node=f"n{number}")
        for stream in streams:
            await stream.ack(await stream.read())
        bodies = server.encoder.bodies
        running.put("a", 2)
        for stream in streams:
            assert [r.name for r in (await stream.read()).resources] == ["a"]
        assert server.encoder.bodies == bodies + 1, "made once for all"
    await until(lambda: not server.clients() and not server._sessions)
