"""`endpoints`: the inference servers, their states and signals."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import click
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from xds_control.admin.keys import STATES
from xds_control.admin.plain import plain
from xds_control.cli.admin_client import AdminClient, admin_options
from xds_control.cli.events import event_table
from xds_control.cli.lazy import LazyGroup
from xds_control.cli.output import (
    emit,
    endpoint_state,
    facts,
    grid,
    heading,
    number,
    optional,
    output_option,
    percent,
    seconds,
)
from xds_control.cli.weights import explanation_table, label
from xds_control.proto import admin_pb2 as pb

_SHOWN_SIGNALS = ("running", "waiting", "kv_usage")


class _ListByDefault(LazyGroup):
    """A group whose `list` may be left out."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0].startswith("-") and args[0] not in ("-h", "--help")):
            args = ["list", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_ListByDefault)
def endpoints() -> None:
    """Inference servers: list them, or show one with everything that is known.

    Example: xds-control endpoints show 10.0.0.11:8000 --signals
    """


@endpoints.command("list")
@click.option("--pool", "-p", default="", help="Only this pool.")
@click.option(
    "--state",
    "states",
    type=click.Choice(STATES),
    multiple=True,
    help="Only endpoints in this state; may be repeated.",
)
@output_option
@admin_options
def list_endpoints(client: AdminClient, pool: str, states: tuple[str, ...], output: str) -> None:
    """List endpoints with their states and load.

    Example: xds-control endpoints list --state suspect --state ejected
    """
    answer = client.call("ListEndpoints", pb.ListEndpointsRequest(pool=pool, states=states))
    emit(output, answer.endpoints, lambda: [_table(answer.endpoints)])


@endpoints.command("show")
@click.argument("name")
@click.option("--pool", "-p", default="", help="Pool, where several have an endpoint of this name.")
@click.option("--signals", is_flag=True, help="Signals of every source, stale ones too.")
@click.option("--explain/--no-explain", default=True, show_default=True, help="The weight, factor by factor.")
@click.option("--events", "count", type=click.IntRange(0, 1000), default=10, show_default=True, help="Newest events.")
@output_option
@admin_options
def show(client: AdminClient, name: str, pool: str, signals: bool, explain: bool, count: int, output: str) -> None:
    """Show one endpoint, by address or name.

    Example: xds-control endpoints show 10.0.0.11:8000 --signals
    """
    request = pb.ListEndpointsRequest(pool=pool, endpoint=name, explain=explain, all_sources=signals, long_window=True)
    one = client.only(client.call("ListEndpoints", request).endpoints)
    happened: Sequence[Any] = ()
    if count:
        happened = client.call("ListEvents", pb.ListEventsRequest(endpoint=one.address, limit=count)).events
    document = {"endpoint": plain(one), "events": plain(happened)}
    emit(output, document, lambda: _one(one, happened, signals))


def _table(found: Sequence[Any]) -> RenderableType:
    if not found:
        return Text("no endpoints")
    table = grid("POOL|ENDPOINT|STATE|??>FOR|>WEIGHT|???PICK|>RUNNING|>WAITING|>KV|>TTFT P50|?>SLO|~NOTE")
    for one in found:
        signals = {signal.name: signal.value for signal in one.signals if signal.used}
        traffic = one.traffic
        note = ", ".join(one.gates) or (one.state_reason if one.state != "ready" else "")
        if one.HasField("override"):
            order = f"by {one.override.by}"
            if order not in note:  # the reason of the state says it already where the order moved it
                note = f"{one.override.kind} {order}" + (f": {note}" if note else "")
        table.add_row(
            one.pool,
            label(one),
            endpoint_state(one),
            seconds(one.state_age_s),
            str(one.weight),
            "yes" if one.pickable else "no",
            number(signals.get("running")),
            number(signals.get("waiting")),
            percent(signals.get("kv_usage")),
            seconds(traffic.ttft.p50) if traffic.HasField("ttft") else "-",
            percent(optional(traffic, "slo_attainment")),
            note,
        )
    return table


def _one(one: Any, happened: Sequence[Any], all_sources: bool) -> Iterable[RenderableType]:
    place = "/".join(part for part in (one.region, one.zone, one.sub_zone) if part)
    yield heading(f"{one.pool}/{label(one)}")
    yield facts(
        [
            ("state", endpoint_state(one)),
            ("", f"for {seconds(one.state_age_s)}: {one.state_reason}" if one.state_reason else ""),
            ("order", _order(one.override) if one.HasField("override") else ""),
            ("held back", one.held),
            ("until", f"{seconds(one.until_s)} from now" if one.HasField("until_s") else ""),
            ("weight", f"{one.weight} ({percent(one.weight_share)} of its {_level(one.priority)})"),
            ("why", one.why),
            ("Envoy sees", one.health),
            ("pickable", "yes" if one.pickable else "no"),
            ("closed gates", ", ".join(one.gates)),
            ("capacity", number(one.capacity)),
            ("engine", _engine(one)),
            ("role", one.role if one.role != "both" else ""),
            ("place", place),
            ("models", ", ".join(one.models)),
            ("LoRA running", ", ".join(one.loras)),
            ("context", f"{one.max_model_len} tokens" if one.HasField("max_model_len") else ""),
            ("labels", ", ".join(f"{name}={value}" for name, value in sorted(one.labels.items()))),
        ]
    )
    if one.signals:
        yield Text("")
        yield heading("Signals" + (" of all sources" if all_sources else ""))
        yield signal_table(one.signals, all_sources)
    if one.HasField("explanation"):
        yield Text("")
        yield heading("Weight")
        yield explanation_table(one.explanation)
    if one.HasField("traffic"):
        yield Text("")
        yield heading(f"Requests of the last {seconds(one.traffic.window_s)}")
        yield traffic_table([("all", one.traffic), *sorted(one.traffic.classes.items())])
    if happened:
        yield Text("")
        yield heading("Events")
        yield event_table(happened)


def _engine(one: Any) -> str:
    if one.engine != "auto":
        return str(one.engine)
    found = next((signal.source for signal in one.signals if signal.name in _SHOWN_SIGNALS and signal.used), "")
    return f"auto: {found}" if found else "auto: not known yet"


def _level(priority: int) -> str:
    return "pool" if priority == 0 else f"spill level {priority}"


def _order(order: Any) -> str:
    text = f"{order.kind} by {order.by}"
    if order.HasField("weight"):
        text = f"pinned to {order.weight} by {order.by}"
    if order.reason:
        text += f": {order.reason}"
    return text + (f" (for {seconds(order.ttl_s)} more)" if order.HasField("ttl_s") else "")


def signal_table(signals: Iterable[Any], all_sources: bool) -> Table:
    """A line a value. `*` marks the one that counts, `!` a source that disagrees with it."""
    table = grid("|SIGNAL|>VALUE|UNIT|SOURCE|>AGE|??>LIMIT|?>FRESH|??>NORMALISED")
    for one in signals:
        mark = ("*" if one.used and all_sources else "") + ("!" if one.disagrees else "")
        table.add_row(
            mark,
            one.name,
            number(one.value),
            one.unit,
            one.source,
            seconds(one.age_s),
            seconds(one.age_limit_s) if one.age_limit_s else "-",
            percent(one.fresh),
            f"{one.normalised:.3f}" if one.HasField("normalised") else "-",
            style="dim" if all_sources and not one.used else "",
        )
    return table


def traffic_table(rows: Iterable[tuple[str, Any]]) -> Table:
    """A line a class: numbers, errors, times and attainment."""
    table = grid("CLASS|>REQUESTS|??>REQ/S|ERRORS|>TTFT P50|>P90|??>P99|>TPOT P50|??>P90|>SLO|?>KV HITS|???>TOK/S")
    for name, one in rows:
        ttft, tpot = one.ttft, one.tpot
        first = [seconds(v) for v in (ttft.p50, ttft.p90, ttft.p99)] if one.HasField("ttft") else ["-"] * 3
        later = [seconds(v) for v in (tpot.p50, tpot.p90)] if one.HasField("tpot") else ["-"] * 2
        table.add_row(
            name,
            str(one.requests),
            number(one.requests_per_s),
            " ".join(f"{kind} {count}" for kind, count in sorted(one.errors.items())) or "-",
            *first,
            *later,
            percent(optional(one, "slo_attainment")),
            percent(optional(one, "kv_hit_ratio")),
            number(one.decode_tps),
        )
    return table
