"""Runs ordinary grpcio asyncio handlers (access logs, health, reflection) on the built-in server.

They are registered as on a `grpc.aio.Server`: `add_generic_rpc_handlers`, or the generated `add_..._to_server`.
Each RPC is a task; what is served thousands of times a second has its own handler instead.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
import structlog
from google.protobuf.message import DecodeError

from xds_control.extproc.http2.rpc import OK, Piece, Rpc
from xds_control.extproc.http2.server import Http2Server

_log = structlog.get_logger("grpc")
_END: Any = object()
_PREFIX = 5


class AbortError(Exception):
    """Raised inside a handler by `context.abort`."""


@dataclass(slots=True)
class _Details:
    """What a generic handler looks at."""

    method: str
    invocation_metadata: tuple[tuple[str, str | bytes], ...]


class Context:
    """The part of grpc.aio.ServicerContext that services use."""

    def __init__(self, rpc: Rpc, metadata: dict[str, str], wake: Callable[[], None], handler: Any) -> None:
        self._rpc = rpc
        self._metadata = metadata
        self._wake = wake
        self._serialize = handler.response_serializer
        self._deserialize = handler.request_deserializer
        self._inbox: deque[Any] = deque()
        self._arrived = asyncio.Event()
        self._status: tuple[int, str] = (OK, "")
        self._callbacks: list[Callable[[Any], None]] = []

    def put(self, data: Any) -> None:
        """A message, or the end, arrived."""
        self._inbox.append(data)
        self._arrived.set()

    async def read(self) -> Any:
        """The next request message, grpc.aio.EOF after the last."""
        while not self._inbox:
            self._arrived.clear()
            await self._arrived.wait()
        data = self._inbox.popleft()
        if data is _END:
            self._inbox.appendleft(_END)
            return grpc.aio.EOF
        self._rpc.consumed(len(data) + _PREFIX)
        if self._deserialize is None:
            return data
        try:
            return self._deserialize(data)
        except DecodeError:
            await self.abort(grpc.StatusCode.INVALID_ARGUMENT, "the request is not a message of this method")

    async def write(self, message: Any) -> None:
        """Sends a response message."""
        self._rpc.send(message if self._serialize is None else self._serialize(message))
        self._wake()

    async def messages(self) -> AsyncIterator[Any]:
        """The request messages."""
        while (message := await self.read()) is not grpc.aio.EOF:
            yield message

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Any = ()) -> None:
        """Ends the RPC with an error; raises."""
        self.set_code(code)
        self.set_details(details)
        raise AbortError

    def set_code(self, code: grpc.StatusCode) -> None:
        """Sets the status that the RPC ends with."""
        self._status = (code.value[0], self._status[1])

    def set_details(self, details: str) -> None:
        """Sets the status message."""
        self._status = (self._status[0], details)

    async def send_initial_metadata(self, metadata: Any) -> None:
        """Accepted and left out: nobody who calls us reads it."""

    def set_trailing_metadata(self, metadata: Any) -> None:
        """Accepted and left out: nobody who calls us reads it."""

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        """The request's headers."""
        return tuple((name, value) for name, value in self._metadata.items() if not name.startswith(":"))

    def peer(self) -> str:
        """Who calls; not known at this layer."""
        return ""

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Called with this context when the RPC is over."""
        self._callbacks.append(callback)

    def cancelled(self) -> bool:
        """Whether the client went away."""
        return self._rpc.is_closed

    def done(self) -> bool:
        """Whether the RPC is over."""
        return self._rpc.is_closed

    def end(self) -> None:
        """Ends the RPC with the status that was set."""
        self._rpc.finish(*self._status)
        self._wake()

    def fail(self, error: Exception) -> None:
        """Ends the RPC because its handler raised."""
        self._status = (grpc.StatusCode.UNKNOWN.value[0], f"Unexpected {type(error)}: {error}")
        self.end()

    def over(self) -> None:
        """The RPC is over."""
        for callback in self._callbacks:
            callback(self)


class _Call:
    """One RPC of a bridged handler."""

    def __init__(self, handler: Any, rpc: Rpc, metadata: dict[str, str], wake: Callable[[], None]) -> None:
        rpc.gives_window = False
        self._handler = handler
        self._context = Context(rpc, metadata, wake, handler)
        self._task = asyncio.get_running_loop().create_task(self._run())

    def message(self, data: bytes) -> None:
        self._context.put(data)

    def parts(self, parts: list[Piece]) -> None:
        self._context.put(b"".join(parts))

    def half_closed(self) -> None:
        self._context.put(_END)

    def closed(self) -> None:
        # A task that ended the RPC itself is in its last step and must not be cancelled out of it.
        if asyncio.current_task() is not self._task:
            self._task.cancel()
        self._context.over()

    async def _run(self) -> None:
        context, handler = self._context, self._handler
        try:
            if handler.request_streaming:
                argument: Any = context.messages()
            else:
                argument = await context.read()
                if argument is grpc.aio.EOF:
                    context.set_code(grpc.StatusCode.INVALID_ARGUMENT)
                    context.end()
                    return
            await self._serve(argument)
            context.end()
        except AbortError:
            context.end()
        except Exception as error:  # noqa: BLE001 - whatever a service raises ends its own RPC, as on grpcio
            _log.exception("handler_failed")
            context.fail(error)

    async def _serve(self, argument: Any) -> None:
        context, handler = self._context, self._handler
        name = ("unary" if not handler.request_streaming else "stream") + (
            "_stream" if handler.response_streaming else "_unary"
        )
        outcome = getattr(handler, name)(argument, context)
        if not handler.response_streaming:
            await context.write(await outcome)
        elif inspect.isasyncgen(outcome):
            async for message in outcome:
                await context.write(message)
        else:
            await outcome


class Bridge:
    """Registers like a grpc.aio.Server and serves on an Http2Server."""

    def __init__(self, server: Http2Server) -> None:
        self._generic: list[grpc.GenericRpcHandler] = []
        self._methods: dict[str, Any] = {}
        server.fallback = self._find

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """As of grpc.aio.Server."""
        self._generic += handlers

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        """As of grpc.aio.Server."""
        self._methods.update({f"/{service}/{name}": handler for name, handler in handlers.items()})

    def _find(self, path: str) -> Callable[[Rpc, dict[str, str], Callable[[], None]], _Call] | None:
        handler = self._methods.get(path)
        if handler is None:
            for generic in self._generic:
                handler = generic.service(_Details(path, ()))
                if handler is not None:
                    break
        if handler is None:
            return None
        return lambda rpc, metadata, wake: _Call(handler, rpc, metadata, wake)
