"""Messages as plain values, for JSON and YAML."""

from __future__ import annotations

import functools
import math
from typing import Any

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

_AS_IT_IS, _NUMBER, _MESSAGE, _MANY, _OTHER = range(5)


def plain(value: Any) -> Any:
    """A message as plain values: numbers stay numbers, unknown optional fields and what is no number are null."""
    if isinstance(value, Message):
        made: dict[str, Any] = {}
        for name, presence, kind in _fields(value.DESCRIPTOR):
            if presence and not value.HasField(name):
                made[name] = None
                continue
            found = getattr(value, name)
            if kind == _AS_IT_IS:
                made[name] = found
            elif kind == _NUMBER:
                made[name] = found if math.isfinite(found) else None
            elif kind == _MANY and not found:
                made[name] = []
            else:
                made[name] = plain(found)
        return made
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, float) and not math.isfinite(value):
        return None  # JSON has no such numbers
    if isinstance(value, str | bool | int | float) or value is None:
        return value
    if hasattr(value, "items"):
        return {str(key): plain(item) for key, item in sorted(value.items())}
    return [plain(item) for item in value]


def _is_repeated(field: Any) -> bool:
    # protobuf names it in one way up to 6 and in another since
    return bool(field.is_repeated if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED)


@functools.cache
def _fields(descriptor: Descriptor) -> tuple[tuple[str, bool, int], ...]:
    """(name, whether it may be unknown, what it is) of each field of a message; asking for it each time takes longer
    than the values themselves."""
    found = []
    for field in descriptor.fields:
        kind = _OTHER
        if _is_repeated(field):
            kind = _OTHER if field.message_type is not None and field.message_type.GetOptions().map_entry else _MANY
        elif field.message_type is not None:
            kind = _MESSAGE
        elif field.type in (field.TYPE_DOUBLE, field.TYPE_FLOAT):
            kind = _NUMBER
        elif field.type != field.TYPE_BYTES:
            kind = _AS_IT_IS
        found.append((field.name, field.has_presence, kind))
    return tuple(found)
