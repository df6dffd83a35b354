"""One resource: opaque bytes under a name, versioned by their content (pure)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import xxhash

from xds_control.xds.wire import any_field, delta_resource_field, ttl_any_field

STATE_MODULUS: Final = 1 << 128


def content_version(body: bytes, ttl: float | None = None, aliases: tuple[str, ...] = ()) -> str:
    """Version of a resource: a hash of its bytes (and of its TTL and aliases when it has them), 16 hex digits.

    Equal content has an equal version on every server and after every restart.
    """
    if ttl is None and not aliases:
        return xxhash.xxh3_64_hexdigest(body)
    extra = f"\0{ttl!r}\0{aliases!r}".encode()
    return xxhash.xxh3_64_hexdigest(body + extra)


class Resource:
    """An immutable resource as the cache holds and the server sends it.

    name: as clients ask for it. body: the serialised message, without its Any.
    version: hash of the content. ttl: seconds after which a client drops it unless renewed, None = never.
    aliases: further names that satisfy a subscription (delta only; used by VHDS).
    refs: names of dependent resources that a client fetches because of this one
    (the EDS name of a cluster, the RDS names of a listener).
    """

    __slots__ = (
        "__weakref__",
        "_delta",
        "_sotw",
        "aliases",
        "body",
        "name",
        "refs",
        "state",
        "ttl",
        "type_url",
        "version",
    )

    def __init__(
        self,
        type_url: str,
        name: str,
        body: bytes,
        *,
        ttl: float | None = None,
        aliases: Iterable[str] = (),
        refs: tuple[str, ...] = (),
        version: str | None = None,
    ) -> None:
        self.type_url = type_url
        self.name = name
        self.body = body
        self.ttl = ttl
        self.aliases = tuple(aliases)
        self.refs = refs
        self.version = content_version(body, ttl, self.aliases) if version is None else version
        # A type's state is the sum of these, so one changed resource costs one subtraction and one addition.
        self.state: int = xxhash.xxh3_128_intdigest(f"{name}\0{self.version}".encode())
        self._sotw: bytes | None = None
        self._delta: bytes | None = None

    def __repr__(self) -> str:
        return f"Resource({self.name!r}, version={self.version}, {len(self.body)} bytes)"

    def sotw_field(self, *, wrap_version: str | None = None) -> bytes:
        """This resource as one `resources` entry of a DiscoveryResponse.

        wrap_version: wrap it with its TTL (and this version) for clients that support that.
        """
        if wrap_version is not None and self.ttl is not None:
            return ttl_any_field(self.name, wrap_version, self.ttl, self.type_url, self.body)
        if self._sotw is None:
            self._sotw = any_field(2, self.type_url, len(self.body))
        return self._sotw + self.body

    def delta_field(self) -> bytes:
        """This resource as one `resources` entry of a DeltaDiscoveryResponse."""
        if self._delta is None:
            self._delta = delta_resource_field(
                self.name, self.version, self.aliases, self.ttl, self.type_url, len(self.body)
            )
        return self._delta + self.body
