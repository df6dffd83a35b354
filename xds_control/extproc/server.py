"""The ext_proc service over grpcio: raw bytes in, raw bytes out, one state machine per RPC."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import grpc
import structlog
from envoy.service.ext_proc.v3 import external_processor_pb2
from google.protobuf.message import DecodeError

from xds_control.errors import XdsControlError
from xds_control.extproc.decide import Decider, Refusal
from xds_control.extproc.decision import Hold
from xds_control.extproc.stream import Stream, StreamError
from xds_control.extproc.tracing import Began, Tracer

SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
_METHOD = f"/{SERVICE}/Process"
_parse = external_processor_pb2.ProcessingRequest.FromString
_log = structlog.get_logger(__name__)

Waiter = Callable[[Hold], "asyncio.Future[Refusal | None]"]


_LOG_EVERY_S = 1.0
FAILED = "decision-failed"
UNREADABLE = "message-unreadable"
"""Codes of failures that are no errors of ours."""


class Counters:
    """What the edge counts. streams: open now; others since the start. last_failure: text of the newest failure.
    by_code: failures by our stable code."""

    __slots__ = ("_logged_at", "_unlogged", "by_code", "cancelled", "failed", "last_failure", "requests", "streams")

    def __init__(self) -> None:
        self.streams = 0
        self.requests = 0
        self.cancelled = 0
        self.failed = 0
        self.last_failure = ""
        self.by_code: Counter[str] = Counter()
        self._logged_at = -_LOG_EVERY_S
        self._unlogged = 0

    def fail(self, error: Exception, now: float) -> None:
        """Counts a stream that failed, and logs it unless another one was logged within the last second."""
        self.failed += 1
        self.by_code[code_of(error)] += 1
        self.last_failure = str(error)
        if now - self._logged_at < _LOG_EVERY_S:
            self._unlogged += 1
            return
        _log.warning("ext_proc_stream_failed", error=self.last_failure, not_logged=self._unlogged)
        self._logged_at, self._unlogged = now, 0


def code_of(error: Exception) -> str:
    """Our stable code of a failure."""
    if isinstance(error, XdsControlError):
        return error.code
    return UNREADABLE if isinstance(error, DecodeError) else FAILED


class ExternalProcessorService(grpc.GenericRpcHandler):
    """Serves `Process`. decider: a callable, so that a new policy takes effect with the next stream.

    wait: gives the future on which a held request waits. observer_factory: see `Stream`. tracer: gives the tracer, None
    while tracing is off.
    """

    def __init__(
        self,
        decider: Callable[[], Decider],
        *,
        wait: Waiter | None = None,
        observer_factory: Callable[..., Any] | None = None,
        clock: Callable[[], float] = time.monotonic,
        tracer: Callable[[], Tracer | None] | None = None,
    ) -> None:
        self._decider = decider
        self._tracer = tracer
        self._wait = wait
        self._observer_factory = observer_factory
        self._clock = clock
        self.counters = Counters()
        self._handler: Any = grpc.stream_stream_rpc_method_handler(self._process)

    def service(self, handler_call_details: Any) -> Any:
        """The handler when the method is ours."""
        return self._handler if handler_call_details.method == _METHOD else None

    async def _process(self, _: Any, context: Any) -> None:
        counters = self.counters
        counters.streams += 1
        counters.requests += 1
        stream = Stream(self._decider(), self._observer_factory)
        began = self._begin(context)
        try:
            while not stream.done:
                data = await context.read()
                if data is grpc.aio.EOF:
                    return
                for answer in stream.receive(_parse(data), self._clock()):
                    await context.write(answer)
                if stream.held is not None:
                    for answer in await self._resume(stream):
                        await context.write(answer)
                if stream.failure is not None:
                    counters.fail(stream.failure, self._clock())
                    stream.failure = None
                    _end(began, stream, FAILED)
                    began = None
                if began is not None and stream.decision is not None:
                    _end(began, stream)
                    began = None
        except (StreamError, DecodeError) as error:
            counters.fail(error, self._clock())
            _end(began, stream, code_of(error))
            stream.closed()
            status = error.grpc_status if isinstance(error, StreamError) else "INVALID_ARGUMENT"
            await context.abort(getattr(grpc.StatusCode, status), str(error))
        finally:
            counters.streams -= 1
            if not stream.done:
                # Envoy resets the stream when the request is over or its client is gone: a usual end.
                counters.cancelled += 1
            stream.closed()

    def _begin(self, context: Any) -> Began | None:
        tracer = None if self._tracer is None else self._tracer()
        return None if tracer is None else tracer.begin(dict(context.invocation_metadata()), time.time_ns())

    async def _resume(self, stream: Stream) -> list[bytes]:
        held = stream.held
        assert held is not None
        assert held.hold is not None
        if self._wait is None:
            raise StreamError("a request is held but nothing can let it in")
        refusal = await self._wait(held.hold)
        return stream.resume(refusal, self._clock())


def _end(began: Began | None, stream: Stream, error: str = "") -> None:
    """Ends the span, when there is one."""
    if began is not None:
        began.tracer.end(began, stream.request_headers, stream.decision, error, time.time_ns())


def server_options(message_limit: int, max_streams: int, shared: bool = False) -> list[tuple[str, int]]:
    """grpcio options for a server that takes whole bodies on many streams."""
    return [
        ("grpc.max_receive_message_length", message_limit),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_concurrent_streams", max_streams),
        ("grpc.http2.max_frame_size", 1 << 20),
        ("grpc.so_reuseport", int(shared)),
    ]
