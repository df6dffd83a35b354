"""Options and exits that the commands share."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from xds_control.admin.keys import LOG_FORMATS, LOG_LEVELS
from xds_control.errors import PolicyError, XdsControlError

if TYPE_CHECKING:
    from xds_control.policy.schema import Policy

F = TypeVar("F", bound=Callable[..., Any])

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_UNREACHABLE = 3

EXISTING_FILE = click.Path(path_type=Path, exists=True)

policy_option = click.option(
    "--policy",
    "policy_path",
    required=True,
    type=click.Path(path_type=Path),
    help="The policy file (YAML).",
)


def log_options(command: F) -> F:
    """Adds what is logged and how; the command gets `log_level` and `log_format`."""
    for option in (
        click.option(
            "--log-format",
            type=click.Choice(LOG_FORMATS),
            default="auto",
            show_default=True,
            help="auto: text on a terminal, JSON elsewhere.",
        ),
        click.option(
            "--log-level",
            type=click.Choice(LOG_LEVELS),
            default="info",
            show_default=True,
            help="Least severe written.",
        ),
    ):
        command = option(command)
    return command


def fleet_options(command: F) -> F:
    """Adds how control's fleet port is reached; the command gets `ca`, `cert`, `key` and `token_file`."""
    for option in (
        click.option("--token-file", type=EXISTING_FILE, help="File with the bearer token of the fleet port."),
        click.option("--key", type=EXISTING_FILE, help="Key of the own certificate (PEM)."),
        click.option("--cert", type=EXISTING_FILE, help="Own certificate (PEM), for mutual TLS."),
        click.option("--ca", type=EXISTING_FILE, help="Authorities to trust (PEM): use TLS to control."),
    ):
        command = option(command)
    return command


def together(**given: Path | None) -> None:
    """Ends with 2 where only some of these options, by the names of their parameters, are there."""
    if len({value is None for value in given.values()}) > 1:
        names = " and ".join("--" + name.replace("_", "-") for name in given)
        fail(f"{names} belong together", EXIT_BAD_INPUT)


def read_policy(path: Path) -> Policy:
    """The policy in a file; on errors prints every one with its place and exits with 2."""
    from xds_control.admin.checks import CHECKS
    from xds_control.policy.load import load_policy

    try:
        return load_policy(path, CHECKS)
    except PolicyError as error:
        for problem in error.problems:
            click.echo(f"error: {problem}", err=True)
        count = len(error.problems)
        click.echo(f"{count} problem{'s' if count != 1 else ''} in the policy; nothing was started", err=True)
        sys.exit(EXIT_BAD_INPUT)


def fail(error: XdsControlError | str, code: int = EXIT_FAILED) -> NoReturn:
    """Prints the error and exits."""
    click.echo(f"error: {error}", err=True)
    sys.exit(code)
