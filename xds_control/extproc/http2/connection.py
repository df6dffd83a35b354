"""One HTTP/2 connection, server side, for gRPC: bytes in, calls to handlers, bytes out. No I/O.

It implements what RFC 9113 asks of a server, less push and priorities. Messages are cut out of DATA as they come, and
everything that one read brings is answered by one write: with many streams on a connection that is most of the saving.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from xds_control.extproc.http2 import frames
from xds_control.extproc.http2.hpack import Decoder, HpackError
from xds_control.extproc.http2.rpc import UNIMPLEMENTED, Fault, Handler, Held, Piece, Rpc

_head = frames.HEAD.unpack_from

_OPENS_AT_ONCE: Final = 500
_FRAME_MARGIN: Final = 512  # padding and priority of a HEADERS frame
_VIEW_BYTES: Final = 8192  # pieces of at least this size are not copied out of what was read

Acceptor = Callable[[Rpc, str, dict[str, str]], Handler | None]
"""Gives the handler for a new RPC by its path and metadata, None for an unknown method."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a peer may do.

    stream_window, connection_window: bytes that may be under way before we take them in. max_control: frames of one
    read that carry no request. max_header_block: bytes, also of the decoded list. max_held: bytes of messages that are
    not whole yet, all connections of a server together; the stream that goes beyond is ended.
    """

    max_message: int = 4 << 20
    max_streams: int = 40_000
    max_frame: int = 1 << 20
    stream_window: int = 1 << 20
    connection_window: int = 64 << 20
    max_header_block: int = 1 << 16
    max_control: int = 10_000
    max_held: int = 1 << 30


class Connection:
    """The connection. Feed received bytes to `receive`, then write what `take_output` gives; close when `finished`."""

    def __init__(self, acceptor: Acceptor, limits: Limits | None = None, held: Held | None = None) -> None:
        self.limits = limits or Limits()
        self.held = held or Held(self.limits.max_held)
        self.out: list[bytes] = []
        self.rpcs: dict[int, Rpc] = {}
        self.blocked: OrderedDict[int, None] = OrderedDict()
        """Streams that wait for window of the connection, the longest waiting first."""
        self.send_window = frames.DEFAULT_WINDOW
        self.peer_frame = frames.DEFAULT_FRAME
        self.finished = False
        self.more = False
        """Whether a part of what was received waits for the next call of `receive`, to let others have their turn."""
        self.draining = False
        self._acceptor = acceptor
        self._decoder = Decoder(self.limits.max_header_block)
        self._rest = b""
        self._opens = 0
        self.greeted = False
        self._last = 0
        self._peer_window = frames.DEFAULT_WINDOW
        self._consumed = 0
        self._data_left = 0
        self._data_rpc: Rpc | None = None
        self._data_ends = False
        self._block: tuple[int, int, list[bytes]] | None = None
        self._control = 0
        limits = self.limits
        self._largest_other = limits.max_header_block + _FRAME_MARGIN
        self.out.append(
            frames.settings(
                {
                    frames.SETTING_MAX_STREAMS: limits.max_streams,
                    frames.SETTING_INITIAL_WINDOW: limits.stream_window,
                    frames.SETTING_MAX_FRAME: limits.max_frame,
                    frames.SETTING_MAX_HEADER_LIST: limits.max_header_block,
                }
            )
        )
        self.out.append(frames.window_update(0, limits.connection_window - frames.DEFAULT_WINDOW))

    def receive(self, data: bytes) -> None:
        """Takes bytes off the wire. After a fault of the peer `finished` is set and GOAWAY is in the output.

        While `more` is set there is a part that waits: call it again, with b"", when others had their turn.
        """
        if self.finished:
            return
        self.more = False
        self._opens = 0
        try:
            self._receive(data)
        except Fault as fault:
            self._fail(fault.code, str(fault))
        except HpackError as error:
            self._fail(frames.COMPRESSION_ERROR, str(error))

    def take_output(self) -> bytes:
        """What must be written now, b"" when nothing."""
        if not self.out:
            return b""
        data = b"".join(self.out)
        self.out.clear()
        self._control = 0
        return data

    def drain(self) -> None:
        """Tells the peer to open no more streams here; `finished` is set once the open ones are over."""
        if not self.draining:
            self.draining = True
            self.out.append(frames.goaway(self._last, frames.NO_ERROR))
            self.finished = not self.rpcs

    def lost(self) -> None:
        """The connection is gone: every open RPC is over."""
        self.finished = True
        for rpc in list(self.rpcs.values()):
            rpc.drop()
        self.rpcs.clear()

    def forget(self, rpc: Rpc) -> None:
        """An RPC has been answered in full."""
        self.rpcs.pop(rpc.stream, None)
        self.blocked.pop(rpc.stream, None)
        rpc.drop()
        if self.draining and not self.rpcs:
            self.finished = True

    def _fail(self, code: int, why: str) -> None:
        self.out.append(frames.goaway(self._last, code, why.encode()))
        self.lost()

    def _receive(self, data: bytes) -> None:
        if self._rest:
            data = self._rest + data
            self._rest = b""
        at, end = 0, len(data)
        if not self.greeted:
            size = len(frames.PREFACE)
            if data[:size] != frames.PREFACE[:end]:
                raise Fault(frames.PROTOCOL_ERROR, "not an HTTP/2 client")
            if end < size:
                self._rest = data
                return
            self.greeted = True
            at = size
        limit = self.limits.max_frame
        while True:
            if self._data_left:
                stop = min(at + self._data_left, end)
                piece: Piece = data[at:stop] if stop - at < _VIEW_BYTES else memoryview(data)[at:stop]
                self._data_left -= stop - at
                at = stop
                self._take_data(piece)
                if self._data_left:
                    return
            if end - at < frames.HEAD_SIZE:
                break
            high, low, kind, flags, stream = _head(data, at)
            size = high << 16 | low
            if size > limit:
                raise Fault(frames.FRAME_SIZE_ERROR, "frame larger than allowed")
            if size > self._largest_other and kind != frames.DATA:
                raise Fault(frames.ENHANCE_YOUR_CALM, "frame larger than one of its kind can be")
            start = at + frames.HEAD_SIZE
            if kind == frames.DATA and not flags & frames.PADDED and self._block is None:
                # Taken as it comes, without waiting for the rest of a large frame.
                at = start
                self._start_data(stream, size, bool(flags & frames.END_STREAM))
                continue
            if end - start < size:
                break
            at = start + size
            self._frame(kind, flags, stream & frames.MAX_WINDOW, data[start:at])
            if self.finished:
                return
            if self._opens >= _OPENS_AT_ONCE:
                self.more = at < end
                break
        if at < end:
            self._rest = data[at:]

    def _frame(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if self._block is not None and (kind != frames.CONTINUATION or stream != self._block[0]):
            raise Fault(frames.PROTOCOL_ERROR, "header block interrupted")
        handler = _FRAMES.get(kind)
        if handler is not None:
            handler(self, flags, stream, payload)

    # Data

    def _start_data(self, stream: int, size: int, ends: bool) -> None:
        stream &= frames.MAX_WINDOW
        rpc = self.rpcs.get(stream)
        if rpc is None:
            if stream == 0 or stream > self._last:
                raise Fault(frames.PROTOCOL_ERROR, "data on an idle stream")
        elif rpc.is_half_closed:
            raise Fault(frames.STREAM_CLOSED, "data after the end of the stream")
        self._data_rpc, self._data_left, self._data_ends = rpc, size, ends
        self._consumed += size
        if self._consumed > self.limits.connection_window >> 1:
            self.out.append(frames.window_update(0, self._consumed))
            self._consumed = 0
        if rpc is not None:
            if size:
                if rpc.gives_window:
                    rpc.consumed(size)
            elif ends:
                rpc.ended()
            else:
                self._controlled()

    def _take_data(self, piece: Piece) -> None:
        rpc = self._data_rpc
        if rpc is None or rpc.is_closed:
            return
        if piece:
            rpc.data(piece)
        if not self._data_left and self._data_ends and not rpc.is_closed:
            rpc.ended()

    def _padded_data(self, flags: int, stream: int, payload: bytes) -> None:
        body = _unpadded(flags, payload)
        self._start_data(stream, len(body), bool(flags & frames.END_STREAM))
        padding = len(payload) - len(body)
        self._consumed += padding
        if self._data_rpc is not None:
            self._data_rpc.consumed(padding)  # whoever takes the messages does not know of it
        if body:
            self._data_left = 0
            self._take_data(body)

    # Headers

    def _headers(self, flags: int, stream: int, payload: bytes) -> None:
        if stream & 1 == 0:
            raise Fault(frames.PROTOCOL_ERROR, "headers on a stream that a client cannot open")
        payload = _unpadded(flags, payload)
        if flags & frames.WITH_PRIORITY:
            payload = payload[5:]
        if flags & frames.END_HEADERS:
            self._header_block(flags, stream, payload)
        else:
            self._block = (stream, flags, [payload])

    def _continuation(self, flags: int, stream: int, payload: bytes) -> None:
        if self._block is None:
            raise Fault(frames.PROTOCOL_ERROR, "continuation without headers")
        _, first_flags, parts = self._block
        parts.append(payload)
        if sum(map(len, parts)) > self.limits.max_header_block or len(parts) > 64:
            raise Fault(frames.ENHANCE_YOUR_CALM, "header block too large")
        if flags & frames.END_HEADERS:
            self._block = None
            self._header_block(first_flags, stream, b"".join(parts))

    def _header_block(self, flags: int, stream: int, block: bytes) -> None:
        headers = self._decoder.decode(block)
        rpc = self.rpcs.get(stream)
        if rpc is not None:
            # Trailers of the client; gRPC has none, but they end its side.
            if not flags & frames.END_STREAM or rpc.is_half_closed:
                raise Fault(frames.PROTOCOL_ERROR, "headers came twice")
            rpc.ended()
            return
        if stream <= self._last:
            return  # trailers of a stream that is over here
        self._last = stream
        if self.draining or len(self.rpcs) >= self.limits.max_streams:
            self.out.append(frames.reset(stream, frames.REFUSED_STREAM))
            self._controlled()
            return
        self._open(stream, headers, bool(flags & frames.END_STREAM))

    def _open(self, stream: int, headers: list[tuple[bytes, bytes]], ends: bool) -> None:
        metadata = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}
        rpc = Rpc(self, stream, self._peer_window)
        self._opens += 1
        self.rpcs[stream] = rpc
        if metadata.get(":method") != "POST" or not metadata.get("content-type", "").startswith("application/grpc"):
            self.out.append(frames.frame(frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, stream, _NOT_GRPC))
            self.forget(rpc)
            return
        handler = self._acceptor(rpc, metadata.get(":path", ""), metadata)
        if rpc.is_closed:
            return
        if handler is None:
            rpc.finish(UNIMPLEMENTED, "unknown method")
            return
        rpc.handler = handler
        if ends:
            rpc.ended()

    # Control

    def _controlled(self) -> None:
        """Bounds what a peer can make us do without sending requests."""
        self._control += 1
        if self._control > self.limits.max_control:
            raise Fault(frames.ENHANCE_YOUR_CALM, "too many control frames")

    def _reset(self, flags: int, stream: int, payload: bytes) -> None:
        if len(payload) != 4 or stream == 0 or stream > self._last:
            raise Fault(frames.PROTOCOL_ERROR, "reset of an idle stream")
        rpc = self.rpcs.pop(stream, None)
        if rpc is None:
            return
        self._controlled()
        self.blocked.pop(stream, None)
        rpc.drop()
        if self.draining and not self.rpcs:
            self.finished = True

    def _settings(self, flags: int, stream: int, payload: bytes) -> None:
        if stream or len(payload) % 6 or (flags & frames.ACK and payload):
            raise Fault(frames.FRAME_SIZE_ERROR, "malformed settings")
        if flags & frames.ACK:
            return
        self._controlled()
        for at in range(0, len(payload), 6):
            name = int.from_bytes(payload[at : at + 2], "big")
            value = int.from_bytes(payload[at + 2 : at + 6], "big")
            if name == frames.SETTING_INITIAL_WINDOW:
                if value > frames.MAX_WINDOW:
                    raise Fault(frames.FLOW_CONTROL_ERROR, "initial window too large")
                self._control += len(self.rpcs) >> 6  # it is work for every stream
                self._controlled()
                for rpc in self.rpcs.values():
                    rpc.grow(value - self._peer_window)
                self._peer_window = value
            elif name == frames.SETTING_MAX_FRAME:
                if not frames.DEFAULT_FRAME <= value <= frames.LARGEST_FRAME:
                    raise Fault(frames.PROTOCOL_ERROR, "frame size out of range")
                self.peer_frame = value
        self.out.append(frames.SETTINGS_ACK)
        for rpc in list(self.rpcs.values()):
            rpc.flush()

    def _ping(self, flags: int, stream: int, payload: bytes) -> None:
        if stream or len(payload) != 8:
            raise Fault(frames.FRAME_SIZE_ERROR, "malformed ping")
        if not flags & frames.ACK:
            self._controlled()
            self.out.append(frames.frame(frames.PING, frames.ACK, 0, payload))

    def _window_update(self, flags: int, stream: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise Fault(frames.FRAME_SIZE_ERROR, "malformed window update")
        delta = int.from_bytes(payload, "big") & frames.MAX_WINDOW
        if stream == 0:
            if not delta:
                raise Fault(frames.PROTOCOL_ERROR, "window update of 0")
            self.send_window += delta
            if self.send_window > frames.MAX_WINDOW:
                raise Fault(frames.FLOW_CONTROL_ERROR, "connection window too large")
            self._unblock()
            return
        if stream > self._last:
            raise Fault(frames.PROTOCOL_ERROR, "window update of an idle stream")
        rpc = self.rpcs.get(stream)
        if rpc is None:
            return
        if not delta:
            raise Fault(frames.PROTOCOL_ERROR, "window update of 0")
        rpc.grow(delta)
        rpc.flush()

    def _unblock(self) -> None:
        while self.blocked and self.send_window > 0:
            rpc = self.rpcs.get(self.blocked.popitem(last=False)[0])
            if rpc is not None:
                rpc.flush()  # waits again when there was too little

    def _goaway(self, flags: int, stream: int, payload: bytes) -> None:
        self.draining = True
        if not self.rpcs:
            self.finished = True

    def _no_push(self, flags: int, stream: int, payload: bytes) -> None:
        raise Fault(frames.PROTOCOL_ERROR, "a client cannot push")

    def _priority(self, flags: int, stream: int, payload: bytes) -> None:
        self._controlled()


def _unpadded(flags: int, payload: bytes) -> bytes:
    if not flags & frames.PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise Fault(frames.PROTOCOL_ERROR, "padding larger than the frame")
    return payload[1 : len(payload) - payload[0]]


_NOT_GRPC = b"\x08\x03415"  # :status 415, literal with indexed name

_FRAMES: dict[int, Callable[[Connection, int, int, bytes], None]] = {
    frames.DATA: Connection._padded_data,
    frames.HEADERS: Connection._headers,
    frames.PRIORITY: Connection._priority,
    frames.RST_STREAM: Connection._reset,
    frames.SETTINGS: Connection._settings,
    frames.PUSH_PROMISE: Connection._no_push,
    frames.PING: Connection._ping,
    frames.GOAWAY: Connection._goaway,
    frames.WINDOW_UPDATE: Connection._window_update,
    frames.CONTINUATION: Connection._continuation,
}
