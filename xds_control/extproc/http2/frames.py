"""HTTP/2 frames (RFC 9113): numbers, and the frames that a gRPC server writes."""

from __future__ import annotations

import struct
from typing import Final

from xds_control.extproc.http2.hpack import literal

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

DATA: Final = 0
HEADERS: Final = 1
PRIORITY: Final = 2
RST_STREAM: Final = 3
SETTINGS: Final = 4
PUSH_PROMISE: Final = 5
PING: Final = 6
GOAWAY: Final = 7
WINDOW_UPDATE: Final = 8
CONTINUATION: Final = 9

END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
WITH_PRIORITY: Final = 0x20

NO_ERROR: Final = 0
PROTOCOL_ERROR: Final = 1
FLOW_CONTROL_ERROR: Final = 3
STREAM_CLOSED: Final = 5
FRAME_SIZE_ERROR: Final = 6
REFUSED_STREAM: Final = 7
CANCEL: Final = 8
COMPRESSION_ERROR: Final = 9
ENHANCE_YOUR_CALM: Final = 11

SETTING_MAX_STREAMS: Final = 3
SETTING_INITIAL_WINDOW: Final = 4
SETTING_MAX_FRAME: Final = 5
SETTING_MAX_HEADER_LIST: Final = 6

DEFAULT_WINDOW: Final = 65_535
MAX_WINDOW: Final = (1 << 31) - 1
DEFAULT_FRAME: Final = 16_384
LARGEST_FRAME: Final = (1 << 24) - 1

# Length (24 bits as 8 and 16), type, flags, stream.
HEAD: Final = struct.Struct(">BHBBL")
HEAD_SIZE: Final = 9
_pack = HEAD.pack
_SETTING = struct.Struct(">HL").pack
_LONG = struct.Struct(">L").pack
_TWO_LONGS = struct.Struct(">LL").pack


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """One frame."""
    size = len(payload)
    return _pack(size >> 16, size & 0xFFFF, kind, flags, stream) + payload


def settings(values: dict[int, int]) -> bytes:
    """A SETTINGS frame."""
    return frame(SETTINGS, 0, 0, b"".join(_SETTING(name, value) for name, value in values.items()))


SETTINGS_ACK: Final = frame(SETTINGS, ACK, 0)


def window_update(stream: int, size: int) -> bytes:
    """A WINDOW_UPDATE frame."""
    return frame(WINDOW_UPDATE, 0, stream, _LONG(size))


def reset(stream: int, code: int) -> bytes:
    """A RST_STREAM frame."""
    return frame(RST_STREAM, 0, stream, _LONG(code))


def goaway(last_stream: int, code: int, why: bytes = b"") -> bytes:
    """A GOAWAY frame."""
    return frame(GOAWAY, 0, 0, _TWO_LONGS(last_stream, code) + why)


_RESPONSE_BLOCK = b"\x88" + literal(b"content-type", b"application/grpc")
_OK_BLOCK = literal(b"grpc-status", b"0")


def response_headers(stream: int) -> bytes:
    """The HEADERS frame that opens every gRPC answer."""
    return _pack(0, len(_RESPONSE_BLOCK), HEADERS, END_HEADERS, stream) + _RESPONSE_BLOCK


def ok_trailers(stream: int) -> bytes:
    """Trailers that end an answer with status OK."""
    return _pack(0, len(_OK_BLOCK), HEADERS, END_HEADERS | END_STREAM, stream) + _OK_BLOCK


def trailers(stream: int, status: int, message: str, opened: bool) -> bytes:
    """Trailers with any status; with the response headers in the same frame when the answer was not `opened`."""
    block = literal(b"grpc-status", str(status).encode())
    if message:
        block += literal(b"grpc-message", _percent(message))
    if not opened:
        block = _RESPONSE_BLOCK + block
    return frame(HEADERS, END_HEADERS | END_STREAM, stream, block)


def _percent(text: str) -> bytes:
    """A status message as gRPC encodes it: printable ASCII, the rest percent-encoded; bounded to fit one frame."""
    encoded = text.encode("utf-8", "replace")[:1024]
    return b"".join(bytes((byte,)) if 0x20 <= byte < 0x7F and byte != 0x25 else b"%%%02X" % byte for byte in encoded)
