"""Replies as bytes: the part that clients share is made once, each adds its own nonce (pure)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

from xds_control.proto.wire import header
from xds_control.xds import wire
from xds_control.xds.plan import Reply


class Encoder:
    """Serialises replies, remembering the newest shared parts.

    identifier: name of this control plane as clients see it. max_bytes: bound on what is remembered.
    bodies: how many shared parts were made; hits: how often one was used again.
    """

    def __init__(self, identifier: str = "", *, max_entries: int = 64, max_bytes: int = 32 << 20) -> None:
        self._identifier = identifier
        self._cache: OrderedDict[Hashable, bytes] = OrderedDict()
        self._bytes = 0
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self.bodies = 0
        self.hits = 0

    def encode(self, reply: Reply) -> bytes:
        """The serialised DiscoveryResponse or DeltaDiscoveryResponse."""
        key = reply.key()
        body = self._cache.get(key)
        if body is None:
            self.bodies += 1
            body = self._delta(reply) if reply.delta else self._sotw(reply)
            self._remember(key, body)
        else:
            self.hits += 1
            self._cache.move_to_end(key)
        return body + wire.text(5, reply.nonce)

    def forget(self) -> None:
        """Frees everything that is remembered."""
        self._cache.clear()
        self._bytes = 0

    def _remember(self, key: Hashable, body: bytes) -> None:
        self._cache[key] = body
        self._bytes += len(body)
        while len(self._cache) > self._max_entries or (self._bytes > self._max_bytes and len(self._cache) > 1):
            _, old = self._cache.popitem(last=False)
            self._bytes -= len(old)

    def _sotw(self, reply: Reply) -> bytes:
        parts = [wire.text(1, reply.version)]
        parts += [r.sotw_field(wrap_version=reply.wrap_version) for r in reply.resources]
        wrap = reply.wrap_version or reply.version
        parts += [wire.ttl_any_field(r.name, wrap, r.ttl or 0.0, r.type_url, None) for r in reply.heartbeat]
        parts += [wire.text(4, reply.type.type_url), self._control_plane(6)]
        return b"".join(parts)

    def _delta(self, reply: Reply) -> bytes:
        parts = [wire.text(1, reply.version)]
        parts += [r.delta_field() for r in reply.resources]
        parts += [wire.delta_heartbeat_field(r.name, r.version, r.ttl or 0.0) for r in reply.heartbeat]
        parts += [wire.text(4, reply.type.type_url)]
        parts += [wire.text(6, name) for name in reply.removed]
        parts += [self._control_plane(7)]
        return b"".join(parts)

    def _control_plane(self, field: int) -> bytes:
        if not self._identifier:
            return b""
        inner = wire.text(1, self._identifier)
        return header(field, len(inner)) + inner
