"""Sessions away from home, and the opaque token that pins one to its endpoint.

A session's home is found by rendezvous hashing, so every processor agrees on it and nothing is lost when one
dies. Only those that had to leave home are remembered, so that they do not move back and forth.
"""

from __future__ import annotations

import base64
from collections import OrderedDict


class Sessions:
    """Session key → address, for sessions that are not at home. Bounded, least recently used first, with a TTL."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.frozen = False
        """While set, nothing is remembered or forgotten: for questions that must change nothing."""
        self._places: OrderedDict[int, tuple[str, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._places)

    def place(self, key: int, now: float) -> str | None:
        """Where the session was last, None when it is at home or forgotten. now: monotonic seconds."""
        found = self._places.get(key)
        if found is None:
            return None
        if found[1] < now:
            self.forget(key)
            return None
        return found[0]

    def remember(self, key: int, address: str, until: float) -> None:
        """Keeps a place until `until`."""
        if self._limit <= 0 or self.frozen:
            return
        self._places[key] = (address, until)
        self._places.move_to_end(key)
        while len(self._places) > self._limit:
            self._places.popitem(last=False)

    def forget(self, key: int) -> None:
        """The session is at home again."""
        if not self.frozen:
            self._places.pop(key, None)


def make_token(pool: str, address: str) -> str:
    """An opaque token for `pool` and endpoint, safe in a header."""
    return base64.b64encode(f"{pool}/{address}".encode()).decode("ascii")


def read_token(token: str) -> tuple[str, str] | None:
    """Pool (or namespace) and endpoint of a token; None when it is not one. Longer than 512 characters is not one."""
    if not token or len(token) > 512:
        return None
    try:
        text = base64.b64decode(token, validate=True).decode("utf-8")
    except ValueError:
        return None
    pool, slash, endpoint = text.partition("/")
    return (pool, endpoint) if slash and endpoint else None
