"""Values of an access-log entry, bounded: whatever an engine or a client put there, the result is usable or None."""

from __future__ import annotations

from typing import Any, Final

MAX_STRING: Final = 256
NANO: Final = 1e-9
_MAX_NUMBER: Final = 1e9
_MAX_SECONDS: Final = 86_400.0
_MICRO: Final = 1e-6


def address(of: Any) -> str:
    """`ip:port`, IPv6 in brackets, or the path of a Unix socket; "" when there is none."""
    socket = of.socket_address
    host: str = socket.address
    if host:
        return f"[{host}]:{socket.port_value}" if ":" in host else f"{host}:{socket.port_value}"
    path: str = of.pipe.path
    return path


def text(value: Any) -> str:
    """A string in a metadata value, cut to a bounded length; "" for anything else."""
    if value is None:
        return ""
    found: str = value.string_value
    return found if len(found) <= MAX_STRING else found[:MAX_STRING]


def number(value: Any) -> int | None:
    """A count in a metadata value: a number, or a numeral in a string; None when it is neither or out of reason."""
    if value is None:
        return None
    found = value.number_value
    if found == 0.0 and value.string_value:
        return count(value.string_value)
    if not 0.0 <= found <= _MAX_NUMBER or not (found or value.WhichOneof("kind") == "number_value"):
        return None
    return int(found)


def integer(value: Any) -> int:
    """A whole number of up to 53 bits, 0 for anything else."""
    if value is None or value.WhichOneof("kind") != "number_value":
        return 0
    found = value.number_value
    return int(found) if 0 <= found < 2.0**53 and found == int(found) else 0


def count(numeral: str | None) -> int | None:
    """A count written in decimal; None for anything else."""
    if numeral and numeral.isascii() and numeral.isdigit() and len(numeral) <= 9:
        return int(numeral)
    return None


def micros(numeral: str | None) -> float | None:
    """Seconds from a tag of decimal microseconds; None for "-", nothing, or more than a day."""
    if numeral and numeral.isascii() and numeral.isdigit() and len(numeral) <= 11:
        found = int(numeral) * _MICRO
        return found if found <= _MAX_SECONDS else None
    return None


def seconds(duration: Any) -> float | None:
    """Seconds of a protobuf Duration; None when it is unset (zero), negative or more than a day."""
    found: float = duration.seconds + duration.nanos * NANO
    return found if 0.0 < found <= _MAX_SECONDS else None
