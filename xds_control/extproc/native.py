"""The ext_proc service on the built-in HTTP/2 server: no task, no queue and no message object more than needed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any

import structlog
from envoy.service.ext_proc.v3 import external_processor_pb2
from google.protobuf.message import DecodeError

from xds_control.extproc.decide import Decider, Refusal
from xds_control.extproc.decision import Hold
from xds_control.extproc.http2.rpc import INTERNAL, INVALID_ARGUMENT, Rpc
from xds_control.extproc.http2.server import Http2Server
from xds_control.extproc.server import FAILED, SERVICE, Counters, Waiter, code_of
from xds_control.extproc.stream import ProtocolViolation, Stream, StreamError
from xds_control.extproc.tracing import Began, Tracer
from xds_control.extproc.wire import Piece, body_of, body_of_parts

_log = structlog.get_logger(__name__)
_parse = external_processor_pb2.ProcessingRequest.FromString


class _Call:
    """One RPC of `Process`."""

    __slots__ = ("_began", "_rpc", "_service", "_stream", "_waiting", "_wake")

    def __init__(
        self, service: NativeExternalProcessor, rpc: Rpc, metadata: Mapping[str, str], wake: Callable[[], None]
    ) -> None:
        self._service = service
        rpc.takes_parts = True
        self._rpc = rpc
        self._wake = wake
        self._stream = Stream(service.decider(), service.observer_factory)
        self._waiting: asyncio.Future[Refusal | None] | None = None
        tracer = None if service.tracer is None else service.tracer()
        self._began: Began | None = None if tracer is None else tracer.begin(metadata, time.time_ns())

    def message(self, data: bytes) -> None:
        body = body_of(data)
        self._take(data if body is None else body)

    def parts(self, parts: list[Piece]) -> None:
        body = body_of_parts(parts)
        self._take(b"".join(parts) if body is None else body)

    def _take(self, message: bytes | tuple[list[Piece], bool]) -> None:
        stream, rpc = self._stream, self._rpc
        now = self._service.clock()
        try:
            if message.__class__ is tuple:
                found = stream.receive_body(*message, now)
            else:
                found = stream.receive(_parse(message), now)
        except (StreamError, DecodeError) as error:
            self._failed(error)
            return
        except Exception as error:  # noqa: BLE001 - the other streams of the connection have nothing to do with it
            _log.exception("ext_proc_stream_fault")
            self._failed(error)
            return
        self._note_failure()
        for answer in found:
            rpc.send(answer)
        if self._began is not None and stream.decision is not None:
            self._trace()
        if stream.done:
            rpc.finish()
        elif stream.held is not None and self._waiting is None:
            assert stream.held.hold is not None
            self._hold(stream.held.hold)

    def _hold(self, hold: Hold) -> None:
        wait = self._service.wait
        if wait is None:
            self._failed(StreamError("a request is held but nothing can let it in"))
            return
        self._waiting = wait(hold)
        self._waiting.add_done_callback(self._waited)

    def _waited(self, waiting: asyncio.Future[Refusal | None]) -> None:
        stream, rpc = self._stream, self._rpc
        self._waiting = None
        if rpc.is_closed:
            return  # let in just when the client went away
        try:
            for answer in stream.resume(waiting.result(), self._service.clock()):
                rpc.send(answer)
            self._note_failure()
            self._trace()
            if stream.done or rpc.is_half_closed:
                rpc.finish()
        except StreamError as error:
            self._failed(error)
        except Exception as error:  # noqa: BLE001 - an answer is due whatever went wrong
            _log.exception("ext_proc_stream_fault")
            self._failed(error)
        self._wake()

    def _note_failure(self) -> None:
        """Counts a failure that was answered all the same."""
        stream = self._stream
        if stream.failure is not None:
            self._service.counters.fail(stream.failure, self._service.clock())
            stream.failure = None
            self._trace(FAILED)

    def _trace(self, error: str = "") -> None:
        """Ends the span, once there is a decision or a failure."""
        began, self._began = self._began, None
        if began is not None:
            stream = self._stream
            began.tracer.end(began, stream.request_headers, stream.decision, error, time.time_ns())

    def _failed(self, error: Exception) -> None:
        self._trace(code_of(error))
        self._service.counters.fail(error, self._service.clock())
        self._stream.closed()
        status = INVALID_ARGUMENT if isinstance(error, ProtocolViolation | DecodeError) else INTERNAL
        self._rpc.finish(status, str(error))

    def half_closed(self) -> None:
        # Nothing more is to come; what was not decided by now never will be.
        if self._stream.held is None:
            self._rpc.finish()

    def closed(self) -> None:
        counters = self._service.counters
        counters.streams -= 1
        if not self._stream.done:
            counters.cancelled += 1
        if self._waiting is not None:
            self._waiting.cancel()
        self._stream.closed()


class NativeExternalProcessor:
    """Serves `Process` on an Http2Server. Arguments as for `ExternalProcessorService`."""

    def __init__(
        self,
        decider: Callable[[], Decider],
        *,
        wait: Waiter | None = None,
        observer_factory: Callable[..., Any] | None = None,
        clock: Callable[[], float] = time.monotonic,
        tracer: Callable[[], Tracer | None] | None = None,
    ) -> None:
        self.decider = decider
        self.tracer = tracer
        self.wait = wait
        self.observer_factory = observer_factory
        self.clock = clock
        self.counters = Counters()

    def add_to(self, server: Http2Server) -> None:
        """Registers the service."""
        server.add(f"/{SERVICE}/Process", self._serve)

    def _serve(self, rpc: Rpc, metadata: dict[str, str], wake: Callable[[], None]) -> _Call:
        self.counters.streams += 1
        self.counters.requests += 1
        return _Call(self, rpc, metadata, wake)
