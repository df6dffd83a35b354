"""Messages as plain values, for JSON and YAML."""

from __future__ import annotations

import math
from typing import Any

from google.protobuf.message import Message


def plain(value: Any) -> Any:
    """A message as plain values: numbers stay numbers, unknown optional fields and what is no number are null."""
    if isinstance(value, Message):
        made: dict[str, Any] = {}
        for field in value.DESCRIPTOR.fields:
            if field.has_presence and not value.HasField(field.name):
                made[field.name] = None
            else:
                made[field.name] = plain(getattr(value, field.name))
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
