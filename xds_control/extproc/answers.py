"""ProcessingResponses as bytes, written directly: the constant ones once, the others without message objects.

A response has some twenty headers and metadata values; building it from message objects costs more than inspecting a
small body. Field numbers are those of envoy/service/ext_proc/v3/external_processor.proto, and tests parse everything
that is written here with the real messages.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Final

from envoy.service.ext_proc.v3 import external_processor_pb2

from xds_control.extproc.decision import Decision, Immediate, clip
from xds_control.policy import headers as names
from xds_control.proto.wire import ONE_BYTE, varint

PIECE_BYTES: Final = 62_000
"""Largest piece of a streamed body. Envoy wants pieces under 64 KiB; peers use this size."""

_DOUBLE = struct.Struct("<d").pack


def delimited(tag: bytes, payload: bytes) -> bytes:
    """A length-delimited field; `tag` is the encoded field number and wire type."""
    size = len(payload)
    return tag + (ONE_BYTE[size] if size < 0x80 else varint(size)) + payload


# Tags: field number << 3 | wire type 2.
_F1, _F2, _F3, _F4, _F5, _F6, _F7, _F8 = (bytes((number << 3 | 2,)) for number in range(1, 9))
_TRUE_5: Final = b"\x28\x01"
_OVERWRITE: Final = b"\x18\x02"  # append_action: OVERWRITE_IF_EXISTS_OR_ADD

CONTINUE_REQUEST_HEADERS: Final = delimited(_F1, b"")
CONTINUE_RESPONSE_HEADERS: Final = delimited(_F2, b"")
CONTINUE_REQUEST_BODY: Final = delimited(_F3, b"")
CONTINUE_RESPONSE_BODY: Final = delimited(_F4, b"")
CONTINUE_REQUEST_TRAILERS: Final = delimited(_F5, b"")
CONTINUE_RESPONSE_TRAILERS: Final = delimited(_F6, b"")

_REMOVE_RESERVED: Final = b"".join(
    delimited(_F2, name.encode()) for name in (*names.RESERVED_REQUEST_HEADERS, *names.CONTROL_REQUEST_HEADERS)
)

STRIP_REQUEST_HEADERS: Final = delimited(_F1, delimited(_F1, delimited(_F2, _REMOVE_RESERVED)))
"""The answer to request headers whose body is still to come: reserved and control headers of the client go at once."""


@lru_cache(maxsize=256)
def _header_key(name: str) -> bytes:
    return delimited(_F1, name.encode())


def set_header(name: str, value: str) -> bytes:
    """A `set_headers` entry that overwrites."""
    key, text = _header_key(name), value.encode("utf-8", "replace")
    size = len(key) + len(text) + 2
    if size < 0x7C:
        # All four lengths fit one byte: option {header {key, raw_value}, append_action}.
        return b"\x0a%c\x0a%c%b\x1a%c%b\x18\x02" % (size + 4, size, key, len(text), text)
    return delimited(_F1, delimited(_F1, key + delimited(_F3, text)) + _OVERWRITE)


def header_mutation(set_headers: Mapping[str, str], remove: Iterable[bytes] = ()) -> bytes:
    """The HeaderMutation message: `remove` holds encoded `remove_headers` entries, which Envoy applies first."""
    return b"".join((*(set_header(name, value) for name, value in set_headers.items()), *remove))


def _entry(key: str, value: bytes) -> bytes:
    """An entry of Struct.fields; `value` is an encoded Value."""
    return delimited(_F1, delimited(_F1, key.encode()) + delimited(_F2, value))


def _text(key: str, value: str) -> bytes:
    return _entry(key, delimited(_F3, value.encode("utf-8", "replace")))


def _nested(key: str) -> Callable[[bytes], bytes]:
    """Writer of an entry whose value is a Struct, given the Struct's bytes."""
    name = delimited(_F1, key.encode())

    def write(fields: bytes) -> bytes:
        # Lengths as varints of two bytes each, which parsers take for small numbers too.
        size = len(fields)
        value, whole = size + 3, size + 6 + len(name)
        if whole >= 1 << 14:
            return _entry(key, delimited(_F5, fields))
        return b"\x0a%c%c%b\x12%c%c\x2a%c%c%b" % (
            *(whole & 0x7F | 0x80, whole >> 7, name),
            *(value & 0x7F | 0x80, value >> 7),
            *(size & 0x7F | 0x80, size >> 7, fields),
        )

    return write


@lru_cache(maxsize=1024)
def _number_head(key: str) -> bytes:
    """A number's entry without its last eight bytes, the number."""
    return _entry(key, b"\x11" + bytes(8))[:-8]


def struct_fields(values: Mapping[str, Any]) -> bytes:
    """A google.protobuf.Struct of texts, numbers and maps of these."""
    parts: list[bytes] = []
    for key, value in values.items():
        if isinstance(value, str):
            parts.append(_text(key, value))
        elif isinstance(value, Mapping):
            parts.append(_entry(key, delimited(_F5, struct_fields(value))))
        else:
            parts.append(_number_head(key) + _DOUBLE(value))
    return b"".join(parts)


# The namespace of the facts: texts that repeat from request to request are kept encoded together; the numbers have
# fixed places in a template; only the rest is put together each time. `Decision.facts_metadata` says the same as a map.
_TEXT_KEYS: Final = (
    names.META_PROCESSOR,
    names.META_POOL,
    names.META_MODEL,
    names.META_CLASS,
    names.META_TENANT,
    names.META_API,
    names.META_RULE,
    names.META_PICK,
)
_NUMBER_HEADS: Final = tuple(
    _number_head(key)
    for key in (
        names.META_PROMPT_BYTES,
        names.META_PROMPT_TOKENS_ESTIMATE,
        names.META_OUTPUT_TOKENS_ESTIMATE,
        names.META_MATCHED_TOKENS,
        names.META_TEXT_PROFILE,
        names.META_IMAGES,
    )
)
_H1, _H2, _H3, _H4, _H5, _H6 = _NUMBER_HEADS
_numbers = struct.Struct("<" + "".join(f"{len(head)}sd" for head in _NUMBER_HEADS)).pack
_SESSION_HEAD: Final = _text(names.META_SESSION, "0" * 16)[:-16]
_PREFIX_HEAD: Final = _text(names.META_PREFIX, "0" * 16)[:-16]


@lru_cache(maxsize=4096)
def _texts(*values: str) -> bytes:
    return b"".join(_text(key, value) for key, value in zip(_TEXT_KEYS, values, strict=True))


def _facts(decision: Decision) -> bytes:
    """The fields of `Decision.facts_metadata`."""
    facts = decision.facts
    destinations = decision.destinations
    out = (
        _texts(
            decision.processor,
            decision.pool,
            clip(decision.model),
            clip(decision.service_class),
            clip(decision.tenant),
            facts.api,
            decision.rule,
            destinations[0] if destinations else "",
        )
        + _text(names.META_ID, decision.id)
        + _numbers(
            *(_H1, facts.prompt_bytes, _H2, facts.prompt_tokens, _H3, facts.expected_output_tokens),
            *(_H4, decision.matched_tokens, _H5, facts.text_profile, _H6, facts.images),
        )
    )
    if facts.session_key:
        out += b"%b%016x" % (_SESSION_HEAD, facts.session_key)
    if facts.prefix_keys:
        out += b"%b%016x" % (_PREFIX_HEAD, facts.prefix_keys[-1])
    if decision.more_metadata:
        out += struct_fields(decision.more_metadata)
    return out


_write_facts = _nested(names.NAMESPACE)
_write_lb = _nested(names.LB_NAMESPACE)
_write_pick = lru_cache(maxsize=4096)(lambda destination: _write_lb(_text(names.DESTINATION, destination)))


def dynamic_metadata(decision: Decision) -> bytes:
    """The encoded `dynamic_metadata` field: `Decision.metadata` as a google.protobuf.Struct."""
    out = _write_facts(_facts(decision))
    if decision.destinations:
        if decision.scores is None:
            out += _write_pick(decision.destination)
        else:
            lb = {names.DESTINATION: decision.destination, names.DESTINATION_SCORES: decision.scores}
            out += _write_lb(struct_fields(lb))
    return delimited(_F8, out)


def _removals(decision: Decision, reserved: bool) -> list[bytes]:
    found = [delimited(_F2, name.encode()) for name in decision.drop_headers]
    if reserved:
        found.append(_REMOVE_RESERVED)
    return found


def _common(decision: Decision, reserved: bool, length: int | None, body: bytes | None) -> bytes:
    """A CommonResponse. `length`: content-length to set. `body`: the body mutation's bytes."""
    headers = decision.headers
    if length is not None:
        headers = {**headers, "content-length": str(length)}
    mutation = header_mutation(headers, _removals(decision, reserved))
    out = delimited(_F2, mutation) if mutation else b""
    if body is not None:
        out += delimited(_F3, delimited(_F1, body) if body else b"\x10\x01")  # an empty body is `clear_body`
    if decision.clear_route_cache:
        out += _TRUE_5
    return out


def headers_answer(decision: Decision, length: int | None = None) -> bytes:
    """The answer to request headers that carries the whole decision. `length`: content-length to set, if any."""
    return delimited(_F1, delimited(_F1, _common(decision, True, length, None))) + dynamic_metadata(decision)


def body_answer(decision: Decision) -> bytes:
    """The answer to a buffered body that carries the whole decision, with the new body when there is one."""
    body = decision.body
    length = None if body is None else len(body)
    return delimited(_F3, delimited(_F1, _common(decision, False, length, body))) + dynamic_metadata(decision)


def streamed_pieces(
    body: bytes | memoryview, end_of_stream: bool, response: bool = False, piece: int = PIECE_BYTES
) -> Iterator[bytes]:
    """A body as streamed pieces; the last has `end_of_stream`. An empty body is one empty piece when it ends there."""
    tag = _F4 if response else _F3
    view = memoryview(body)
    size = len(view)
    if not size:
        if end_of_stream:
            yield _piece(tag, b"", True)
        return
    for start in range(0, size, piece):
        yield _piece(tag, bytes(view[start : start + piece]), end_of_stream and start + piece >= size)


def _piece(tag: bytes, body: bytes, end_of_stream: bool) -> bytes:
    streamed = (delimited(_F1, body) if body else b"") + (b"\x10\x01" if end_of_stream else b"")
    return delimited(tag, delimited(_F1, delimited(_F3, delimited(_F3, streamed))))


def more_time(seconds: float) -> bytes:
    """Asks Envoy to wait that much longer for the answer to the message that it sent last."""
    message = external_processor_pb2.ProcessingResponse()
    message.override_message_timeout.FromNanoseconds(int(seconds * 1e9))
    found: bytes = message.SerializeToString()
    return found


def response_headers_answer(set_headers: Mapping[str, str]) -> bytes:
    """The answer to response headers, with headers to set on the way to the client."""
    if not set_headers:
        return CONTINUE_RESPONSE_HEADERS
    return delimited(_F2, delimited(_F1, delimited(_F2, header_mutation(set_headers))))


def immediate_answer(immediate: Immediate, decision: Decision | None = None) -> bytes:
    """An ImmediateResponse; the facts stay in the metadata so that the access log knows what was refused."""
    headers = {names.REASON: immediate.reason, **immediate.headers}
    message = (
        delimited(_F1, b"\x08" + varint(immediate.status))
        + delimited(_F2, header_mutation(headers))
        + delimited(_F3, immediate.body)
        + delimited(_F5, immediate.reason.encode())
    )
    return delimited(_F7, message) + (dynamic_metadata(decision) if decision is not None else b"")
