"""The gRPC server: aggregated and per-type discovery, client status, load reports."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any, Final

import grpc
import structlog
from envoy.service.discovery.v3 import discovery_pb2

from xds_control.errors import ConfigError
from xds_control.observe.readable import ReadableMessages
from xds_control.policy.xds import XdsPolicy
from xds_control.xds.cache import SnapshotCache
from xds_control.xds.clients import ClientStatus
from xds_control.xds.describe import add_reflection
from xds_control.xds.encode import Encoder
from xds_control.xds.errors import StreamEnd
from xds_control.xds.groups import Node, NodeGroup, one_group
from xds_control.xds.security import TokenCheck, TokenFile, check_exposure, server_credentials
from xds_control.xds.services import CSDS_SERVICE, LRS_SERVICE, OnLoad, client_status_handler, load_report_handler
from xds_control.xds.session import Session
from xds_control.xds.stats import ServerStats
from xds_control.xds.stream import Limits, Nack, StreamState
from xds_control.xds.types import CDS, KNOWN, ResourceType
from xds_control.xds.view import GroupView

log = structlog.get_logger("xds_control.xds")

ADS_SERVICE: Final = "envoy.service.discovery.v3.AggregatedDiscoveryService"
CHECK_INTERVAL_S: Final = 1.0
_SIMPLE: Final = (f"/{LRS_SERVICE}/", f"/{CSDS_SERVICE}/", "/grpc.")

OnNack = Callable[[ClientStatus, Nack], None]
OnMissing = Callable[[str, str, list[str]], None]


class XdsServer:
    """Serves the groups of a cache.

    node_group: group of a node, by its message; default one group "". on_nack: called with every NACK.
    on_missing(group, type_url, names): called when a client asks for names that do not exist; it may put them into
    the cache at once. on_load: called with the rows of each load report. clock: monotonic seconds. wall: seconds
    since 1970.
    """

    def __init__(
        self,
        cache: SnapshotCache,
        options: XdsPolicy | None = None,
        node_group: NodeGroup = one_group,
        *,
        on_nack: OnNack | None = None,
        on_missing: OnMissing | None = None,
        on_load: OnLoad | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.cache = cache
        self.options = options or XdsPolicy()
        self.encoder = Encoder(self.options.identifier)
        self.stats = ServerStats()
        self._node_group = node_group
        self._on_nack = on_nack
        self._on_missing = on_missing
        self._on_load = on_load
        self._clock = clock
        self._wall = wall
        self._sessions: dict[str, Session] = {}
        self._lingering: set[str] = set()  # streams past their write deadline, until their last write ends
        self._by_group: dict[str, dict[str, Session]] = {}
        self._limits = Limits(
            order_wait_s=self.options.order_wait_s,
            max_names=self.options.max_names_per_stream,
            max_types=self.options.max_types_per_stream,
        )
        self._boot = secrets.token_hex(4)
        self._ids = itertools.count(1)
        self._random = random.Random()
        self._server: grpc.aio.Server | None = None
        self._checker: asyncio.Task[None] | None = None
        self._unlisten: Callable[[], None] | None = None
        self._stopping = False
        self._extra: list[grpc.GenericRpcHandler] = []

    # -- life -----------------------------------------------------------------------------------------------------

    def add_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """Other services on the same port. Call before `start`."""
        self._extra.extend(handlers)

    async def start(self, address: str) -> int:
        """Listens on `host:port` (port 0 = any free one) or `unix:path`; returns the port.

        Raises ConfigError when it cannot.
        """
        if self._server is not None:
            raise ConfigError("the xDS server has been started already")
        options = self.options
        check_exposure(address, options)
        guards: list[grpc.aio.ServerInterceptor] = []
        if options.token_file:
            guards.append(TokenCheck(TokenFile(options.token_file), self._unauthorised))
        guards.append(ReadableMessages("xds", _SIMPLE))  # the discovery services read for themselves
        server = grpc.aio.server(options=self._channel_arguments(), interceptors=guards)
        server.add_generic_rpc_handlers((*self.handlers(), *self._extra))
        if options.reflection:
            add_reflection(server, _service_names(options))
        try:
            if options.tls is not None:
                port = server.add_secure_port(address, server_credentials(options.tls))
            else:
                port = server.add_insecure_port(address)
        except RuntimeError as problem:
            raise ConfigError(f"cannot listen on {address}: {problem}") from None
        if port == 0 and not address.startswith("unix"):
            raise ConfigError(f"cannot listen on {address}")
        self._stopping = False
        self._server = server
        self._unlisten = self.cache.listen(self._changed)
        await server.start()
        self._checker = asyncio.create_task(self._check())
        log.info("xds.listening", address=address, port=port)
        return port

    async def stop(self, grace: float | None = None) -> None:
        """Ends all streams with UNAVAILABLE and stops; clients keep what they have and reconnect elsewhere."""
        self._stopping = True
        if self._unlisten is not None:
            self._unlisten()
        for session in tuple(self._sessions.values()):
            session.end("UNAVAILABLE", "the control plane is shutting down")
        if self._checker is not None:
            self._checker.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._checker
            self._checker = None
        if self._server is not None:
            await self._server.stop(grace)
            self._server = None

    def handlers(self) -> tuple[grpc.GenericRpcHandler, ...]:
        """All services as handlers, for a server of one's own."""
        made = [self._service(ADS_SERVICE, "AggregatedResources", None, sotw=True)]
        made += [self._service(t.service, t.method, t, sotw=t.sotw) for t in KNOWN if t.service]
        if self.options.client_status:
            made.append(client_status_handler(self._streams, self._to_wall))
        if self._on_load is not None and self.options.load_report_interval_s > 0:
            made.append(load_report_handler(self._on_load, self.options.load_report_interval_s, self._clusters_of))
        return tuple(made)

    def clients(self) -> list[ClientStatus]:
        """All streams that have said who they are."""
        now = self._clock()
        stuck = self.options.stuck_after_s
        return [s.status(now, stuck) for s in self._sessions.values() if s.group is not None]

    # -- what sessions call ---------------------------------------------------------------------------------------

    def admit(self, session: Session, node: Node) -> GroupView:
        """Places a client in its group. Raises StreamEnd when it cannot be served now."""
        try:
            group = self._node_group(node)
        except Exception:
            log.exception("xds.node_group_failed", node=node.id)
            raise StreamEnd("INVALID_ARGUMENT", f"no group could be told for node {node.id!r}") from None
        view = self.cache.group(group)
        if view is None:
            raise StreamEnd("UNAVAILABLE", "there is no snapshot for this node yet")
        session.group = group
        self._by_group.setdefault(group, {})[session.id] = session
        return view

    def nacked(self, session: Session, nack: Nack) -> None:
        self.stats.nacks[nack.type.short] += 1
        status = session.status(self._clock(), self.options.stuck_after_s)
        log.warning(
            "xds.nack",
            node=status.node_id,
            peer=status.peer,
            group=status.group,
            type=nack.type.short,
            version=nack.version,
            resources=list(nack.names[:20]),
            error=nack.message,
        )
        if self._on_nack is not None:
            with self._guarded("on_nack"):
                self._on_nack(status, nack)

    def wrote(self, session: Session, type_short: str, size: int) -> None:
        self.stats.responses[type_short] += 1
        self.stats.bytes_sent[type_short] += size

    def missing(self, session: Session, type_url: str, names: list[str]) -> None:
        if self._on_missing is not None and session.group is not None:
            with self._guarded("on_missing"):
                self._on_missing(session.group, type_url, names)

    def abandoned(self, session: Session) -> None:
        """It takes no bytes: nothing of it is kept but its message on the way, which still counts as a stream."""
        self._leave(session)
        self._lingering.add(session.id)
        self.stats.abandoned += 1
        log.warning("xds.write_deadline", client=session.id, peer=session.peer, node=session.node.id)

    # -- inside ---------------------------------------------------------------------------------------------------

    def _changed(self, group: str, view: GroupView | None) -> None:
        for session in tuple(self._by_group.get(group, {}).values()):
            if view is None:
                session.end("UNAVAILABLE", "this group has no snapshot any more")
            else:
                session.show(view)

    @contextlib.contextmanager
    def _guarded(self, what: str) -> Iterator[None]:
        """What fails in a function of the user's, or for one stream, must not end others."""
        try:
            yield
        except Exception:
            log.exception("xds.callback_failed", callback=what)

    def _streams(self) -> list[tuple[Node, StreamState]]:
        return [(s.node, s.state) for s in self._sessions.values() if s.group is not None]

    def _to_wall(self, monotonic: float) -> float:
        return self._wall() - (self._clock() - monotonic)

    def _clusters_of(self, node: Node) -> list[str]:
        view = self.cache.group(self._node_group(node))
        return [] if view is None else list(view[CDS.type_url].resources)

    def _unauthorised(self) -> None:
        self.stats.unauthorised += 1

    async def _check(self) -> None:
        while True:
            await asyncio.sleep(CHECK_INTERVAL_S)
            now = self._clock()
            for session in tuple(self._sessions.values()):
                with self._guarded("check"):
                    session.check(now, self.options.write_deadline_s, self.options.stuck_after_s)

    def _service(self, service: str, method: str, only: ResourceType | None, *, sotw: bool) -> grpc.GenericRpcHandler:
        methods: dict[str, Any] = {
            f"Delta{method}": grpc.stream_stream_rpc_method_handler(
                self._behaviour(True, only),
                request_deserializer=discovery_pb2.DeltaDiscoveryRequest.FromString,
            )
        }
        if sotw:
            methods[f"Stream{method}"] = grpc.stream_stream_rpc_method_handler(
                self._behaviour(False, only),
                request_deserializer=discovery_pb2.DiscoveryRequest.FromString,
            )
        return grpc.method_handlers_generic_handler(service, methods)

    def _behaviour(self, delta: bool, only: ResourceType | None) -> Any:
        async def serve(requests: AsyncIterator[Any], context: Any) -> None:
            await self._serve(context, delta, only)

        return serve

    async def _serve(self, context: Any, delta: bool, only: ResourceType | None) -> None:
        if self._stopping:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the control plane is shutting down")
        if len(self._sessions) + len(self._lingering) >= self.options.max_streams:
            self.stats.refused += 1
            await context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED, f"{self.options.max_streams} streams are served already"
            )
        number = f"{self._boot}-{next(self._ids)}"
        state = StreamState(delta=delta, only=only, prefix=f"{number}.", limits=self._limits)
        session = Session(
            self,
            state,
            context,
            id=number,
            peer=context.peer(),
            clock=self._clock,
            ends_at=self._end_of_age(),
            first_deadline=self.options.first_request_deadline_s,
        )
        self._sessions[number] = session
        self.stats.streams_opened += 1
        try:
            end = await session.run()
        finally:
            self._leave(session)
            self._lingering.discard(session.id)
        if end is not None:
            status, reason = end
            self.stats.ended[status] += 1
            log.info("xds.stream_ended", client=number, peer=session.peer, status=status, reason=reason)
            del session, state  # gRPC keeps the newest abort, and with it this frame
            if status != "OK":
                await context.abort(getattr(grpc.StatusCode, status), reason)

    def _leave(self, session: Session) -> None:
        self._sessions.pop(session.id, None)
        if session.group is not None:
            members = self._by_group.get(session.group)
            if members is not None:
                members.pop(session.id, None)
                if not members:
                    del self._by_group[session.group]

    def _end_of_age(self) -> float | None:
        age, jitter = self.options.max_connection_age_s, self.options.connection_age_jitter
        if age <= 0:
            return None
        return self._clock() + age * self._random.uniform(1 - jitter, 1 + jitter)

    def _channel_arguments(self) -> list[tuple[str, Any]]:
        o = self.options
        arguments: list[tuple[str, Any]] = [
            ("grpc.so_reuseport", 0),
            ("grpc.max_receive_message_length", o.max_request_bytes),
            ("grpc.max_send_message_length", -1),
            ("grpc.keepalive_time_ms", int(o.keepalive_time_s * 1000)),
            ("grpc.keepalive_timeout_ms", int(o.keepalive_timeout_s * 1000)),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.min_ping_interval_without_data_ms", 5000),
            ("grpc.http2.max_ping_strikes", 0),
            ("grpc.http2.max_pings_without_data", 0),
        ]
        if o.max_connection_age_s > 0:
            # gRPC spreads this by a tenth itself. It asks the client to connect anew before its stream is ended,
            # so that the next stream takes the new connection, perhaps to another replica.
            age = o.max_connection_age_s * (1 - o.connection_age_jitter) / 1.1
            grace = o.max_connection_age_s * 2 * o.connection_age_jitter + age * 0.21 + o.max_connection_age_grace_s
            arguments += [
                ("grpc.max_connection_age_ms", max(1, int(age * 1000))),
                ("grpc.max_connection_age_grace_ms", int(grace * 1000)),
            ]
        return arguments


def _service_names(options: XdsPolicy) -> list[str]:
    names = [ADS_SERVICE, *(t.service for t in KNOWN if t.service)]
    if options.client_status:
        names.append(CSDS_SERVICE)
    if options.load_report_interval_s > 0:
        names.append(LRS_SERVICE)
    return names
