"""Resources whose content is one revision: what the cases put into the world and look for in answers."""

from __future__ import annotations

from typing import Any

from envoy.config.cluster.v3 import cluster_pb2
from envoy.config.core.v3 import extension_pb2
from envoy.config.endpoint.v3 import endpoint_pb2
from envoy.config.listener.v3 import listener_pb2
from envoy.config.route.v3 import route_components_pb2, route_pb2, scoped_route_pb2
from envoy.extensions.transport_sockets.tls.v3 import secret_pb2
from envoy.service.runtime.v3 import rtds_pb2
from google.protobuf import wrappers_pb2

from xds_control.xds.types import PREFIX, ResourceType, by_short, resource_type


def type_of(name: str) -> ResourceType:
    """CDS, EDS, ...; or a type URL; or any other word as an unknown type."""
    try:
        return by_short(name)
    except KeyError:
        return resource_type(name if "/" in name else PREFIX + name)


def make(rtype: ResourceType, name: str, revision: Any) -> Any:
    """A valid resource of that type, name and content revision."""
    rev = str(revision)
    match rtype.short:
        case "CDS":
            cluster = cluster_pb2.Cluster(name=name, type=cluster_pb2.Cluster.EDS, alt_stat_name=rev)
            cluster.eds_cluster_config.eds_config.ads.SetInParent()
            return cluster
        case "EDS":
            assignment = endpoint_pb2.ClusterLoadAssignment(cluster_name=name)
            endpoint = assignment.endpoints.add().lb_endpoints.add().endpoint
            endpoint.hostname = rev
            endpoint.address.socket_address.address = "192.0.2.1"
            endpoint.address.socket_address.port_value = 8000
            return assignment
        case "LDS":
            listener = listener_pb2.Listener(name=name, stat_prefix=rev)
            listener.address.socket_address.address = "192.0.2.2"
            listener.address.socket_address.port_value = 80
            listener.filter_chains.add()
            return listener
        case "RDS":
            return route_pb2.RouteConfiguration(name=name, internal_only_headers=[f"x-{rev}"])
        case "SDS":
            secret = secret_pb2.Secret(name=name)
            secret.generic_secret.secret.inline_string = rev
            return secret
        case "RTDS":
            runtime = rtds_pb2.Runtime(name=name)
            runtime.layer.fields["rev"].string_value = rev
            return runtime
        case "SRDS":
            scoped = scoped_route_pb2.ScopedRouteConfiguration(name=name, route_configuration_name=rev)
            scoped.key.fragments.add().string_key = "k"
            return scoped
        case "VHDS":
            return route_components_pb2.VirtualHost(name=rev, domains=["*"])
        case "ECDS":
            extension = extension_pb2.TypedExtensionConfig(name=name)
            extension.typed_config.Pack(wrappers_pb2.StringValue(value=rev))
            return extension
    return wrappers_pb2.StringValue(value=f"{name}\n{rev}").SerializeToString()


def read(rtype: ResourceType, body: bytes) -> tuple[str, str]:
    """Name and revision of a serialised resource that `make` made ("" where the content does not say)."""
    match rtype.short:
        case "CDS":
            cluster = cluster_pb2.Cluster.FromString(body)
            return cluster.name, cluster.alt_stat_name
        case "EDS":
            assignment = endpoint_pb2.ClusterLoadAssignment.FromString(body)
            endpoints = [e for locality in assignment.endpoints for e in locality.lb_endpoints]
            return assignment.cluster_name, endpoints[0].endpoint.hostname if endpoints else ""
        case "LDS":
            listener = listener_pb2.Listener.FromString(body)
            return listener.name, listener.stat_prefix
        case "RDS":
            routes = route_pb2.RouteConfiguration.FromString(body)
            return routes.name, "".join(routes.internal_only_headers).removeprefix("x-")
        case "SDS":
            secret = secret_pb2.Secret.FromString(body)
            return secret.name, secret.generic_secret.secret.inline_string
        case "RTDS":
            runtime = rtds_pb2.Runtime.FromString(body)
            return runtime.name, runtime.layer.fields["rev"].string_value
        case "SRDS":
            scoped = scoped_route_pb2.ScopedRouteConfiguration.FromString(body)
            return scoped.name, scoped.route_configuration_name
        case "VHDS":
            return "", route_components_pb2.VirtualHost.FromString(body).name
        case "ECDS":
            extension = extension_pb2.TypedExtensionConfig.FromString(body)
            return extension.name, wrappers_pb2.StringValue.FromString(extension.typed_config.value).value
    name, _, rev = wrappers_pb2.StringValue.FromString(body).value.partition("\n")
    return name, rev
