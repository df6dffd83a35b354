"""Reads protobuf messages by hand: only the fields that are asked for, without their schema."""

from __future__ import annotations

from collections.abc import Iterator

from xds_control.proto.wire import read_varint

_MOST_FIELDS = 1 << 17


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Field numbers and values of one message: varints as int, the rest as bytes. ValueError when it is damaged."""
    place = 0
    size = len(data)
    for _ in range(_MOST_FIELDS):
        if place >= size:
            return
        tag, place = read_varint(data, place)
        number, kind = tag >> 3, tag & 7
        if number == 0:
            raise ValueError("field number 0")
        if kind == 0:
            value, place = read_varint(data, place)
            yield number, value
            continue
        if kind == 2:
            length, place = read_varint(data, place)
        elif kind in (1, 5):
            length = 8 if kind == 1 else 4
        else:
            raise ValueError(f"wire type {kind}")
        if place + length > size:
            raise ValueError("a field is cut off")
        yield number, data[place : place + length]
        place += length
    raise ValueError("too many fields")


def packed_count(data: bytes) -> int:
    """How many varints a packed field holds: as many as there are bytes without the continuation bit."""
    return len(data.translate(None, _CONTINUED))


_CONTINUED = bytes(range(0x80, 0x100))
