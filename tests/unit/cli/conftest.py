from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.unit.admin.backend import FakeBackend
from xds_control.admin.server import serve_admin
from xds_control.admin.service import AdminService
from xds_control.cli.main import main

WALL = 1_700_000_000.0


class Control:
    """A served backend in a thread of its own, and commands that are run against it."""

    def __init__(self) -> None:
        self.backend = FakeBackend()
        self.backend.settle()
        self.address = ""
        self._loop = asyncio.new_event_loop()
        self._done = asyncio.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Control:
        self._ready = threading.Event()
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._done.set)
        self._thread.join(10)

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        backend = self.backend
        service = AdminService(backend, clock=lambda: backend.now, wall=lambda: WALL + backend.now)
        port, stop = await serve_admin("127.0.0.1:0", service)
        self.address = f"127.0.0.1:{port}"
        self._ready.set()
        await self._done.wait()
        await stop()

    def do(self, act: Callable[[FakeBackend], Any]) -> Any:
        """Does something to the backend in the thread that serves it."""

        async def run() -> Any:
            return act(self.backend)

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(10)

    def run(self, *words: str, stdin: str | None = None, server: str | None = None) -> Result:
        """Runs a command."""
        environment = {"XDS_CONTROL_ADMIN": server or self.address, "XDS_CONTROL_TOKEN": "", "NO_COLOR": "1"}
        return CliRunner().invoke(main, list(words), input=stdin, env=environment, catch_exceptions=False)


@pytest.fixture
def control() -> Iterator[Control]:
    with Control() as made:
        yield made
