"""When a resource with a time to live must be renewed (pure)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from xds_control.xds.plan import HEARTBEATS_PER_TTL
from xds_control.xds.resource import Resource


class Heartbeats:
    """Renewal times of what one client was sent of one type. Times are monotonic seconds."""

    __slots__ = ("_due", "_ttl")

    def __init__(self) -> None:
        self._ttl: dict[str, float] = {}
        self._due: dict[str, float] = {}

    def sent(self, resources: Iterable[Resource], now: float) -> None:
        """Notes that these were sent, with body or without."""
        for resource in resources:
            if resource.ttl is not None:
                self._ttl[resource.name] = resource.ttl
                self._due[resource.name] = now + resource.ttl / HEARTBEATS_PER_TTL
            elif self._ttl:
                self.forget((resource.name,))

    def forget(self, names: Iterable[str]) -> None:
        for name in names:
            self._ttl.pop(name, None)
            self._due.pop(name, None)

    def keep(self, wanted: Callable[[str], bool]) -> None:
        """Forgets all names that are no longer wanted."""
        if self._ttl:
            self.forget([n for n in self._ttl if not wanted(n)])

    def due(self, now: float) -> list[str]:
        """Names to renew now. Each is put off to its next turn: one that cannot be renewed is no busy loop."""
        if not self._due:
            return []
        names = [n for n, at in self._due.items() if at <= now]
        for name in names:
            self._due[name] = now + self._ttl[name] / HEARTBEATS_PER_TTL
        return sorted(names)

    def next(self) -> float | None:
        """When something is due next."""
        return min(self._due.values()) if self._due else None
