"""What clients would reject is found, with a sentence that says where; what they accept passes."""

from __future__ import annotations

import re
from typing import Any

import pytest
from envoy.config.cluster.v3 import cluster_pb2
from envoy.config.endpoint.v3 import endpoint_components_pb2, endpoint_pb2
from envoy.config.listener.v3 import listener_pb2
from envoy.config.route.v3 import route_pb2
from envoy.extensions.filters.network.http_connection_manager.v3 import http_connection_manager_pb2 as hcm_pb2
from google.protobuf import json_format

from tests.protocol.xds_world import make
from xds_control.xds import CDS, ECDS, EDS, LDS, RDS, SDS, resource_type
from xds_control.xds.refs import inspect_resource
from xds_control.xds.rules import check_rules
from xds_control.xds.types import KNOWN


def problems(rtype: Any, message: Any, name: str = "a") -> tuple[str, ...]:
    return inspect_resource(rtype.type_url, name, message.SerializeToString(), message).problems


def host(endpoint: Any, address: str = "10.0.0.1", port: int = 80, weight: int | None = 1) -> Any:
    endpoint.endpoint.address.socket_address.address = address
    endpoint.endpoint.address.socket_address.port_value = port
    if weight is not None:
        endpoint.load_balancing_weight.value = weight
    return endpoint


def assignment(*localities: list[tuple[str, int, int | None]], priorities: tuple[int, ...] = ()) -> Any:
    made = endpoint_pb2.ClusterLoadAssignment(cluster_name="a")
    for number, endpoints in enumerate(localities):
        locality = made.endpoints.add(priority=priorities[number] if priorities else 0)
        locality.locality.zone = f"z{number}"
        for address, port, weight in endpoints:
            host(locality.lb_endpoints.add(), address, port, weight)
    return made


GOOD = [
    assignment(),
    assignment([("10.0.0.1", 80, 1), ("10.0.0.1", 81, 1), ("10.0.0.2", 80, None)]),
    assignment([("::1", 80, 4_294_967_295)], [("10.0.0.1", 80, 4_294_967_295)]),
    assignment([("10.0.0.1", 80, 1)], [("10.0.0.2", 80, 1)], priorities=(1, 0)),
    assignment([("10.0.0.1", 80, 1)], [], priorities=(0, 1)),
]


@pytest.mark.parametrize("message", GOOD, ids=range(len(GOOD)))
def test_good_assignments_pass(message: Any) -> None:
    assert problems(EDS, message) == ()


def test_a_pipe_and_an_internal_address_pass() -> None:
    made = assignment([])
    made.endpoints[0].lb_endpoints.add().endpoint.address.pipe.path = "/run/x.sock"
    made.endpoints[0].lb_endpoints.add().endpoint.address.envoy_internal_address.server_listener_name = "inside"
    assert problems(EDS, made) == ()


def _one(**edits: Any) -> Any:
    made = assignment([("10.0.0.1", 80, 1)])
    edits["edit"](made)
    return made


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (assignment([("10.0.0.1", 80, 0)]), "10.0.0.1:80 has weight 0"),
        (assignment([("10.0.0.1", 80, 4_294_967_295), ("10.0.0.2", 80, None)]), "sum to 4294967296"),
        (assignment([("10.0.0.1", 80, 1), ("10.0.0.1", 80, 1)]), "10.0.0.1:80 occurs twice"),
        (assignment([("10.0.0.1", 80, 1)], [("10.0.0.1", 80, 1)]), "10.0.0.1:80 occurs twice"),
        (assignment([("::1", 80, 1), ("0:0::1", 80, 1)]), r"\[::1\]:80 occurs twice"),
        (assignment([("gpu-1.example", 80, 1)]), "'gpu-1.example' is not an IP address"),
        (assignment([("10.0.0", 80, 1)]), "not an IP address"),
        (assignment([("", 80, 1)]), "empty address"),
        (assignment([("10.0.0.1", 0, 1)]), "port 0 of 10.0.0.1"),
        (assignment([("10.0.0.1", 65536, 1)]), "port 65536"),
        (assignment([("10.0.0.1", 80, 1)], [("10.0.0.2", 80, 1)], priorities=(0, 2)), "gap: 1 is missing below 2"),
        (assignment([("10.0.0.1", 80, 1)], priorities=(1,)), "gap: 0 is missing"),
        (assignment([("10.0.0.1", 80, 1)], priorities=(129,)), "over 128"),
        (_one(edit=lambda m: m.endpoints.add().locality.CopyFrom(m.endpoints[0].locality)), "twice in priority 0"),
        (_one(edit=lambda m: m.endpoints[0].lb_endpoints.add()), "no address"),
        (_one(edit=lambda m: setattr(m.endpoints[0].load_balancing_weight, "value", 0)), "'/z0/' has weight 0"),
        (_one(edit=lambda m: setattr(m.endpoints[0].lb_endpoints[0], "health_status", 77)), "health status 77"),
        (_one(edit=lambda m: setattr(m.policy.overprovisioning_factor, "value", 0)), "overprovisioning_factor"),
        (_one(edit=lambda m: m.policy.endpoint_stale_after.SetInParent()), "endpoint_stale_after"),
        (_one(edit=lambda m: (m.policy.drop_overloads.add(category="x"), m.policy.drop_overloads.add(category="y"))),
         "more than one drop_overloads"),
        (_one(edit=lambda m: m.policy.drop_overloads.add()), "category is empty"),
        (_one(edit=lambda m: setattr(m, "cluster_name", "b")), "cluster_name is 'b'"),
        (_one(edit=lambda m: setattr(m, "cluster_name", "")), "cluster_name is empty"),
    ],
)  # fmt: skip
def test_bad_assignments_are_found(message: Any, said: str) -> None:
    found = problems(EDS, message)
    assert any(re.search(said, p) for p in found), found


def test_locality_weights_have_a_limit_too() -> None:
    made = assignment([("10.0.0.1", 80, 1)], [("10.0.0.2", 80, 1)])
    for locality in made.endpoints:
        locality.load_balancing_weight.value = 4_294_967_295
    assert problems(EDS, made) == ("the locality weights of priority 0 sum to 8589934590, over 4294967295",)


def cluster(**content: Any) -> Any:
    made = json_format.ParseDict({"name": "a", **content}, cluster_pb2.Cluster())
    assert isinstance(made, cluster_pb2.Cluster)
    return made


ADS = {"eds_config": {"ads": {}, "resource_api_version": "V3"}}
HOST = {"endpoint": {"address": {"socket_address": {"address": "10.0.0.1", "port_value": 80}}}}
NAMED = {"endpoint": {"address": {"socket_address": {"address": "x.test", "port_value": 80}}}}


def loads(*endpoints: Any) -> Any:
    return {"cluster_name": "a", "endpoints": [{"lb_endpoints": list(endpoints)}]}


@pytest.mark.parametrize(
    "content",
    [
        {"type": "EDS", "eds_cluster_config": ADS},
        {"type": "STATIC", "load_assignment": loads(HOST)},
        {"type": "LOGICAL_DNS", "load_assignment": loads(NAMED)},
        {"type": "EDS", "eds_cluster_config": ADS, "load_assignment": loads(HOST)},
        {"type": "STRICT_DNS", "load_assignment": loads(NAMED), "connect_timeout": "0.25s"},
        {"cluster_type": {"name": "x"}},
    ],
)
def test_good_clusters_pass(content: dict[str, Any]) -> None:
    assert problems(CDS, cluster(**content)) == ()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"type": "EDS"}, "an EDS cluster needs eds_cluster_config.eds_config"),
        ({"type": "EDS", "eds_cluster_config": {}}, "an EDS cluster needs eds_cluster_config.eds_config"),
        ({"type": "STATIC", "eds_cluster_config": ADS}, "eds_cluster_config is for clusters of type EDS"),
        ({"type": "LOGICAL_DNS"}, "needs exactly one endpoint"),
        ({"type": "LOGICAL_DNS", "load_assignment": loads(NAMED, NAMED)}, "needs exactly one endpoint"),
        ({"type": "STATIC", "load_assignment": loads(NAMED)}, "load_assignment: address 'x.test' is not an IP"),
        ({"connect_timeout": "0s"}, "connect_timeout: is 0.0, must be over 0.0"),
        ({"outlier_detection": {"max_ejection_percent": 101}}, "max_ejection_percent: is 101, must be at most 100"),
        ({"dns_refresh_rate": "0.0001s"}, "dns_refresh_rate: is 0.0001"),
        ({"ring_hash_lb_config": {"maximum_ring_size": 9_000_000}}, "maximum_ring_size: is 9000000"),
        ({"health_checks": [{}]}, r"health_checks\[0\].timeout: is required"),
    ],
)
def test_bad_clusters_are_found(content: dict[str, Any], said: str) -> None:
    found = problems(CDS, cluster(**content))
    assert any(re.search(said, p) for p in found), found


def test_packed_messages_are_checked_inside() -> None:
    made = make(LDS, "a", 1)
    made.filter_chains[0].filters.add(name="hcm").typed_config.Pack(hcm_pb2.HttpConnectionManager())
    found = problems(LDS, made)
    assert any("typed_config.stat_prefix: is empty" in p for p in found), found
    assert any("route_specifier: one of its fields must be set" in p for p in found), found
    made.filter_chains[0].filters[0].typed_config.value = b"\xff\xff"
    assert any("the bytes are not a" in p for p in problems(LDS, made))
    made.filter_chains[0].filters[0].typed_config.type_url = "type.googleapis.com/not.known.Here"
    assert problems(LDS, made) == ()


def test_listeners_need_an_address_and_something_to_do() -> None:
    assert problems(LDS, make(LDS, "a", 1)) == ()
    assert "address is missing" in problems(LDS, listener_pb2.Listener(name="a"))
    idle = make(LDS, "a", 1)
    del idle.filter_chains[:]
    assert "no filter chain" in problems(LDS, idle)


def test_routes_may_not_name_a_domain_twice() -> None:
    made = route_pb2.RouteConfiguration(name="a")
    made.virtual_hosts.add(name="v", domains=["x", "X"])
    made.virtual_hosts.add(name="v", domains=["y"])
    assert problems(RDS, made) == ("domain 'X' occurs twice",)


@pytest.mark.parametrize("rtype", KNOWN, ids=lambda t: t.short)
def test_every_known_type_passes_when_good_and_needs_its_name(rtype: Any) -> None:
    if rtype.short == "LEDS":
        good = host(endpoint_components_pb2.LbEndpoint())
    else:
        good = make(rtype, "a", 1)
    assert problems(rtype, good) == ()
    assert problems(rtype, good, name="") == ("the name is empty",)
    body = b"\xff\xff\xff"
    assert inspect_resource(rtype.type_url, "a", body).problems == ("the bytes are not a message of this type",)


def test_unknown_types_pass_unseen() -> None:
    assert inspect_resource("type.googleapis.com/acme.Thing", "a", b"\xff").problems == ()
    assert resource_type("type.googleapis.com/acme.Thing").short == "acme.Thing"


def test_a_name_must_be_the_resources_own() -> None:
    for rtype in (CDS, LDS, RDS, SDS, ECDS):
        (problem,) = problems(rtype, make(rtype, "b", 1))
        assert "given as 'a'" in problem


def test_references_are_found() -> None:
    def refs(rtype: Any, message: Any) -> tuple[str, ...]:
        return inspect_resource(rtype.type_url, "a", message.SerializeToString()).refs

    assert refs(CDS, make(CDS, "a", 1)) == ("a",)
    other = make(CDS, "a", 1)
    other.eds_cluster_config.service_name = "service"
    assert refs(CDS, other) == ("service",)
    assert refs(CDS, cluster(type="STATIC", load_assignment=loads(HOST))) == ()
    made = make(LDS, "a", 1)
    manager = hcm_pb2.HttpConnectionManager(stat_prefix="x")
    manager.rds.route_config_name = "routes"
    manager.rds.config_source.ads.SetInParent()
    made.filter_chains[0].filters.add(name="hcm").typed_config.Pack(manager)
    made.default_filter_chain.filters.add(name="hcm").typed_config.Pack(manager)
    assert refs(LDS, made) == ("routes",)


def test_a_message_nested_too_deeply_is_refused() -> None:
    inner = hcm_pb2.HttpConnectionManager(stat_prefix="x")
    inner.route_config.SetInParent()
    for _ in range(80):
        outer = hcm_pb2.HttpConnectionManager(stat_prefix="x")
        outer.route_config.SetInParent()
        outer.http_filters.add(name="f").typed_config.Pack(inner)
        inner = outer
    assert any("nested too deeply" in p for p in check_rules(inner))
