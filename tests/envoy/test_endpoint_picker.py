"""The endpoint picker mode: ports, health names, TLS, and Envoys as Gateway API data planes set them up."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.envoy.data_planes import PLANES, SERVICE, DataPlane, running
from tests.envoy.harness import Product, eventually, free_port_block, free_ports
from tests.envoy.traffic import CHAT, FAST_SCRAPE, body
from xds_control.policy.processes import ProcessorPolicy
from xds_control.proto import admin_pb2, admin_pb2_grpc

Start = Callable[..., Awaitable[Product]]
READY = ("", "readiness", SERVICE)
FOLLOWED = (*READY, "liveness", "no-such-service")


def policy(
    addresses: list[str], ports: list[int], *, tls: bool = False, count: int = 1, fallbacks: int = 3
) -> dict[str, Any]:
    listening: dict[str, Any] = {
        "mode": "endpoint-picker",
        "listen": f"127.0.0.1:{ports[0]}",
        "health": f"127.0.0.1:{ports[1]}",
        "private": f"127.0.0.1:{free_port_block(count)}",
        "count": count,
    }
    pool = {"name": "chat", "models": ["demo"], "engine": "vllm", "endpoints": [{"address": a} for a in addresses]}
    return {
        "pools": [pool],
        "signals": FAST_SCRAPE,
        "ext_proc": {"body_mode": "full_duplex"},
        "picker": {"nobody": "reject", "fallbacks": fallbacks},
        "processors": {**listening, **({"tls": {}} if tls else {})},
    }


async def statuses(address: str) -> dict[str, str]:
    """What a health port says of each name, by Watch: it answers for unknown names too."""
    found: dict[str, str] = {}
    async with grpc.aio.insecure_channel(address) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        for name in FOLLOWED:
            watch = stub.Watch(health_pb2.HealthCheckRequest(service=name))
            first = await asyncio.wait_for(watch.read(), 5)
            watch.cancel()
            found[name] = health_pb2.HealthCheckResponse.ServingStatus.Name(first.status)
    return found


def listening(port: int) -> bool:
    """Whether somebody accepts connections there."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_the_default_ports_are_those_that_data_planes_name() -> None:
    picker = ProcessorPolicy(mode="endpoint-picker")
    assert (picker.listen, picker.health) == ("0.0.0.0:9002", "0.0.0.0:9003")
    beside = ProcessorPolicy()
    assert (beside.listen, beside.health) == ("127.0.0.1:18010", "")


async def test_health_names_before_the_first_snapshot_after_it_and_while_leaving(
    tmp_path: Path, start_product: Start, make_engine: Any
) -> None:
    """A processor without control is alive and not ready; one with it is ready; one that leaves is not."""
    listen, health = free_ports(2)
    argv = ("--control", "127.0.0.1:1", "--listen", f"127.0.0.1:{listen}", "--health", f"127.0.0.1:{health}")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "xds_control", "processor", *argv),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        await eventually(lambda: listening(health), 20, "the health port")
        found = await statuses(f"127.0.0.1:{health}")
        assert found == {
            **dict.fromkeys(READY, "NOT_SERVING"),
            "liveness": "SERVING",
            "no-such-service": "SERVICE_UNKNOWN",
        }
    finally:
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 15) == 0

    engine = await make_engine(name="a")
    ports = free_ports(2)
    product = await start_product(policy([engine.address], ports), with_envoy=False)
    await eventually(lambda: listening(ports[0]), 20, "ext_proc")
    found = await statuses(f"127.0.0.1:{ports[1]}")
    assert found == {**dict.fromkeys((*READY, "liveness"), "SERVING"), "no-such-service": "SERVICE_UNKNOWN"}

    async with grpc.aio.insecure_channel(f"127.0.0.1:{ports[1]}") as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        watch = stub.Watch(health_pb2.HealthCheckRequest(service="readiness"))
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        stopping = asyncio.create_task(product.stop())
        assert (await asyncio.wait_for(watch.read(), 20)).status == health_pb2.HealthCheckResponse.NOT_SERVING
        watch.cancel()
    await stopping


@pytest.mark.parametrize("plane", PLANES, ids=lambda plane: plane.name)
async def test_an_envoy_of_each_data_plane_obeys_the_picks(
    plane: DataPlane, tmp_path: Path, start_product: Start, make_engine: Any, client: aiohttp.ClientSession
) -> None:
    engines = [await make_engine(name=f"e{i}", record=100) for i in range(3)]
    ports = free_ports(2)
    # ORIGINAL_DST dials what the header says, whole: it understands no list.
    fallbacks = 1 if plane.source == "original_dst" else 3
    wanted = policy([e.address for e in engines], ports, tls=plane.tls, count=2, fallbacks=fallbacks)
    product = await start_product(wanted, with_envoy=False)
    await eventually(lambda: listening(ports[0]), 20, "ext_proc")
    pool = [int(engine.address.rpartition(":")[2]) for engine in engines]
    async with running(plane, tmp_path, *ports, pool) as gateway:
        await eventually(gateway.picker_healthy, 10, "the picker's health")
        for number in range(24):
            request = body(f"question {number} " + "x" * 300, max_tokens=2)
            # A client that names an endpoint itself decides nothing.
            forged = {"x-gateway-destination-endpoint": engines[0].address}
            async with client.post(gateway.url + CHAT, json=request, headers=forged) as answer:
                assert answer.status == 200, await answer.text()
        async with client.post(gateway.url + CHAT, json=body("stream", max_tokens=20, stream=True)) as answer:
            text = await answer.text()
            assert answer.status == 200
            assert "[DONE]" in text
        seen = [(engine, request) for engine in engines for request in engine.requests]
        assert len(seen) == 25
        for engine, request in seen:
            assert request.headers["x-gateway-destination-endpoint"].split(",")[0] == engine.address
        counts = [len(engine.requests) for engine in engines]
        assert min(counts) >= 4, counts

        async def ends_known() -> bool:
            _, page = await product.get("/metrics")
            lines = [line for line in page.splitlines() if line.startswith("xds_control_requests_total{")]
            return sum(float(line.rpartition(" ")[2]) for line in lines if 'outcome="ok"' in line) == 25

        await eventually(ends_known, 5, "the ends of all requests")
        # Control asks each processor on its own port, whatever they share.
        async with grpc.aio.insecure_channel(f"127.0.0.1:{product.ports['admin']}") as channel:
            admin: Any = admin_pb2_grpc.AdminStub(channel)  # type: ignore[no-untyped-call]
            kept = await admin.ListRequests(admin_pb2.ListRequestsRequest())
        assert not kept.unreachable

        # Two processors share the port; one may go. Without any, the failure mode decides.
        product.kill("processor-0")
        for number in range(10):
            async with client.post(gateway.url + CHAT, json=body(f"one left {number}")) as answer:
                await answer.read()
        await product.stop()
        async with client.get(gateway.url + "/v1/models") as answer:
            await answer.read()
            assert (answer.status == 200) is plane.fail_open, answer.status
        # A body in full duplex may be on its way to a picker that is not there: Envoy cannot go on without it.
        async with client.post(gateway.url + CHAT, json=body("nobody")) as answer:
            await answer.read()
            assert (answer.status == 200) is (plane.fail_open and not plane.duplex), answer.status


async def test_full_duplex_fails_open_where_envoy_knows_that_no_picker_is_ready(
    tmp_path: Path, make_engine: Any, client: aiohttp.ClientSession
) -> None:
    """Nothing is sent to nobody, so the body is still there when Envoy goes on."""
    engine = await make_engine(name="a")
    plane = DataPlane("unready", tls=False, fail_open=True)
    async with running(plane, tmp_path, *free_ports(2), [int(engine.address.rpartition(":")[2])]) as gateway:

        async def known() -> bool:
            return not await gateway.picker_healthy()

        await eventually(known, 5, "the picker is known to be away")
        for number in range(5):
            async with client.post(gateway.url + CHAT, json=body(f"nobody {number} " + "x" * 100_000)) as answer:
                assert answer.status == 200, await answer.text()


async def test_an_envoy_of_ours_may_use_an_endpoint_picker_too_and_counts_each_request_once(
    start_product: Start, make_engine: Any, client: aiohttp.ClientSession
) -> None:
    engines = [await make_engine(name=f"e{i}", record=20) for i in range(2)]
    product = await start_product(policy([e.address for e in engines], free_ports(2), tls=True, count=2))
    for number in range(12):
        async with client.post(product.gateway + CHAT, json=body(f"question {number} " + "x" * 300)) as answer:
            assert answer.status == 200, await answer.text()
    for engine in engines:
        for request in engine.requests:
            assert request.headers["x-gateway-destination-endpoint"].split(",")[0] == engine.address

    async def counted() -> float:
        _, page = await product.get("/metrics")
        lines = [line for line in page.splitlines() if line.startswith("xds_control_requests_total{")]
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    async def all_of_them() -> bool:
        return await counted() >= 12

    await eventually(all_of_them, 5, "the ends of all requests")
    await asyncio.sleep(0.5)
    assert await counted() == 12
