"""`status`, `audit`, `log-level`: control itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import click
from rich.console import RenderableType
from rich.text import Text

from xds_control.admin.keys import LOG_LEVELS
from xds_control.cli.admin_client import AdminClient, admin_options
from xds_control.cli.options import EXIT_FAILED
from xds_control.cli.output import (
    Duration,
    clock,
    counted,
    emit,
    facts,
    grid,
    limit_option,
    number,
    output_option,
    seconds,
)
from xds_control.proto import admin_pb2 as pb


@click.command()
@output_option
@admin_options
@click.pass_context
def status(context: click.Context, client: AdminClient, output: str) -> None:
    """Show how control is. Exits with 1 when it is not ready or something is wrong.

    Example: xds-control status
    """
    answer = client.call("GetStatus", pb.GetStatusRequest())
    emit(output, answer, lambda: status_parts(answer))
    if not answer.ready or answer.problems:
        context.exit(EXIT_FAILED)


def status_parts(answer: Any) -> Iterable[RenderableType]:
    """Control in a few lines."""
    states = ", ".join(f"{count} {name}" for name, count in sorted(answer.endpoint_states.items()))
    behind = f", {answer.xds_clients_behind} behind" if answer.xds_clients_behind else ""
    ready = Text("ready", style="green") if answer.ready else Text("not ready", style="bold red")
    fleet = f"{counted(answer.pools, 'pool')}, {counted(answer.endpoints, 'endpoint')}"
    yield facts(
        [
            ("control", ready),
            ("version", f"{answer.version}, up {seconds(answer.uptime_s)}, epoch {answer.epoch or '-'}"),
            ("policy", answer.policy_version),
            ("shadow policy", answer.shadow_version),
            ("snapshot", f"{answer.snapshot_version}, {seconds(answer.snapshot_age_s)} old"),
            ("ticks", f"{answer.ticks}, the last took {seconds(answer.tick_s)}"),
            ("fleet", fleet + (f": {states}" if states else "")),
            ("requests", f"{number(answer.requests_per_s)} per second"),
            ("xDS clients", f"{answer.xds_clients}{behind}"),
            ("processors", str(answer.processors)),
            ("GPU agents", str(answer.agents)),
            ("log level", answer.log_level),
        ]
    )
    for problem in answer.problems:
        yield Text(f"problem: {problem}", style="bold red")


@click.command()
@click.option("--endpoint", "-e", default="", help="Only what was done to this endpoint.")
@limit_option(50)
@output_option
@admin_options
def audit(client: AdminClient, endpoint: str, limit: int, output: str) -> None:
    """Show who did what and why, newest first.

    Example: xds-control audit
    """
    entries = client.call("ListAudit", pb.ListAuditRequest(endpoint=endpoint, limit=limit)).entries
    emit(output, entries, lambda: [_audit(entries)])


def _audit(entries: Sequence[Any]) -> RenderableType:
    if not entries:
        return Text("nothing was done")
    table = grid("TIME|~BY|ACTION|TARGET|?~DETAIL|~REASON")
    for entry in entries:
        moment = clock(entry.at_unix_s) if entry.at_unix_s else "-"
        table.add_row(moment, entry.by, entry.action, entry.target or "-", entry.detail or "-", entry.reason or "-")
    return table


@click.command("log-level")
@click.argument("level", required=False, type=click.Choice(LOG_LEVELS))
@click.option("--ttl", type=Duration(), help="Back to the policy's level after this time.")
@output_option
@admin_options
def log_level(client: AdminClient, level: str | None, ttl: float | None, output: str) -> None:
    """Show control's log level, or set it.

    Example: xds-control log-level debug --ttl 10m
    """
    if level:
        answer = client.call("SetLogLevel", pb.SetLogLevelRequest(level=level, ttl_s=ttl))
    else:
        answer = client.call("GetLogLevel", pb.GetLogLevelRequest())
    emit(output, answer, lambda: [answer.level])
