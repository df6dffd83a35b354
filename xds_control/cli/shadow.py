"""`policy shadow`: a second policy beside the live one, shown and never applied."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
from rich.console import RenderableType
from rich.text import Text

from xds_control.cli.admin_client import AdminClient, admin_options
from xds_control.cli.lazy import LazyGroup
from xds_control.cli.options import EXIT_BAD_INPUT
from xds_control.cli.output import clock, emit, grid, heading, output_option, percent
from xds_control.cli.policy import files_argument, files_of, policy, report, weight_text
from xds_control.proto import admin_pb2 as pb


@policy.group(cls=LazyGroup)
def shadow() -> None:
    """Compute a second policy on the same signals, and on a sample of the requests, without ever applying it."""


@shadow.command("set")
@files_argument
@click.option("--reason", "-r", default="", help="Why, for the audit.")
@output_option
@admin_options
def set_(client: AdminClient, paths: tuple[Path, ...], reason: str, output: str) -> None:
    """Begin a shadow policy; it goes on after restarts of control, until `clear`.

    Example: xds-control policy shadow set candidate.yaml
    """
    answer = client.call("SetShadow", pb.SetShadowRequest(files=files_of(paths), reason=reason))
    if not answer.HasField("info"):
        report(answer, output)
        sys.exit(EXIT_BAD_INPUT)
    emit(output, answer, lambda: _shadow(answer))


@shadow.command()
@output_option
@admin_options
def show(client: AdminClient, output: str) -> None:
    """Show its weights beside the live ones, and what it would have decided.

    Example: xds-control policy shadow show
    """
    answer = client.call("GetShadow", pb.GetShadowRequest())
    emit(output, answer, lambda: _shadow(answer))


@shadow.command()
@click.option("--reason", "-r", default="", help="Why, for the audit.")
@output_option
@admin_options
def clear(client: AdminClient, reason: str, output: str) -> None:
    """End the shadow policy.

    Example: xds-control policy shadow clear
    """
    before = client.call("GetShadow", pb.GetShadowRequest())
    answer = client.call("ClearShadow", pb.ClearShadowRequest(reason=reason))
    text = f"shadow policy {before.info.version} has ended" if before.HasField("info") else "there is no shadow policy"
    emit(output, answer, lambda: [text])


def _shadow(answer: Any) -> Iterable[RenderableType]:
    if not answer.HasField("info"):
        yield Text("there is no shadow policy")
        return
    info = answer.info
    by = f", set by {info.by}" if info.by else ""
    yield Text(f"shadow policy {info.version}{by} at {clock(info.at_unix_s)}", style="bold")
    for problem in answer.problems:
        path = f"{problem.path}: " if problem.path else ""
        yield Text(f"warning: {path}{problem.message}", style="yellow")
    if answer.weights:
        yield heading("Weights")
        made = grid("POOL|ENDPOINT|>LIVE|>SHADOW|>LIVE SHARE|>SHADOW SHARE|~WHY")
        for one in answer.weights:
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
    for pool, share in sorted(answer.moved.items()):
        yield Text(f"{percent(share, 1)} of the traffic of pool {pool} would go elsewhere")
    if answer.requests:
        picks = f", the same endpoint for {answer.same_endpoint} of {answer.picks} picks" if answer.picks else ""
        yield Text(f"of {answer.requests} sampled requests, {answer.same_pool} go to the same pool{picks}")
    if answer.predicted:
        yield heading("Predicted effect (shadow minus live)")
        made = grid("WHAT|>CHANGE")
        for name, value in sorted(answer.predicted.items()):
            made.add_row(name, f"{value:+.4g}")
        yield made
