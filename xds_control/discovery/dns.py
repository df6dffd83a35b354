"""Looks host names up again and again; a name that cannot be looked up keeps its last addresses."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterable

from xds_control.observe.logs import logger
from xds_control.observe.loops import kept

REFRESH_S = 5.0


async def look_up(names: Iterable[str], timeout_s: float = REFRESH_S) -> dict[str, tuple[str, ...]]:
    """Addresses of the names that can be looked up now."""
    loop = asyncio.get_running_loop()
    found: dict[str, tuple[str, ...]] = {}
    for name in sorted(names):
        try:
            entries = await asyncio.wait_for(loop.getaddrinfo(name, None, type=socket.SOCK_STREAM), timeout_s)
        except (OSError, TimeoutError):
            continue
        found[name] = tuple(sorted({str(entry[4][0]) for entry in entries}))
    return found


class Resolver:
    """Keeps the addresses of a set of names fresh. `on_change` is called after any of them changed."""

    def __init__(self, on_change: Callable[[], None], refresh_s: float = REFRESH_S) -> None:
        self._on_change = on_change
        self._refresh_s = refresh_s
        self._names: frozenset[str] = frozenset()
        self._task: asyncio.Task[None] | None = None
        self._log = logger("discovery.dns")
        self.addresses: dict[str, tuple[str, ...]] = {}
        self.failures: dict[str, str] = {}

    def watch(self, names: Iterable[str]) -> None:
        """Replaces the set of names. The first look-up follows at once."""
        self._names = frozenset(names)
        for gone in self.addresses.keys() - self._names:
            del self.addresses[gone]
        if self._task is not None:
            self._task.cancel()
        self._task = asyncio.create_task(kept("dns", self._run, self._log), name="dns") if self._names else None

    async def stop(self) -> None:
        """Ends the look-ups."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def resolve(self) -> bool:
        """Looks every name up once; whether anything changed."""
        loop = asyncio.get_running_loop()
        changed = False
        for name in sorted(self._names):
            try:
                found = await asyncio.wait_for(
                    loop.getaddrinfo(name, None, type=socket.SOCK_STREAM), timeout=self._refresh_s
                )
            except (OSError, TimeoutError) as error:
                if self.failures.get(name) != str(error):
                    self.failures[name] = str(error)
                    self._log.warning("name-not-resolved", name=name, error=str(error) or "timed out")
                continue
            self.failures.pop(name, None)
            addresses = tuple(sorted({str(entry[4][0]) for entry in found}))
            if self.addresses.get(name) != addresses:
                self.addresses[name] = addresses
                changed = True
        return changed

    async def _run(self) -> None:
        while True:
            if await self.resolve():
                self._on_change()
            await asyncio.sleep(self._refresh_s)
