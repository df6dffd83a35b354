"""Messages that are no messages: a caller who sends them is told so, and does not fill the log with traces."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError

from xds_control.observe.logs import logger

LOG_EVERY_S: Final = 10.0


class ReadableMessages(grpc.aio.ServerInterceptor):
    """Answers INVALID_ARGUMENT to a request that is not a message of the method's type.

    port: its name in the log. methods: beginnings of the paths that this is for; handlers that read from their context
    cannot be among them.
    """

    def __init__(
        self, port: str, methods: tuple[str, ...] = ("/",), clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._methods = methods
        self._clock = clock
        self._log = logger(port)
        self._next = 0.0
        self.refused = 0

    async def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        """The handler, reading the messages itself: grpcio would log a trace for each that it cannot read."""
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None or handler.request_deserializer is None or not method.startswith(self._methods):
            return handler
        return self._wrapped(handler, method)

    def _wrapped(self, handler: Any, method: str) -> Any:
        parse = handler.request_deserializer
        kinds = {"request_deserializer": None, "response_serializer": handler.response_serializer}
        unreadable = self._unreadable

        async def one(data: bytes, context: Any) -> Any:
            try:
                return parse(data)
            except DecodeError:
                return await unreadable(method, context)

        async def many(messages: AsyncIterator[bytes], context: Any) -> AsyncIterator[Any]:
            async for data in messages:
                yield await one(data, context)

        if handler.unary_unary is not None:

            async def unary_unary(data: bytes, context: Any) -> Any:
                return await handler.unary_unary(await one(data, context), context)

            return grpc.unary_unary_rpc_method_handler(unary_unary, **kinds)
        if handler.unary_stream is not None:

            async def unary_stream(data: bytes, context: Any) -> AsyncIterator[Any]:
                async for answer in handler.unary_stream(await one(data, context), context):
                    yield answer

            return grpc.unary_stream_rpc_method_handler(unary_stream, **kinds)
        if handler.stream_unary is not None:

            async def stream_unary(messages: AsyncIterator[bytes], context: Any) -> Any:
                return await handler.stream_unary(many(messages, context), context)

            return grpc.stream_unary_rpc_method_handler(stream_unary, **kinds)

        async def stream_stream(messages: AsyncIterator[bytes], context: Any) -> AsyncIterator[Any]:
            async for answer in handler.stream_stream(many(messages, context), context):
                yield answer

        return grpc.stream_stream_rpc_method_handler(stream_stream, **kinds)

    async def _unreadable(self, method: str, context: Any) -> Any:
        self.refused += 1
        now = self._clock()
        if now >= self._next:
            self._next = now + LOG_EVERY_S
            self._log.warning("message-unreadable", method=method, peer=context.peer(), count=self.refused)
        return await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the request is not a message of this method")
