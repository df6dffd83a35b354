"""`top`: the fleet on one screen, as it moves."""

from __future__ import annotations

import contextlib
import select
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import click
import grpc
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from xds_control.cli.admin_client import AdminClient, admin_options
from xds_control.cli.events import event_table
from xds_control.cli.harmless import harmless
from xds_control.cli.output import (
    Duration,
    clock,
    console,
    counted,
    endpoint_state,
    number,
    optional,
    percent,
    seconds,
)
from xds_control.cli.pools import pool_table
from xds_control.cli.table import Grid
from xds_control.cli.weights import label
from xds_control.proto import admin_pb2 as pb

_SORTS: dict[str, Callable[[Any], Any]] = {
    "pool": lambda one: (one.pool, one.address),
    "weight": lambda one: (-one.weight, one.address),
    "traffic": lambda one: (-one.traffic.requests_per_s, one.address),
    "waiting": lambda one: (-_signal(one, "waiting", -1.0), one.address),
    "ttft": lambda one: (-one.traffic.ttft.p90, one.address),
}


@dataclass(slots=True)
class Frame:
    """What the last refresh brought; `trouble` says why there is no newer one."""

    status: Any = None
    pools: Any = ()
    endpoints: Any = ()
    events: Any = ()
    trouble: str = ""
    at: float = field(default_factory=time.time)


@click.command()
@click.option("--pool", "-p", default="", help="Only this pool.")
@click.option(
    "--sort", type=click.Choice(sorted(_SORTS)), default="pool", show_default=True, help="Order of the endpoints."
)
@click.option("--interval", type=Duration(), default="1s", show_default=True, help="Time between two looks.")
@click.option("--once", is_flag=True, help="Print one screen and end; the default where there is no terminal.")
@admin_options
def top(client: AdminClient, pool: str, sort: str, interval: float, once: bool) -> None:
    """Watch pools, endpoints and events on one screen. `q` or Ctrl-C ends it.

    Example: xds-control top --sort waiting
    """
    if once or not sys.stdout.isatty():
        with client.errors():
            frame = _look(client, pool)
        screen = console()
        for part in _parts(frame, sort, None):
            screen.print(part)
        return
    frame = Frame()
    screen = console()
    with Live(console=screen, screen=True, auto_refresh=False) as live, _keys() as pressed:
        while True:
            try:
                frame = _look(client, pool)
            except grpc.RpcError as error:
                frame.trouble = harmless(f"{client.server}: {error.details() or error.code().name}")
            live.update(Group(*_parts(frame, sort, screen.height)), refresh=True)
            if pressed(max(0.2, interval)) in ("q", "Q", "\x03"):
                return


def _look(client: AdminClient, pool: str) -> Frame:
    return Frame(
        status=client.ask("GetStatus", pb.GetStatusRequest()),
        pools=client.ask("ListPools", pb.ListPoolsRequest(pool=pool)).pools,
        endpoints=client.ask("ListEndpoints", pb.ListEndpointsRequest(pool=pool)).endpoints,
        events=client.ask("ListEvents", pb.ListEventsRequest(pool=pool, limit=8)).events,
    )


def _parts(frame: Frame, sort: str, height: int | None) -> list[RenderableType]:
    """The screen from top to bottom. height: lines that fit; endpoints and events give way."""
    status = frame.status
    if status is None:
        return [Text(f"control is not reachable, trying again: {frame.trouble}", style="bold red")]
    head = Text.assemble(
        ("xds-control ", "bold"),
        f"{status.version}  policy {status.policy_version}  snapshot {status.snapshot_version}  ",
        f"up {seconds(status.uptime_s)}  {number(status.requests_per_s)} req/s  tick {seconds(status.tick_s)}  ",
        f"{counted(status.processors, 'processor')}  {counted(status.xds_clients, 'Envoy')}",
        (f", {status.xds_clients_behind} behind" if status.xds_clients_behind else "", "yellow"),
        f"  {clock(frame.at)}",
    )
    parts: list[RenderableType] = [head]
    troubles = [*status.problems, *([f"no answer, trying again: {frame.trouble}"] if frame.trouble else [])]
    parts += [Text(one, style="bold red") for one in troubles]
    pools = pool_table(frame.pools)
    pools.noted = False  # the screen has no line for it
    parts += [Text(""), pools, Text("")]
    found = sorted(frame.endpoints, key=_SORTS[sort])
    events = list(frame.events)
    if height is not None:
        left = height - len(parts) - len(frame.pools) - 2
        events = events[-max(0, min(8, left - len(found) - 3)) :] if left - len(found) > 3 else []
        room = max(3, left - (len(events) + 2 if events else 0))
        if len(found) > room:
            found, more = found[: room - 1], len(found) - room + 1
            return [*parts, _endpoints(found), Text(f"and {more} more", style="dim")]
    parts.append(_endpoints(found))
    if events:
        parts += [Text(""), event_table(events)]
    return parts


def _endpoints(found: list[Any]) -> Grid:
    table = Grid(
        "POOL|ENDPOINT|STATE|>WEIGHT|??>SHARE|>TOOK|??>REQ/S|>RUN|>WAIT|>KV|>TTFT P50|??>P90|???>TPOT|?>SLO|???>HITS|"
        "?>ERRORS|GATES",
        noted=False,
    )
    for one in found:
        traffic = one.traffic
        ttft = [seconds(v) for v in (traffic.ttft.p50, traffic.ttft.p90)] if traffic.HasField("ttft") else ["-", "-"]
        table.add_row(
            one.pool,
            label(one),
            endpoint_state(one),
            str(one.weight),
            percent(one.weight_share),
            percent(optional(traffic, "share")),
            number(traffic.requests_per_s),
            number(_signal(one, "running")),
            number(_signal(one, "waiting")),
            percent(_signal(one, "kv_usage")),
            *ttft,
            seconds(traffic.tpot.p50) if traffic.HasField("tpot") else "-",
            percent(optional(traffic, "slo_attainment")),
            percent(optional(traffic, "kv_hit_ratio")),
            percent(optional(traffic, "error_rate"), 1),
            " ".join(one.gates) + (f" {one.override.kind}" if one.HasField("override") else ""),
        )
    return table


def _signal(one: Any, name: str, unknown: Any = None) -> Any:
    return next((signal.value for signal in one.signals if signal.name == name), unknown)


def _wait(wait_s: float) -> str:
    time.sleep(wait_s)
    return ""


@contextlib.contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """Gives a function that waits so many seconds for a key; "" when none was pressed."""
    if not sys.stdin.isatty():
        yield _wait
        return
    import termios
    import tty

    handle = sys.stdin.fileno()
    before = termios.tcgetattr(handle)

    def pressed(wait_s: float) -> str:
        ready, _, _ = select.select([sys.stdin], [], [], wait_s)
        return sys.stdin.read(1) if ready else ""

    try:
        tty.setcbreak(handle)
        yield pressed
    finally:
        termios.tcsetattr(handle, termios.TCSADRAIN, before)
