"""Envoy's bootstrap: where to find us, and nothing else that could change."""

from __future__ import annotations

import json
from collections.abc import Sequence

from envoy_data_plane.envoy.config.bootstrap.v3 import (
    Admin,
    Bootstrap,
    BootstrapDynamicResources,
    BootstrapStaticResources,
)
from envoy_data_plane.envoy.config.cluster.v3 import Cluster, ClusterDiscoveryType
from envoy_data_plane.envoy.config.core.v3 import (
    ApiConfigSource,
    ApiConfigSourceApiType,
    ApiVersion,
    GrpcService,
    GrpcServiceEnvoyGrpc,
    Node,
)
from envoy_data_plane.envoy.config.endpoint.v3 import (
    ClusterLoadAssignment,
    Endpoint,
    LbEndpoint,
    LocalityLbEndpoints,
)

from xds_control.policy.gateway import EnvoyPolicy
from xds_control.policy.schema import Policy
from xds_control.xds.resources.clusters import pool_cluster, processor_cluster
from xds_control.xds.resources.common import ads, http2_upstream, seconds, socket_address
from xds_control.xds.resources.gateway import gateway_listener
from xds_control.xds.resources.names import XDS_CLUSTER
from xds_control.xds.resources.routes import gateway_routes
from xds_control.xds.resources.tracing import collector_cluster


def managed_bootstrap(envoy: EnvoyPolicy, xds_address: str) -> Bootstrap:
    """A bootstrap that takes listeners, routes, clusters and endpoints from us over ADS."""
    return Bootstrap(
        node=Node(id=envoy.node_id, cluster=envoy.node_cluster),
        admin=Admin(address=socket_address(envoy.admin)),
        dynamic_resources=BootstrapDynamicResources(ads_config=_ads(envoy), cds_config=ads(), lds_config=ads()),
        static_resources=BootstrapStaticResources(clusters=[xds_cluster(xds_address)]),
    )


def eds_only_bootstrap(policy: Policy, xds_address: str, forwarded: Sequence[str] | None) -> Bootstrap:
    """A bootstrap for users who keep listeners, routes and clusters in their own hands: only EDS comes from us.

    It is a whole working configuration, to be cut up: the filters, the clusters' balancing and the access log
    are what an Envoy of one's own needs. forwarded: request headers that the processors need to see; None = all.
    """
    routes = gateway_routes(
        policy.envoy,
        policy.pools,
        policy.default_pool(),
        policy.routing.mirrors,
        policy.ext_proc.emit_decision,
        policy.picker.token_header,
    )
    clusters = [xds_cluster(xds_address), *(pool_cluster(pool, policy.envoy, policy.weights) for pool in policy.pools)]
    if policy.processors.count:
        clusters.append(processor_cluster())
    tracing = policy.tracing
    if tracing is not None and tracing.envoy:
        clusters.append(collector_cluster(tracing))
    return Bootstrap(
        node=Node(id=policy.envoy.node_id, cluster=policy.envoy.node_cluster),
        admin=Admin(address=socket_address(policy.envoy.admin)),
        dynamic_resources=BootstrapDynamicResources(ads_config=_ads(policy.envoy)),
        static_resources=BootstrapStaticResources(
            listeners=[
                gateway_listener(
                    *(policy.envoy, policy.processors, policy.ext_proc, forwarded, tracing, routes),
                    wait_s=policy.longest_wait_s,
                )
            ],
            clusters=clusters,
        ),
    )


def _ads(envoy: EnvoyPolicy) -> ApiConfigSource:
    return ApiConfigSource(
        api_type=ApiConfigSourceApiType.DELTA_GRPC if envoy.xds == "delta" else ApiConfigSourceApiType.GRPC,
        transport_api_version=ApiVersion.V3,
        grpc_services=[GrpcService(envoy_grpc=GrpcServiceEnvoyGrpc(cluster_name=XDS_CLUSTER))],
        set_node_on_first_message_only=True,
    )


def xds_cluster(xds_address: str) -> Cluster:
    """The static cluster through which Envoy reaches the xDS server."""
    return Cluster(
        name=XDS_CLUSTER,
        type=ClusterDiscoveryType.STATIC,
        connect_timeout=seconds(1),
        typed_extension_protocol_options=http2_upstream(),
        load_assignment=ClusterLoadAssignment(
            cluster_name=XDS_CLUSTER,
            endpoints=[
                LocalityLbEndpoints(lb_endpoints=[LbEndpoint(endpoint=Endpoint(address=socket_address(xds_address)))])
            ],
        ),
    )


def as_json(bootstrap: Bootstrap) -> str:
    """A bootstrap as indented JSON, which Envoy reads as it reads YAML."""
    return json.dumps(json.loads(bootstrap.to_json()), indent=2) + "\n"
