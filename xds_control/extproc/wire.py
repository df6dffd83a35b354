"""Reads the one message that is large, a request body, without parsing it as a message: its bytes are copied once.

The wire form of ProcessingRequest{request_body: HttpBody{body, end_of_stream}} is a tag, a length, a tag, a length,
the body and perhaps two bytes more. With anything else in it these functions say None, and it is parsed as usual.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from xds_control.proto.wire import read_varint

Piece = bytes | memoryview

_REQUEST_BODY: Final = 0x22  # field 4, length-delimited
_BODY: Final = 0x0A  # field 1, length-delimited
_END_OF_STREAM: Final = b"\x10\x01"  # field 2, true
_VIEW_BYTES: Final = 8192  # pieces below are copied: cheaper than a view
_MOST_BEFORE: Final = 12  # two tags and two lengths of at most five bytes


def _frame(head: bytes, size: int) -> tuple[int, int, bool] | None:
    """(start of the body, its end, whether two bytes follow) in a message of `size` bytes that begins with `head`."""
    if not head or head[0] != _REQUEST_BODY:
        return None
    try:
        outer, at = read_varint(head, 1)
        if at + outer != size or at >= len(head) or head[at] != _BODY:
            return None
        inner, at = read_varint(head, at + 1)
    except ValueError:
        return None
    end = at + inner
    if end == size:
        return at, end, False
    return (at, end, True) if end + 2 == size else None


def body_of(message: bytes) -> tuple[list[Piece], bool] | None:
    """(body in pieces, end of stream) of a message that is nothing but a request body, else None."""
    found = _frame(message[:_MOST_BEFORE], len(message))
    if found is None:
        return None
    start, end, more = found
    if more and message[end:] != _END_OF_STREAM:
        return None
    return [message[start:end] if end - start < _VIEW_BYTES else memoryview(message)[start:end]], more


def body_of_parts(parts: list[Piece]) -> tuple[list[Piece], bool] | None:
    """The same for a message that came in pieces."""
    first, last = parts[0], parts[-1]
    if len(parts) < 2 or len(first) < _MOST_BEFORE or len(last) < len(_END_OF_STREAM):
        return None
    found = _frame(bytes(first[:_MOST_BEFORE]), sum(map(len, parts)))
    if found is None:
        return None
    start, _, more = found
    if more and last[-2:] != _END_OF_STREAM:
        return None
    pieces = [first[start:], *parts[1:]]
    if more:
        pieces[-1] = last[:-2]
    return pieces, more


def joined(pieces: Sequence[Piece | bytearray]) -> bytes:
    """The body as one piece of bytes."""
    only = pieces[0] if len(pieces) == 1 else b""
    return only if isinstance(only, bytes) and only else b"".join(pieces)
