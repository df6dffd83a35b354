"""gRPC's own xDS client resolves a service from the server and balances by the weights."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from envoy.config.cluster.v3 import cluster_pb2
from envoy.config.endpoint.v3 import endpoint_pb2
from envoy.config.listener.v3 import listener_pb2
from envoy.config.route.v3 import route_pb2
from envoy.extensions.filters.http.router.v3 import router_pb2
from envoy.extensions.filters.network.http_connection_manager.v3 import http_connection_manager_pb2 as hcm_pb2

from tests.protocol.xds_client import until
from xds_control.xds import CDS, EDS, LDS, RDS, InvalidResource, SnapshotCache, XdsServer

REPOSITORY = Path(__file__).resolve().parents[2]


class Who:
    """A gRPC server that answers with its name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.port = 0
        self._server = grpc.aio.server()

    async def start(self) -> None:
        async def ask(request: bytes, context: Any) -> bytes:
            return self.name.encode()

        handler = grpc.method_handlers_generic_handler("test.Who", {"Ask": grpc.unary_unary_rpc_method_handler(ask)})
        self._server.add_generic_rpc_handlers((handler,))
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop(0)


class Client:
    """The client process."""

    def __init__(self, folder: Path, port: int, target: str) -> None:
        self._folder = folder
        self._port = port
        self._target = target
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        bootstrap = self._folder / "bootstrap.json"
        bootstrap.write_text(
            json.dumps(
                {
                    "xds_servers": [
                        {
                            "server_uri": f"127.0.0.1:{self._port}",
                            "channel_creds": [{"type": "insecure"}],
                            "server_features": ["xds_v3"],
                        }
                    ],
                    "node": {"id": "grpc-client", "locality": {"zone": "here"}},
                }
            )
        )
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "tests.protocol.xds_grpc_client", self._target),
            cwd=REPOSITORY,
            env={**os.environ, "GRPC_XDS_BOOTSTRAP": str(bootstrap)},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )

    async def ask(self, calls: int) -> dict[str, int]:
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{calls}\n".encode())
        await self._process.stdin.drain()
        line = await asyncio.wait_for(self._process.stdout.readline(), 60)
        answers: dict[str, int] = json.loads(line)
        return answers

    async def stop(self) -> None:
        if self._process is not None and self._process.returncode is None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            try:
                await asyncio.wait_for(self._process.wait(), 10)
            except TimeoutError:
                self._process.kill()
                await self._process.wait()


def api_listener(name: str, route: str) -> Any:
    manager = hcm_pb2.HttpConnectionManager()
    manager.rds.route_config_name = route
    manager.rds.config_source.ads.SetInParent()
    manager.http_filters.add(name="router").typed_config.Pack(router_pb2.Router())
    made = listener_pb2.Listener(name=name)
    made.api_listener.api_listener.Pack(manager)
    return made


def route(name: str, cluster: str) -> Any:
    made = route_pb2.RouteConfiguration(name=name)
    host = made.virtual_hosts.add(name="all", domains=["*"])
    one = host.routes.add()
    one.match.prefix = ""
    one.route.cluster = cluster
    return made


def cluster(name: str) -> Any:
    made = cluster_pb2.Cluster(name=name, type=cluster_pb2.Cluster.EDS)
    made.eds_cluster_config.eds_config.ads.SetInParent()
    return made


def assignment(name: str, weights: dict[int, int]) -> Any:
    """One locality per port, as gRPC's round robin knows weights of localities only."""
    made = endpoint_pb2.ClusterLoadAssignment(cluster_name=name)
    for port, weight in weights.items():
        locality = made.endpoints.add()
        locality.locality.zone = f"z{port}"
        locality.load_balancing_weight.value = weight
        endpoint = locality.lb_endpoints.add().endpoint
        endpoint.address.socket_address.address = "127.0.0.1"
        endpoint.address.socket_address.port_value = port
    return made


@pytest.fixture
async def servers() -> AsyncIterator[tuple[Who, Who]]:
    pair = (Who("a"), Who("b"))
    for who in pair:
        await who.start()
    yield pair
    for who in pair:
        await who.stop()


async def test_a_grpc_channel_resolves_and_balances_by_weight(servers: tuple[Who, Who], tmp_path: Path) -> None:
    a, b = servers
    cache = SnapshotCache()
    server = XdsServer(cache)
    cache.set(
        "",
        {
            LDS.type_url: {"who.test": api_listener("who.test", "who-route")},
            RDS.type_url: {"who-route": route("who-route", "who")},
            CDS.type_url: {"who": cluster("who")},
            EDS.type_url: {"who": assignment("who", {a.port: 3, b.port: 1})},
        },
    )
    port = await server.start("127.0.0.1:0")
    client = Client(tmp_path, port, "xds:///who.test")
    try:
        await client.start()
        answers = await client.ask(400)
        assert set(answers) == {"a", "b"}
        assert 260 <= answers["a"] <= 340
        # Weights move, then an endpoint goes, then all of it moves to another cluster.
        cache.update("", {EDS.type_url: {"who": assignment("who", {a.port: 1, b.port: 9})}})
        for _ in range(40):
            answers = await client.ask(50)
            if answers.get("b", 0) > 35:
                break
        assert answers.get("b", 0) > 35
        cache.update(
            "",
            {
                CDS.type_url: {"who2": cluster("who2")},
                EDS.type_url: {"who2": assignment("who2", {a.port: 1})},
                RDS.type_url: {"who-route": route("who-route", "who2")},
            },
            remove={CDS.type_url: ["who"], EDS.type_url: ["who"]},
        )
        for _ in range(40):
            answers = await client.ask(50)
            assert set(answers) <= {"a", "b"}, "no call fails"
            if answers == {"a": 50}:
                break
        assert answers == {"a": 50}
        status = server.clients()[0]
        assert status.node_id == "grpc-client"
        assert {t.type: t.wildcard for t in status.types} == {"LDS": False, "RDS": False, "CDS": False, "EDS": False}
        assert not any(t.nacks for t in status.types)
    finally:
        await client.stop()
        await server.stop(0)


async def test_a_listener_that_does_not_exist_is_told_at_once(servers: tuple[Who, Who], tmp_path: Path) -> None:
    cache = SnapshotCache()
    cache.set("", {})
    server = XdsServer(cache)
    port = await server.start("127.0.0.1:0")
    client = Client(tmp_path, port, "xds:///nobody.test")
    try:
        await client.start()
        loop = asyncio.get_running_loop()
        asked = asyncio.create_task(client.ask(1))
        await until(lambda: server.clients() and server.clients()[0].types)
        began = loop.time()
        cache.set(
            "",
            {
                LDS.type_url: {"nobody.test": api_listener("nobody.test", "r")},
                RDS.type_url: {"r": route("r", "c")},
                CDS.type_url: {"c": cluster("c")},
                EDS.type_url: {"c": assignment("c", {servers[1].port: 1})},
            },
        )
        assert await asked == {"b": 1}
        assert loop.time() - began < 14, "it waited for a timer"
    finally:
        await client.stop()
        await server.stop(0)


def test_what_grpc_would_reject_is_refused() -> None:
    cache = SnapshotCache()
    bad = assignment("who", {1: 1, 2: 1})
    bad.endpoints[1].locality.CopyFrom(bad.endpoints[0].locality)
    with pytest.raises(InvalidResource, match="twice in priority 0"):
        cache.set("", {EDS.type_url: {"who": bad}})
