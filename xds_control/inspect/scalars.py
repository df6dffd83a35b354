"""Reading of single JSON values, as leniently as inference engines do (pydantic's lax mode)."""

from __future__ import annotations

import math
from typing import Any, Final

import msgspec

_decode_string = msgspec.json.Decoder(str).decode
_decode_any = msgspec.json.Decoder().decode

_TRUE: Final = frozenset((b"true", b"1", b"1.0", b'"true"', b'"True"', b'"1"', b'"on"', b'"yes"', b'"t"', b'"y"'))
_INT_LIMIT: Final = 1 << 31
_TEXT_LIMIT: Final = 4096


def given(raw: Any) -> bool:
    """Whether a raw field is there and not null."""
    return raw is not None and (len(raw) != 4 or bytes(raw) != b"null")


def as_text(raw: Any, limit: int = _TEXT_LIMIT) -> str:
    """The string (or number) that a raw JSON value holds, "" when it is something else or longer than `limit` bytes."""
    if raw is None or len(raw) > limit:
        return ""
    data = bytes(raw)
    if data[:1] == b'"':
        if b"\\" in data:
            try:
                return _decode_string(data)
            except ValueError:
                return ""
        return data[1:-1].decode("utf-8", "replace")
    return "" if data[:1] in b"{[ntf" else data.decode("ascii", "replace")


def as_flag(raw: Any) -> bool:
    """Whether a raw JSON value means true: true, 1, "true", "1", "on", "yes"."""
    return len(raw) <= 6 and bytes(raw) in _TRUE


def as_int(raw: Any) -> int | None:
    """The whole number that a raw value holds (also "100" and 100.0); None for others and beyond +-2**31."""
    if raw is None or len(raw) > 32:
        return None
    data = bytes(raw)
    if data.isdigit():
        value = int(data)
    else:
        number = as_number(raw)
        if number is None or number != math.floor(number):
            return None
        value = int(number)
    return value if -_INT_LIMIT < value < _INT_LIMIT else None


def as_count(raw: Any) -> int | None:
    """As `as_int`, but None for negative numbers too."""
    value = as_int(raw)
    return value if value is not None and value >= 0 else None


def as_number(raw: Any) -> float | None:
    """The finite number that a raw value holds, also as a string; None for others."""
    if raw is None or len(raw) > 64:
        return None
    data = bytes(raw)
    if data[:1] == b'"':
        data = data[1:-1]
    elif data in (b"true", b"false"):
        return float(data == b"true")
    try:
        number = float(data)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def as_any(raw: Any) -> Any:
    """The value decoded whole, None when it cannot be."""
    try:
        return _decode_any(raw)
    except (ValueError, RecursionError):
        return None


def child(raw: Any, *path: str) -> Any:
    """The value under a dotted path inside a small raw object; None when there is none."""
    value = as_any(raw)
    for name in path:
        if not isinstance(value, dict):
            return None
        value = value.get(name)
    return value


def plain(value: Any) -> str:
    """A string for a decoded scalar: strings as they are, whole numbers in decimal, "" for the rest."""
    if isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value) if abs(value) < 1 << 63 else ""
    return ""


def options(raw: Any, limit: int = 65536) -> dict[str, Any]:
    """A small object of settings, decoded; {} when it is absent, large or something else. Of a list, its first."""
    if raw is None or len(raw) > limit:
        return {}
    value = as_any(raw)
    if isinstance(value, list) and value:
        value = value[0]
    return value if isinstance(value, dict) else {}


def count_in(settings: dict[str, Any], *names: str) -> int | None:
    """The first of some settings that holds a whole number, zero or more (also "100" and 100.0)."""
    for name in names:
        number = number_in(settings, name)
        if number is not None and number == math.floor(number) and 0 <= number < _INT_LIMIT:
            return int(number)
    return None


def number_in(settings: dict[str, Any], name: str) -> float | None:
    """A setting that holds a finite number, also as a string."""
    value = settings.get(name)
    if not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def flag_in(settings: dict[str, Any], name: str) -> bool | None:
    """A setting that holds a truth value; None when it is absent."""
    value = settings.get(name)
    if isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        return value != 0
    if isinstance(value, str):
        return value.lower() in ("true", "1", "on", "yes")
    return None
