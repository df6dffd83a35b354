"""The services beside discovery: client status and load reports, over gRPC."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, Final

import grpc
import structlog
from envoy.service.load_stats.v3 import lrs_pb2
from envoy.service.status.v3 import csds_pb2

from xds_control.xds.csds import BadMatcher, client_config, selected
from xds_control.xds.groups import Node
from xds_control.xds.lrs import SEND_ALL_CLUSTERS, LoadReport, load_reports
from xds_control.xds.stream import StreamState

log = structlog.get_logger("xds_control.xds")

CSDS_SERVICE: Final = "envoy.service.status.v3.ClientStatusDiscoveryService"
LRS_SERVICE: Final = "envoy.service.load_stats.v3.LoadReportingService"

OnLoad = Callable[[list[LoadReport]], None]
Streams = Callable[[], Iterable[tuple[Node, StreamState]]]


def client_status_handler(streams: Streams, wall: Callable[[float], float]) -> grpc.GenericRpcHandler:
    """CSDS over the given streams."""

    async def answer(request: Any, context: Any) -> Any:
        response = csds_pb2.ClientStatusResponse()
        try:
            for node, state in streams():
                if selected(node, request.node_matchers):
                    config = client_config(node, state, wall=wall, contents=not request.exclude_resource_contents)
                    response.config.append(config)
        except BadMatcher as problem:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(problem))
        return response

    async def stream(requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        async for request in requests:
            yield await answer(request, context)

    return grpc.method_handlers_generic_handler(
        CSDS_SERVICE,
        {
            "FetchClientStatus": grpc.unary_unary_rpc_method_handler(
                answer,
                request_deserializer=csds_pb2.ClientStatusRequest.FromString,
                response_serializer=csds_pb2.ClientStatusResponse.SerializeToString,
            ),
            "StreamClientStatus": grpc.stream_stream_rpc_method_handler(
                stream,
                request_deserializer=csds_pb2.ClientStatusRequest.FromString,
                response_serializer=csds_pb2.ClientStatusResponse.SerializeToString,
            ),
        },
    )


def load_report_handler(
    on_load: OnLoad, interval_s: float, clusters: Callable[[Node], Iterable[str]]
) -> grpc.GenericRpcHandler:
    """LRS with endpoint granularity. clusters: what to ask of a client that cannot send all."""

    async def stream(requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        node: Any = None
        async for request in requests:
            if node is None:
                if not request.node.id:
                    await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the first message must carry node.id")
                node = request.node
                node.ClearField("extensions")
            rows = load_reports(node.id, request)
            if rows:
                try:
                    on_load(rows)
                except Exception:
                    log.exception("xds.load_report_failed", node=node.id)
            everything = SEND_ALL_CLUSTERS in node.client_features
            # Answered each time: Envoy counts only clusters that existed when it read the last answer.
            response = lrs_pb2.LoadStatsResponse(
                send_all_clusters=everything,
                clusters=() if everything else sorted(clusters(node)),
                report_endpoint_granularity=True,
            )
            response.load_reporting_interval.FromNanoseconds(int(interval_s * 1e9))
            yield response

    return grpc.method_handlers_generic_handler(
        LRS_SERVICE,
        {
            "StreamLoadStats": grpc.stream_stream_rpc_method_handler(
                stream,
                request_deserializer=lrs_pb2.LoadStatsRequest.FromString,
                response_serializer=lrs_pb2.LoadStatsResponse.SerializeToString,
            )
        },
    )
