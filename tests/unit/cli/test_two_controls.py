"""Two control processes and one store: the second says who has it, and touches nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import yaml

from tests.envoy.harness import free_ports
from tests.shared import REPOSITORY


def policy(folder: Path, name: str, capacity: float) -> Path:
    names = ("xds", "fleet", "admin", "http")
    addresses = {name: f"127.0.0.1:{port}" for name, port in zip(names, free_ports(4), strict=True)}
    path = folder / f"{name}.yaml"
    path.write_text(
        yaml.safe_dump(
            {
                "version": "xds-control/v1",
                "pools": [{"name": "chat", "endpoints": [{"address": "127.0.0.1:1", "capacity": capacity}]}],
                "control": {"store": str(folder / "store.db"), **addresses},
            }
        )
    )
    return path


def control(path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "xds_control", "control", "--policy", str(path)],
        stderr=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
    )


def until(process: subprocess.Popen[str], words: str) -> str:
    """Reads its log up to a line with these words; the line."""
    assert process.stderr is not None
    for line in process.stderr:
        if words in line:
            return line
    raise AssertionError(f"it ended with {process.wait()} and never said {words!r}")


def history(path: Path) -> list[str]:
    admin = yaml.safe_load(path.read_text())["control"]["admin"]
    done = subprocess.run(
        [sys.executable, "-m", "xds_control", "policy", "history", "--server", admin, "--output", "yaml"],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return [one["version"] for one in yaml.safe_load(done.stdout)["policies"]]


def test_the_second_refuses_and_the_first_goes_on(tmp_path: Path) -> None:
    first_file, second_file = policy(tmp_path, "first", 1.0), policy(tmp_path, "second", 2.0)
    first = control(first_file)
    try:
        until(first, "control-serves")
        before = history(first_file)
        second = control(second_file)
        said = until(second, "cannot-serve")
        assert f"in use by another control process (pid {first.pid})" in said
        assert second.wait(30) == 1
        assert history(first_file) == before

        first.kill()
        first.wait(30)
        # Nothing has to be cleared away after a SIGKILL.
        third = control(second_file)
        try:
            until(third, "control-serves")
            assert history(second_file)[1:] == before
        finally:
            third.kill()
            third.wait(30)
    finally:
        first.kill()
        first.wait(30)
