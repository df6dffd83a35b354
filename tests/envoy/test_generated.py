"""The configurations under envoy/ are what the examples generate, and Envoy accepts them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.gen_envoy import EXAMPLES, TARGET, generate
from xds_control.cli.main import main
from xds_control.cli.serve import find_envoy
from xds_control.policy.load import load_policy, parse_policy
from xds_control.xds import EDS, SnapshotCache
from xds_control.xds.resources.bootstrap import as_json, eds_only_bootstrap
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


@pytest.mark.parametrize(
    "line",
    [
        "endpoint: 'http://127.0.0.1:4318/v1/traces'",
        "endpoint: 'https://otlp.example.com/v1/traces', headers: {x-key: k}, sample_share: 0.5, ca_file: CA",
        "endpoint: 'https://[::1]:4318/v1/traces', ca_file: CA",
    ],
)
def test_envoy_accepts_tracing(line: str, tmp_path: Path) -> None:
    envoy = find_envoy()
    assert envoy is not None
    authority = tmp_path / "ca.pem"
    assert CliRunner().invoke(main, ["certs", "init", str(tmp_path / "certs")]).exit_code == 0
    authority.write_bytes((tmp_path / "certs" / "ca.pem").read_bytes())
    text = (EXAMPLES / "one-box.yaml").read_text() + f"\ntracing: {{{line.replace('CA', str(authority))}}}\n"
    policy = parse_policy(text)
    world = WorldBuilder()
    world.use_policy(policy, None)
    SnapshotCache().set("", world.fixed)
    bootstrap = tmp_path / "envoy.json"
    bootstrap.write_text(as_json(eds_only_bootstrap(policy, policy.control.xds, None)))
    assert "envoy.tracers.opentelemetry" in bootstrap.read_text()
    done = subprocess.run(
        [envoy, "--mode", "validate", "-c", str(bootstrap)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]


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
