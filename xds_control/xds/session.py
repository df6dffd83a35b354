"""One discovery stream over gRPC: reads into the state machine, writes what it decides. The thin edge."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Protocol

import grpc
import structlog
from google.protobuf.message import DecodeError

from xds_control.xds.clients import ClientStatus, type_statuses
from xds_control.xds.encode import Encoder
from xds_control.xds.errors import StreamEnd
from xds_control.xds.intake import open_stream, take_request
from xds_control.xds.stream import Nack, StreamState
from xds_control.xds.view import GroupView

log = structlog.get_logger("xds_control.xds")

Clock = Callable[[], float]


class Host(Protocol):
    """What a session needs of the server that it belongs to."""

    encoder: Encoder

    def admit(self, session: Session, node: Any) -> GroupView: ...

    def nacked(self, session: Session, nack: Nack) -> None: ...

    def wrote(self, session: Session, type_short: str, size: int) -> None: ...

    def missing(self, session: Session, type_url: str, names: list[str]) -> None: ...

    def abandoned(self, session: Session) -> None: ...


class Session:
    """One stream. Its state has one owner: the event loop, between awaits.

    group: None until the first message. ends_at: when it is ended for its age, None = never.
    """

    def __init__(
        self,
        host: Host,
        state: StreamState,
        context: Any,
        *,
        id: str,
        peer: str,
        clock: Clock,
        ends_at: float | None,
        first_deadline: float,
    ) -> None:
        self.id = id
        self.state = state
        self.peer = peer
        self.opened_at = clock()
        self.group: str | None = None
        self.node: Any = None
        self.ends_at = ends_at
        self.writing_since: float | None = None
        self._stuck = False
        self._host = host
        self._context = context
        self._clock = clock
        self._wake = asyncio.Event()
        self._first_deadline = self.opened_at + first_deadline
        self._end: tuple[str, str] | None = None
        self._closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._reader: asyncio.Task[None] | None = None
        self._forgotten = False

    # -- called by the server -------------------------------------------------------------------------------------

    def show(self, view: GroupView) -> None:
        """The world has changed. Only the newest state is remembered."""
        self.state.view = view
        self._wake.set()

    def end(self, status: str, message: str) -> None:
        """Ends the stream as soon as the current write is done."""
        if self._end is None:
            self._end = (status, message)
        self._wake.set()

    def check(self, now: float, write_deadline: float, stuck_after: float) -> None:
        """Called now and then: enforces deadlines, and logs once when the client begins to be stuck.

        A write cannot be taken back: gRPC may then never tell the client that its stream has ended. So a client that
        takes no bytes is forgotten but for the one message on its way; it is told as soon as it has read that.
        """
        if self.writing_since is not None and now - self.writing_since > write_deadline:
            if self._end is None or not self._forgotten:
                self._forgotten = True
                self.end("DEADLINE_EXCEEDED", f"no bytes were taken for {write_deadline:g} s")
                if self._reader is not None:
                    self._reader.cancel()
                self._host.abandoned(self)
                self.state = StreamState(delta=self.state.delta, only=self.state.only)
        elif self.ends_at is not None and now >= self.ends_at:
            self.end("OK", "maximum age reached, connect again")
        elif not self.state.opened and now >= self._first_deadline:
            self.end("DEADLINE_EXCEEDED", "no request came after the stream was opened")
        stuck = self.waiting_s(now) > stuck_after
        if stuck and not self._stuck:
            log.warning("xds.stuck", client=self.id, peer=self.peer, waiting_s=round(self.waiting_s(now), 1))
        self._stuck = stuck

    def waiting_s(self, now: float) -> float:
        """Seconds for which the client has owed an answer, or has not taken the bytes of a response."""
        waits = [0.0 if self.writing_since is None else now - self.writing_since]
        for subscription in self.state.subscriptions:
            outstanding = subscription.progress.outstanding
            if outstanding is not None:
                waits.append(now - outstanding.sent_at)
        return max(waits)

    def status(self, now: float, stuck_after: float) -> ClientStatus:
        types = tuple(type_statuses(self.state, now))
        writing = 0.0 if self.writing_since is None else now - self.writing_since
        node = self.node
        return ClientStatus(
            id=self.id,
            peer=self.peer,
            node_id=node.id if node is not None else "",
            cluster=node.cluster if node is not None else "",
            group=self.group or "",
            user_agent=node.user_agent_name if node is not None else "",
            protocol="delta" if self.state.delta else "sotw",
            service=self.state.only.short if self.state.only is not None else "ADS",
            age_s=now - self.opened_at,
            writing_s=writing,
            stuck=self.waiting_s(now) > stuck_after,
            types=types,
        )

    # -- the stream itself ----------------------------------------------------------------------------------------

    async def run(self) -> tuple[str, str] | None:
        """Serves the stream until either side ends it; returns status and reason when it was this side."""
        reader = self._reader = asyncio.create_task(self._read())
        try:
            await self._write()
        finally:
            if self._timer is not None:
                self._timer.cancel()
            reader.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reader
        return self._end

    async def _read(self) -> None:
        try:
            while True:
                message = await self._context.read()
                if message is grpc.aio.EOF:
                    break
                self._take_request(message)
                self._wake.set()
        except StreamEnd as end:
            self.end(end.status, str(end))
        except (grpc.RpcError, grpc.aio.UsageError, grpc.aio.InternalError) as problem:
            log.debug("xds.read_failed", client=self.id, error=str(problem))
        except DecodeError:
            self.end("INVALID_ARGUMENT", "the request is no discovery request")
        except Exception:
            log.exception("xds.request_failed", client=self.id)
            self.end("INTERNAL", "the request could not be handled")
        finally:
            self._closed = True
            self._wake.set()

    def _take_request(self, message: Any) -> None:
        state = self.state
        if not state.opened:
            self.node = open_stream(state, message)
            state.view = self._host.admit(self, self.node)
        nack = take_request(state, message, self._clock())
        if nack is not None:
            self._host.nacked(self, nack)
        self._report_missing(message.type_url)

    def _report_missing(self, type_url: str) -> None:
        view = self.state.view
        rtype = self.state.type_of(type_url)
        subscription = self.state.subscription(rtype.type_url)
        if view is None or subscription is None or not subscription.asked:
            return
        known = view[rtype.type_url]
        missing = sorted(n for n in subscription.asked if n != "*" and known.resolve(n) is None)
        if missing:
            self._host.missing(self, rtype.type_url, missing)

    async def _write(self) -> None:
        encoder = self._host.encoder
        while not self._closed and self._end is None:
            self._wake.clear()
            reply = self.state.take(self._clock())
            if reply is None:
                self._set_timer()
                await self._wake.wait()
                continue
            data = encoder.encode(reply)
            self.writing_since = self._clock()
            size, short = len(data), reply.type.short
            writing = self._context.write(data)
            del data, reply  # a stuck write keeps its bytes, nothing else does
            await writing
            self.writing_since = None
            self._host.wrote(self, short, size)

    def _set_timer(self) -> None:
        at = self.state.wake_at()
        if self._timer is not None:
            if at == self._timer_at:
                return
            self._timer.cancel()
            self._timer = None
        if at is not None:
            self._timer_at = at
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(0.0, at - self._clock()), self._timer_fired)

    def _timer_fired(self) -> None:
        self._timer = None
        self._wake.set()
