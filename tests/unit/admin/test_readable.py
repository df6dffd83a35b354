"""Bytes that are no message: on every port and in every kind of call INVALID_ARGUMENT, one log line, no trace."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2_grpc
from grpc_health.v1._async import HealthServicer

from tests.unit.admin.backend import FakeBackend
from xds_control.admin.fleet_service import FleetService
from xds_control.admin.fleet_service import serve as serve_fleet
from xds_control.admin.hub import Hub
from xds_control.admin.server import serve_admin
from xds_control.admin.service import AdminService
from xds_control.extproc.http2.bridge import Bridge
from xds_control.extproc.http2.connection import Limits
from xds_control.extproc.http2.server import Http2Server
from xds_control.observe.readable import LOG_EVERY_S, ReadableMessages
from xds_control.xds import SnapshotCache, XdsServer

NONSENSE = b"\xff\xff\xff"
DISCOVERY = "/envoy.service.discovery.v3.AggregatedDiscoveryService"


@pytest.fixture
async def ports() -> AsyncIterator[dict[str, str]]:
    """Address of each port that takes gRPC."""
    fleet, stop_fleet = await serve_fleet("127.0.0.1:0", FleetService(Hub(), 0.1, print, print).handler())
    del fleet
    admin, stop_admin = await serve_admin("127.0.0.1:0", AdminService(FakeBackend()))
    xds = XdsServer(SnapshotCache(), on_load=print)
    xds_port = await xds.start("127.0.0.1:0")
    native = Http2Server(Limits())
    bridge: Any = Bridge(native)
    health_pb2_grpc.add_HealthServicer_to_server(HealthServicer(), bridge)
    processor = await native.listen("127.0.0.1:0")
    yield {"admin": f"127.0.0.1:{admin}", "xds": f"127.0.0.1:{xds_port}", "processor": processor}
    await native.stop(0.0)
    await xds.stop(0.0)
    await stop_admin()
    await stop_fleet()


async def nonsense(address: str, kind: str, method: str) -> grpc.StatusCode:
    async def messages() -> AsyncIterator[bytes]:
        yield NONSENSE

    async with grpc.aio.insecure_channel(address) as channel:
        call = getattr(channel, kind)(method)
        try:
            if kind == "unary_unary":
                await call(NONSENSE)
            else:
                async for _ in call(NONSENSE if kind == "unary_stream" else messages()):
                    pass
        except grpc.aio.AioRpcError as error:
            code: grpc.StatusCode = error.code()
            return code
    return grpc.StatusCode.OK


@pytest.mark.parametrize(
    ("port", "kind", "method"),
    [
        ("admin", "unary_unary", "/xds_control.admin.v1.Admin/GetStatus"),
        ("admin", "unary_stream", "/xds_control.admin.v1.Admin/Watch"),
        ("admin", "unary_unary", "/grpc.health.v1.Health/Check"),
        ("admin", "stream_stream", "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"),
        ("xds", "stream_stream", f"{DISCOVERY}/StreamAggregatedResources"),
        ("xds", "stream_stream", f"{DISCOVERY}/DeltaAggregatedResources"),
        ("xds", "stream_stream", "/envoy.service.load_stats.v3.LoadReportingService/StreamLoadStats"),
        ("xds", "unary_unary", "/envoy.service.status.v3.ClientStatusDiscoveryService/FetchClientStatus"),
        ("xds", "stream_stream", "/envoy.service.status.v3.ClientStatusDiscoveryService/StreamClientStatus"),
        ("processor", "unary_unary", "/grpc.health.v1.Health/Check"),
        ("processor", "unary_stream", "/grpc.health.v1.Health/Watch"),
    ],
)
async def test_it_is_refused_without_a_trace(
    ports: dict[str, str], port: str, kind: str, method: str, caplog: pytest.LogCaptureFixture, capsys: Any
) -> None:
    with caplog.at_level(logging.DEBUG):
        assert await nonsense(ports[port], kind, method) is grpc.StatusCode.INVALID_ARGUMENT
    assert not [one for one in caplog.records if one.levelno >= logging.ERROR]
    assert "Traceback" not in "".join(capsys.readouterr())


@pytest.mark.parametrize(("kind", "name"), [("stream_stream", "Report"), ("unary_stream", "Watch")])
async def test_the_fleet_port_too_and_a_flood_is_one_line(
    kind: str, name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[dict[str, Any]] = []
    now = [100.0]
    reader = ReadableMessages("fleet", clock=lambda: now[0])
    monkeypatch.setattr(reader, "_log", type("Log", (), {"warning": lambda _self, event, **more: told.append(more)})())
    server = grpc.aio.server(interceptors=[reader])
    server.add_generic_rpc_handlers((FleetService(Hub(), 0.1, print, print).handler(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        for _ in range(20):
            found = await nonsense(f"127.0.0.1:{port}", kind, f"/xds_control.fleet.v1.Fleet/{name}")
            assert found is grpc.StatusCode.INVALID_ARGUMENT
        assert [one["count"] for one in told] == [1]
        now[0] += LOG_EVERY_S
        await nonsense(f"127.0.0.1:{port}", kind, f"/xds_control.fleet.v1.Fleet/{name}")
        assert [one["count"] for one in told] == [1, 21]
    finally:
        await server.stop(0.0)
    assert not [one for one in caplog.records if one.levelno >= logging.ERROR]
