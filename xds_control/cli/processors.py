"""`processors`: the processes that decide requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click
from rich.console import RenderableType
from rich.text import Text

from xds_control.cli.admin_client import AdminClient, admin_options
from xds_control.cli.output import emit, grid, output_option, seconds, size
from xds_control.proto import admin_pb2 as pb


@click.command()
@output_option
@admin_options
def processors(client: AdminClient, output: str) -> None:
    """Show the processors: load, lag, memory, and the snapshot and policy that they hold.

    Example: xds-control processors
    """
    found = client.call("ListProcessors", pb.ListProcessorsRequest()).processors
    emit(output, found, lambda: [_table(found)])


def _table(found: Sequence[Any]) -> RenderableType:
    if not found:
        return Text("no processors: Envoy routes by its defaults and balances by weights (ring 1)")
    table = grid(
        "PROCESSOR|ADDRESS|???VERSION|??>FOR|>REPORTED|??>SNAPSHOT|>BEHIND|??>STREAMS|"
        ">REQUESTS|???>LOG|??>OUTSTANDING|?>CPU|>LOOP LAG|>MEMORY|???>PREFIXES"
    )
    for one in found:
        silent = not one.HasField("last_report_age_s") or one.last_report_age_s > 5
        reported = f"{seconds(one.last_report_age_s)} ago" if one.HasField("last_report_age_s") else "never"
        table.add_row(
            one.name,
            one.address or "-",
            one.version or "-",
            seconds(one.age_s),
            Text(reported, style="yellow" if silent else ""),
            str(one.snapshot_version),
            str(one.snapshots_behind or "-"),
            str(one.streams),
            str(one.requests),
            str(one.access_log_entries),
            str(one.outstanding),
            seconds(one.cpu_seconds),
            seconds(one.loop_lag_s),
            size(one.rss_bytes),
            size(one.prefix_index_bytes),
        )
    return table
