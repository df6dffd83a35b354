"""The demo as a person runs it: as a command, with a real Envoy."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from xds_control.demo import fleet
from xds_control.demo.engine_main import config_from
from xds_control.demo.engine_main import parser as engine_parser
from xds_control.policy.load import load_policy

ENVOY = Path(sys.executable).parent / "envoy"
needs_envoy = pytest.mark.skipif(not ENVOY.exists(), reason="the extra `envoy` is not installed")
COMMAND = [sys.executable, "-m", "xds_control", "demo", "--engines", "2", "--no-llama"]


def start(*options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True
    )


def descendants(process: subprocess.Popen[str]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def wait_gone(processes: list[psutil.Process]) -> list[psutil.Process]:
    _, alive = psutil.wait_procs(processes, timeout=15)
    return [one for one in alive if one.status() != psutil.STATUS_ZOMBIE]


def read_until(process: subprocess.Popen[str], text: str) -> list[str]:
    assert process.stdout is not None
    seen = []
    for line in process.stdout:
        seen.append(line)
        if text in line:
            return seen
    raise AssertionError(f"{text!r} never came:\n{''.join(seen)}")


def test_the_policy_of_the_demo_is_valid(tmp_path: Path) -> None:
    made = fleet.plan(tmp_path, engines=3, llamas=0, picks=True)
    fleet.write_policy(tmp_path / "policy.yaml", made.policy)
    policy = load_policy(tmp_path / "policy.yaml")
    assert [one.name for one in policy.pools[0].endpoints] == ["chat-0", "chat-1", "chat-2"]
    assert policy.pools[0].picks
    assert made.models == {fleet.CHAT_MODEL: 0.7}


def test_llama_servers_are_a_pool_of_their_own(tmp_path: Path) -> None:
    server = fleet.Server("llama-0", "llamacpp", 1234, ("llama-server",))
    made = fleet.policy([server], fleet.Ports(*range(1000, 1008)), picks=False)
    fleet.write_policy(tmp_path / "policy.yaml", made)
    (pool,) = load_policy(tmp_path / "policy.yaml").pools
    assert (pool.name, pool.engine, pool.models) == ("llama", "llamacpp", [fleet.LLAMA_MODEL])


def test_engine_options_mean_what_they_say() -> None:
    command = fleet.engine_command("chat-0", 8101)
    config = config_from(engine_parser().parse_args(command[3:]))
    assert config.name == "chat-0"
    assert config.timing.decode_s == 0.012
    assert config.timing.kv_blocks == 600


@needs_envoy
@pytest.mark.slow
def test_it_ends_by_itself_with_a_summary_and_leaves_nothing_running(tmp_path: Path) -> None:
    process = start("--seconds", "8", "--dir", str(tmp_path))
    lines = read_until(process, "traffic starts")
    children = descendants(process)
    assert len(children) == 2 + 1 + 3
    output, _ = process.communicate(timeout=60)
    lines += output.splitlines()
    assert process.returncode == 0, "\n".join(lines)
    match = re.match(r"demo: 8 s, (\d+) requests answered, 0 failed; TTFT p50 ", lines[-1])
    assert match, lines[-1]
    assert int(match[1]) > 40
    assert any("times slower" in line for line in lines)
    assert any("chat/chat-0 ready weight=" in line for line in lines)
    assert wait_gone(children) == []


@needs_envoy
@pytest.mark.slow
def test_interrupted_it_stops_everything_and_exits_with_0() -> None:
    process = start()
    read_until(process, "traffic starts")
    children = descendants(process)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    assert output.splitlines()[-1].startswith("demo: ")
    assert wait_gone(children) == []


@needs_envoy
@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the death signal exists on Linux only")
def test_killed_it_takes_everything_with_it(tmp_path: Path) -> None:
    process = start("--dir", str(tmp_path))
    read_until(process, "traffic starts")
    children = descendants(process)
    process.kill()
    process.communicate(timeout=30)
    assert wait_gone(children) == []


def test_interrupted_while_starting_it_stops_what_it_started() -> None:
    process = start()
    read_until(process, "starting 2 servers")
    children: list[psutil.Process] = []
    for _ in range(200):
        children = descendants(process)
        if children:
            break
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    assert wait_gone(children) == []


def test_with_nothing_to_balance_it_says_so() -> None:
    command = [*COMMAND[:4], "--engines", "0", "--no-llama"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, env=dict(os.environ), check=False)
    assert done.returncode == 1
    assert "nothing to balance" in done.stderr


def test_a_child_that_ends_is_named_with_the_end_of_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from xds_control.demo.run import DemoOptions, run_demo
    from xds_control.errors import ConfigError

    def broken(name: str, port: int) -> list[str]:
        return [sys.executable, "-c", "import sys; print('no such device'); sys.exit(3)"]

    monkeypatch.setattr(fleet, "engine_command", broken)
    with pytest.raises(ConfigError, match=r"(?s)chat-0 ended with code 3:.*no such device"):
        run_demo(DemoOptions(engines=1, llama=False, folder=tmp_path))
