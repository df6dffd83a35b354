"""`weights`: what Envoy gets, and why."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

import click
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from xds_control.cli.admin_client import AdminClient, admin_options
from xds_control.cli.output import (
    clock,
    console,
    emit,
    emit_document,
    endpoint_state,
    grid,
    heading,
    number,
    optional,
    output_option,
    percent,
    seconds,
)
from xds_control.proto import admin_pb2 as pb


@click.command()
@click.option("--pool", "-p", default="", help="Only this pool.")
@click.option("--endpoint", "-e", default="", help="Only this endpoint (address or name).")
@click.option("--explain", is_flag=True, help="Factor by factor, from capacity to the integer.")
@click.option("--watch", "-w", is_flag=True, help="Go on: a live table on a terminal, one line a change in a pipe.")
@output_option
@admin_options
def weights(client: AdminClient, pool: str, endpoint: str, explain: bool, watch: bool, output: str) -> None:
    """Show the weights that Envoy gets, and the share of traffic that each endpoint really took.

    Example: xds-control weights --pool chat --explain
    """
    if watch:
        _watch(client, pb.WatchRequest(pool=pool, endpoint=endpoint, explain=explain), output)
        return
    answer = client.call("ListEndpoints", pb.ListEndpointsRequest(pool=pool, endpoint=endpoint, explain=explain))
    emit(output, answer.endpoints, lambda: _parts(answer.endpoints, explain))


def _parts(endpoints: Sequence[Any], explain: bool) -> Iterable[RenderableType]:
    if not endpoints:
        yield Text("no endpoints")
        return
    yield weight_table(endpoints)
    if explain:
        for one in endpoints:
            yield Text("")
            yield heading(f"{one.pool}/{one.name or one.address}: {one.why}")
            yield explanation_table(one.explanation)


def weight_table(endpoints: Iterable[Any]) -> Table:
    """A line an endpoint: its weight, what it took, and why."""
    table = grid("POOL|ENDPOINT|STATE|>WEIGHT|>SHARE|>TOOK|?>REQ/S|??>CAPACITY|~WHY")
    for one in endpoints:
        traffic = one.traffic
        known = one.HasField("traffic")
        weight = str(one.weight) if one.priority == 0 else f"{one.weight} (spill {one.priority})"
        table.add_row(
            one.pool,
            label(one),
            endpoint_state(one),
            weight,
            percent(one.weight_share),
            percent(optional(traffic, "share")) if known else "-",
            number(traffic.requests_per_s) if known else "-",
            number(one.capacity),
            one.why + (f" [{one.override.kind} by {one.override.by}]" if one.HasField("override") else ""),
        )
    return table


def label(endpoint: Any) -> str:
    """How an endpoint is called in tables: its name with its address, where it has one."""
    return f"{endpoint.name} ({endpoint.address})" if endpoint.name not in ("", endpoint.address) else endpoint.address


def explanation_table(explanation: Any) -> RenderableType:
    """The factors, whose product is the raw weight, and the stages that it went through."""
    table = grid("|FACTOR|>TIMES|SIGNAL|>VALUE|>AGE|?>NORMALISED|??>EXPONENT")
    for sign, factors in (("×", explanation.factors), ("+", explanation.terms)):
        for one in factors:
            unknown = one.signal and not one.HasField("value")
            table.add_row(
                sign,
                one.name,
                f"{one.factor:.4f}",
                one.signal,
                "pool's mean" if unknown else _shown(one, "value"),
                seconds(one.age_s) if one.HasField("age_s") else "",
                f"{one.normalised:.3f}" if one.HasField("normalised") else "",
                _shown(one, "exponent"),
            )
    stages = grid("|STAGE|>WEIGHT")
    stages.add_row("=", "raw", f"{explanation.raw:.6g}")
    for stage in explanation.stages:
        stages.add_row("→", stage.name, f"{stage.value:.2f}")
    stages.add_row("→", "sent to Envoy", str(explanation.weight))
    return Group(table, stages)


def _shown(message: Any, field: str) -> str:
    return number(getattr(message, field)) if message.HasField(field) else ""


def _watch(client: AdminClient, request: pb.WatchRequest, output: str) -> None:
    if output != "table":
        for message in client.stream("Watch", request):
            emit_document(output, message, line=True)
        return
    if not sys.stdout.isatty():
        _print_changes(client, request)
        return
    request.traffic = True
    request.interval_s = 1.0
    with Live(console=console(), auto_refresh=False) as live:
        for message in client.stream("Watch", request):
            parts: list[RenderableType] = list(_parts(message.endpoints, request.explain))
            foot = f"snapshot {message.snapshot_version}, policy {message.policy_version}, {clock(message.at_unix_s)}"
            parts.append(Text(foot, style="dim"))
            live.update(Group(*parts), refresh=True)


def _print_changes(client: AdminClient, request: pb.WatchRequest) -> None:
    known: dict[str, Any] = {}
    for message in client.stream("Watch", request):
        moment = clock(message.at_unix_s)
        for one in message.endpoints:
            before = known.get(one.address)
            known[one.address] = one
            if before is None:
                change = str(one.weight)
            elif (before.weight, before.state) != (one.weight, one.state):
                change = f"{before.weight} → {one.weight}"
            else:
                continue
            click.echo(f"{moment}  {one.pool}  {label(one)}  {endpoint_state(one)}  {change}  {one.why}")
        for address in message.removed:
            gone = known.pop(address, None)
            if gone is not None:
                click.echo(f"{moment}  {gone.pool}  {label(gone)}  gone")
        sys.stdout.flush()
