from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import psutil
import pytest

from tests.envoy.harness import eventually
from xds_control.cli import supervise
from xds_control.cli.supervise import Child, ChildRefused, Supervisor

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]


async def test_a_killed_child_is_started_again(tmp_path: Path) -> None:
    supervisor = Supervisor([Child("one", SLEEP, backoff_s=0.05)], tmp_path)
    await supervisor.start()
    try:
        first = supervisor.pid("one")
        os.kill(first, signal.SIGKILL)

        await eventually(lambda: supervisor.pid("one") != first, 10)
        assert written(tmp_path) == [supervisor.pid("one")]
    finally:
        await supervisor.stop()
    assert written(tmp_path) == []


def written(folder: Path) -> list[int]:
    """The process ids in the pid files."""
    return [int(path.read_text()) for path in folder.glob("*.pid")]


async def test_a_child_that_dies_while_it_is_awaited_is_started_again(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    argv = [
        sys.executable,
        "-c",
        "import pathlib, sys, time\n"
        f"mark = pathlib.Path({str(mark)!r})\n"
        "if not mark.exists():\n    mark.write_text('x'); sys.exit(3)\n"
        "mark.write_text('ready'); time.sleep(600)",
    ]

    async def ready() -> bool:
        await eventually(lambda: mark.exists() and mark.read_text() == "ready", 15)
        return True

    supervisor = Supervisor([Child("one", argv, ready=ready, backoff_s=0.05)], tmp_path)
    try:
        await asyncio.wait_for(supervisor.start(), 20)
    finally:
        await supervisor.stop()


async def test_a_child_that_refuses_its_configuration_ends_the_start(tmp_path: Path) -> None:
    async def never() -> bool:
        await asyncio.sleep(600)
        return True

    async def at_once() -> bool:
        return True

    refusing = Child("two", [sys.executable, "-c", "raise SystemExit(2)"], ready=never, backoff_s=0.05)
    supervisor = Supervisor([Child("one", SLEEP, ready=at_once), refusing], tmp_path)
    with pytest.raises(ChildRefused, match="two cannot run"):
        await supervisor.start()
    assert refusing.starts == 1
    await supervisor.stop()
    assert not os.listdir(tmp_path)


async def test_a_child_that_cannot_be_started_for_now_is_started_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervise, "MAX_BACKOFF_S", 0.05)
    program, away = tmp_path / "program", tmp_path / "away"
    program.write_text("#!/bin/sh\nexec sleep 600\n")
    program.chmod(0o755)
    supervisor = Supervisor([Child("one", [str(program)], backoff_s=0.05)], tmp_path)
    await supervisor.start()
    try:
        first = supervisor.pid("one")
        program.rename(away)
        os.kill(first, signal.SIGKILL)
        await asyncio.sleep(0.3)
        assert supervisor.pid("one") == first
        away.rename(program)
        await eventually(lambda: supervisor.pid("one") != first, 10)
    finally:
        await supervisor.stop()


async def test_a_child_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    code = (
        "import pathlib, signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"pathlib.Path({str(mark)!r}).write_text('x'); time.sleep(600)"
    )
    supervisor = Supervisor([Child("one", [sys.executable, "-c", code], stop_s=0.3)], tmp_path)
    await supervisor.start()
    await eventually(mark.exists, 10)
    pid = supervisor.pid("one")
    await supervisor.stop()
    assert not psutil.pid_exists(pid)


async def test_children_end_when_the_supervisor_is_killed(tmp_path: Path) -> None:
    code = (
        "import asyncio, pathlib\n"
        "from xds_control.cli.supervise import Child, ChildRefused, Supervisor\n"
        f"folder = pathlib.Path({str(tmp_path)!r})\n"
        "async def main():\n"
        f"    await Supervisor([Child('one', {SLEEP!r})], folder).start()\n"
        "    await asyncio.sleep(600)\n"
        "asyncio.run(main())"
    )
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", code)
    path = tmp_path / "one.pid"
    await eventually(lambda: path.exists() and path.read_text().strip() != "", 10)
    pid = int(path.read_text())
    parent.kill()
    await parent.wait()
    await eventually(lambda: not psutil.pid_exists(pid), 10, "the orphan ended")
