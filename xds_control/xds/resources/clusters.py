"""Clusters: one per pool, and the one of the processors. Nothing dynamic lives here: a CDS change drains a cluster."""

from __future__ import annotations

from typing import Any

from envoy_data_plane.envoy.config.cluster.v3 import (
    CircuitBreakers,
    CircuitBreakersThresholds,
    Cluster,
    ClusterCommonLbConfig,
    ClusterDiscoveryType,
    ClusterEdsClusterConfig,
    LoadBalancingPolicy,
    LoadBalancingPolicyPolicy,
    OutlierDetection,
)
from envoy_data_plane.envoy.config.core.v3 import TransportSocket
from envoy_data_plane.envoy.extensions.load_balancing_policies.common.v3 import (
    ConsistentHashingLbConfig,
    LocalityLbConfig,
    LocalityLbConfigLocalityWeightedLbConfig,
    LocalityLbConfigZoneAwareLbConfig,
)
from envoy_data_plane.envoy.extensions.load_balancing_policies.least_request.v3 import LeastRequest
from envoy_data_plane.envoy.extensions.load_balancing_policies.maglev.v3 import Maglev
from envoy_data_plane.envoy.extensions.load_balancing_policies.override_host.v3 import (
    OverrideHost,
    OverrideHostOverrideHostSource,
)
from envoy_data_plane.envoy.extensions.load_balancing_policies.random.v3 import Random
from envoy_data_plane.envoy.extensions.load_balancing_policies.ring_hash.v3 import RingHash
from envoy_data_plane.envoy.extensions.load_balancing_policies.round_robin.v3 import RoundRobin
from envoy_data_plane.envoy.extensions.transport_sockets.tls.v3 import UpstreamTlsContext
from envoy_data_plane.envoy.type.metadata.v3 import MetadataKey, MetadataKeyPathSegment
from envoy_data_plane.envoy.type.v3 import Percent
from envoy_data_plane.google import protobuf as pb

from xds_control.policy import headers
from xds_control.policy.gateway import EnvoyPolicy
from xds_control.policy.pools import PoolPolicy
from xds_control.policy.weights import WeightsPolicy
from xds_control.xds.resources.common import ads, extension, http2_upstream, seconds
from xds_control.xds.resources.names import PROCESSOR_CLUSTER

# The default of 1,024 would cap a processor at 1,024 requests in flight.
PROCESSOR_STREAMS = 100_000


def pool_cluster(pool: PoolPolicy, envoy: EnvoyPolicy, weights: WeightsPolicy | None = None) -> Cluster:
    """The cluster of a pool: EDS, picks by metadata, live weights beneath them.

    weights: those of pools that have none of their own; they say how localities are used.
    """
    return Cluster(
        name=pool.name,
        type=ClusterDiscoveryType.EDS,
        eds_cluster_config=ClusterEdsClusterConfig(eds_config=ads()),
        connect_timeout=seconds(envoy.connect_timeout_s),
        per_connection_buffer_limit_bytes=1 << 20,
        circuit_breakers=_breakers(envoy.max_requests),
        load_balancing_policy=_one(
            "envoy.load_balancing_policies.override_host",
            OverrideHost(
                override_host_sources=[OverrideHostOverrideHostSource(metadata=_lb_key(headers.DESTINATION))],
                selected_host_key=_lb_key(headers.DESTINATION_SERVED),
                fallback_policy=_fallback(pool, (pool.weights or weights or WeightsPolicy()).locality.mode),
            ),
        ),
        common_lb_config=ClusterCommonLbConfig(
            # control owns health: panic would send to draining hosts (Envoy docs, panic threshold)
            healthy_panic_threshold=Percent(value=0.0),
            update_merge_window=seconds(envoy.update_merge_window_s),
        ),
        ignore_health_on_host_removal=True,
        typed_extension_protocol_options=http2_upstream() if pool.protocol == "http2" else {},
        transport_socket=_tls() if pool.tls else None,
    )


def processor_cluster(connect_timeout_s: float = 0.25) -> Cluster:
    """The processors: ext_proc and access logs, found by EDS like everything else."""
    return Cluster(
        name=PROCESSOR_CLUSTER,
        type=ClusterDiscoveryType.EDS,
        eds_cluster_config=ClusterEdsClusterConfig(eds_config=ads()),
        connect_timeout=seconds(connect_timeout_s),
        per_connection_buffer_limit_bytes=64 << 20,
        circuit_breakers=_breakers(PROCESSOR_STREAMS),
        load_balancing_policy=_one("envoy.load_balancing_policies.round_robin", RoundRobin()),
        common_lb_config=ClusterCommonLbConfig(healthy_panic_threshold=Percent(value=0.0)),
        # A processor that refuses connections is left alone at once; control takes it out of EDS a moment later.
        outlier_detection=OutlierDetection(
            split_external_local_origin_errors=True,
            consecutive_local_origin_failure=2,
            enforcing_consecutive_local_origin_failure=100,
            enforcing_consecutive_gateway_failure=0,
            enforcing_success_rate=0,
            enforcing_local_origin_success_rate=0,
            interval=seconds(0.5),
            base_ejection_time=seconds(0.5),
            max_ejection_time=seconds(5),
            max_ejection_percent=50,
        ),
        ignore_health_on_host_removal=True,
        typed_extension_protocol_options=http2_upstream(),
    )


def _fallback(pool: PoolPolicy, mode: str) -> LoadBalancingPolicy:
    locality = _locality(mode)
    name = f"envoy.load_balancing_policies.{pool.lb}"
    hashing = ConsistentHashingLbConfig(hash_balance_factor=pool.hash_balance_factor or None)
    if pool.lb == "least_request":
        return _one(name, LeastRequest(locality_lb_config=locality))
    if pool.lb == "round_robin":
        return _one(name, RoundRobin(locality_lb_config=locality))
    if pool.lb == "random":
        return _one(name, Random(locality_lb_config=locality))
    if pool.lb == "maglev":
        return _one(name, Maglev(consistent_hashing_lb_config=hashing))
    return _one(name, RingHash(consistent_hashing_lb_config=hashing))


def _locality(mode: str) -> LocalityLbConfig | None:
    if mode == "weighted":
        return LocalityLbConfig(locality_weighted_lb_config=LocalityLbConfigLocalityWeightedLbConfig())
    if mode == "prefer-local":
        return LocalityLbConfig(zone_aware_lb_config=LocalityLbConfigZoneAwareLbConfig(min_cluster_size=1))
    return None


def _one(name: str, message: Any) -> LoadBalancingPolicy:
    return LoadBalancingPolicy(policies=[LoadBalancingPolicyPolicy(typed_extension_config=extension(name, message))])


def _lb_key(path: str) -> MetadataKey:
    return MetadataKey(key=headers.LB_NAMESPACE, path=[MetadataKeyPathSegment(key=path)])


def _breakers(limit: int) -> CircuitBreakers:
    return CircuitBreakers(
        thresholds=[
            CircuitBreakersThresholds(
                max_connections=limit, max_pending_requests=limit, max_requests=limit, max_retries=max(limit // 10, 3)
            )
        ]
    )


def _tls() -> TransportSocket:
    return TransportSocket(
        name="envoy.transport_sockets.tls", typed_config=pb.Any.pack(UpstreamTlsContext(auto_host_sni=True))
    )
