"""What control tells holds words of clients: model names, node ids, messages of Envoy. None of them moves a cursor."""

from __future__ import annotations

import re
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

_CONTROL: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u200e\u200f]")
"""Control characters but tab and line end, and those that turn the direction of text."""
_MARK: Final = "\ufffd"


def harmless(text: str) -> str:
    """The text with a mark in place of what a terminal would obey."""
    return _CONTROL.sub(_MARK, text.replace("\r\n", "\n"))


def make_harmless(message: Any) -> Any:
    """The same for every text in a message, in place; the message."""
    for field, value in message.ListFields():
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            _make_map_harmless(field, value)
        elif field.message_type is not None:
            for one in [value] if isinstance(value, Message) else value:
                make_harmless(one)
        elif field.type == FieldDescriptor.TYPE_STRING:
            if isinstance(value, str):
                if _CONTROL.search(value):
                    setattr(message, field.name, harmless(value))
            elif any(map(_CONTROL.search, value)):
                value[:] = map(harmless, value)
    return message


def _make_map_harmless(field: FieldDescriptor, entries: Any) -> None:
    assert field.message_type is not None
    kind = field.message_type.fields_by_name["value"]
    for key in list(entries):
        value = entries[key]
        if kind.message_type is not None:
            make_harmless(value)
        elif isinstance(value, str):
            entries[key] = value = harmless(value)
        if isinstance(key, str) and _CONTROL.search(key):
            if kind.message_type is not None:
                entries[harmless(key)].CopyFrom(value)
            else:
                entries[harmless(key)] = value
            del entries[key]
