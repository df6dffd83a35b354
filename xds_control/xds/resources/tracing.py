"""Envoy's own part of tracing: it begins the traces, and sends its spans to the same collector."""

from __future__ import annotations

from envoy_data_plane.envoy.config.cluster.v3 import Cluster, ClusterDiscoveryType
from envoy_data_plane.envoy.config.core.v3 import (
    DataSource,
    HeaderValue,
    HeaderValueOption,
    HttpService,
    HttpUri,
    TransportSocket,
)
from envoy_data_plane.envoy.config.endpoint.v3 import (
    ClusterLoadAssignment,
    Endpoint,
    LbEndpoint,
    LocalityLbEndpoints,
)
from envoy_data_plane.envoy.config.trace.v3 import OpenTelemetryConfig, TracingHttp
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 import HttpConnectionManagerTracing
from envoy_data_plane.envoy.extensions.tracers.opentelemetry.samplers.v3 import (
    ParentBasedSamplerConfig,
    TraceIdRatioBasedSamplerConfig,
)
from envoy_data_plane.envoy.extensions.transport_sockets.tls.v3 import (
    CertificateValidationContext,
    CommonTlsContext,
    SubjectAltNameMatcher,
    SubjectAltNameMatcherSanType,
    UpstreamTlsContext,
)
from envoy_data_plane.envoy.type.matcher.v3 import StringMatcher
from envoy_data_plane.envoy.type.v3 import FractionalPercent, FractionalPercentDenominatorType, Percent
from envoy_data_plane.google import protobuf as pb

from xds_control.policy.address import is_ip, join_address
from xds_control.policy.tracing import TracingPolicy
from xds_control.xds.resources.common import extension, seconds, socket_address
from xds_control.xds.resources.names import OTLP_CLUSTER

_MILLION = 1_000_000


def http_tracing(policy: TracingPolicy) -> HttpConnectionManagerTracing:
    """Traces of the connection manager: a client's traceparent decides by its flag, else the share."""
    provider = OpenTelemetryConfig(
        http_service=HttpService(
            http_uri=HttpUri(uri=policy.endpoint, cluster=OTLP_CLUSTER, timeout=seconds(policy.timeout_s)),
            request_headers_to_add=[
                HeaderValueOption(header=HeaderValue(key=name, value=value)) for name, value in policy.headers.items()
            ],
        ),
        service_name=policy.envoy_service_name,
        # Envoy's own sampling would overrule a parent's flag, so this one decides everything
        sampler=extension(
            "envoy.tracers.opentelemetry.samplers.parent_based",
            ParentBasedSamplerConfig(
                wrapped_sampler=extension(
                    "envoy.tracers.opentelemetry.samplers.trace_id_ratio_based",
                    TraceIdRatioBasedSamplerConfig(
                        sampling_percentage=FractionalPercent(
                            numerator=round(policy.sample_share * _MILLION),
                            denominator=FractionalPercentDenominatorType.MILLION,
                        )
                    ),
                )
            ),
        ),
    )
    return HttpConnectionManagerTracing(
        random_sampling=Percent(value=100.0),
        spawn_upstream_span=True,
        provider=TracingHttp(name="envoy.tracers.opentelemetry", typed_config=pb.Any.pack(provider)),
    )


def collector_cluster(policy: TracingPolicy) -> Cluster:
    """Where Envoy's spans go."""
    host, port, tls = policy.target()
    address = join_address(host, port)
    return Cluster(
        name=OTLP_CLUSTER,
        type=ClusterDiscoveryType.STATIC if is_ip(host) else ClusterDiscoveryType.STRICT_DNS,
        connect_timeout=seconds(min(policy.timeout_s, 5.0)),
        load_assignment=ClusterLoadAssignment(
            cluster_name=OTLP_CLUSTER,
            endpoints=[
                LocalityLbEndpoints(lb_endpoints=[LbEndpoint(endpoint=Endpoint(address=socket_address(address)))])
            ],
        ),
        transport_socket=_tls(policy, host) if tls else None,
    )


def _tls(policy: TracingPolicy, host: str) -> TransportSocket:
    trusted = CertificateValidationContext(trusted_ca=DataSource(filename=policy.ca_file or ""))
    if is_ip(host):
        trusted.match_typed_subject_alt_names.append(
            SubjectAltNameMatcher(san_type=SubjectAltNameMatcherSanType.IP_ADDRESS, matcher=StringMatcher(exact=host))
        )
    context = UpstreamTlsContext(
        sni="" if is_ip(host) else host,
        auto_sni_san_validation=not is_ip(host),
        common_tls_context=CommonTlsContext(validation_context=trusted),
    )
    return TransportSocket(name="envoy.transport_sockets.tls", typed_config=pb.Any.pack(context))
