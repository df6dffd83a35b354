"""The resource types of xDS v3: what each is called, in what order it is pushed, how it may be asked for (pure)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

PREFIX: Final = "type.googleapis.com/"


@dataclass(frozen=True, slots=True)
class ResourceType:
    """One resource type.

    short: the usual abbreviation of its discovery service ("CDS").
    rank: place in make-before-break order; lower is pushed earlier.
    full_state: a state-of-the-world response carries every subscribed resource, so absence means deletion.
    legacy_wildcard: a first request without names means "everything" (Envoy does so for these types only).
    service: full name of its own gRPC service, "" when it travels on ADS only.
    method: suffix of that service's stream methods (`Stream` + method, `Delta` + method).
    sotw: whether that service has a state-of-the-world method.
    """

    type_url: str
    short: str
    rank: int
    full_state: bool = False
    legacy_wildcard: bool = False
    service: str = ""
    method: str = ""
    sotw: bool = True


CDS: Final = ResourceType(
    PREFIX + "envoy.config.cluster.v3.Cluster",
    "CDS",
    0,
    full_state=True,
    legacy_wildcard=True,
    service="envoy.service.cluster.v3.ClusterDiscoveryService",
    method="Clusters",
)
EDS: Final = ResourceType(
    PREFIX + "envoy.config.endpoint.v3.ClusterLoadAssignment",
    "EDS",
    1,
    service="envoy.service.endpoint.v3.EndpointDiscoveryService",
    method="Endpoints",
)
LEDS: Final = ResourceType(
    PREFIX + "envoy.config.endpoint.v3.LbEndpoint",
    "LEDS",
    2,
    service="envoy.service.endpoint.v3.LocalityEndpointDiscoveryService",
    method="LocalityEndpoints",
    sotw=False,
)
SDS: Final = ResourceType(
    PREFIX + "envoy.extensions.transport_sockets.tls.v3.Secret",
    "SDS",
    3,
    service="envoy.service.secret.v3.SecretDiscoveryService",
    method="Secrets",
)
LDS: Final = ResourceType(
    PREFIX + "envoy.config.listener.v3.Listener",
    "LDS",
    4,
    full_state=True,
    legacy_wildcard=True,
    service="envoy.service.listener.v3.ListenerDiscoveryService",
    method="Listeners",
)
SRDS: Final = ResourceType(
    PREFIX + "envoy.config.route.v3.ScopedRouteConfiguration",
    "SRDS",
    5,
    full_state=True,
    legacy_wildcard=True,
    service="envoy.service.route.v3.ScopedRoutesDiscoveryService",
    method="ScopedRoutes",
)
RDS: Final = ResourceType(
    PREFIX + "envoy.config.route.v3.RouteConfiguration",
    "RDS",
    6,
    service="envoy.service.route.v3.RouteDiscoveryService",
    method="Routes",
)
VHDS: Final = ResourceType(
    PREFIX + "envoy.config.route.v3.VirtualHost",
    "VHDS",
    7,
    service="envoy.service.route.v3.VirtualHostDiscoveryService",
    method="VirtualHosts",
    sotw=False,
)
ECDS: Final = ResourceType(
    PREFIX + "envoy.config.core.v3.TypedExtensionConfig",
    "ECDS",
    8,
    service="envoy.service.extension.v3.ExtensionConfigDiscoveryService",
    method="ExtensionConfigs",
)
RTDS: Final = ResourceType(
    PREFIX + "envoy.service.runtime.v3.Runtime",
    "RTDS",
    9,
    service="envoy.service.runtime.v3.RuntimeDiscoveryService",
    method="Runtime",
)

KNOWN: Final[tuple[ResourceType, ...]] = (CDS, EDS, LEDS, SDS, LDS, SRDS, RDS, VHDS, ECDS, RTDS)
OPAQUE_RANK: Final = 100
"""Rank of types that this package does not know: pushed after everything it knows."""

_BY_URL: Final = {t.type_url: t for t in KNOWN}
_BY_SHORT: Final = {t.short: t for t in KNOWN}


def resource_type(type_url: str) -> ResourceType:
    """The type of a type URL. An unknown one is carried as opaque: named subscriptions only, pushed last."""
    known = _BY_URL.get(type_url)
    if known is not None:
        return known
    return ResourceType(type_url, type_url.rpartition("/")[2], OPAQUE_RANK)


def by_short(short: str) -> ResourceType:
    """The type of an abbreviation such as "EDS" (any case). Raises KeyError for an unknown one."""
    return _BY_SHORT[short.upper()]
