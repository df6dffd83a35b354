"""Envoy and our checks agree: what we refuse Envoy refuses too, what we pass it takes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from envoy.config.cluster.v3 import cluster_pb2
from envoy.config.listener.v3 import listener_pb2
from google.protobuf import json_format

from tests.envoy.xds_harness import HCM, ROUTER
from xds_control.cli.serve import find_envoy
from xds_control.xds import CDS, LDS
from xds_control.xds.refs import inspect_resource


def host(address: str = "10.0.0.1", port: int = 80, **more: Any) -> dict[str, Any]:
    return {"endpoint": {"address": {"socket_address": {"address": address, "port_value": port}}}, **more}


def cluster(*endpoints: Any, **more: Any) -> dict[str, Any]:
    loads = {"cluster_name": "a", "endpoints": [{"lb_endpoints": list(endpoints)}]} if endpoints else None
    made = {"name": "a", "connect_timeout": "1s", **more}
    return {**made, "load_assignment": loads} if loads else made


def listener(hosts: list[Any] | None = None, **more: Any) -> dict[str, Any]:
    manager = {
        "@type": f"type.googleapis.com/{HCM}",
        "stat_prefix": "x",
        "route_config": {"virtual_hosts": hosts or []},
        "http_filters": [{"name": "router", "typed_config": {"@type": f"type.googleapis.com/{ROUTER}"}}],
    }
    return {
        "name": "a",
        "address": {"socket_address": {"address": "127.0.0.1", "port_value": 1}},
        "filter_chains": [{"filters": [{"name": "hcm", "typed_config": {**manager, **more.pop("manager", {})}}]}],
        **more,
    }


def virtual_host(name: str, *domains: str) -> dict[str, Any]:
    return {"name": name, "domains": list(domains), "routes": [{"match": {"prefix": "/"}, "redirect": {}}]}


FILE = {"eds_config": {"resource_api_version": "V3", "path_config_source": {"path": "EDS"}}}

CASES: dict[str, tuple[str, dict[str, Any], bool]] = {
    "static": ("clusters", cluster(host(), host(port=81)), True),
    "by name": ("clusters", cluster(host("x.test"), type="STRICT_DNS"), True),
    "one name": ("clusters", cluster(host("x.test"), type="LOGICAL_DNS"), True),
    "eds": ("clusters", cluster(type="EDS", eds_cluster_config=FILE), True),
    "eds and endpoints": ("clusters", cluster(host(), type="EDS", eds_cluster_config=FILE), True),
    "ipv6 with scope": ("clusters", cluster(host("fe80::1%lo")), True),
    "weight 0": ("clusters", cluster(host(load_balancing_weight=0)), False),
    "no address": ("clusters", cluster({"health_status": "HEALTHY"}), False),
    "name in static": ("clusters", cluster(host("x.test")), False),
    "port too large": ("clusters", cluster(host(port=65536)), False),
    "two names": ("clusters", cluster(host("x.test"), host("y.test"), type="LOGICAL_DNS"), False),
    "eds without source": ("clusters", cluster(type="EDS"), False),
    "source without eds": ("clusters", cluster(host(), eds_cluster_config=FILE), False),
    "timeout 0": ("clusters", cluster(host(), connect_timeout="0s"), False),
    "ejection over 100": ("clusters", cluster(host(), outlier_detection={"max_ejection_percent": 101}), False),
    "health check without timeout": ("clusters", cluster(host(), health_checks=[{"interval": "1s"}]), False),
    "empty name": ("clusters", {**cluster(host()), "name": ""}, False),
    "listener": ("listeners", listener([virtual_host("a", "x"), virtual_host("a", "y")]), True),
    "domain twice": ("listeners", listener([virtual_host("a", "x"), virtual_host("b", "X")]), False),
    "no chain": ("listeners", listener(filter_chains=[]), False),
    "no listener address": ("listeners", {k: v for k, v in listener().items() if k != "address"}, False),
    "no stat prefix": ("listeners", listener(manager={"stat_prefix": ""}), False),
    "no domain": ("listeners", listener([virtual_host("a")]), False),
    "header with a line break": (
        "listeners",
        listener([{**virtual_host("a", "x"), "request_headers_to_add": [{"header": {"key": "a", "value": "b\r\nc"}}]}]),
        False,
    ),
}


@pytest.mark.parametrize("name", CASES)
async def test_envoy_and_the_checks_agree(name: str, tmp_path: Path) -> None:
    section, content, good = CASES[name]
    rtype, cls = (CDS, cluster_pb2.Cluster) if section == "clusters" else (LDS, listener_pb2.Listener)
    message = json_format.ParseDict(content, cls())
    found = inspect_resource(rtype.type_url, content["name"], message.SerializeToString(), message).problems
    assert (not found) == good, found
    eds = tmp_path / "eds.json"
    eds.write_text('{"version_info": "1", "resources": []}')
    bootstrap = tmp_path / "bootstrap.json"
    text = json.dumps({"node": {"id": "n", "cluster": "c"}, "static_resources": {section: [content]}})
    bootstrap.write_text(text.replace('"EDS"}}}', f'"{eds}"}}}}}}'))
    binary = find_envoy()
    assert binary is not None
    process = await asyncio.create_subprocess_exec(
        str(binary), "--mode", "validate", "-c", str(bootstrap), "-l", "error",
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    output, _ = await asyncio.wait_for(process.communicate(), 30)
    assert (process.returncode == 0) == good, output.decode()[-1000:]
