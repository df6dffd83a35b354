"""The data plane's end of ext_proc: on the state machine itself, and over a real gRPC channel."""

from __future__ import annotations

import abc
import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

import grpc
from envoy.config.core.v3 import base_pb2
from envoy.extensions.filters.http.ext_proc.v3 import processing_mode_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc
from google.protobuf import json_format, struct_pb2

from tests.protocol.epp_world import World
from xds_control.extproc.edge import ExtProcEdge
from xds_control.extproc.server import SERVICE
from xds_control.extproc.stream import Stream, StreamError

DUPLEX = processing_mode_pb2.ProcessingMode.FULL_DUPLEX_STREAMED
QUIET_S = 0.03
ANSWER_S = 5.0


class Failed(Exception):
    """A case did not hold; the text says what."""


class Exchange(abc.ABC):
    """One stream. `ended`: the server ended it cleanly; `error`: it ended with an error."""

    def __init__(self) -> None:
        self.replies: list[ext_proc.ProcessingResponse] = []
        self.ended = False
        self.error = ""
        self._first = True

    async def send(self, message: ext_proc.ProcessingRequest, expect: bool = True) -> list[ext_proc.ProcessingResponse]:
        """Sends a message and takes what comes back. expect: an answer is due."""
        if self._first:
            message.protocol_config.request_body_mode = DUPLEX
            message.protocol_config.response_body_mode = DUPLEX
            self._first = False
        found = await self._exchange(message, expect)
        self.replies += found
        return found

    @abc.abstractmethod
    async def _exchange(self, message: ext_proc.ProcessingRequest, expect: bool) -> list[ext_proc.ProcessingResponse]:
        """Sends one message; what comes back."""

    @abc.abstractmethod
    async def listen(self) -> None:
        """Takes what came without being asked for."""

    @abc.abstractmethod
    async def close(self) -> None:
        """The data plane ends the stream."""


class _CoreExchange(Exchange):
    def __init__(self, world: World) -> None:
        super().__init__()
        assert world.state.decider is not None
        self._stream = Stream(world.state.decider, world.state.observer)

    async def _exchange(self, message: ext_proc.ProcessingRequest, expect: bool) -> list[ext_proc.ProcessingResponse]:
        if self.ended or self.error:
            return []
        try:
            found = self._stream.receive(message, time.monotonic())
        except StreamError as error:
            self.error = str(error)
            return []
        self.ended = self._stream.done
        return [ext_proc.ProcessingResponse.FromString(one) for one in found]

    async def listen(self) -> None:
        """Nothing comes here without being asked for."""

    async def close(self) -> None:
        self._stream.closed()


class Core:
    """Runs on the state machine."""

    name = "core"

    def __init__(self, world: World) -> None:
        self._world = world

    async def start(self) -> None:
        """Nothing to start."""

    async def open(self) -> Exchange:
        return _CoreExchange(self._world)

    async def stop(self) -> None:
        """Nothing to stop."""


class _GrpcExchange(Exchange):
    def __init__(self, call: Any) -> None:
        super().__init__()
        self._call = call
        self._queue: asyncio.Queue[Any] = asyncio.Queue()
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        try:
            async for reply in self._call:
                self._queue.put_nowait(reply)
            self._queue.put_nowait(None)
        except grpc.aio.AioRpcError as error:
            self._queue.put_nowait(error)

    async def _exchange(self, message: ext_proc.ProcessingRequest, expect: bool) -> list[ext_proc.ProcessingResponse]:
        if self.ended or self.error:
            return []
        try:
            await self._call.write(message)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            expect = False  # the server has ended; what it said is in the queue
        return await self._take(expect)

    async def listen(self) -> None:
        self.replies += await self._take(False)

    async def _take(self, expect: bool) -> list[ext_proc.ProcessingResponse]:
        found: list[ext_proc.ProcessingResponse] = []
        while not (self.ended or self.error):
            try:
                wait = ANSWER_S if expect and not found else QUIET_S
                item = await asyncio.wait_for(self._queue.get(), wait)
            except TimeoutError:
                break
            if item is None:
                self.ended = True
            elif isinstance(item, grpc.aio.AioRpcError):
                self.error = f"{item.code().name}: {item.details()}"
            else:
                found.append(item)
        return found

    async def close(self) -> None:
        self._call.cancel()
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)


class Grpc:
    """Runs over a channel to the processor's own edge."""

    name = "grpc"

    def __init__(self, world: World) -> None:
        self._world = world
        self._edge: ExtProcEdge | None = None
        self._channel: grpc.aio.Channel | None = None

    async def start(self, address: str = "127.0.0.1:0") -> None:
        """Listens."""
        state = self._world.state

        def decider() -> Any:
            return state.decider

        self._edge = ExtProcEdge(decider, self._world.policy.ext_proc, wait=state.wait, observer_factory=state.observer)
        where = await self._edge.start(address)
        options = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))
        self._channel = grpc.aio.insecure_channel(where, options=options)

    async def open(self) -> Exchange:
        assert self._channel is not None
        call = self._channel.stream_stream(
            f"/{SERVICE}/Process",
            request_serializer=ext_proc.ProcessingRequest.SerializeToString,
            response_deserializer=ext_proc.ProcessingResponse.FromString,
        )()
        return _GrpcExchange(call)

    async def stop(self) -> None:
        if self._channel is not None:
            await self._channel.close()
        if self._edge is not None:
            await self._edge.stop(0.2)
            self._edge = None


def header_map(headers: Mapping[str, str]) -> base_pb2.HeaderMap:
    """Headers on the wire."""
    return base_pb2.HeaderMap(
        headers=[base_pb2.HeaderValue(key=name, raw_value=value.encode()) for name, value in headers.items()]
    )


def metadata(namespaces: Mapping[str, Mapping[str, Any]]) -> base_pb2.Metadata:
    """Filter metadata."""
    found = base_pb2.Metadata()
    for name, values in namespaces.items():
        found.filter_metadata[name].CopyFrom(json_format.ParseDict(dict(values), struct_pb2.Struct()))
    return found


def request_headers(
    headers: Mapping[str, str], end: bool, filter_metadata: Mapping[str, Mapping[str, Any]] | None = None
) -> ext_proc.ProcessingRequest:
    """The message with request headers."""
    message = ext_proc.ProcessingRequest(
        request_headers=ext_proc.HttpHeaders(headers=header_map(headers), end_of_stream=end)
    )
    if filter_metadata:
        message.metadata_context.CopyFrom(metadata(filter_metadata))
    return message


def request_body(body: bytes, end: bool) -> ext_proc.ProcessingRequest:
    """A piece of the request body."""
    return ext_proc.ProcessingRequest(request_body=ext_proc.HttpBody(body=body, end_of_stream=end))


def response_headers(
    headers: Mapping[str, str], end: bool, filter_metadata: Mapping[str, Mapping[str, Any]] | None = None
) -> ext_proc.ProcessingRequest:
    """The message with response headers."""
    message = ext_proc.ProcessingRequest(
        response_headers=ext_proc.HttpHeaders(headers=header_map(headers), end_of_stream=end)
    )
    if filter_metadata:
        message.metadata_context.CopyFrom(metadata(filter_metadata))
    return message


def response_body(body: bytes, end: bool) -> ext_proc.ProcessingRequest:
    """A piece of the response body."""
    return ext_proc.ProcessingRequest(response_body=ext_proc.HttpBody(body=body, end_of_stream=end))


def set_headers(reply: ext_proc.ProcessingResponse) -> dict[str, str]:
    """Headers that a reply sets; a name that is set twice is a failure."""
    kind = reply.WhichOneof("response")
    part: Any = getattr(reply, kind or "request_headers")
    mutation = part.headers if kind == "immediate_response" else part.response.header_mutation
    found: dict[str, str] = {}
    for option in mutation.set_headers:
        name = option.header.key
        if name in found:
            raise Failed(f"header {name} is set twice")
        found[name] = (option.header.raw_value or option.header.value.encode()).decode()
        if option.append_action != base_pb2.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD:
            raise Failed(f"header {name} is not set to overwrite")
    return found


def removed_headers(reply: ext_proc.ProcessingResponse) -> set[str]:
    """Headers that a reply removes."""
    kind = reply.WhichOneof("response")
    part: Any = getattr(reply, kind or "request_headers")
    return set(part.response.header_mutation.remove_headers)


def reply_metadata(reply: ext_proc.ProcessingResponse) -> dict[str, Any]:
    """A reply's dynamic metadata as plain values."""
    return dict(json_format.MessageToDict(reply.dynamic_metadata))


def pieces(replies: Sequence[ext_proc.ProcessingResponse], kind: str) -> list[tuple[bytes, bool]]:
    """Streamed pieces of one body among replies."""
    found = []
    for reply in replies:
        if reply.WhichOneof("response") == kind:
            part = getattr(reply, kind).response.body_mutation.streamed_response
            found.append((part.body, part.end_of_stream))
    return found
