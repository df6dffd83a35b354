"""The few protobuf fields of a discovery response, written by hand so that opaque bodies are never copied or parsed.

Field numbers are those of envoy/service/discovery/v3/discovery.proto. In protobuf, concatenating serialised
messages merges them, so a response is a body shared by many clients plus each client's own nonce.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from xds_control.proto.wire import header, varint

RESOURCE_TYPE_URL: Final = "type.googleapis.com/envoy.service.discovery.v3.Resource"


def text(field: int, value: str) -> bytes:
    """A string field; nothing when empty."""
    if not value:
        return b""
    raw = value.encode()
    return header(field, len(raw)) + raw


@lru_cache(maxsize=256)
def _type_url(type_url: str) -> bytes:
    return text(1, type_url)


def any_field(field: int, type_url: str, body_length: int) -> bytes:
    """Everything of an Any field that comes before its body. The body must follow."""
    inner = _type_url(type_url) + (header(2, body_length) if body_length else b"")
    return header(field, len(inner) + body_length) + inner


def duration(field: int, seconds: float) -> bytes:
    """A google.protobuf.Duration field."""
    whole = int(seconds)
    nanos = round((seconds - whole) * 1e9)
    inner = (b"\x08" + varint(whole) if whole else b"") + (b"\x10" + varint(nanos) if nanos else b"")
    return header(field, len(inner)) + inner


def delta_resource_field(
    name: str, version: str, aliases: Iterable[str], ttl: float | None, type_url: str, body_length: int
) -> bytes:
    """A Resource entry (field 2 of DeltaDiscoveryResponse) up to its body, which must follow."""
    head = text(1, version) + text(3, name) + b"".join(text(4, a) for a in aliases)
    if ttl is not None:
        head += duration(6, ttl)
    head += any_field(2, type_url, body_length)
    return header(2, len(head) + body_length) + head


def delta_heartbeat_field(name: str, version: str, ttl: float) -> bytes:
    """A Resource entry without body: renews the TTL of what the client already holds."""
    inner = text(1, version) + text(3, name) + duration(6, ttl)
    return header(2, len(inner)) + inner


def ttl_any_field(name: str, version: str, ttl: float, type_url: str, body: bytes | None) -> bytes:
    """A `resources` entry of a state-of-the-world response, wrapped in a Resource to carry a TTL; None = heartbeat."""
    inner = text(1, version) + text(3, name) + duration(6, ttl)
    if body is not None:
        inner += any_field(2, type_url, len(body)) + body
    return any_field(2, RESOURCE_TYPE_URL, len(inner)) + inner
