from __future__ import annotations

import asyncio
from typing import Any

import pytest

from xds_control.observe.loops import kept


class Log:
    def __init__(self) -> None:
        self.told: list[tuple[str, dict[str, Any]]] = []

    def exception(self, event: str, **more: Any) -> None:
        self.told.append((event, more))


async def test_a_loop_that_raises_is_told_of_and_goes_on() -> None:
    log, runs = Log(), 0

    async def loop() -> None:
        nonlocal runs
        runs += 1
        if runs < 3:
            raise KeyError("x")

    await kept("mine", loop, log, pause_s=0.0)
    assert runs == 3
    assert [(event, more["loop"]) for event, more in log.told] == [("loop-failed", "mine")] * 2


async def test_it_can_be_cancelled() -> None:
    log = Log()
    task = asyncio.create_task(kept("mine", asyncio.Event().wait, log))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert log.told == []
