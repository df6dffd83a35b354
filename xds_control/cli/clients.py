"""`clients`: Envoys that fetch their configuration."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import click
from rich.console import RenderableType
from rich.text import Text

from xds_control.cli.admin_client import AdminClient, admin_options
from xds_control.cli.output import emit, grid, heading, output_option, seconds
from xds_control.proto import admin_pb2 as pb


@click.command()
@click.option("--types", is_flag=True, help="Each resource type with its versions.")
@click.option("--behind", "only_behind", is_flag=True, help="Only clients that rejected something or lag.")
@output_option
@admin_options
def clients(client: AdminClient, types: bool, only_behind: bool, output: str) -> None:
    """Show connected Envoys: what they were sent, what they took, what they rejected and why.

    Example: xds-control clients --types
    """
    found = client.call("ListClients", pb.ListClientsRequest()).clients
    shown = [one for one in found if not only_behind or is_behind(one)]
    emit(output, shown, lambda: _parts(shown, types))


def is_behind(one: Any) -> bool:
    """Whether a client rejected something or owes an answer."""
    return one.stuck or any(kind.rejected or kind.lag_s > 0 for kind in one.types)


def _parts(found: Sequence[Any], types: bool) -> Iterable[RenderableType]:
    if not found:
        yield Text("no xDS clients: no Envoy is connected, or none is behind")
        return
    table = grid("NODE|??CLUSTER|PEER|??PROTOCOL|??SERVICE|???GROUP|>FOR|?TYPES|STATE")
    for one in found:
        table.add_row(
            one.node_id or "-",
            one.cluster or "-",
            one.peer,
            one.protocol,
            one.service,
            one.group or "-",
            seconds(one.age_s),
            " ".join(kind.type for kind in one.types) or "-",
            _state(one),
        )
    yield table
    for one in found:
        errors = [kind for kind in one.types if kind.last_error]
        if types:
            yield Text("")
            yield heading(f"{one.node_id or one.peer}")
            yield _types(one.types)
        for kind in errors:
            now = f"rejects {', '.join(kind.rejected)}" if kind.rejected else "rejected before, has recovered"
            yield Text(f"{one.node_id or one.peer}: {kind.type} {now}: {kind.last_error}", style="yellow")


def _state(one: Any) -> Text:
    rejected = sorted({kind.type for kind in one.types if kind.rejected})
    if rejected:
        return Text(f"rejects {' '.join(rejected)}", style="bold red")
    if one.stuck:
        return Text("stuck", style="bold red")
    if one.lag_s > 0:
        return Text(f"behind by {seconds(one.lag_s)}", style="yellow")
    return Text("in step", style="green")


def _types(types: Iterable[Any]) -> RenderableType:
    table = grid("TYPE|~ASKS FOR|>HOLDS|SENT|ACKNOWLEDGED|>LAG|?>RESPONSES|?>ACKS|>NACKS")
    for kind in types:
        table.add_row(
            kind.type,
            "all" if kind.wildcard else ", ".join(kind.names) or "-",
            str(kind.held),
            _version(kind.version_sent),
            _version(kind.version_acked),
            seconds(kind.lag_s) if kind.lag_s else "-",
            *(str(kind.responses), str(kind.acks), str(kind.nacks)),
        )
    return table


def _version(version: str) -> str:
    """The beginning of a version, enough to tell it from others; the documents of `--output` have all of it."""
    return version[:12] or "-"
