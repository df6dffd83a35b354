"""Varints by hand against protobuf's own."""

from __future__ import annotations

import pytest
from google.protobuf.wrappers_pb2 import StringValue, UInt64Value
from hypothesis import given
from hypothesis import strategies as st

from xds_control.proto.wire import header, read_varint, varint


@given(st.one_of(st.integers(0, 2**64 - 1), st.integers(0, 63).map(lambda bits: 1 << bits)), st.binary(max_size=3))
def test_a_varint_is_protobufs_and_is_read_back(value: int, after: bytes) -> None:
    data = varint(value)
    assert UInt64Value.FromString(b"\x08" + data).value == value
    assert len(data) <= 10
    assert read_varint(b"\xff" + data + after, 1) == (value, 1 + len(data))
    with pytest.raises(ValueError, match="cut off"):
        read_varint(data[:-1], 0)


def test_a_varint_without_end_is_refused() -> None:
    assert read_varint(b"\x80" * 9 + b"\x00", 0) == (0, 10)
    with pytest.raises(ValueError, match="ten bytes"):
        read_varint(b"\x80" * 100, 0)


@given(st.text(max_size=300))
def test_a_header_comes_before_its_field(text: str) -> None:
    raw = text.encode()
    assert StringValue.FromString(header(1, len(raw)) + raw).value == text
