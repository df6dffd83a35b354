"""`serve` and bad input: a clear message, exit code 2, nothing started."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from tests.envoy.harness import free_ports
from xds_control.cli.main import main

GOOD = """\
version: xds-control/v1
pools:
- name: chat
  endpoints:
  - address: 127.0.0.1:8000
  - address: 127.0.0.1:8001
"""


@pytest.mark.parametrize(
    ("change", "place", "words"),
    [
        (("name: chat", "name: chat\n  modles: [a]"), "policy.yaml:4:3: pools[0].modles", "did you mean `models`"),
        (("- name: chat", "- name: [chat]"), "policy.yaml:3:9: pools[0].name", "expected text, found a list"),
        (("127.0.0.1:8001", "nowhere"), "policy.yaml:6:5: pools[0].endpoints[1]", "is not host:port"),
        (("127.0.0.1:8001", "127.0.0.1:8000"), "policy.yaml:6:14: pools[0].endpoints[1].address", "listed twice"),
        (
            ("pools:", "weights: {profile: custom, curves: [{signal: kv_usage, weight: 99}]}\npools:"),
            "policy.yaml:2:64: weights.curves[0].weight",
            "expected a number <= 10",
        ),
        (
            ("pools:", "routing: {rules: [{name: a, when: 'request.nope == 1'}]}\npools:"),
            "policy.yaml:2:35: routing.rules[0].when",
            "nope",
        ),
        (
            ("pools:", "control: {admin: '0.0.0.0:18002'}\npools:"),
            "policy.yaml:2:18: control.admin",
            "can be reached from elsewhere",
        ),
        (("pools:", "control: {fleet: '0.0.0.0:1'}\npools:"), "policy.yaml:2:18: control.fleet", "fleet_security.tls"),
        (("pools:", "control: {xds: '0.0.0.0:1'}\npools:"), "policy.yaml:2:16: control.xds", "xds.tls"),
    ],
)
@pytest.mark.parametrize("command", ["serve", "control", "bootstrap"])
def test_policy_errors_name_the_place_and_start_nothing(
    tmp_path: Path, command: str, change: tuple[str, str], place: str, words: str
) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(GOOD.replace(*change, 1))
    result = CliRunner().invoke(main, [command, "--policy", str(path)])
    assert result.exit_code == 2, result.output
    assert place in result.output
    assert words in result.output
    assert "nothing was started" in result.output


def test_a_missing_policy_is_bad_input(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["serve", "--policy", str(tmp_path / "none.yaml")])
    assert result.exit_code == 2
    assert "none.yaml: cannot be read: No such file or directory" in result.output


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        path = tmp_path / "policy.yaml"
        xds, fleet, admin = (f"127.0.0.1:{free}" for free in free_ports(3))
        addresses = f"{{xds: '{xds}', fleet: '{fleet}', admin: '{admin}', http: '127.0.0.1:{port}'}}"
        path.write_text(GOOD + f"control: {addresses}\nprocessors: {{count: 0}}\n")
        result = CliRunner().invoke(main, ["serve", "--policy", str(path)])
    assert result.exit_code == 2
    assert f"control.http: 127.0.0.1:{port} cannot be used: Address already in use" in result.output


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        (
            "processors: {count: 3, listen: '127.0.0.1:PORT', http: '127.0.0.1:PORT'}",
            "processors.http: 127.0.0.1:PORT cannot be used: processors.listen (127.0.0.1:PORT) takes it already",
        ),
        (
            "processors: {count: 0, http: '127.0.0.1:PORT'}\nenvoy: {listen: '0.0.0.0:PORT', admin: '127.0.0.1:PORT'}",
            "envoy.admin: 127.0.0.1:PORT cannot be used: envoy.listen (0.0.0.0:PORT) takes it already",
        ),
        (
            "processors: {count: 2, listen: '127.0.0.1:65535', http: '127.0.0.1:PORT'}",
            "processors.listen: 127.0.0.1:65536 cannot be used: address '127.0.0.1:65536': port '65536'",
        ),
    ],
)
def test_a_port_of_two_listeners_is_named(tmp_path: Path, sections: str, words: str) -> None:
    xds, fleet, admin, http, port = (str(free) for free in free_ports(5))
    path = tmp_path / "policy.yaml"
    addresses = ", ".join(
        f"{k}: '127.0.0.1:{v}'"
        for k, v in zip(("xds", "fleet", "admin", "http"), (xds, fleet, admin, http), strict=True)
    )
    path.write_text(GOOD + f"control: {{{addresses}}}\n" + sections.replace("PORT", port) + "\n")
    result = CliRunner().invoke(main, ["serve", "--policy", str(path), "--with-envoy"])
    assert result.exit_code == 2
    assert words.replace("PORT", port) in result.output


def commands(group: click.Group, name: str) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for key in group.list_commands(context):
        command = group.get_command(context, key)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, f"{name} {key}")
        else:
            yield f"{name} {key}", command


ALL = list(commands(main, "xds-control"))


@pytest.mark.parametrize(("name", "command"), ALL, ids=lambda one: one if isinstance(one, str) else "")
def test_every_command_has_help_with_an_example(name: str, command: click.Command) -> None:
    result = CliRunner().invoke(command, ["--help"])
    assert result.exit_code == 0, name
    assert name in (command.help or ""), f"no example in the help of `{name}`"
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, parameter.name


def test_all_commands_are_looked_at() -> None:
    assert {"xds-control serve", "xds-control policy shadow set", "xds-control endpoints show"} <= {
        name for name, _ in ALL
    }
    assert len(ALL) >= 39
