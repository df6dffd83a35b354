"""Cases that need a data plane: a real Envoy in full-duplex mode obeys the picks, with engines on loopback addresses.

Addresses 10.9.0.n become 127.9.0.n, and ports of the cases become free ones, so that engines can listen there.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from tests.protocol.epp_peer import Failed, Grpc
from tests.protocol.epp_requests import PROSE, Backend
from tests.protocol.epp_world import Unsupported, World
from xds_control.policy import headers as names

_TYPE = "type.googleapis.com/envoy.extensions."
_LB = "envoy.load_balancing_policies"
SERVED_HEADER = "x-conformance-test-served-endpoint"


def envoy_binary() -> str:
    """Path of an Envoy. Raises Unsupported without one."""
    beside = Path(sys.executable).parent / "envoy"
    found = str(beside) if beside.exists() else shutil.which("envoy")
    if not found:
        raise Unsupported("needs a data plane, and no envoy binary is installed (extra `envoy`)")
    return found


def _bootstrap(listen: int, admin: int, processor: list[str], hosts: list[str], fail_open: bool) -> dict[str, Any]:
    key = {"key": names.LB_NAMESPACE, "path": [{"key": names.DESTINATION}]}
    served = {"key": names.LB_NAMESPACE, "path": [{"key": names.DESTINATION_SERVED}]}
    least = {"@type": f"{_TYPE}load_balancing_policies.least_request.v3.LeastRequest"}
    override = {
        "@type": f"{_TYPE}load_balancing_policies.override_host.v3.OverrideHost",
        "override_host_sources": [{"metadata": key}],
        "selected_host_key": served,
        "fallback_policy": {
            "policies": [{"typed_extension_config": {"name": f"{_LB}.least_request", "typed_config": least}}]
        },
    }
    ext_proc = {
        "@type": f"{_TYPE}filters.http.ext_proc.v3.ExternalProcessor",
        "grpc_service": {"envoy_grpc": {"cluster_name": "processor"}},
        "failure_mode_allow": fail_open,
        "message_timeout": "5s",
        "processing_mode": {
            "request_header_mode": "SEND",
            "request_body_mode": "FULL_DUPLEX_STREAMED",
            "request_trailer_mode": "SEND",
            "response_header_mode": "SEND",
            "response_body_mode": "FULL_DUPLEX_STREAMED",
            "response_trailer_mode": "SEND",
        },
        "metadata_options": {
            "receiving_namespaces": {"untyped": [names.LB_NAMESPACE, names.NAMESPACE]},
            "forwarding_namespaces": {"untyped": [names.SUBSET_HINT_NAMESPACE, names.LB_NAMESPACE]},
        },
    }
    manager = {
        "@type": f"{_TYPE}filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "m",
        "route_config": {
            "virtual_hosts": [
                {
                    "name": "v",
                    "domains": ["*"],
                    "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "pool", "timeout": "0s"}}],
                }
            ]
        },
        "http_filters": [
            {"name": "ext_proc", "typed_config": ext_proc},
            {"name": "router", "typed_config": {"@type": f"{_TYPE}filters.http.router.v3.Router"}},
        ],
    }

    def endpoint(text: str) -> dict[str, Any]:
        ip, _, number = text.rpartition(":")
        return {"endpoint": {"address": {"socket_address": {"address": ip, "port_value": int(number)}}}}

    def cluster(name: str, addresses: list[str], **more: Any) -> dict[str, Any]:
        hosts_of = [endpoint(text) for text in addresses]
        assignment = {"cluster_name": name, "endpoints": [{"lb_endpoints": hosts_of}]}
        return {"name": name, "type": "STATIC", "connect_timeout": "1s", "load_assignment": assignment, **more}

    http2 = {
        "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
            "@type": f"{_TYPE}upstreams.http.v3.HttpProtocolOptions",
            "explicit_http_config": {"http2_protocol_options": {}},
        }
    }
    picks = {"name": f"{_LB}.override_host", "typed_config": override}
    policy = {"policies": [{"typed_extension_config": picks}]}
    return {
        "node": {"id": "conformance", "cluster": "conformance"},
        "admin": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": admin}}},
        "static_resources": {
            "listeners": [
                {
                    "name": "main",
                    "address": {"socket_address": {"address": "127.0.0.1", "port_value": listen}},
                    "filter_chains": [{"filters": [{"name": "hcm", "typed_config": manager}]}],
                }
            ],
            "clusters": [
                cluster("pool", hosts, load_balancing_policy=policy),
                cluster("processor", processor, typed_extension_protocol_options=http2),
            ],
        },
    }


def _free_ports(count: int) -> list[int]:
    import random
    import socket

    found: list[int] = []
    while len(found) < count:
        port = random.randrange(10_000, 32_000)
        with contextlib.suppress(OSError), socket.socket() as one:
            one.bind(("127.0.0.1", port))
            if port not in found:
                found.append(port)
    return found


@contextlib.asynccontextmanager
async def _engines(addresses: list[str]) -> AsyncIterator[None]:
    """HTTP servers that say where they listen."""
    runners: list[web.AppRunner] = []
    try:
        for text in addresses:

            async def answer(request: web.Request, text: str = text) -> web.Response:
                await request.read()
                return web.json_response({"served_by": text}, headers={"x-served-by": text})

            app = web.Application()
            app.router.add_route("*", "/{tail:.*}", answer)
            runner = web.AppRunner(app)
            await runner.setup()
            host, _, port = text.rpartition(":")
            await web.TCPSite(runner, host, int(port)).start()
            runners.append(runner)
        yield
    finally:
        for runner in runners:
            await runner.cleanup()


@contextlib.asynccontextmanager
async def _envoy(config: dict[str, Any], admin: int) -> AsyncIterator[None]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "envoy.json"
        path.write_text(json.dumps(config))
        options = ("-c", str(path), "--concurrency", "1", "--use-dynamic-base-id", "-l", "error")
        process = await asyncio.create_subprocess_exec(
            envoy_binary(), *options, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
        )
        try:
            async with aiohttp.ClientSession() as session:
                for _ in range(200):
                    with contextlib.suppress(aiohttp.ClientError):
                        async with session.get(f"http://127.0.0.1:{admin}/ready") as ready:
                            if ready.status == 200:
                                break
                    if process.returncode is not None:
                        raise Failed("envoy did not accept the configuration")
                    await asyncio.sleep(0.05)
            yield
        finally:
            process.terminate()
            try:
                await asyncio.wait_for(process.wait(), 5)
            except TimeoutError:
                process.kill()
                await process.wait()


async def conformance(case: Mapping[str, Any], fixtures: Mapping[str, Any], backend: Backend) -> None:
    """Kind conformance."""
    known = {"served_by", "served_by_port", "status", "status_class", "response_header"} | PROSE
    if set(case["expect"]) - known:
        raise Unsupported(f"expectation {sorted(set(case['expect']) - known)}")
    rows = case.get("pool") or [[1, 0, 0.0, []], [2, 0, 0.0, []], [3, 0, 0.0, []]]
    old_ports = [int(port) for port in case.get("pool_ports") or [8000]]
    free = _free_ports(len(old_ports) + 3)
    ports = dict(zip(old_ports, free[3:], strict=True))
    hosts = [f"127.9.0.{row[0]}:{ports[port]}" for row in rows for port in old_ports]

    def moved(text: str) -> str:
        for old, new in ports.items():
            text = text.replace(f":{old}", f":{new}")
        return text.replace("10.9.0.", "127.9.0.")

    headers = {name: moved(str(value)) for name, value in (case.get("headers") or {}).items()}
    given = {**case, "pool": [], "pool_addresses": hosts, "headers": headers}
    given.pop("pool_ports", None)
    world = World(given, fixtures, served_header=SERVED_HEADER)
    served = Grpc(world)
    await served.start(f"127.0.0.1:{free[0]}")
    try:
        picker = [f"127.0.0.1:{free[0]}"]
        if str(case.get("picker", "up")) == "down":
            # Scaled to zero: its service has no endpoints any more.
            await served.stop()
            picker = []
        fail_open = str(case.get("failure_mode", "FailClose")).lower() == "failopen"
        config = _bootstrap(free[1], free[2], picker, hosts, fail_open)
        async with _engines(hosts), _envoy(config, free[2]), aiohttp.ClientSession() as session:
            for number in range(5):
                body = {"model": "base-m", "prompt": f"conformance {number}"}
                url = f"http://127.0.0.1:{free[1]}/v1/completions"
                async with session.post(url, json=body, headers=headers) as answer:
                    text = await answer.text()
                    _held(case["expect"], answer, text, ports)
    finally:
        await served.stop()


def _held(expect: Mapping[str, Any], answer: aiohttp.ClientResponse, text: str, ports: Mapping[int, int]) -> None:
    where = answer.headers.get("x-served-by", "")
    for name, wanted in expect.items():
        if name in ("served_by", "served_by_port", "response_header") and answer.status != 200:
            raise Failed(f"status {answer.status}: {text[:200]}")
        if name == "served_by" and where.rpartition(":")[0] != f"127.9.0.{wanted}":
            raise Failed(f"served by {where}, wanted endpoint {wanted}")
        if name == "served_by_port" and where.rpartition(":")[2] != str(ports[int(wanted)]):
            raise Failed(f"served by {where}, wanted port {wanted} (here {ports[int(wanted)]})")
        if name == "status" and answer.status != wanted:
            raise Failed(f"status {answer.status}, wanted {wanted}: {text[:200]}")
        if name == "status_class" and str(answer.status)[0] != str(wanted)[0]:
            raise Failed(f"status {answer.status}, wanted {wanted}")
        if name == "response_header":
            for header in wanted:
                if answer.headers.get(header) != where:
                    raise Failed(f"header {header} is {answer.headers.get(header)!r}, served by {where}")
