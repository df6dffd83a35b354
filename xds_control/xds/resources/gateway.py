"""The listener of the gateway: what happens to a request between the client and its endpoint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from envoy_data_plane.envoy.config.accesslog.v3 import (
    AccessLog,
    AccessLogFilter,
    ComparisonFilter,
    ComparisonFilterOp,
    OrFilter,
    ResponseFlagFilter,
    StatusCodeFilter,
)
from envoy_data_plane.envoy.config.common.mutation_rules.v3 import HeaderMutation, HeaderMutationRules
from envoy_data_plane.envoy.config.core.v3 import (
    ApiVersion,
    GrpcService,
    GrpcServiceEnvoyGrpc,
    HttpProtocolOptions,
    RuntimeUInt32,
    TypedExtensionConfig,
)
from envoy_data_plane.envoy.config.listener.v3 import Filter, FilterChain, Listener
from envoy_data_plane.envoy.config.route.v3 import RouteConfiguration
from envoy_data_plane.envoy.extensions.access_loggers.grpc.v3 import (
    CommonGrpcAccessLogConfig,
    HttpGrpcAccessLogConfig,
)
from envoy_data_plane.envoy.extensions.filters.http.ext_proc.v3 import (
    ExternalProcessor,
    HeaderForwardingRules,
    MetadataOptions,
    MetadataOptionsMetadataNamespaces,
    ProcessingMode,
    ProcessingModeBodySendMode,
    ProcessingModeHeaderSendMode,
)
from envoy_data_plane.envoy.extensions.filters.http.router.v3 import Router
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 import (
    HttpConnectionManager,
    HttpConnectionManagerServerHeaderTransformation,
    HttpFilter,
    Rds,
)
from envoy_data_plane.envoy.extensions.http.early_header_mutation.header_mutation.v3 import (
    HeaderMutation as EarlyHeaderMutation,
)
from envoy_data_plane.envoy.type.matcher.v3 import ListStringMatcher, StringMatcher
from envoy_data_plane.envoy.type.tracing.v3 import CustomTag
from envoy_data_plane.google import protobuf as pb

from xds_control.policy import headers
from xds_control.policy.extproc import ExtProcPolicy
from xds_control.policy.gateway import EnvoyPolicy
from xds_control.policy.processes import ProcessorPolicy
from xds_control.policy.tracing import TracingPolicy
from xds_control.signals.accesslog import CUSTOM_TAGS, LOGGED_RESPONSE_HEADERS
from xds_control.xds.resources.common import ads, extension, seconds, socket_address
from xds_control.xds.resources.local_replies import local_replies
from xds_control.xds.resources.names import LISTENER, PROCESSOR_CLUSTER, ROUTES
from xds_control.xds.resources.tracing import http_tracing
from xds_control.xds.resources.usage import json_usage, sse_usage

MAX_HEADERS = 256
MAX_HEADERS_KB = 96
SEND = ProcessingModeHeaderSendMode.SEND
SKIP = ProcessingModeHeaderSendMode.SKIP

_BODY_MODES = {
    "buffered": ProcessingModeBodySendMode.BUFFERED,
    "streamed": ProcessingModeBodySendMode.STREAMED,
    "full_duplex": ProcessingModeBodySendMode.FULL_DUPLEX_STREAMED,
}


def gateway_listener(
    envoy: EnvoyPolicy,
    processors: ProcessorPolicy,
    settings: ExtProcPolicy,
    forwarded: Sequence[str] | None,
    tracing: TracingPolicy | None = None,
    routes: RouteConfiguration | None = None,
    wait_s: float = 0.0,
) -> Listener:
    """The listener. forwarded: names of the request headers that the processors need to see; None = all.

    routes: inline routes of an Envoy that does not take them from us; None = RDS (managed mode). wait_s: how long the
    processors may hold an answer back.
    """
    manager = HttpConnectionManager(
        stat_prefix="gateway",
        rds=Rds(config_source=ads(), route_config_name=ROUTES) if routes is None else None,
        route_config=routes,
        access_log=[access_log(processors)] if processors.count and not _counts_answers(processors, settings) else [],
        tracing=http_tracing(tracing) if tracing is not None and tracing.envoy else None,
        use_remote_address=True,
        xff_num_trusted_hops=envoy.x_forwarded_trusted_hops,
        # ext_proc refuses to add headers beyond this count with a 500, so it stays clear of what clients send
        common_http_protocol_options=HttpProtocolOptions(max_headers_count=MAX_HEADERS),
        max_request_headers_kb=MAX_HEADERS_KB,
        stream_idle_timeout=seconds(envoy.stream_idle_timeout_s),
        request_timeout=seconds(0),
        server_header_transformation=HttpConnectionManagerServerHeaderTransformation.PASS_THROUGH,
        early_header_mutation_extensions=[early_removal()],
        local_reply_config=local_replies(envoy.body_limit_bytes),
        http_filters=http_filters(envoy, processors, settings, forwarded, wait_s),
    )
    return Listener(
        name=LISTENER,
        address=socket_address(envoy.listen),
        per_connection_buffer_limit_bytes=envoy.body_limit_bytes,
        filter_chains=[
            FilterChain(
                filters=[
                    Filter(name="envoy.filters.network.http_connection_manager", typed_config=pb.Any.pack(manager))
                ]
            )
        ],
    )


def _counts_answers(processors: ProcessorPolicy, settings: ExtProcPolicy) -> bool:
    """Whether the processors count answers that pass them: told by the access log too, each would count twice."""
    observes = settings.responses == "observe" or (settings.responses == "auto" and settings.body_mode == "full_duplex")
    return processors.mode == "endpoint-picker" and observes


def http_filters(
    envoy: EnvoyPolicy,
    processors: ProcessorPolicy,
    settings: ExtProcPolicy,
    forwarded: Sequence[str] | None,
    wait_s: float = 0.0,
) -> list[HttpFilter]:
    """json/sse usage, then the processors, then the router. Answers pass them in reverse order."""
    filters: list[HttpFilter] = []
    if envoy.usage_from_json:
        filters.append(_filter("envoy.filters.http.json_to_metadata", json_usage()))
    if envoy.usage_from_sse:
        filters.append(_filter("envoy.filters.http.sse_to_metadata", sse_usage()))
    if processors.count:
        filters.append(_filter("envoy.filters.http.ext_proc", ext_proc(processors, settings, forwarded, wait_s)))
    # Attempts that failed are logged one by one, so that a retry does not hide a sick endpoint.
    attempts = [access_log(processors, _failed_attempts())] if processors.count else []
    router = Router(suppress_envoy_headers=True, upstream_log=attempts)
    filters.append(_filter("envoy.filters.http.router", router))
    return filters


def ext_proc(
    processors: ProcessorPolicy, settings: ExtProcPolicy, forwarded: Sequence[str] | None, wait_s: float = 0.0
) -> ExternalProcessor:
    """The processors: request headers and the whole request body, by default never a response byte; fails open.

    wait_s: how long they may hold an answer back. They ask for more time then, but not in full duplex.
    """
    duplex = settings.body_mode == "full_duplex"
    streamed = settings.body_mode == "streamed"
    observe = settings.responses == "observe" or (settings.responses == "auto" and duplex)
    namespaces = MetadataOptionsMetadataNamespaces(untyped=[headers.NAMESPACE, headers.LB_NAMESPACE])
    return ExternalProcessor(
        grpc_service=GrpcService(envoy_grpc=GrpcServiceEnvoyGrpc(cluster_name=PROCESSOR_CLUSTER)),
        failure_mode_allow=settings.failure_mode_allow,
        message_timeout=seconds(processors.message_timeout_s + (wait_s if duplex else 0.0)),
        max_message_timeout=seconds(wait_s + 1.0) if wait_s and not duplex else None,
        processing_mode=ProcessingMode(
            request_header_mode=SEND,
            request_body_mode=_BODY_MODES[settings.body_mode],
            request_trailer_mode=SEND if duplex or streamed else SKIP,
            response_header_mode=SEND if observe else SKIP,
            response_body_mode=_BODY_MODES["full_duplex"] if observe and duplex else ProcessingModeBodySendMode.NONE,
            response_trailer_mode=SEND if observe and duplex else SKIP,
        ),
        # STREAMED pays only when the body need not wait for the header answer (design fact 5)
        send_body_without_waiting_for_header_response=streamed,
        # full duplex too: without it Envoy drops the length that the processor sets, and the body goes on chunked
        allow_content_length_header=streamed or duplex,
        forward_rules=None
        if forwarded is None
        else HeaderForwardingRules(
            allowed_headers=ListStringMatcher(
                patterns=[StringMatcher(exact=name, ignore_case=True) for name in sorted(set(forwarded))]
            )
        ),
        metadata_options=MetadataOptions(
            receiving_namespaces=namespaces,
            forwarding_namespaces=MetadataOptionsMetadataNamespaces(
                untyped=[headers.SUBSET_HINT_NAMESPACE, headers.LB_NAMESPACE]
            ),
        ),
        mutation_rules=HeaderMutationRules(allow_all_routing=False),
    )


def access_log(processors: ProcessorPolicy, only: AccessLogFilter | None = None) -> AccessLog:
    """The gRPC access log to the processors: outcome, true TTFT, usage and the request's own metadata."""
    return AccessLog(
        name="envoy.access_loggers.http_grpc",
        filter=only,
        typed_config=pb.Any.pack(
            HttpGrpcAccessLogConfig(
                common_config=CommonGrpcAccessLogConfig(
                    log_name="xds-control",
                    transport_api_version=ApiVersion.V3,
                    grpc_service=GrpcService(envoy_grpc=GrpcServiceEnvoyGrpc(cluster_name=PROCESSOR_CLUSTER)),
                    buffer_flush_interval=seconds(processors.access_log_flush_s),
                    buffer_size_bytes=65536,
                    custom_tags=[CustomTag(tag=tag, value=value) for tag, value in CUSTOM_TAGS.items()],
                ),
                additional_response_headers_to_log=list(LOGGED_RESPONSE_HEADERS),
            )
        ),
    )


def _failed_attempts() -> AccessLogFilter:
    server_error = StatusCodeFilter(
        comparison=ComparisonFilter(
            op=ComparisonFilterOp.GE, value=RuntimeUInt32(default_value=500, runtime_key="xds_control.failed_attempt")
        )
    )
    return AccessLogFilter(
        or_filter=OrFilter(
            filters=[
                AccessLogFilter(status_code_filter=server_error),
                AccessLogFilter(response_flag_filter=ResponseFlagFilter()),
            ]
        )
    )


def early_removal() -> TypedExtensionConfig:
    """Takes reserved headers off a client's request before anything sees them, also when no processor answers."""
    return extension(
        "envoy.http.early_header_mutation.header_mutation",
        EarlyHeaderMutation(mutations=[HeaderMutation(remove=name) for name in headers.RESERVED_REQUEST_HEADERS]),
    )


def _filter(name: str, message: Any) -> HttpFilter:
    return HttpFilter(name=name, typed_config=pb.Any.pack(message))
