"""Options and exits that the commands share."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from xds_control.errors import PolicyError, XdsControlError

if TYPE_CHECKING:
    from xds_control.policy.schema import Policy

F = TypeVar("F", bound=Callable[..., Any])

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_UNREACHABLE = 3

policy_option = click.option(
    "--policy",
    "policy_path",
    required=True,
    type=click.Path(path_type=Path),
    help="The policy file (YAML).",
)


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
