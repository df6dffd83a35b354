"""The two things that a case is tried on: the pure core with a made-up clock, and a server behind a gRPC channel."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import grpc
from envoy.service.discovery.v3 import discovery_pb2

from tests.protocol.xds_world import make, type_of
from xds_control.xds import SnapshotCache, XdsServer, by_id, mapped
from xds_control.xds.encode import Encoder
from xds_control.xds.errors import StreamEnd
from xds_control.xds.intake import open_stream, take_request
from xds_control.xds.server import ADS_SERVICE
from xds_control.xds.stream import StreamState
from xds_control.xds.types import ResourceType, by_short

NODE = "n1"
GROUP = "world"
_GROUP_OF = mapped(by_id, {NODE: GROUP}, default="nothing")
_LONG_NAMES = {
    "clusters": "CDS",
    "endpoints": "EDS",
    "listeners": "LDS",
    "routes": "RDS",
    "secrets": "SDS",
    "runtime": "RTDS",
}


@dataclass(frozen=True)
class End:
    """The server ended the stream."""

    code: str
    details: str


@dataclass(frozen=True)
class Kind:
    """What an `open` step asks for."""

    delta: bool
    only: ResourceType | None

    @classmethod
    def parse(cls, text: Any) -> Kind:
        """Any spelling that holds `sotw` or `delta`, and `ads` or a type."""
        words = re.findall(r"[a-z]+", str(text).lower())
        delta = any(w in ("delta", "incremental") for w in words)
        for word in words:
            short = _LONG_NAMES.get(word, word.upper())
            try:
                return cls(delta, by_short(short))
            except KeyError:
                continue
        return cls(delta, None)

    @property
    def method(self) -> str:
        prefix = "Delta" if self.delta else "Stream"
        if self.only is None:
            return f"/{ADS_SERVICE}/{prefix}AggregatedResources"
        return f"/{self.only.service}/{prefix}{self.only.method}"

    @property
    def response(self) -> Any:
        return discovery_pb2.DeltaDiscoveryResponse if self.delta else discovery_pb2.DiscoveryResponse


class Stream(Protocol):
    """One client stream."""

    kind: Kind

    async def send(self, message: Any) -> None: ...

    async def next(self, timeout_s: float) -> Any | End | None: ...

    async def close(self) -> None: ...


class World:
    """The resources of node n1, changed in atomic steps."""

    def __init__(self) -> None:
        self.cache = SnapshotCache()
        self.revisions: dict[str, dict[str, str]] = {}
        self.cache.set("nothing", {})

    def change(self, put: Mapping[str, Mapping[str, Any]], remove: Mapping[str, Any]) -> None:
        added: dict[str, dict[str, Any]] = {}
        removed: dict[str, list[str]] = {}
        for short, resources in put.items():
            rtype = type_of(short)
            mine = self.revisions.setdefault(rtype.type_url, {})
            for name, revision in (resources or {}).items():
                mine[str(name)] = str(revision)
                added.setdefault(rtype.type_url, {})[str(name)] = make(rtype, str(name), revision)
        for short, names in remove.items():
            rtype = type_of(short)
            for name in [names] if isinstance(names, str) else list(names):
                self.revisions.get(rtype.type_url, {}).pop(str(name), None)
                removed.setdefault(rtype.type_url, []).append(str(name))
        self.cache.update(GROUP, added, removed)


class CoreBackend:
    """The state machines alone. Time passes only while a case waits."""

    name = "core"
    exact = True

    def __init__(self, world: World) -> None:
        self.world = world
        self.now = 0.0
        self._ids = itertools.count(1)
        self._streams: set[CoreStream] = set()

    async def start(self) -> None:
        self.world.cache.listen(self._changed)

    async def stop(self) -> None:
        self._streams.clear()

    async def open(self, kind: Kind) -> Stream:
        stream = CoreStream(self, kind, f"s{next(self._ids)}.")
        self._streams.add(stream)
        return stream

    def _changed(self, group: str, view: Any) -> None:
        for stream in self._streams:
            if stream.group == group:
                stream.state.view = view

    def forget(self, stream: CoreStream) -> None:
        self._streams.discard(stream)


class CoreStream:
    STEP_S = 0.05

    def __init__(self, backend: CoreBackend, kind: Kind, prefix: str) -> None:
        self.kind = kind
        self.state = StreamState(delta=kind.delta, only=kind.only, prefix=prefix)
        self.group: str | None = None
        self._backend = backend
        self._encoder = Encoder("core")
        self._end: End | None = None

    async def send(self, message: Any) -> None:
        if self._end is not None:
            return
        message = type(message).FromString(message.SerializeToString())
        try:
            if not self.state.opened:
                self.group = _GROUP_OF(open_stream(self.state, message))
                self.state.view = self._backend.world.cache.group(self.group)
                if self.state.view is None:
                    raise StreamEnd("UNAVAILABLE", "no snapshot")
            take_request(self.state, message, self._backend.now)
        except StreamEnd as end:
            self._end = End(end.status, str(end))

    async def next(self, timeout_s: float) -> Any | End | None:
        deadline = self._backend.now + timeout_s
        while True:
            if self._end is not None:
                return self._end
            reply = self.state.take(self._backend.now)
            if reply is not None:
                return self.kind.response.FromString(self._encoder.encode(reply))
            if self._backend.now >= deadline:
                return None
            self._backend.now = min(deadline, self._backend.now + self.STEP_S)

    async def close(self) -> None:
        self._backend.forget(self)


class GrpcBackend:
    """A server on a loopback port and one channel to it."""

    name = "grpc"
    exact = False

    def __init__(self, world: World) -> None:
        self.world = world
        self.server = XdsServer(world.cache, node_group=_GROUP_OF)
        self._channel: grpc.aio.Channel | None = None

    async def start(self) -> None:
        port = await self.server.start("127.0.0.1:0")
        self._channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.use_local_subchannel_pool", 1)])

    async def stop(self) -> None:
        if self._channel is not None:
            await self._channel.close()
        await self.server.stop(1)

    async def open(self, kind: Kind) -> Stream:
        assert self._channel is not None
        call: Any = self._channel.stream_stream(
            kind.method,
            request_serializer=lambda m: m.SerializeToString(),
            response_deserializer=kind.response.FromString,
        )()
        return GrpcStream(kind, call)


class GrpcStream:
    def __init__(self, kind: Kind, call: Any) -> None:
        self.kind = kind
        self._call = call
        self._reading: asyncio.Task[Any] | None = None

    async def send(self, message: Any) -> None:
        try:
            await self._call.write(message)
        except (grpc.RpcError, asyncio.InvalidStateError):
            return  # the server has ended the stream: `next` tells how

    async def next(self, timeout_s: float) -> Any | End | None:
        if self._reading is None:
            self._reading = asyncio.create_task(self._read())
        done, _ = await asyncio.wait({self._reading}, timeout=timeout_s)
        if not done:
            return None
        task, self._reading = self._reading, None
        return task.result()

    async def _read(self) -> Any | End:
        try:
            message = await self._call.read()
        except grpc.aio.AioRpcError as problem:
            return End(problem.code().name, problem.details() or "")
        if message is grpc.aio.EOF:
            code = await self._call.code()
            return End(code.name, await self._call.details() or "")
        return message

    async def close(self) -> None:
        self._call.cancel()
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
