"""Addresses as users write them: `ip:port`, `[v6]:port` or `host:port`."""

from __future__ import annotations

import ipaddress
import re

_HOST = re.compile(
    r"(?=.{1,253}\Z)[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?)*\Z"
)
_PORT = re.compile(r"[0-9]{1,5}\Z")
_IPV6 = re.compile(r"[0-9A-Fa-f:.]+(%[A-Za-z0-9._~-]+)?\Z")
_DOTTED_NUMBERS = re.compile(r"[0-9.]+\Z")


def split_address(text: str) -> tuple[str, int]:
    """(host, port) of an address; the host of an IPv6 address comes without brackets.

    Raises ValueError with a sentence that says what is wrong.
    """
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or not rest.startswith(":"):
            raise ValueError(f"address {text!r} is not [ipv6]:port")
        port_text = rest[1:]
        try:
            # `ipaddress` takes whatever stands behind a % as a scope, line ends too
            if ipaddress.ip_address(host).version != 6 or not _IPV6.match(host):
                raise ValueError
        except ValueError:
            raise ValueError(f"address {text!r}: {host!r} is not an IPv6 address") from None
    else:
        host, colon, port_text = text.rpartition(":")
        if not colon or not host:
            raise ValueError(f"address {text!r} is not host:port")
        if "://" in text:
            raise ValueError(f"address {text!r} is not host:port: leave out what is not host or port")
        if ":" in host:
            raise ValueError(f"address {text!r}: an IPv6 address is written in brackets, [addr]:port")
        if _DOTTED_NUMBERS.match(host):
            try:
                ipaddress.IPv4Address(host)
            except ValueError:
                raise ValueError(f"address {text!r}: {host!r} is not an IPv4 address") from None
        elif not _HOST.match(host):
            raise ValueError(f"address {text!r}: {host!r} is not a host name")
    if not _PORT.match(port_text) or not 1 <= int(port_text) <= 65535:
        raise ValueError(f"address {text!r}: port {port_text!r} is not a number from 1 to 65535")
    return host, int(port_text)


def join_address(host: str, port: int) -> str:
    """`host:port`, with brackets around IPv6."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_ip(host: str) -> bool:
    """Whether Envoy can dial this host without a name look-up."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def canonical_address(text: str) -> str:
    """The one spelling of an address (compressed IPv6, lower-case host); raises ValueError like split_address."""
    host, port = split_address(text)
    try:
        host = str(ipaddress.ip_address(host))
    except ValueError:
        host = host.lower()
    return join_address(host, port)


def check_listen(text: str, field: str) -> None:
    """Raises ValueError when `text` cannot be listened on: it has to be ip:port or [v6]:port."""
    host, _port = split_address(text)
    if not is_ip(host):
        raise ValueError(f"{field}: {text!r} has to be an IP address and a port, such as 127.0.0.1:8080")


def is_loopback(text: str) -> bool:
    """Whether an `ip:port` is reachable from this machine only."""
    host, _port = split_address(text)
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
