"""`events` and `history`: what happened to endpoints, and what moved from snapshot to snapshot."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

import click
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from xds_control.admin.keys import EVENT_KINDS
from xds_control.cli.admin_client import AdminClient, admin_options
from xds_control.cli.output import (
    clock,
    emit,
    emit_document,
    grid,
    heading,
    limit_option,
    output_option,
    percent,
    state,
)
from xds_control.proto import admin_pb2 as pb


@click.command()
@click.option("--follow", "-f", is_flag=True, help="Go on as things happen.")
@click.option("--pool", "-p", default="", help="Only this pool.")
@click.option("--endpoint", "-e", default="", help="Only this endpoint (address or name).")
@click.option("--kind", type=click.Choice(EVENT_KINDS), help="Only this kind.")
@limit_option(50)
@output_option
@admin_options
def events(
    client: AdminClient, follow: bool, pool: str, endpoint: str, kind: str | None, limit: int, output: str
) -> None:
    """Show what happened to endpoints and the policy, oldest first.

    Example: xds-control events --follow
    """
    request = pb.ListEventsRequest(pool=pool, endpoint=endpoint, kind=kind or "", limit=limit)
    answer = client.call("ListEvents", request)
    if not follow:
        emit(output, answer.events, lambda: [event_table(answer.events) if answer.events else Text("no events")])
        return
    for event in answer.events:
        _print(event, output)
    # Events of endpoints that are gone have no endpoint to watch: filter here.
    watch = pb.WatchRequest(events_only=True, after_event=answer.newest)
    wanted = answer.events[0].endpoint if endpoint and answer.events else endpoint
    for message in client.stream("Watch", watch):
        for event in message.events:
            if wanted in ("", event.endpoint) and pool in ("", event.pool) and kind in (None, event.kind):
                _print(event, output)


def _print(event: Any, output: str) -> None:
    if output == "table":
        change = event.after if event.before == event.after else f"{event.before or 'new'} → {event.after}"
        place = f"{event.pool}/{event.endpoint}" if event.endpoint else event.pool
        by = f" (by {event.by})" if event.by else ""
        parts = (clock(event.at_unix_s), event.kind, place, change if event.after else "", event.reason + by)
        click.echo("  ".join(part for part in parts if part))
    else:
        emit_document(output, event, line=True)
    sys.stdout.flush()


def event_table(happened: Iterable[Any]) -> Table:
    """A line an event."""
    table = grid("TIME|KIND|POOL|ENDPOINT|BEFORE|AFTER|~REASON")
    for event in happened:
        table.add_row(
            clock(event.at_unix_s),
            event.kind,
            event.pool or "-",
            event.endpoint or "-",
            state(event.before or "-"),
            state(event.after or "-"),
            event.reason + (f" (by {event.by})" if event.by else ""),
        )
    return table


@click.command()
@click.option("--pool", "-p", default="", help="Only this pool.")
@click.option("--endpoint", "-e", default="", help="Only moves of this endpoint (address or name).")
@click.option("--since", type=click.IntRange(min=0), default=0, help="Only snapshots after this version.")
@limit_option(50)
@click.option("--compare", nargs=2, type=click.IntRange(min=0), help="What moved between two versions (0: the newest).")
@output_option
@admin_options
def history(
    client: AdminClient,
    pool: str,
    endpoint: str,
    since: int,
    limit: int,
    compare: tuple[int, int] | None,
    output: str,
) -> None:
    """Show past snapshots: which weights and states moved, and why.

    Example: xds-control history --endpoint 10.0.0.11:8000
    """
    if compare is not None:
        older, newer = compare
        moves = client.call("CompareSnapshots", pb.CompareSnapshotsRequest(older=older, newer=newer)).moves
        emit(output, moves, lambda: [_moves(moves) if moves else Text("nothing moved")])
        return
    request = pb.ListSnapshotsRequest(since=since, limit=limit, endpoint=endpoint, pool=pool)
    snapshots = client.call("ListSnapshots", request).snapshots
    emit(output, snapshots, lambda: _snapshots(snapshots))


def _snapshots(snapshots: Iterable[Any]) -> Iterable[RenderableType]:
    quiet: list[Any] = []
    shown = False
    for one in snapshots:
        shown = True
        if not one.moves:
            quiet.append(one)
            continue
        yield from _quiet(quiet)
        quiet.clear()
        moved = ", ".join(f"{percent(share)} of {pool}" for pool, share in sorted(one.moved.items()))
        title = f"snapshot {one.version}, {clock(one.at_unix_s)}, policy {one.policy_version}"
        yield heading(title + (f": {moved} moved" if moved else ""))
        yield _moves(one.moves)
    yield from _quiet(quiet)
    if not shown:
        yield Text("no snapshots")


def _quiet(snapshots: Sequence[Any]) -> Iterable[RenderableType]:
    """One line for snapshots in a row in which no weight and no state moved."""
    if not snapshots:
        return
    first, last = snapshots[0], snapshots[-1]
    if first is last:
        yield Text(f"snapshot {first.version}, {clock(first.at_unix_s)}: only signals moved", style="dim")
        return
    times = f"{clock(first.at_unix_s)} to {clock(last.at_unix_s)}"
    yield Text(f"snapshots {first.version} to {last.version}, {times}: only signals moved", style="dim")


def _moves(moves: Iterable[Any]) -> Table:
    table = grid("POOL|ENDPOINT|WEIGHT|STATE|GATES|~WHY")
    for move in moves:
        before = str(move.weight_before) if move.HasField("weight_before") else "new"
        after = str(move.weight) if move.HasField("weight") else "gone"
        states = (
            move.state if move.state == move.state_before else f"{move.state_before or 'new'} → {move.state or 'gone'}"
        )
        opened = [f"-{gate}" for gate in move.gates_before if gate not in move.gates]
        closed = [f"+{gate}" for gate in move.gates if gate not in move.gates_before]
        table.add_row(
            move.pool,
            move.endpoint,
            before if before == after else f"{before} → {after}",
            move.state if move.state == move.state_before else states,
            " ".join(closed + opened) or "-",
            move.why,
        )
    return table
