"""Runs child processes: starts them in order, starts again what died, stops all in reverse order."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from xds_control.errors import XdsControlError
from xds_control.observe.logs import logger

MAX_BACKOFF_S = 5.0
STEADY_S = 10.0
"""A child that lived this long starts again at once with the first backoff."""
REFUSED = 2
"""Exit code of a child that cannot start as it is configured: before it was ever ready, trying again is no use."""
_PR_SET_PDEATHSIG = 1


@dataclass(slots=True)
class Child:
    """One supervised process.

    ready: awaited after each start before the next child is started; may be None.
    before_stop: awaited before the child is told to stop (to drain it); may be None.
    stop_s: how long it has between SIGTERM and SIGKILL.
    """

    name: str
    argv: Sequence[str]
    ready: Callable[[], Awaitable[bool]] | None = None
    before_stop: Callable[[], Awaitable[None]] | None = None
    stop_s: float = 10.0
    backoff_s: float = 0.1
    output: Path | None = None
    starts: int = field(default=0, init=False)
    settled: bool = field(default=False, init=False)
    process: asyncio.subprocess.Process | None = field(default=None, init=False)


class ChildRefused(XdsControlError):
    """A child that said at its first start that it cannot run as it is configured."""


class Supervisor:
    """Keeps its children alive until `stop`. run_dir: where `NAME.pid` files go."""

    def __init__(self, children: Sequence[Child], run_dir: Path | None = None) -> None:
        self._children = list(children)
        self._run_dir = run_dir
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False
        self._log = logger("supervisor")

    async def start(self) -> None:
        """Starts every child in order, each after the one before is ready. Raises ChildRefused."""
        if self._run_dir is not None:
            self._run_dir.mkdir(parents=True, exist_ok=True)
        for child in self._children:
            await self._spawn(child)
            # watched from the first moment: a child that dies while the next ones wait for it is started again
            self._tasks.append(asyncio.create_task(self._keep(child), name=f"keep-{child.name}"))
            if child.ready is not None and not await self._ready(child, child.ready):
                self._log.warning("child-not-ready", child=child.name)

    async def _ready(self, child: Child, ready: Callable[[], Awaitable[bool]]) -> bool:
        waiting = asyncio.ensure_future(ready())
        keeping = self._tasks[-1]
        await asyncio.wait({waiting, keeping}, return_when=asyncio.FIRST_COMPLETED)
        if keeping.done():
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            raise ChildRefused(f"{child.name} cannot run with this policy; what it said is above")
        child.settled = True
        return waiting.result()

    async def stop(self) -> None:
        """Stops the children in reverse order; kills what does not end in time. Leaves nothing running."""
        self._stopping = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for child in reversed(self._children):
            await self._end(child)

    def pid(self, name: str) -> int:
        """Process id of a child; KeyError when there is none of that name."""
        for child in self._children:
            if child.name == name and child.process is not None:
                return child.process.pid
        raise KeyError(name)

    async def _keep(self, child: Child) -> None:
        backoff = child.backoff_s
        loop = asyncio.get_running_loop()
        while not self._stopping:
            process = child.process
            assert process is not None
            started = loop.time()
            code = await process.wait()
            if self._stopping:
                return
            if code == REFUSED and child.ready is not None and not child.settled:
                return
            lived = loop.time() - started
            backoff = child.backoff_s if lived > STEADY_S else min(backoff * 2, MAX_BACKOFF_S)
            self._log.error("child-died", child=child.name, pid=process.pid, exit=code, restart_in_s=round(backoff, 3))
            await asyncio.sleep(backoff)
            await self._respawn(child)

    async def _respawn(self, child: Child) -> None:
        """Starts a child again, later when the system cannot for now: no memory, the program is being replaced."""
        dead = child.process
        while child.process is dead:
            try:
                await self._spawn(child)
            except OSError as error:
                self._log.error("child-not-started", child=child.name, error=str(error), again_in_s=MAX_BACKOFF_S)
                await asyncio.sleep(MAX_BACKOFF_S)

    async def _spawn(self, child: Child) -> None:
        output = None
        if child.output is not None:
            output = child.output.open("ab")
        try:
            child.process = await asyncio.create_subprocess_exec(
                *child.argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output if output else None,
                stderr=output if output else None,
                start_new_session=True,
                preexec_fn=die_with_parent if sys.platform == "linux" else None,
            )
        finally:
            if output is not None:
                output.close()
        child.starts += 1
        if self._run_dir is not None:
            (self._run_dir / f"{child.name}.pid").write_text(f"{child.process.pid}\n")
        self._log.info("child-started", child=child.name, pid=child.process.pid, starts=child.starts)

    async def _end(self, child: Child) -> None:
        process = child.process
        if process is not None and process.returncode is None:
            if child.before_stop is not None:
                with contextlib.suppress(OSError, TimeoutError):
                    await child.before_stop()
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            try:
                await asyncio.wait_for(process.wait(), child.stop_s)
            except TimeoutError:
                self._log.warning("child-killed", child=child.name, pid=process.pid)
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        if self._run_dir is not None:
            (self._run_dir / f"{child.name}.pid").unlink(missing_ok=True)
        self._log.info("child-stopped", child=child.name)


def die_with_parent() -> None:
    """In a child, before exec: the kernel sends SIGTERM when the parent is gone, so SIGKILL leaves no orphans."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() == 1:
        os.kill(os.getpid(), signal.SIGTERM)
