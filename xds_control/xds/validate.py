"""What Envoy and gRPC clients would reject, found before it is sent (pure)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from envoy.config.cluster.v3 import cluster_pb2
from envoy.config.core.v3 import extension_pb2
from envoy.config.endpoint.v3 import endpoint_components_pb2, endpoint_pb2
from envoy.config.listener.v3 import listener_pb2
from envoy.config.route.v3 import route_components_pb2, route_pb2, scoped_route_pb2
from envoy.extensions.transport_sockets.tls.v3 import secret_pb2
from envoy.service.runtime.v3 import rtds_pb2

from xds_control.xds.assignment import check_assignment
from xds_control.xds.rules import check_rules
from xds_control.xds.types import CDS, ECDS, EDS, LDS, LEDS, RDS, RTDS, SDS, SRDS, VHDS

_CLASSES: Final[dict[str, Any]] = {
    CDS.type_url: cluster_pb2.Cluster,
    EDS.type_url: endpoint_pb2.ClusterLoadAssignment,
    LEDS.type_url: endpoint_components_pb2.LbEndpoint,
    SDS.type_url: secret_pb2.Secret,
    LDS.type_url: listener_pb2.Listener,
    SRDS.type_url: scoped_route_pb2.ScopedRouteConfiguration,
    RDS.type_url: route_pb2.RouteConfiguration,
    VHDS.type_url: route_components_pb2.VirtualHost,
    ECDS.type_url: extension_pb2.TypedExtensionConfig,
    RTDS.type_url: rtds_pb2.Runtime,
}

_NAME_FIELD: Final[dict[str, str]] = {
    CDS.type_url: "name",
    EDS.type_url: "cluster_name",
    SDS.type_url: "name",
    LDS.type_url: "name",
    SRDS.type_url: "name",
    RDS.type_url: "name",
    ECDS.type_url: "name",
    RTDS.type_url: "name",
}


def message_class(type_url: str) -> Any | None:
    """The protobuf class of a known type, None for an opaque one."""
    return _CLASSES.get(type_url)


def check_resource(type_url: str, name: str, message: Any) -> Iterator[str]:
    """Sentences on what is wrong with one resource of a known type."""
    if not name:
        yield "the name is empty"
        return
    field = _NAME_FIELD.get(type_url)
    if field is not None:
        own = getattr(message, field)
        if not own:
            yield f"{field} is empty"
        elif own != name:
            yield f"{field} is {own!r}, but the resource is given as {name!r}"
    if type_url == EDS.type_url:
        # By hand: assignments change often and may hold thousands of endpoints.
        yield from check_assignment(message)
    elif type_url != LDS.type_url or not _for_grpc(message):
        # What only gRPC clients take need not satisfy Envoy.
        yield from check_rules(message, extra=_EXTRA)


def _for_grpc(listener: listener_pb2.Listener) -> bool:
    return bool(listener.HasField("api_listener") and not listener.HasField("address"))


def _check_cluster(cluster: cluster_pb2.Cluster) -> Iterator[str]:
    kinds = cluster_pb2.Cluster.DiscoveryType
    if not cluster.HasField("cluster_type"):
        if cluster.type == kinds.Value("EDS"):
            if not cluster.HasField("eds_cluster_config") or not cluster.eds_cluster_config.HasField("eds_config"):
                yield "an EDS cluster needs eds_cluster_config.eds_config"
        elif cluster.HasField("eds_cluster_config"):
            yield "eds_cluster_config is for clusters of type EDS"
        elif cluster.type == kinds.Value("LOGICAL_DNS"):
            localities = cluster.load_assignment.endpoints
            if len(localities) != 1 or len(localities[0].lb_endpoints) != 1:
                yield "a LOGICAL_DNS cluster needs exactly one endpoint"
    if cluster.HasField("load_assignment"):
        by_name = (kinds.Value("STRICT_DNS"), kinds.Value("LOGICAL_DNS"))
        dns = cluster.type in by_name or cluster.HasField("cluster_type")
        for problem in check_assignment(cluster.load_assignment, names=dns):
            yield f"load_assignment: {problem}"


def _check_listener(listener: listener_pb2.Listener) -> Iterator[str]:
    chains = len(listener.filter_chains) + listener.HasField("default_filter_chain")
    if listener.HasField("api_listener") or listener.HasField("internal_listener") or listener.use_original_dst.value:
        return
    if not listener.HasField("address"):
        yield "address is missing"
    elif not chains and not listener.HasField("udp_listener_config"):
        yield "no filter chain"


def _check_routes(routes: route_pb2.RouteConfiguration) -> Iterator[str]:
    domains: set[str] = set()
    for host in routes.virtual_hosts:
        for domain in host.domains:
            lower = domain.lower()
            if lower in domains:
                yield f"domain {domain!r} occurs twice"
            domains.add(lower)


_EXTRA: Final[dict[str, Callable[[Any], Iterator[str]]]] = {
    cluster_pb2.Cluster.DESCRIPTOR.full_name: _check_cluster,
    listener_pb2.Listener.DESCRIPTOR.full_name: _check_listener,
    route_pb2.RouteConfiguration.DESCRIPTOR.full_name: _check_routes,
}
