"""The events that admin shows: a bounded ring with sequence numbers (pure)."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice

from xds_control.admin.backend import AdminEvent

MAX_EVENTS = 10_000


class EventLog:
    """The newest `size` events, numbered from 1."""

    def __init__(self, size: int = MAX_EVENTS) -> None:
        self._ring: deque[AdminEvent] = deque(maxlen=size)
        self._last = 0

    def add(
        self,
        at: float,
        kind: str,
        *,
        pool: str = "",
        endpoint: str = "",
        before: str = "",
        after: str = "",
        reason: str = "",
        by: str = "",
    ) -> AdminEvent:
        """Something happened at `at` (monotonic seconds)."""
        self._last += 1
        event = AdminEvent(self._last, at, kind, pool, endpoint, before, after, reason, by)
        self._ring.append(event)
        return event

    def since(self, after: int, limit: int) -> Sequence[AdminEvent]:
        """Events with a sequence above `after`, oldest first; of these the newest `limit`."""
        wanted = min(max(self._last - after, 0), max(limit, 0), len(self._ring))
        return list(islice(self._ring, len(self._ring) - wanted, None))
