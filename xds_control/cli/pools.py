"""`pools`: pools of endpoints and the traffic of the last minute."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import click
from rich.console import RenderableType
from rich.text import Text

from xds_control.cli.admin_client import AdminClient, admin_options
from xds_control.cli.endpoints import traffic_table
from xds_control.cli.output import emit, facts, grid, heading, number, optional, output_option, percent, seconds
from xds_control.cli.table import Grid
from xds_control.proto import admin_pb2 as pb


@click.command()
@click.argument("name", default="")
@output_option
@admin_options
def pools(client: AdminClient, name: str, output: str) -> None:
    """List pools, or show one with its classes and localities.

    Example: xds-control pools chat
    """
    found = client.call("ListPools", pb.ListPoolsRequest(pool=name)).pools
    emit(output, found, lambda: _one(client.only(found)) if name else [pool_table(found)])


def pool_table(found: Sequence[Any]) -> Grid:
    """A line a pool."""
    table = grid("POOL|>ENDPOINTS|>SERVING|STATES|>REQ/S|>TTFT P50|?>P90|?>SLO|??>KV HITS|>ERRORS|???~MODELS")
    for pool in found:
        traffic = pool.traffic
        known = pool.HasField("traffic")
        times = [seconds(v) for v in (traffic.ttft.p50, traffic.ttft.p90)] if traffic.HasField("ttft") else ["-", "-"]
        table.add_row(
            pool.name,
            str(pool.endpoints),
            str(pool.serving),
            _states(pool),
            number(traffic.requests_per_s) if known else "-",
            *times,
            percent(optional(traffic, "slo_attainment")),
            percent(optional(traffic, "kv_hit_ratio")),
            percent(optional(traffic, "error_rate"), 1),
            ", ".join(pool.models),
        )
    return table


def _states(pool: Any) -> str:
    return " ".join(
        f"{count} {state}" for state, count in sorted(pool.states.items(), key=lambda one: (-one[1], one[0]))
    )


def _one(pool: Any) -> Iterable[RenderableType]:
    yield heading(pool.name)
    yield facts(
        [
            ("models", ", ".join(pool.models)),
            ("endpoints", f"{pool.endpoints}: {_states(pool)}"),
            ("serving", f"{pool.serving}, {pool.pickable} pickable, capacity {number(pool.capacity)}"),
        ]
    )
    if len(pool.localities) > 1:
        yield Text("")
        yield heading("Localities")
        table = grid("REGION|ZONE|RACK|>LEVEL|>WEIGHT|>ENDPOINTS")
        for one in pool.localities:
            table.add_row(
                *(one.region or "-", one.zone or "-", one.sub_zone or "-"),
                *(str(one.priority), str(one.weight), str(one.endpoints)),
            )
        yield table
    yield Text("")
    if pool.HasField("traffic"):
        yield heading(f"Requests of the last {seconds(pool.traffic.window_s)}")
        yield traffic_table([("all", pool.traffic), *sorted(pool.traffic.classes.items())])
    else:
        yield Text("no requests yet")
