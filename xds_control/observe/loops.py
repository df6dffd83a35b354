"""Loops that go on for the life of a process: a fault in one is told, and does not end it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

PAUSE_S = 1.0


async def kept(name: str, loop: Callable[[], Awaitable[None]], log: Any, pause_s: float = PAUSE_S) -> None:
    """Runs `loop` until it returns; starts it again `pause_s` seconds after an exception, which is logged.

    Without this a task that raised would be gone without a word, and its process would look well.
    """
    while True:
        try:
            await loop()
        except Exception:
            log.exception("loop-failed", loop=name, again_in_s=pause_s)
            await asyncio.sleep(pause_s)
        else:
            return
