"""The access log service: takes Envoy's entries off the wire and gives them to the aggregator, nothing more."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any, Final

import grpc
import structlog
from envoy.service.accesslog.v3 import als_pb2
from google.protobuf.message import DecodeError

from xds_control.signals.accesslog import AccessLog, Taken

SERVICE: Final = "envoy.service.accesslog.v3.AccessLogService"
BREATH: Final = 200
"""Entries of one message that are taken before other work gets its turn (about 5 ms)."""

_log = structlog.get_logger("accesslog")


@dataclass(slots=True)
class Sender:
    """One open stream: who sends (an Envoy worker thread opens its own) and how much came."""

    node: str = ""
    log_name: str = ""
    messages: int = 0
    entries: int = 0


class AccessLogService:
    """Serves `StreamAccessLogs`.

    on_taken is called with the outcome of each piece of a message, in the loop's thread; what it raises is logged and
    counted, and never ends a stream.
    """

    def __init__(self, log: AccessLog, on_taken: Callable[[Taken], None] | None = None) -> None:
        self._aggregator = log
        self._on_taken = on_taken
        self.trouble: Counter[str] = Counter()
        """Messages that could not be used, by reason, since the start."""
        self._open: dict[int, Sender] = {}
        self._next = 0

    def streams(self) -> list[Sender]:
        """The streams that are open now."""
        return list(self._open.values())

    def add_to(self, server: grpc.aio.Server) -> None:
        """Registers the service. Messages arrive as bytes: one that does not parse costs a counter, not the stream."""
        handler: Any = grpc.stream_unary_rpc_method_handler(
            self._stream,
            request_deserializer=None,
            response_serializer=als_pb2.StreamAccessLogsResponse.SerializeToString,
        )
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"StreamAccessLogs": handler}),))

    async def _stream(self, messages: AsyncIterator[bytes], context: Any) -> Any:
        self._next += 1
        number = self._next
        sender = self._open[number] = Sender()
        try:
            async for data in messages:
                await self._message(data, sender)
        finally:
            del self._open[number]
        return als_pb2.StreamAccessLogsResponse()

    async def _message(self, data: bytes, sender: Sender) -> None:
        try:
            message = als_pb2.StreamAccessLogsMessage.FromString(data)
        except DecodeError:
            self.trouble["unparsable"] += 1
            return
        sender.messages += 1
        if message.HasField("identifier"):
            sender.node = message.identifier.node.id
            sender.log_name = message.identifier.log_name
        if message.HasField("tcp_logs"):
            self.trouble["tcp"] += 1
            return
        entries = message.http_logs.log_entry
        count = len(entries)
        sender.entries += count
        if count <= BREATH:
            self._take(entries)
            return
        for start in range(0, count, BREATH):
            self._take(entries[start : start + BREATH])
            await asyncio.sleep(0)

    def _take(self, entries: Any) -> None:
        taken = self._aggregator.take(entries)
        if self._on_taken is None:
            return
        try:
            self._on_taken(taken)
        except Exception:  # noqa: BLE001 - a listener's fault must not stop outcomes from being counted
            self.trouble["listener"] += 1
            _log.exception("access_log_listener_failed", finished=len(taken.finished))
