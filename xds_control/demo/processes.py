"""Child processes of the demo: each in its own process group, told to die with its parent, stopped in order."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

from xds_control.errors import ConfigError

_PR_SET_PDEATHSIG = 1


def _death_signal(number: signal.Signals) -> Callable[[], None] | None:
    """What the child runs before exec so that it gets `number` when this process dies; None where Linux is not."""
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    parent = os.getpid()

    def arm() -> None:
        prctl(_PR_SET_PDEATHSIG, int(number))
        if os.getppid() != parent:  # the parent died between fork and here
            os._exit(1)

    return arm


class Child:
    """A running child whose output goes to a log file."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        *,
        env: dict[str, str] | None = None,
        on_parent_death: signal.Signals = signal.SIGKILL,
    ) -> None:
        """Starts at once. Raises ConfigError when the command cannot be run."""
        self.name = name
        self.log = log
        self._file: IO[Any] = log.open("wb")
        try:
            self._process = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=self._file,
                stderr=subprocess.STDOUT,
                env=env,
                start_new_session=True,
                preexec_fn=_death_signal(on_parent_death),
            )
        except OSError as error:
            self._file.close()
            raise ConfigError(f"{name} cannot be started: {command[0]}: {error.strerror or error}") from error

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative = the signal that ended it."""
        return self._process.poll()

    def tail(self, lines: int = 12) -> str:
        """The end of its log, for an error message."""
        text = self.log.read_text("utf-8", "replace")
        return "\n".join(text.splitlines()[-lines:])

    def ask_to_stop(self) -> None:
        """SIGTERM, if it still runs."""
        if self._process.poll() is None:
            self._process.terminate()

    def kill_group(self) -> None:
        """SIGKILL to what is left of its process group, and reap it."""
        with contextlib.suppress(ProcessLookupError):  # the whole group is gone already
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._file.close()


def stop_all(children: Sequence[Child], grace_s: float) -> list[str]:
    """Ask all to stop, wait up to `grace_s` seconds together, kill what is left. Returns the names of those killed."""
    for child in children:
        child.ask_to_stop()
    deadline = time.monotonic() + grace_s
    while time.monotonic() < deadline and any(child.exit_code is None for child in children):
        time.sleep(0.02)
    late = [child.name for child in children if child.exit_code is None]
    for child in children:
        child.kill_group()
    return late


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """That many different TCP ports that nothing listens on at this moment."""
    sockets = [socket.socket(socket.AF_INET, socket.SOCK_STREAM) for _ in range(count)]
    try:
        for one in sockets:
            one.bind((host, 0))
        return [int(one.getsockname()[1]) for one in sockets]
    finally:
        for one in sockets:
            one.close()
