"""The small fields of a multipart form, wherever they stand: clients send the file first and the model after it."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

_BOUNDARY: Final = re.compile(r'boundary="?([^";\s]{1,200})"?', re.IGNORECASE)
_NAME: Final = re.compile(rb'(?:^|[;\s])name="?([^";\r\n]{1,100})"?', re.IGNORECASE)
_FILE: Final = re.compile(rb"(?:^|[;\s])filename\*?=", re.IGNORECASE)
_HEADER_LIMIT: Final = 4096
_FIELD_LIMIT: Final = 65536
_PARTS_LIMIT: Final = 256


class Form(NamedTuple):
    """fields: small text fields, the last of a name wins. files: name and content of each file (a view is not kept).
    repeated: names of fields that occur twice. complete: whether the closing boundary was there."""

    fields: dict[str, str]
    files: list[tuple[str, bytes]]
    repeated: tuple[str, ...]
    complete: bool


def read_form(data: bytes, content_type: str) -> Form | None:
    """The form in `data`; None when it is none. Without a boundary in the header, that of the first line is used."""
    found = _BOUNDARY.search(content_type)
    if found is not None:
        delimiter = b"--" + found[1].encode("latin-1", "replace")
    else:
        delimiter = data[:256].partition(b"\r\n")[0]
        if not delimiter.startswith(b"--") or len(delimiter) < 3:
            return None
    place = data.find(delimiter)
    if place < 0:
        return None
    fields: dict[str, str] = {}
    files: list[tuple[str, bytes]] = []
    repeated: list[str] = []
    for _ in range(_PARTS_LIMIT):
        place += len(delimiter)
        if data[place : place + 2] == b"--":
            return Form(fields, files, tuple(repeated), True)
        end = data.find(b"\r\n" + delimiter, place)
        part_end = end if end >= 0 else len(data)
        head_end = data.find(b"\r\n\r\n", place, min(place + _HEADER_LIMIT, part_end))
        if head_end >= 0:
            head = data[place:head_end]
            name = _NAME.search(head)
            if name is not None:
                text = name[1].decode("utf-8", "replace")
                if _FILE.search(head):
                    files.append((text, data[head_end + 4 : part_end]))
                elif part_end - head_end <= _FIELD_LIMIT:
                    if text in fields:
                        repeated.append(text)
                    fields[text] = data[head_end + 4 : part_end].decode("utf-8", "replace")
        if end < 0:
            break
        place = end + 2
    return Form(fields, files, tuple(dict.fromkeys(repeated)), False)
