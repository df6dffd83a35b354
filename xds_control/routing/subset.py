"""Addresses and the data plane's subset hint."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence


def split_address(text: str) -> tuple[str, str]:
    """Host and port of `host:port`, `[v6]:port`, `host` or a bare `v6`; the port is "" when there is none."""
    text = text.strip()
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        return host.lower(), rest.removeprefix(":")
    if text.count(":") == 1:
        host, _, port = text.partition(":")
        return host.lower(), port
    return text.lower(), ""  # no port, or an IPv6 address without brackets


def join_address(host: str, port: int | str) -> str:
    """`host:port` with brackets around IPv6, as Envoy's override_host needs it."""
    bare = host.strip("[]")
    return f"[{bare}]:{port}" if ":" in bare else f"{bare}:{port}"


def parse_hint(value: object) -> tuple[str, ...] | None:
    """The hint as addresses. A list or a comma-separated string; entries that are not strings are left out.

    None when there is no hint at all; () when there is one that names nobody.
    """
    if value is None:
        return None
    if isinstance(value, str):
        return tuple(part for part in (item.strip() for item in value.split(",")) if part)
    if isinstance(value, Iterable) and not isinstance(value, bytes | Mapping):
        return tuple(item.strip() for item in value if isinstance(item, str) and item.strip())
    return ()


def resolve(hint: Sequence[str], known: Mapping[str, int], hosts: Mapping[str, int]) -> int:
    """Endpoints that the hint names, as bits. known: address → its bit; hosts: host → the bits of all its ports.

    `ip:port` names one endpoint; a bare `ip` names every port of it.
    """
    bits = 0
    for entry in hint:
        exact = known.get(entry)
        if exact is None:
            host, port = split_address(entry)
            exact = known.get(join_address(host, port), 0) if port else hosts.get(host, 0)
        bits |= exact
    return bits
