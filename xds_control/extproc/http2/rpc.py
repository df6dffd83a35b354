"""One RPC on a stream: cuts messages out of its data, and writes answers within the peer's flow control. No I/O."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

from xds_control.extproc.http2 import frames
from xds_control.extproc.http2.pieces import Kept, handed_over, keep

if TYPE_CHECKING:
    from xds_control.extproc.http2.connection import Connection

_pack_head = frames.HEAD.pack
_PREFIX: Final = 5  # of a gRPC message: compressed flag, length

OK, CANCELLED, INVALID_ARGUMENT = 0, 1, 3
RESOURCE_EXHAUSTED, UNIMPLEMENTED, INTERNAL, UNAVAILABLE = 8, 12, 13, 14


Piece = bytes | memoryview


class Handler(Protocol):
    """Serves one RPC."""

    def message(self, data: bytes) -> None:
        """A whole request message arrived."""
        ...

    def parts(self, parts: list[Piece]) -> None:
        """A whole request message arrived in pieces; called instead of `message` where the RPC `takes_parts`."""
        ...

    def half_closed(self) -> None:
        """The client sends no more messages."""
        ...

    def closed(self) -> None:
        """The RPC is over: finished by us, reset by the client, or its connection was lost. Called once."""
        ...


class Fault(Exception):
    """The connection must be closed."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(why)
        self.code = code


class Held:
    """Bytes of messages that are not whole yet, of all connections of a server; limit: most of them."""

    __slots__ = ("bytes", "limit")

    def __init__(self, limit: int = 1 << 40) -> None:
        self.bytes = 0
        self.limit = limit


class Rpc:
    """One RPC: cuts messages out of the stream's data, and writes answers within the peer's flow control."""

    __slots__ = (
        "_chunks",
        "_connection",
        "_consumed",
        "_have",
        "_need",
        "_opened",
        "_pending",
        "_prefix",
        "_status",
        "_window",
        "gives_window",
        "handler",
        "is_closed",
        "is_half_closed",
        "stream",
        "takes_parts",
    )

    def __init__(self, connection: Connection, stream: int, window: int) -> None:
        self._connection = connection
        self._chunks: list[Kept] = []
        self._prefix = b""
        self._have = 0
        self._need = -1
        self._consumed = 0
        self._window = window
        self._pending: deque[bytes] | None = None
        self._status: tuple[int, str] | None = None
        self._opened = False
        self.stream = stream
        self.handler: Handler | None = None
        self.gives_window = True
        """False: the handler calls `consumed` itself, as it takes messages, so that a slow one slows its peer."""
        self.takes_parts = False
        """True: messages that came in pieces are handed over as pieces."""
        self.is_half_closed = False
        self.is_closed = False

    def send(self, message: bytes) -> None:
        """Sends a message; one that does not fit the flow-control windows waits."""
        if self.is_closed or self._status is not None:
            return
        connection = self._connection
        size = len(message) + _PREFIX
        out = connection.out
        if not self._opened:
            self._opened = True
            out.append(frames.response_headers(self.stream))
        fits = size <= self._window and size <= connection.send_window and size <= connection.peer_frame
        if fits and self._pending is None:
            self._window -= size
            connection.send_window -= size
            out.append(_pack_head(size >> 16, size & 0xFFFF, frames.DATA, 0, self.stream))
            out.append(b"\x00" + len(message).to_bytes(4, "big"))
            out.append(message)
            return
        if self._pending is None:
            self._pending = deque()
        self._pending.append(b"\x00" + len(message).to_bytes(4, "big") + message)
        self.flush()

    def finish(self, status: int = OK, message: str = "") -> None:
        """Ends the RPC with a status, after what still waits to be sent."""
        if self.is_closed or self._status is not None:
            return
        self._status = (status, message)
        if self._pending is None:
            self._end()

    def flush(self) -> None:
        """Sends what waits, as far as the windows allow."""
        pending, connection = self._pending, self._connection
        if pending is None:
            return
        while pending:
            chunk = pending[0]
            room = min(self._window, connection.send_window, connection.peer_frame)
            if room <= 0:
                if self._window > 0:
                    connection.blocked[self.stream] = None
                return
            if len(chunk) <= room:
                pending.popleft()
            else:
                pending[0], chunk = chunk[room:], chunk[:room]
            self._window -= len(chunk)
            connection.send_window -= len(chunk)
            connection.out.append(frames.frame(frames.DATA, 0, self.stream, chunk))
        self._pending = None
        connection.blocked.pop(self.stream, None)
        if self._status is not None and not self.is_closed:
            self._end()

    @property
    def waiting_bytes(self) -> int:
        """Bytes that flow control holds back."""
        return sum(map(len, self._pending)) if self._pending else 0

    def _end(self) -> None:
        assert self._status is not None
        status, message = self._status
        out = self._connection.out
        if status == OK and self._opened:
            out.append(frames.ok_trailers(self.stream))
        else:
            out.append(frames.trailers(self.stream, status, message, self._opened))
        if not self.is_half_closed:
            # The answer is complete; the peer need not send the rest (RFC 9113 section 8.1).
            out.append(frames.reset(self.stream, frames.NO_ERROR))
        self._connection.forget(self)

    def grow(self, delta: int) -> None:
        """The peer gives (or by new settings takes back) send window."""
        self._window += delta
        if self._window > frames.MAX_WINDOW:
            raise Fault(frames.FLOW_CONTROL_ERROR, "stream window too large")

    def data(self, chunk: Piece) -> None:
        """A piece of the stream's data; hands over every message that it completes. Nothing is taken after `finish`."""
        while self._status is None:
            if self._need < 0:
                # Between messages; the prefix may itself come in pieces.
                if self._prefix:
                    chunk, self._prefix = self._prefix + bytes(chunk), b""
                if len(chunk) < _PREFIX:
                    self._prefix = bytes(chunk)
                    return
                size = int.from_bytes(chunk[1:_PREFIX], "big")
                if chunk[0]:
                    self.finish(UNIMPLEMENTED, "compressed messages are not supported")
                    return
                limit = self._connection.limits.max_message
                if size > limit:
                    self.finish(RESOURCE_EXHAUSTED, f"message of {size} bytes exceeds the limit of {limit}")
                    return
                self._need, self._have = size, 0
                chunk = chunk[_PREFIX:]
            size, missing = len(chunk), self._need - self._have
            if size < missing:
                if size:
                    self._keep(chunk, size)
                return
            if size == missing:
                self._deliver(chunk)
                return
            self._deliver(chunk[:missing])
            if self.is_closed:
                return
            chunk = chunk[missing:]

    def _keep(self, chunk: Piece, size: int) -> None:
        """A piece of a message that is not whole."""
        held = self._connection.held
        self._have += size
        held.bytes += size
        if held.bytes > held.limit:
            self.finish(RESOURCE_EXHAUSTED, f"more than {held.limit} bytes of messages are under way")
            return
        keep(self._chunks, chunk)

    def _let_go(self) -> None:
        """Nothing is kept any more of a message that was not whole."""
        if self._chunks or self._have:
            self._connection.held.bytes -= self._have
            self._chunks, self._have = [], 0

    def _deliver(self, last: Piece) -> None:
        """The message is whole with this piece."""
        chunks, handler = self._chunks, self.handler
        assert handler is not None
        self._need = -1
        if not chunks:
            handler.message(bytes(last))
            return
        self._let_go()
        chunks.append(last)
        if self.takes_parts:
            handler.parts(handed_over(chunks))
        else:
            handler.message(b"".join(chunks))

    def ended(self) -> None:
        """The client ended its side."""
        self.is_half_closed = True
        if self._need >= 0 or self._prefix:
            self.finish(INTERNAL, "the stream ended inside a message")
        elif self.handler is not None:
            self.handler.half_closed()

    def consumed(self, size: int) -> None:
        """Counts received bytes and gives the window back in large steps."""
        self._consumed += size
        if self._consumed > self._connection.limits.stream_window >> 1 and not self.is_half_closed:
            self._connection.out.append(frames.window_update(self.stream, self._consumed))
            self._consumed = 0

    def drop(self) -> None:
        """The stream is gone without our doing."""
        self._pending = None
        self._let_go()
        if not self.is_closed:
            self.is_closed = True
            handler, self.handler = self.handler, None  # no cycle is left for the collector
            if handler is not None:
                handler.closed()
