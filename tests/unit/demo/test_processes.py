from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from xds_control.demo.processes import Child, free_ports, stop_all
from xds_control.errors import ConfigError

SLEEP = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(60)"]
STUBBORN = [
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)",
]


def wait_for_output(child: Child) -> None:
    for _ in range(1000):
        if "up" in child.tail():
            return
        time.sleep(0.01)
    raise AssertionError("the child printed nothing")


def alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_stop_all_asks_first_and_kills_what_does_not_listen(tmp_path: Path) -> None:
    polite, stubborn = Child("polite", SLEEP, tmp_path / "a"), Child("stubborn", STUBBORN, tmp_path / "b")
    wait_for_output(polite)
    wait_for_output(stubborn)
    assert stop_all([polite, stubborn], grace_s=3.0) == ["stubborn"]
    assert polite.exit_code == -signal.SIGTERM
    assert stubborn.exit_code == -signal.SIGKILL


def test_grandchildren_go_with_the_group(tmp_path: Path) -> None:
    script = (
        f"import subprocess, time; p = subprocess.Popen({SLEEP!r}); print('pid', p.pid, flush=True); time.sleep(60)"
    )
    child = Child("parent", [sys.executable, "-c", script], tmp_path / "log")
    wait_for_output(child)
    grandchild = int(child.tail().split("pid ")[1].split()[0])
    assert alive(grandchild)
    stop_all([child], grace_s=1.0)
    for _ in range(500):
        if not alive(grandchild):
            break
        time.sleep(0.01)
    assert not alive(grandchild)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the death signal exists on Linux only")
def test_children_die_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    script = (
        "import time; from pathlib import Path; from xds_control.demo.processes import Child\n"
        f"c = Child('x', {SLEEP!r}, Path({str(tmp_path / 'log')!r})); print(c.pid, flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=dict(os.environ))
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert alive(pid)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    for _ in range(500):
        if not alive(pid):
            break
        time.sleep(0.01)
    assert not alive(pid)


def test_a_missing_program_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        Child("nothing", [str(tmp_path / "nothing")], tmp_path / "log")


def test_free_ports_are_different() -> None:
    assert len(set(free_ports(50))) == 50
