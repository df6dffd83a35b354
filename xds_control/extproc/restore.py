"""Writes the client's model name back into an answer that passes by in pieces. Pure.

Only a JSON member `"model": "<served>"` is changed: inside generated text quotes are escaped, so text that merely
looks like one is left alone. A member cut over two pieces is found as well; what could still become one is held
back, never more than its own length.
"""

from __future__ import annotations

import json
import re

_SPACE = 8
"""Most white space on either side of the colon."""


class ModelNames:
    """Replaces `served` by `client` as the value of members called model."""

    def __init__(self, served: str, client: str) -> None:
        served_text = json.dumps(served).encode()
        plain = json.dumps(served, ensure_ascii=False).encode()
        either = re.escape(served_text) if plain == served_text else re.escape(served_text) + b"|" + re.escape(plain)
        self._pattern = re.compile(rb'(?<!\\)("model"[ \t\r\n]{0,%d}:[ \t\r\n]{0,%d})(?:%s)' % (_SPACE, _SPACE, either))
        self._client = json.dumps(client, ensure_ascii=False).encode("utf-8", "replace")
        self._values = {served_text, plain}
        self._longest = len(b'"model":') + 2 * _SPACE + max(map(len, self._values))
        self._held = b""

    def feed(self, piece: bytes, end: bool = False) -> bytes:
        """What the client gets for this piece. The last one gives out everything that was held."""
        data = self._held + piece
        out: list[bytes] = []
        done = 0
        for found in self._pattern.finditer(data):
            out += (data[done : found.end(1)], self._client)
            done = found.end()
        keep = 0 if end else self._partial(data, done)
        self._held = data[len(data) - keep :] if keep else b""
        out.append(data[done : len(data) - keep])
        return b"".join(out)

    def _partial(self, data: bytes, done: int) -> int:
        """Length of the shortest tail from `done` on that holds every beginning of a member."""
        low = max(done, len(data) - self._longest + 1)
        at = data.find(b'"', low)
        while at >= 0:
            if self._begins(data[at:]) and not (at > 0 and data[at - 1 : at] == b"\\"):
                # The character before decides whether the quote is escaped, so it stays with it.
                return len(data) - max(done, at - 1)
            at = data.find(b'"', at + 1)
        return 1 if len(data) > done and data.endswith(b"\\") else 0

    def _begins(self, tail: bytes) -> bool:
        """Whether a whole member could begin with `tail`."""
        key = b'"model"'
        if len(tail) <= len(key):
            return key.startswith(tail)
        if not tail.startswith(key):
            return False
        rest = tail[len(key) :]
        stripped = rest.lstrip(b" \t\r\n")
        if len(rest) - len(stripped) > _SPACE:
            return False
        if not stripped:
            return True
        if not stripped.startswith(b":"):
            return False
        value = stripped[1:]
        stripped = value.lstrip(b" \t\r\n")
        if len(value) - len(stripped) > _SPACE:
            return False
        return any(len(stripped) < len(one) and one.startswith(stripped) for one in self._values)
