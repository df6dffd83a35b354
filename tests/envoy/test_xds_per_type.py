"""Real Envoys without ADS: every type by its own service, and endpoints alone for a configuration of the user's."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import json_format

from tests.envoy.harness import eventually
from tests.envoy.xds_harness import Backend, Envoy, assignment, cluster, listener, routes
from xds_control.xds import CDS, EDS, LDS, RDS, SnapshotCache, XdsServer

both = pytest.mark.parametrize("delta", [False, True], ids=["sotw", "delta"])


def source(delta: bool) -> dict[str, Any]:
    """A configuration source that is the type's own service."""
    return {
        "resource_api_version": "V3",
        "api_config_source": {
            "api_type": "DELTA_GRPC" if delta else "GRPC",
            "transport_api_version": "V3",
            "grpc_services": [{"envoy_grpc": {"cluster_name": "xds"}}],
        },
    }


@pytest.fixture
async def pair() -> AsyncIterator[tuple[Backend, Backend]]:
    made = (Backend("red"), Backend("blue"))
    for backend in made:
        await backend.start()
    yield made
    for backend in made:
        await backend.stop()


def by_service(delta: bool, port: int, name: str) -> tuple[Any, Any]:
    """A cluster and a listener whose endpoints and routes come by their own services."""
    one = cluster(name, eds_cluster_config={"eds_config": source(delta)})
    gate = listener("main", port, "route")
    (hcm,) = gate.filter_chains[0].filters
    content = json_format.MessageToDict(hcm.typed_config, preserving_proto_field_name=True)
    content["rds"]["config_source"] = source(delta)
    json_format.ParseDict({"name": "hcm", "typed_config": content}, hcm)
    return one, gate


@both
async def test_every_type_by_its_own_service(pair: tuple[Backend, Backend], tmp_path: Path, delta: bool) -> None:
    red, blue = pair
    cache = SnapshotCache()
    server = XdsServer(cache)
    port = await server.start("127.0.0.1:0")
    envoy = Envoy(tmp_path, port, node="one", delta=delta)
    envoy.bootstrap["dynamic_resources"] = {"cds_config": source(delta), "lds_config": source(delta)}
    pool, gate = by_service(delta, envoy.port, "pool")
    cache.set(
        "",
        {
            CDS.type_url: {"pool": pool},
            EDS.type_url: {"pool": assignment("pool", [("127.0.0.1", red.port, 1)])},
            LDS.type_url: {"main": gate},
            RDS.type_url: {"route": routes("route", "pool")},
        },
    )
    try:
        await envoy.start()
        await eventually(lambda: envoy.serves("red"), 20)
        assert {c.service for c in server.clients()} == {"CDS", "EDS", "LDS", "RDS"}
        cache.update("", {EDS.type_url: {"pool": assignment("pool", [("127.0.0.1", blue.port, 1)])}})
        await eventually(lambda: envoy.serves("blue"), 10)
        # A changed cluster opens a new stream for its endpoints, and warms at once.
        changed, _ = by_service(delta, envoy.port, "pool")
        changed.connect_timeout.seconds = 3
        cache.update("", {CDS.type_url: {"pool": changed}})

        async def warmed() -> bool:
            stats = await envoy.stats("cluster_manager.(cluster_modified|warming_clusters)$")
            return stats == {"cluster_manager.cluster_modified": 1, "cluster_manager.warming_clusters": 0}

        await eventually(warmed, 10)
        assert await envoy.serves("blue")
        rejected = await envoy.stats("update_rejected$")
        assert not any(rejected.values())
    finally:
        await envoy.stop()
        await server.stop(0)


@both
async def test_endpoints_alone_for_a_static_configuration(
    pair: tuple[Backend, Backend], tmp_path: Path, delta: bool
) -> None:
    red, blue = pair
    cache = SnapshotCache()
    server = XdsServer(cache)
    port = await server.start("127.0.0.1:0")
    envoy = Envoy(tmp_path, port, node="one", delta=delta)
    del envoy.bootstrap["dynamic_resources"]
    pool, gate = by_service(delta, envoy.port, "pool")
    (hcm,) = gate.filter_chains[0].filters
    content = json_format.MessageToDict(hcm.typed_config, preserving_proto_field_name=True)
    del content["rds"]
    content["route_config"] = json_format.MessageToDict(routes("route", "pool"), preserving_proto_field_name=True)
    json_format.ParseDict({"name": "hcm", "typed_config": content}, hcm)
    static = envoy.bootstrap["static_resources"]
    static["listeners"] = [json_format.MessageToDict(gate, preserving_proto_field_name=True)]
    static["clusters"].append(json_format.MessageToDict(pool, preserving_proto_field_name=True))
    cache.set(
        "", {EDS.type_url: {"pool": assignment("pool", [("127.0.0.1", red.port, 90), ("127.0.0.1", blue.port, 10)])}}
    )
    try:
        await envoy.start()
        await eventually(lambda: envoy.serves("red"), 20)
        answers = await envoy.count(100)
        assert 85 <= answers["red"] <= 95
        assert answers["red"] + answers["blue"] == 100
        (client,) = server.clients()
        assert (client.service, client.protocol) == ("EDS", "delta" if delta else "sotw")
    finally:
        await envoy.stop()
        await server.stop(0)
