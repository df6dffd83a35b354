"""Real Envoys that take everything from an XdsServer of the test itself, and backends that say who they are."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web
from envoy.config.cluster.v3 import cluster_pb2
from envoy.config.endpoint.v3 import endpoint_pb2
from envoy.config.listener.v3 import listener_pb2
from envoy.config.route.v3 import route_pb2
from envoy.extensions.filters.http.router.v3 import router_pb2
from envoy.extensions.filters.network.http_connection_manager.v3 import http_connection_manager_pb2 as hcm_pb2
from google.protobuf import json_format

from tests.envoy.harness import eventually, free_ports
from xds_control.cli.serve import find_envoy

ROUTER = router_pb2.Router.DESCRIPTOR.full_name  # imported so that it can be packed by name
HCM = hcm_pb2.HttpConnectionManager.DESCRIPTOR.full_name


def _parse(cls: Any, content: Mapping[str, Any]) -> Any:
    return json_format.ParseDict(dict(content), cls())


def cluster(name: str, **more: Any) -> Any:
    """An EDS cluster on ADS."""
    return _parse(
        cluster_pb2.Cluster,
        {
            "name": name,
            "type": "EDS",
            "connect_timeout": "2s",
            "eds_cluster_config": {"eds_config": {"resource_api_version": "V3", "ads": {}}},
            "common_lb_config": {"update_merge_window": "0s", "healthy_panic_threshold": {"value": 0}},
            **more,
        },
    )


def assignment(name: str, endpoints: Iterable[tuple[str, int, int]]) -> Any:
    """A ClusterLoadAssignment of (host, port, weight)."""
    result = endpoint_pb2.ClusterLoadAssignment(cluster_name=name)
    locality = result.endpoints.add()
    for host, port, weight in endpoints:
        endpoint = locality.lb_endpoints.add()
        endpoint.endpoint.address.socket_address.address = host
        endpoint.endpoint.address.socket_address.port_value = port
        endpoint.load_balancing_weight.value = weight
    return result


def listener(name: str, port: int, routes: str) -> Any:
    """An HTTP listener on loopback whose routes come by RDS."""
    manager = {
        "@type": f"type.googleapis.com/{HCM}",
        "stat_prefix": name,
        "rds": {"route_config_name": routes, "config_source": {"resource_api_version": "V3", "ads": {}}},
        "http_filters": [{"name": "router", "typed_config": {"@type": f"type.googleapis.com/{ROUTER}"}}],
    }
    return _parse(
        listener_pb2.Listener,
        {
            "name": name,
            "address": {"socket_address": {"address": "127.0.0.1", "port_value": port}},
            "filter_chains": [{"filters": [{"name": "hcm", "typed_config": manager}]}],
        },
    )


def routes(name: str, target: str) -> Any:
    """Everything goes to one cluster, without retries."""
    return _parse(
        route_pb2.RouteConfiguration,
        {
            "name": name,
            "virtual_hosts": [
                {
                    "name": "all",
                    "domains": ["*"],
                    "routes": [{"match": {"prefix": "/"}, "route": {"cluster": target, "timeout": "30s"}}],
                }
            ],
        },
    )


class Backend:
    """An HTTP server that answers with its name; `/slow` takes a second."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.port = 0
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def _answer(self, request: web.Request) -> web.Response:
        if request.path == "/slow":
            await asyncio.sleep(1.0)
        return web.Response(text=self.name)

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()


class Envoy:
    """One Envoy process with an ADS bootstrap.

    delta: incremental or state of the world. extra: merged into the bootstrap. metadata, features: of its node.
    """

    def __init__(
        self,
        folder: Path,
        xds_port: int,
        *,
        node: str,
        delta: bool,
        cluster: str = "test",
        metadata: Mapping[str, Any] | None = None,
        extra: Mapping[str, Any] | None = None,
        features: Iterable[str] = (),
    ) -> None:
        self.port, self.admin = free_ports(2)
        self._folder = folder
        self._name = node
        self._process: asyncio.subprocess.Process | None = None
        self._log = folder / f"{node}.log"
        ads = {
            "api_type": "DELTA_GRPC" if delta else "GRPC",
            "transport_api_version": "V3",
            "grpc_services": [{"envoy_grpc": {"cluster_name": "xds"}}],
            "set_node_on_first_message_only": True,
        }
        source = {"resource_api_version": "V3", "ads": {}}
        self.bootstrap: dict[str, Any] = {
            "node": {
                "id": node,
                "cluster": cluster,
                "metadata": dict(metadata or {}),
                "client_features": list(features),
            },
            "admin": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": self.admin}}},
            "dynamic_resources": {"ads_config": ads, "cds_config": source, "lds_config": source},
            "static_resources": {
                "clusters": [
                    {
                        "name": "xds",
                        "type": "STATIC",
                        "connect_timeout": "1s",
                        "typed_extension_protocol_options": {
                            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                                "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
                                "explicit_http_config": {"http2_protocol_options": {}},
                            }
                        },
                        "load_assignment": {
                            "cluster_name": "xds",
                            "endpoints": [{"lb_endpoints": [_endpoint(xds_port)]}],
                        },
                    }
                ]
            },
            **(extra or {}),
        }

    async def start(self) -> None:
        path = self._folder / f"{self._name}.json"
        path.write_text(json.dumps(self.bootstrap))
        binary = find_envoy()
        assert binary is not None
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                str(binary),
                *("-c", str(path), "--concurrency", "1", "-l", "warning", "--disable-hot-restart"),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    async def stop(self) -> None:
        process, self._process = self._process, None
        if process is None or process.returncode is not None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(process.wait(), 10)
        except TimeoutError:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    async def stats(self, pattern: str) -> dict[str, int]:
        """Counters and gauges whose names match a regular expression."""
        async with (
            aiohttp.ClientSession() as session,
            session.get(
                f"http://127.0.0.1:{self.admin}/stats", params={"format": "json", "filter": pattern}
            ) as response,
        ):
            found = json.loads(await response.text())["stats"]
        return {s["name"]: s["value"] for s in found if "value" in s}

    async def dump(self, path: str) -> Any:
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{self.admin}/{path}") as response:
            return json.loads(await response.text())

    async def ready(self, timeout_s: float = 30.0) -> None:
        """Waits until the process is initialised, with everything warmed."""

        async def live() -> bool:
            async with (
                aiohttp.ClientSession() as session,
                session.get(f"http://127.0.0.1:{self.admin}/ready") as response,
            ):
                return response.status == 200

        await eventually(live, timeout_s, f"{self._name} is ready; its log: {self.log()[-2000:]}")

    async def get(self, path: str = "/") -> tuple[int, str]:
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{self.port}{path}", timeout=aiohttp.ClientTimeout(total=20)) as response,
        ):
            return response.status, await response.text()

    async def count(self, requests: int) -> Counter[str]:
        """Who answered so many requests; a failed one counts as its status."""
        answers: Counter[str] = Counter()
        async with aiohttp.ClientSession() as session:
            for _ in range(requests):
                async with session.get(f"http://127.0.0.1:{self.port}/") as response:
                    text = await response.text()
                    answers[text if response.status == 200 else f"status {response.status}"] += 1
        return answers

    async def serves(self, name: str) -> bool:
        return await self.get() == (200, name)


def _endpoint(port: int) -> dict[str, Any]:
    return {"endpoint": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": port}}}}


class Load:
    """Requests without pause on some connections; counts what came back."""

    def __init__(self, envoy: Envoy, connections: int = 4, path: str = "/") -> None:
        self.answers: Counter[str] = Counter()
        self._envoy = envoy
        self._path = path
        self._connections = connections
        self._stop = False
        self._tasks: list[asyncio.Task[None]] = []

    def __enter__(self) -> Load:
        self._tasks = [asyncio.create_task(self._run()) for _ in range(self._connections)]
        return self

    def __exit__(self, *_: object) -> None:
        self._stop = True

    async def finish(self) -> Counter[str]:
        self._stop = True
        await asyncio.gather(*self._tasks)
        return self.answers

    async def _run(self) -> None:
        async with aiohttp.ClientSession() as session:
            while not self._stop:
                try:
                    async with session.get(f"http://127.0.0.1:{self._envoy.port}{self._path}") as response:
                        text = await response.text()
                        self.answers[text if response.status == 200 else f"status {response.status}: {text}"] += 1
                except aiohttp.ClientError as problem:
                    self.answers[f"failed {problem!r}"] += 1


Check = Callable[[], bool]
