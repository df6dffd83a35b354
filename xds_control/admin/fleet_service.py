"""The Fleet service of control: the gRPC edge of the hub."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import grpc

from xds_control.admin.hub import Hub
from xds_control.observe.logs import logger
from xds_control.observe.readable import ReadableMessages
from xds_control.proto import fleet_pb2 as pb

SERVICE = "xds_control.fleet.v1.Fleet"
MAX_MESSAGE = 64 * 1024 * 1024
OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE),
    ("grpc.max_send_message_length", MAX_MESSAGE),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 1_000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.so_reuseport", 0),
)


class FleetService:
    """Watch and Report. on_report(kind, source, message) takes in what senders say; on_watchers is called
    after processors came or went."""

    def __init__(
        self,
        hub: Hub,
        peers_s: float,
        on_report: Callable[[str, str, pb.ReportRequest], None],
        on_watchers: Callable[[], None],
    ) -> None:
        self._hub = hub
        self._peers_s = peers_s
        self._on_report = on_report
        self._on_watchers = on_watchers
        self._log = logger("fleet")
        self.reports = 0
        self.refused = 0
        self.sources: dict[str, str] = {}

    def handler(self) -> grpc.GenericRpcHandler:
        """To be added to a grpc.aio server."""
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "Watch": grpc.unary_stream_rpc_method_handler(
                    self.watch,
                    request_deserializer=pb.WatchRequest.FromString,
                    response_serializer=lambda data: data,
                ),
                "Report": grpc.stream_stream_rpc_method_handler(
                    self.report,
                    request_deserializer=pb.ReportRequest.FromString,
                    response_serializer=pb.ReportResponse.SerializeToString,
                ),
            },
        )

    async def watch(
        self, request: pb.WatchRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[bytes]:
        """Streams what the watcher lacks, at most once every `peers_s`."""
        if not request.processor:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "WatchRequest.processor is empty")
        key = self._hub.watch(request.processor, request.ext_proc_address, request.version, time.monotonic())
        self._log.info("processor-watches", processor=request.processor, address=request.ext_proc_address)
        self._on_watchers()
        try:
            while True:
                message = self._hub.next_message(key, time.monotonic())
                if message is not None:
                    yield message
                await asyncio.sleep(self._peers_s)
        finally:
            self._hub.unwatch(key)
            self._log.info("processor-gone", processor=request.processor)
            self._on_watchers()

    async def report(
        self, requests: AsyncIterator[pb.ReportRequest], context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[pb.ReportResponse]:
        """Takes in reports one by one and answers each: a sender with too many unanswered ones waits."""
        source = kind = ""
        refused = 0
        try:
            async for request in requests:
                if request.HasField("hello"):
                    source, kind = request.hello.source[:256], request.hello.kind[:32]
                    self.sources[source] = kind
                if not source:
                    await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the first message needs `hello.source`")
                self.reports += 1
                try:
                    self._on_report(kind, source, request)
                except ValueError as error:
                    self.refused += 1
                    refused += 1
                    if refused & (refused - 1) == 0:  # the 1st, 2nd, 4th, 8th: a sender that is wrong is so each time
                        self._log.warning("report-refused", source=source, error=str(error)[:500], count=refused)
                yield pb.ReportResponse(sequence=request.sequence)
        finally:
            if source:
                self.sources.pop(source, None)


async def serve(
    address: str,
    *handlers: grpc.GenericRpcHandler,
    credentials: grpc.ServerCredentials | None = None,
    interceptors: Sequence[Any] = (),
) -> tuple[grpc.aio.Server, Callable[[], Awaitable[None]]]:
    """A started grpc.aio server on `address` with health on, and a function that stops it gracefully.

    credentials: TLS, None for plain text. interceptors: who may call.
    """
    from grpc_health.v1 import health_pb2, health_pb2_grpc
    from grpc_health.v1._async import HealthServicer

    server = grpc.aio.server(options=list(OPTIONS), interceptors=[*interceptors, ReadableMessages("fleet")])
    server.add_generic_rpc_handlers(handlers)
    health = HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    await health.set("", health_pb2.HealthCheckResponse.SERVING)
    await health.set(SERVICE, health_pb2.HealthCheckResponse.SERVING)
    if credentials is None:
        port = server.add_insecure_port(address)
    else:
        port = server.add_secure_port(address, credentials)
    if port == 0:
        raise OSError(f"{address} cannot be listened on")
    await server.start()

    async def stop() -> None:
        await health.enter_graceful_shutdown()
        await server.stop(1.0)

    return server, stop
