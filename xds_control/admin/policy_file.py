"""Watches the policy file, or folder, and pushes what changed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from xds_control.admin.first_policy import mark_of
from xds_control.errors import PolicyError, XdsControlError
from xds_control.observe.logs import logger
from xds_control.policy.load import SUFFIXES, Files, read_files

POLL_S = 0.5

Seen = tuple[tuple[str, int, int, int, int], ...]
Push = Callable[[Files, str], Awaitable[str]]
"""(files, mark) → why it was refused, "" when it is in force."""


class PolicyFile:
    """Polls modification times; a change that has settled is read, and pushed when the contents differ.

    mark: hash of what was taken in last. `problem` says what is wrong with the file as it is now, "" for nothing.
    """

    def __init__(self, path: Path, mark: str, push: Push, poll_s: float = POLL_S) -> None:
        self._path = path
        self._push = push
        self._poll_s = poll_s
        self._mark = mark
        self._seen = _look(path)
        self._pending: Seen | None = None
        self._refused = ""
        self._log = logger("policy-file")
        self.problem = ""

    async def run(self) -> None:
        """Watches until it is cancelled."""
        while True:
            await asyncio.sleep(self._poll_s)
            await self.look()

    async def look(self) -> None:
        """One look. A change counts once two looks in a row saw the same: editors write in pieces."""
        seen = _look(self._path)
        if seen == self._seen:
            self._pending = None
            return
        if seen != self._pending:
            self._pending = seen
            return
        self._seen, self._pending = seen, None
        try:
            files = read_files(self._path, regular=True)
        except PolicyError as error:
            self._say("; ".join(str(one) for one in error.problems))
            return
        mark = mark_of(files)
        if mark == self._mark:
            self._say("")
            return
        try:
            refused = await self._push(files, mark)
        except XdsControlError as error:
            refused = str(error)
        if refused:
            self._refused = mark
        else:
            self._mark = mark
        self._say(refused)

    def settled(self, files: Files) -> None:
        """A policy is in force, however it came there: a complaint about the same contents is over."""
        mark = mark_of(files)
        if self.problem and mark == self._refused:
            self._mark = mark
            self.problem = self._refused = ""

    def _say(self, problem: str) -> None:
        place = "" if problem.startswith(str(self._path)) else f"{self._path}: "
        self.problem = f"policy file refused: {place}{problem}" if problem else ""
        if problem:
            self._log.error("policy-file-refused", path=str(self._path), problem=problem)


def _look(path: Path) -> Seen:
    try:
        paths = sorted(one for one in path.iterdir() if one.suffix in SUFFIXES) if path.is_dir() else [path]
    except OSError:
        return ()
    found: list[tuple[str, int, int, int, int]] = []
    for one in paths:
        try:
            stat = one.stat()
        except OSError:
            continue
        found.append((str(one), stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size, stat.st_ino))  # also new rights
    return tuple(found)
