"""`policy`: check, try, push, look back, go back."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from xds_control.cli.admin_client import AdminClient, admin_options
from xds_control.cli.lazy import LazyGroup
from xds_control.cli.options import EXIT_BAD_INPUT, EXIT_FAILED
from xds_control.cli.output import clock, emit, emit_document, grid, heading, optional, output_option, percent
from xds_control.errors import Place, PolicyError, Problem
from xds_control.proto import admin_pb2 as pb

MAX_SHOWN = 40
SHORT = 60
"""Characters of both sides of a change that fit into one line."""
"""Weights of a diff that a table shows; the other forms have all."""


@click.group(cls=LazyGroup)
def policy() -> None:
    """Check, try, push and roll back policies.

    Example: xds-control policy diff policy.yaml && xds-control policy push policy.yaml

    A policy is one YAML file, several, or a folder of them. Exit codes: 0 done, 1 refused, 2 wrong input, 3 control is
    not reachable, 4 not allowed.
    """


files_argument = click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))


@policy.command()
@files_argument
@output_option
def validate(paths: tuple[Path, ...], output: str) -> None:
    """Say everything that is wrong with a policy, and what is allowed but known to do harm. Needs no control.

    Example: xds-control policy validate policy.yaml
    """
    from xds_control.admin.checks import CHECKS, warnings
    from xds_control.policy.load import load_files

    try:
        loaded = load_files(_read(paths), CHECKS)
    except PolicyError as error:
        found = pb.ValidatePolicyResponse(problems=[_message(problem) for problem in error.problems])
        report(found, output)
        sys.exit(EXIT_BAD_INPUT)
    notes = [_message(problem) for problem in warnings(loaded.policy)]
    found = pb.ValidatePolicyResponse(ok=True, version=loaded.version, warnings=notes)
    report(found, output)


@policy.command()
@files_argument
@output_option
@admin_options
def diff(client: AdminClient, paths: tuple[Path, ...], output: str) -> None:
    """Show what a policy would change: fields, routes, and the weight of each endpoint as of now.

    Example: xds-control policy diff policy.yaml
    """
    answer = client.call("DiffPolicy", pb.DiffPolicyRequest(files=files_of(paths)))
    if answer.problems:
        report(answer, output)
        sys.exit(EXIT_BAD_INPUT)
    _notes(answer.warnings)
    emit(output, answer, lambda: _diff(answer.diff))


def _change_options(command: Any) -> Any:
    for option in (
        click.option("--dry-run", is_flag=True, help="Do everything but the switch."),
        click.option("--reason", "-r", default="", help="Why, for the history and the audit."),
        click.option("--force", is_flag=True, help="Even if a pool is emptied or much traffic moves."),
        click.option("--expect-version", default="", help="Refuse when another version is in force."),
    ):
        command = option(command)
    return command


@policy.command()
@files_argument
@_change_options
@output_option
@admin_options
def push(
    client: AdminClient,
    paths: tuple[Path, ...],
    expect_version: str,
    force: bool,
    reason: str,
    dry_run: bool,
    output: str,
) -> None:
    """Put a policy into force: checked, tried on the live fleet, switched between two ticks, recorded.

    Example: xds-control policy push policy.yaml --reason "two more replicas" --expect-version 4f3a12bc90de
    """
    request = pb.PushPolicyRequest(
        files=files_of(paths), expect_version=expect_version, force=force, reason=reason, dry_run=dry_run
    )
    _changed(client.call("PushPolicy", request), output, dry_run)


@policy.command()
@click.argument("version", default="")
@_change_options
@output_option
@admin_options
def rollback(
    client: AdminClient, version: str, expect_version: str, force: bool, reason: str, dry_run: bool, output: str
) -> None:
    """Put an earlier policy into force again; without VERSION, the one before the present.

    Example: xds-control policy rollback --reason "errors since the last push"
    """
    request = pb.RollbackPolicyRequest(
        version=version, expect_version=expect_version, force=force, reason=reason, dry_run=dry_run
    )
    _changed(client.call("RollbackPolicy", request), output, dry_run)


@policy.command()
@click.option("--limit", "-n", default=50, show_default=True, type=click.IntRange(1, 1000), help="Newest so many.")
@output_option
@admin_options
def history(client: AdminClient, limit: int, output: str) -> None:
    """List the policies that were in force, newest first.

    Example: xds-control policy history
    """
    answer = client.call("ListPolicies", pb.ListPoliciesRequest(limit=limit))

    def table() -> Iterable[RenderableType]:
        made = grid("|VERSION|SINCE|~BY|SOURCE|~REASON")
        for one in answer.policies:
            source = f"{one.source} to {one.rolled_back_to}" if one.rolled_back_to else one.source
            made.add_row("*" if one.active else "", one.version, clock(one.at_unix_s), one.by, source, one.reason)
        yield made

    emit(output, answer, table)


@policy.command()
@click.argument("version", default="")
@click.option("--effective", is_flag=True, help="The whole policy with defaults, as JSON.")
@output_option
@admin_options
def show(client: AdminClient, version: str, effective: bool, output: str) -> None:
    """Print a policy as it was pushed; without VERSION, the one in force.

    Example: xds-control policy show > policy.yaml
    """
    answer = client.call("GetPolicy", pb.GetPolicyRequest(version=version))
    if effective:
        try:
            document = json.loads(answer.effective_json)
        except ValueError:
            client.senseless("a policy that is no JSON")
        emit_document("yaml" if output == "yaml" else "json", document)
    elif output != "table":
        emit(output, answer, lambda: ())
    else:
        for file in answer.files:
            if len(answer.files) > 1:
                click.echo(f"# {file.name}")
            click.echo(file.text, nl=not file.text.endswith("\n"))


@policy.command("reference")
def print_reference() -> None:
    """Print every field of the policy: type, unit, range, default, meaning. Needs no control.

    Example: xds-control policy reference | less
    """
    from xds_control.policy.reference import reference

    click.echo(reference(), nl=False)


@policy.command()
def schema() -> None:
    """Print the JSON Schema of the policy, for editors. Needs no control.

    Example: xds-control policy schema > policy.schema.json
    """
    from xds_control.policy.reference import json_schema

    click.echo(json_schema(), nl=False)


def _read(paths: Sequence[Path]) -> list[tuple[str, str]]:
    from xds_control.policy.load import read_files

    files: list[tuple[str, str]] = []
    problems: list[Problem] = []
    for path in paths:
        try:
            if str(path) == "-":
                files.append(("<stdin>", sys.stdin.read()))
            else:
                files += read_files(path)
        except PolicyError as error:
            problems += error.problems
        except UnicodeDecodeError:
            problems.append(Problem(Place("<stdin>"), "is not UTF-8"))
    if problems:
        raise PolicyError(problems)
    return files


def files_of(paths: Sequence[Path]) -> list[Any]:
    """The files as messages; says what is wrong with them and exits when they cannot be read."""
    try:
        return [pb.PolicyFile(name=name, text=text) for name, text in _read(paths)]
    except PolicyError as error:
        for problem in error.problems:
            click.echo(f"error: {problem}", err=True)
        sys.exit(EXIT_BAD_INPUT)


def _message(problem: Problem) -> Any:
    place = problem.place
    return pb.Problem(
        file=place.file or "", line=place.line, column=place.column, path=place.path, message=problem.message
    )


def _text(problem: Any) -> str:
    line = int(problem.line) if problem.HasField("line") else None
    column = int(problem.column) if problem.HasField("column") else None
    if not problem.file:
        return f"{problem.path}: {problem.message}" if problem.path else str(problem.message)
    return str(Problem(Place(problem.file, line, column, problem.path), problem.message))


def _notes(notes: Iterable[Any]) -> None:
    for note in notes:
        click.echo(f"warning: {_text(note)}", err=True)


def report(answer: Any, output: str) -> None:
    """Problems and warnings of an answer."""
    if output != "table":
        emit(output, answer, lambda: ())
        return
    for problem in answer.problems:
        click.echo(f"error: {_text(problem)}", err=True)
    _notes(answer.warnings)
    if answer.problems:
        count = len(answer.problems)
        click.echo(f"{count} problem{'s' if count != 1 else ''}; nothing was changed", err=True)
    else:
        click.echo(f"good: version {answer.version}")


def _changed(answer: Any, output: str, dry_run: bool) -> None:
    if answer.problems:
        report(answer, output)
        sys.exit(EXIT_BAD_INPUT)
    _notes(answer.warnings)
    emit(output, answer, lambda: _outcome(answer, dry_run))
    if not answer.accepted:
        click.echo(f"refused: {answer.diff.why_force}; nothing was changed. If that is meant, add --force", err=True)
        sys.exit(EXIT_FAILED)


def _outcome(answer: Any, dry_run: bool) -> Iterable[RenderableType]:
    yield from _diff(answer.diff, told=not answer.accepted)
    if not answer.accepted:
        return
    if dry_run:
        yield Text(f"policy {answer.diff.version} would be in force; nothing was changed")
    else:
        yield Text(f"policy {answer.info.version} is in force (before: {answer.diff.base_version})", style="green")


def _diff(diff: Any, *, told: bool = False) -> Iterable[RenderableType]:
    if not (diff.fields or diff.routes or diff.weights):
        yield Text(f"nothing changes: {diff.base_version} is in force")
        return
    if diff.fields:
        yield heading("Fields")
        yield from _fields(diff.fields)
    if diff.routes:
        yield heading("Routes")
        for sentence in diff.routes:
            yield Text(f"  {sentence}")
    if diff.weights:
        yield heading("Weights, from the signals of now")
        made = grid("POOL|ENDPOINT|>WEIGHT|>BECOMES|>SHARE|>BECOMES|~WHY")
        for one in diff.weights[:MAX_SHOWN]:
            made.add_row(
                one.pool,
                one.endpoint,
                weight_text(one, "weight_before"),
                weight_text(one, "weight"),
                percent(one.share_before, 1),
                percent(one.share, 1),
                one.why,
            )
        yield made
        if len(diff.weights) > MAX_SHOWN:
            yield Text(f"  and {len(diff.weights) - MAX_SHOWN} more (see --output json)")
    for pool, share in sorted(diff.moved.items()):
        yield Text(f"{percent(share, 1)} of the traffic of pool {pool} moves")
    if diff.needs_force and not told:
        yield Text(f"needs --force: {diff.why_force}", style="yellow")


def _fields(changes: Iterable[Any]) -> Iterable[RenderableType]:
    """A line a field; one for each side where they are long, or one of them is not there."""
    for one in changes:
        if one.before and one.after and len(one.before) + len(one.after) <= SHORT:
            yield Text.assemble(f"  {one.path}: ", (one.before, "red"), " → ", (one.after, "green"))
            continue
        yield Text(f"  {one.path}")
        for sign, value, style in (("-", one.before, "red"), ("+", one.after, "green")):
            if value:
                yield Padding(Text(f"{sign} {value}", style=style, overflow="fold"), (0, 0, 0, 4), expand=False)


def weight_text(one: Any, field: str) -> str:
    """A weight of a change, - where there is none."""
    value = optional(one, field)
    return "-" if value is None else f"{value:.0f}"
