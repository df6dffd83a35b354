"""Closes a JSON text that was cut off, so that the part which arrived can be read."""

from __future__ import annotations

import re
from typing import Final

_TOKEN: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|["\[\]{}]', re.DOTALL)
_PARTIAL_ESCAPE: Final = re.compile(rb"(?<!\\)((?:\\\\)*+)\\(?:u[0-9a-fA-F]{0,3})?$")
_SCALAR_END: Final = re.compile(rb"[-+.\w]+$")
_CLOSER: Final = {0x7B: b"}", 0x5B: b"]"}
_MAX_DEPTH: Final = 512
_MAX_TOKENS: Final = 1 << 17


def close_truncated(data: bytes) -> bytes | None:
    """`data` with what is open closed, or None when it is not the beginning of a JSON object or array.

    A string that was cut keeps what arrived of it; a number or word that was cut becomes null.
    Linear in the length; gives up beyond 512 levels and a hundred thousand tokens.
    """
    closers: list[bytes] = []
    cut_string = -1
    last_string = (-1, -1)
    for count, token in enumerate(_TOKEN.finditer(data)):
        start, end = token.span()
        first = data[start]
        if first == 0x22:
            if end - start == 1:
                cut_string = start
                break
            last_string = (start, end)
        elif first in _CLOSER:
            if len(closers) >= _MAX_DEPTH:
                return None
            closers.append(_CLOSER[first])
        elif not closers or closers.pop() != data[start:end] or not closers:
            return None
        if count >= _MAX_TOKENS:
            return None
    if not closers:
        return None
    if cut_string >= 0:
        body = _close_string(data, cut_string, closers[-1] == b"}")
    else:
        body = _close_value(data, last_string, closers[-1] == b"}")
    return body + b"".join(reversed(closers))


def _close_string(data: bytes, start: int, in_object: bool) -> bytes:
    before = data[:start].rstrip()
    if in_object and before[-1:] in (b"{", b","):  # a key that was cut
        return before.rstrip(b",")
    # An escape that was cut can only be in the last few bytes, unless those are all backslashes.
    tail_start = max(start + 1, len(data) - 8)
    while tail_start > start + 1 and data[tail_start - 1] == 0x5C:
        tail_start -= 1
    tail = _PARTIAL_ESCAPE.sub(rb"\1", data[tail_start:])
    return data[:tail_start] + tail + b'"'


def _close_value(data: bytes, last_string: tuple[int, int], in_object: bool) -> bytes:
    text = data.rstrip()
    if text.endswith(b","):
        return text[:-1]
    if text.endswith(b":"):
        return text + b"null"
    if in_object and last_string[1] == len(text) and text[: last_string[0]].rstrip()[-1:] in (b"{", b","):
        return text + b":null"  # a key without its value
    cut = _SCALAR_END.sub(b"", text[-64:])
    if len(cut) == min(64, len(text)):
        return text
    text = (text[:-64] + cut).rstrip()
    if text.endswith((b":", b"[")):
        return text + b"null"
    return text.rstrip(b",")
