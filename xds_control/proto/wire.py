"""Numbers of the protobuf wire form, for the few messages that are written or read by hand."""

from __future__ import annotations

from typing import Final

ONE_BYTE: Final = tuple(bytes((value,)) for value in range(0x80))
"""Varints of the numbers below 128."""


def varint(value: int) -> bytes:
    """Base-128 encoding of a non-negative integer."""
    if value < 0x80:
        return ONE_BYTE[value]
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def header(field: int, length: int) -> bytes:
    """Tag and length of a length-delimited field."""
    return varint(field << 3 | 2) + varint(length)


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """The varint at `at` and where it ends. ValueError when it is cut off or longer than ten bytes."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise ValueError("a number is cut off")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("a number has more than ten bytes")
