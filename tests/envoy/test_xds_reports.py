"""What real Envoys report back: load per endpoint; and a port behind mTLS and a token."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.envoy.harness import eventually
from tests.envoy.xds_harness import Backend, Envoy, assignment, cluster, listener, routes
from xds_control.xds import CDS, EDS, LDS, RDS, LoadReport, SnapshotCache, TlsFiles, XdsPolicy, XdsServer


@pytest.fixture
async def backends() -> AsyncIterator[tuple[Backend, Backend]]:
    pair = (Backend("red"), Backend("blue"))
    for backend in pair:
        await backend.start()
    yield pair
    for backend in pair:
        await backend.stop()


def world(envoy: Envoy, backends: tuple[Backend, Backend], weights: tuple[int, int]) -> dict[str, dict[str, Any]]:
    endpoints = [("127.0.0.1", b.port, w) for b, w in zip(backends, weights, strict=True)]
    return {
        CDS.type_url: {"pool": cluster("pool")},
        EDS.type_url: {"pool": assignment("pool", endpoints)},
        LDS.type_url: {"main": listener("main", envoy.port, "route")},
        RDS.type_url: {"route": routes("route", "pool")},
    }


async def test_load_comes_back_by_endpoint(backends: tuple[Backend, Backend], tmp_path: Path) -> None:
    rows: list[LoadReport] = []
    cache = SnapshotCache()
    server = XdsServer(cache, XdsPolicy(load_report_interval_s=0.2), on_load=rows.extend)
    port = await server.start("127.0.0.1:0")
    stats = {"api_type": "GRPC", "transport_api_version": "V3"}
    stats_service = {"grpc_services": [{"envoy_grpc": {"cluster_name": "xds"}}]}
    extra = {"cluster_manager": {"load_stats_config": {**stats, **stats_service}}}
    envoy = Envoy(tmp_path, port, node="one", delta=True, extra=extra)
    cache.set("", world(envoy, backends, (3, 1)))
    try:
        await envoy.start()
        await eventually(lambda: envoy.serves("red"), 20)

        async def counted() -> bool:
            await envoy.get()
            return any(r.cluster == "pool" for r in rows)

        await eventually(counted, 10, "the cluster is counted")
        rows.clear()
        answers = await envoy.count(80)

        def issued(backend: Backend) -> int:
            return sum(r.issued for r in rows if r.address == f"127.0.0.1:{backend.port}")

        # A few requests before may count as well.
        await eventually(lambda: issued(backends[0]) + issued(backends[1]) >= 80, 10, "all requests are reported")
        assert issued(backends[0]) >= answers["red"]
        assert issued(backends[1]) >= answers["blue"]
        assert {r.address for r in rows if r.cluster == "pool"} >= {f"127.0.0.1:{b.port}" for b in backends}
        assert {r.node_id for r in rows} == {"one"}
        assert all(0 < r.interval_s < 5 for r in rows)
        assert sum(r.failed for r in rows) == 0
    finally:
        await envoy.stop()
        await server.stop(0)


def _certificates(folder: Path) -> None:
    def run(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    new = ("-newkey", "rsa:2048", "-nodes")
    run("req", "-x509", *new, "-days", "2", "-subj", "/CN=ca", "-keyout", "ca.key", "-out", "ca.pem")
    for name in ("server", "envoy"):
        run("req", *new, "-subj", f"/CN={name}.test", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        run("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-days", "2",
            "-out", f"{name}.pem")  # fmt: skip


async def test_an_envoy_comes_in_by_certificate_and_token(backends: tuple[Backend, Backend], tmp_path: Path) -> None:
    try:
        _certificates(tmp_path)
    except FileNotFoundError:
        pytest.skip("no openssl to make certificates")
    (tmp_path / "token").write_text("secret\n")
    options = XdsPolicy(
        tls=TlsFiles(
            certificate_file=str(tmp_path / "server.pem"),
            key_file=str(tmp_path / "server.key"),
            client_ca_file=str(tmp_path / "ca.pem"),
        ),
        token_file=str(tmp_path / "token"),
    )
    cache = SnapshotCache()
    server = XdsServer(cache, options)
    port = await server.start("127.0.0.1:0")
    context = {
        "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
        "common_tls_context": {
            "alpn_protocols": ["h2"],
            "tls_certificates": [
                {
                    "certificate_chain": {"filename": str(tmp_path / "envoy.pem")},
                    "private_key": {"filename": str(tmp_path / "envoy.key")},
                }
            ],
            "validation_context": {"trusted_ca": {"filename": str(tmp_path / "ca.pem")}},
        },
    }
    envoy = Envoy(tmp_path, port, node="one", delta=False)
    (upstream,) = envoy.bootstrap["static_resources"]["clusters"]
    upstream["transport_socket"] = {"name": "tls", "typed_config": context}
    (service,) = envoy.bootstrap["dynamic_resources"]["ads_config"]["grpc_services"]
    service["initial_metadata"] = [{"key": "authorization", "value": "Bearer secret"}]
    cache.set("", world(envoy, backends, (1, 1)))
    try:
        await envoy.start()
        await eventually(lambda: envoy.serves("red"), 20)
        assert server.stats.unauthorised == 0
    finally:
        await envoy.stop()
        await server.stop(0)
