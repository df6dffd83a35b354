"""Commands are imported when they are used, and nothing of the help or the completion is lost by that."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any, get_args, get_type_hints

import click
import pytest
from click.testing import CliRunner

from tests.shared import REPOSITORY
from xds_control.admin.keys import LOG_FORMATS, LOG_LEVELS, STATES
from xds_control.cli.main import ADMIN, PROCESSES, main
from xds_control.cli.output import STATE_STYLES
from xds_control.fleet.snapshot import State
from xds_control.observe.logs import LEVELS
from xds_control.policy.processes import LogPolicy

SOURCES = {**PROCESSES, **ADMIN}
HEAVY = ("grpc", "numpy", "rich", "aiohttp", "msgspec", "yaml", "google.protobuf", "envoy_data_plane")


def complete(*words: str) -> list[str]:
    """What bash is offered after `xds-control words…`; the last word is the one under the cursor."""
    environment = {
        **os.environ,
        "_XDS_CONTROL_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(("xds-control", *words)),
        "COMP_CWORD": str(len(words)),
    }
    code = "from xds_control.cli.main import main; main(prog_name='xds-control')"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60, cwd=REPOSITORY
    )
    return [line.partition(",")[2] for line in done.stdout.splitlines()]


@pytest.mark.parametrize("name", sorted(SOURCES))
def test_each_name_leads_to_its_command_and_tells_its_help(name: str) -> None:
    command = main.get_command(click.Context(main), name)
    assert command is not None
    assert command.help
    first = " ".join(command.help.split("\n\n")[0].split())
    assert SOURCES[name][2] == first


def test_the_list_of_commands_is_complete() -> None:
    output = CliRunner().invoke(main, ["--help"]).output
    rows = output.partition("Commands:\n")[2].splitlines()
    listed = [line.split()[0] for line in rows if line.startswith("  ") and not line.startswith("   ")]
    assert [name for name in listed if name in SOURCES] == sorted(SOURCES)


@pytest.mark.parametrize("words", [["--version"], ["--help"], ["no-such-command"]])
def test_what_needs_no_command_imports_none(words: list[str]) -> None:
    code = (
        "import sys; from xds_control.cli.main import main\n"
        f"try: main({words!r})\n"
        "except SystemExit: pass\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=REPOSITORY)
    assert done.stderr.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("words", "some"),
    [
        (("",), {"serve", "weights", "policy", "drain"}),
        (("pro",), {"processor", "processors"}),
        (("policy", ""), {"push", "rollback", "shadow", "validate"}),
        (("policy", "shadow", ""), {"set", "show", "clear"}),
        (("weights", "--out"), {"--output"}),
        (("weights", "--output", ""), {"table", "json", "yaml"}),
        (("events", "--kind", ""), {"state", "override", "policy", "xds"}),
        (("log-level", ""), {"debug", "info", "warning", "error"}),
    ],
)
def test_completion(words: tuple[str, ...], some: set[str]) -> None:
    assert some <= set(complete(*words))


def test_a_name_that_is_wrong_is_told_with_what_fits() -> None:
    result: Any = CliRunner().invoke(main, ["weigts"])
    assert result.exit_code == 2
    assert "weigts" in result.output


def test_what_may_be_asked_by_kind_is_what_there_is() -> None:
    assert tuple(State) == STATES
    assert set(STATE_STYLES) == set(STATES)
    assert tuple(LEVELS) == LOG_LEVELS
    hints = get_type_hints(LogPolicy)
    assert (get_args(hints["level"]), get_args(hints["format"])) == (LOG_LEVELS, LOG_FORMATS)


@pytest.mark.parametrize("words", [[], ["policy"], ["policy", "shadow"], ["endpoints"], ["certs"]], ids=" ".join)
def test_what_commands_do_is_told_to_the_end(words: list[str]) -> None:
    output = CliRunner().invoke(main, [*words, "--help"], terminal_width=80).output
    listed = output.partition("Commands:\n")[2]
    assert listed
    assert "..." not in listed
    assert max(map(len, listed.splitlines())) <= 80


@pytest.mark.parametrize(
    ("words", "near"), [(["statu"], "status"), (["weigths"], "weights"), (["policy", "valdate"], "validate")]
)
def test_a_misspelt_command_is_told_the_nearest(words: list[str], near: str) -> None:
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 2
    assert f"Did you mean {near!r}?" in done.stderr
    assert "Did you mean" not in CliRunner().invoke(main, ["qqqqqq"]).stderr
