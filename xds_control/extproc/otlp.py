"""Spans in the wire form of OTLP, written by hand (pure).

The packages of OTLP's generated code and of Envoy's put different files in the same places, so only one of them can be
installed; a span has few enough fields to do without both. Numbers are of opentelemetry/proto/trace/v1/trace.proto.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Final

from xds_control.proto.wire import header, varint

Value = str | bool | int | float

SERVER: Final = 2
_fixed64 = struct.Struct("<Q").pack
_double = struct.Struct("<d").pack
_fixed32 = struct.Struct("<I").pack
_REMOTE: Final = 0x300  # flags: whether the parent is remote is known, and it is


def _field(number: int, data: bytes) -> bytes:
    return header(number, len(data)) + data


def _text(number: int, text: str) -> bytes:
    return _field(number, text.encode("utf-8", "replace"))


def _attribute(name: str, value: Value) -> bytes:
    if isinstance(value, bool):
        data = b"\x10" + varint(value)
    elif isinstance(value, int):
        data = b"\x18" + varint(value & 0xFFFF_FFFF_FFFF_FFFF)
    elif isinstance(value, float):
        data = b"\x21" + _double(value)
    else:
        data = _text(1, value)
    return _text(1, name) + _field(2, data)


def span(
    trace_id: bytes,
    span_id: bytes,
    parent_id: bytes,
    trace_state: str,
    name: str,
    start_ns: int,
    end_ns: int,
    attributes: Mapping[str, Value],
    error: str = "",
) -> bytes:
    """One span. parent_id: b"" for the first of a trace. start_ns, end_ns: unix time. error: its code, "" when fine."""
    parts = [_field(1, trace_id), _field(2, span_id)]
    if trace_state:
        parts.append(_text(3, trace_state))
    if parent_id:
        parts.append(_field(4, parent_id))
    parts += [_text(5, name), b"\x30" + varint(SERVER), b"\x39" + _fixed64(start_ns), b"\x41" + _fixed64(end_ns)]
    parts += [_field(9, _attribute(key, value)) for key, value in attributes.items()]
    if error:
        parts.append(_field(15, _text(2, error) + b"\x18\x02"))
    parts.append(b"\x85\x01" + _fixed32(1 | (_REMOTE if parent_id else 0)))
    return b"".join(parts)


def resource(attributes: Mapping[str, Value]) -> bytes:
    """Who sends."""
    return b"".join(_field(1, _attribute(key, value)) for key, value in attributes.items())


def request(sender: bytes, scope: str, version: str, spans: Iterable[bytes]) -> bytes:
    """An ExportTraceServiceRequest. sender: from `resource`. spans: from `span`."""
    scoped = _field(1, _text(1, scope) + _text(2, version)) + b"".join(_field(2, one) for one in spans)
    return _field(1, _field(1, sender) + _field(2, scoped))
