"""The configurations under envoy/ are what the examples generate, and Envoy accepts them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.gen_envoy import EXAMPLES, TARGET, generate
from xds_control.cli.main import main
from xds_control.cli.serve import find_envoy
from xds_control.policy.load import load_policy
from xds_control.xds import EDS, SnapshotCache
from xds_control.xds.resources.endpoints import Host, load_assignment
from xds_control.xds.resources.world import WorldBuilder


def test_they_are_current() -> None:
    assert {path.name: path.read_text() for path in TARGET.glob("*.json")} == generate(), "run `make envoy`"


@pytest.mark.parametrize("name", sorted(generate()))
def test_envoy_accepts_them(name: str) -> None:
    envoy = find_envoy()
    assert envoy is not None
    done = subprocess.run(
        [envoy, "--mode", "validate", "-c", str(TARGET / name)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_example_makes_resources_that_pass_validation(path: Path) -> None:
    policy = load_policy(path)
    world = WorldBuilder()
    world.use_policy(policy, None)
    assert world.fixed
    SnapshotCache().set("", world.fixed)


def test_the_command_prints_a_bootstrap(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["bootstrap", "--policy", str(EXAMPLES / "one-box.yaml"), "--xds", "10.1.2.3:99"])
    assert result.exit_code == 0, result.output
    assert '"10.1.2.3"' in result.output
    assert (TARGET / "managed.json").read_text().replace("127.0.0.1", "10.1.2.3") != result.output


def test_assignments_are_deterministic_gapless_and_never_weigh_zero() -> None:
    hosts = [Host("[fd00::1]:80", 0), Host("10.0.0.2:80", 7, priority=3), Host("10.0.0.1:80", 5)]
    data = load_assignment("c", hosts)
    assert data == load_assignment("c", hosts)
    SnapshotCache().set("", {EDS.type_url: {"c": data}})
