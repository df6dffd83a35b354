"""`simulate`: what users would have felt under a policy, before it touches traffic."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from xds_control.cli.options import EXIT_BAD_INPUT, fail, read_policy
from xds_control.cli.table import Grid
from xds_control.sim import tables
from xds_control.sim.faults import parse as parse_fault
from xds_control.sim.fleet import DEFAULT_ENGINE, engine_cost, from_calibration, parse_fleet
from xds_control.sim.metrics import Figures, figures
from xds_control.sim.ours import OurPolicy, Ours
from xds_control.sim.policies import POLICIES, make
from xds_control.sim.presets import PRESETS, preset
from xds_control.sim.report import COLUMNS, as_html, as_json, cell, verdict
from xds_control.sim.router import Router
from xds_control.sim.simulation import FleetSpec, Run, Simulation
from xds_control.sim.traces import TraceError, load_trace
from xds_control.sim.workloads import WORKLOADS, Workload


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A policy by the name that it is listed under."""

    name: str
    make: Callable[[], Router]


@click.command("simulate")
@click.option(
    "--policy",
    "policy_name",
    default="ours",
    show_default=True,
    metavar="NAME|FILE",
    help=f"A policy file, or one of: {', '.join(POLICIES)}.",
)
@click.option(
    "--against", default="", metavar="A,B,...", help="Names or policy files to compare with; `all` = all names."
)
@click.option("--trace", type=click.Path(path_type=Path), help="A file of requests: Mooncake, Azure, own CSV, ...")
@click.option("--workload", type=click.Choice(list(WORKLOADS)), default=None, help="A synthetic workload.")
@click.option("--requests", "count", type=click.IntRange(1, 5_000_000), default=None, help="How many.  [default: 5000]")
@click.option("--rate", type=float, default=None, help="Requests per second; traces keep their own when absent.")
@click.option(
    "--replicas",
    default="8",
    show_default=True,
    metavar="N|NxENGINE[@SPEED],...",
    help="The fleet, such as 4xh100-llama-8b,4xa100-llama-8b.",
)
@click.option(
    "--engine",
    type=click.Choice(list(PRESETS)),
    default=DEFAULT_ENGINE,
    show_default=True,
    help="What the replicas are.",
)
@click.option(
    "--calibration", type=click.Path(path_type=Path), help="Engines as `calibrate --output json` measured them."
)
@click.option(
    "--declare/--no-declare", default=True, help="Whether the policy is told the capacities of a mixed fleet."
)
@click.option("--ranks", type=click.IntRange(1, 64), default=1, help="Data-parallel ranks of each replica.")
@click.option("--envoys", type=click.IntRange(1, 256), default=1, show_default=True, help="How many.")
@click.option("--processors", type=click.IntRange(1, 256), default=1, show_default=True, help="How many.")
@click.option(
    "--scrape-s", type=click.FloatRange(0.01, 60), default=None, help="Time between scrapes, for all policies."
)
@click.option(
    "--access-log-s", type=click.FloatRange(0, 60), default=0.1, show_default=True, help="How late access logs come."
)
@click.option("--eds-s", type=click.FloatRange(0, 60), default=0.05, show_default=True, help="Time of a push to Envoy.")
@click.option(
    "--balancer",
    type=click.Choice(["least_request", "round_robin", "random"]),
    default="least_request",
    show_default=True,
    help="Envoy's balancer.",
)
@click.option("--fault", "faults", multiple=True, metavar="KIND:AT:SECONDS[:TARGET]", help="Such as slow:60:120:3.")
@click.option("--slo-ttft-s", type=click.FloatRange(0.001), default=2.0, show_default=True, help="Target: first token.")
@click.option("--slo-tpot-s", type=click.FloatRange(0.0001), default=0.1, show_default=True, help="Target: per token.")
@click.option("--seed", type=int, default=1, show_default=True, help="The same seed, the same run.")
@click.option(
    "--output", "-o", type=click.Choice(["table", "json"]), default="table", show_default=True, help="How to print."
)
@click.option("--html", "html_path", type=click.Path(path_type=Path), help="Also write a report that a browser shows.")
@click.option("--progress/--no-progress", default=None, help="Progress bar; by default on a terminal.")
@click.option(
    "--tables",
    "tables_path",
    type=click.Path(path_type=Path),
    help="Compare all policies on all loads, a quarter of an hour or more, and write that as Markdown; nothing else.",
)
def command(
    policy_name: str,
    against: str,
    trace: Path | None,
    workload: str | None,
    count: int | None,
    rate: float | None,
    replicas: str,
    engine: str,
    calibration: Path | None,
    declare: bool,
    ranks: int,
    envoys: int,
    processors: int,
    scrape_s: float | None,
    access_log_s: float,
    eds_s: float,
    balancer: str,
    faults: tuple[str, ...],
    slo_ttft_s: float,
    slo_tpot_s: float,
    seed: int,
    output: str,
    html_path: Path | None,
    progress: bool | None,
    tables_path: Path | None,
) -> None:
    """Run a policy's real weights, prefix keys and picker against a simulated fleet, and print what users would feel.

    Example: xds-control simulate --workload shared-prefix --rate 120 --replicas 8 --against round_robin,epp-default
    """
    if tables_path is not None:
        tables.write(tables_path, lambda line: click.echo(line, err=True))
        return
    if rate is not None and rate <= 0:
        fail("--rate must be above 0", EXIT_BAD_INPUT)
    try:
        load = _workload(trace, workload, count, rate, seed)
        engines, capacities = parse_fleet(replicas, engine)
        if calibration is not None:
            engines = from_calibration(json.loads(calibration.read_text()), preset(engine))
            capacities = [engine_cost(engines[0]) / engine_cost(one) for one in engines]
        spec = FleetSpec(
            engines,
            ranks=ranks,
            capacities=capacities if declare else None,
            envoys=envoys,
            processors=processors,
            scrape_s=scrape_s,
            access_log_s=access_log_s,
            eds_s=eds_s,
            faults=tuple(parse_fault(text) for text in faults),
            slo_ttft_s=slo_ttft_s,
            slo_tpot_s=slo_tpot_s,
        )
        names = [n.strip() for n in against.split(",") if n.strip()]
        if names == ["all"]:
            names = [n for n in POLICIES if n != policy_name]
        chosen = [_candidate(name, balancer) for name in [policy_name, *names]]
    except (ValueError, OSError, TraceError) as error:
        fail(str(error), EXIT_BAD_INPUT)
    runs, rows = _run_all(chosen, spec, load, seed, sys.stderr.isatty() if progress is None else progress)
    settings = {
        "workload": f"{load.name}: {load.about}",
        "requests": len(load.requests),
        "rate_rps": round(load.rate, 3),
        "replicas": replicas if calibration is None else f"{len(engines)} as calibrated",
        "engine": engine,
        "ranks": ranks,
        "envoys": envoys,
        "processors": processors,
        "faults": list(faults),
        "slo_ttft_s": slo_ttft_s,
        "slo_tpot_s": slo_tpot_s,
        "seed": seed,
    }
    if html_path is not None:
        html_path.write_text(as_html(settings, runs, rows))
    if output == "json":
        click.echo(json.dumps(as_json(settings, rows), indent=2))
        return
    click.echo(f"{len(load.requests)} requests at {load.rate:.1f}/s, {len(engines)} replicas, seed {seed}")
    _print(rows)
    click.echo(verdict(rows))


def _workload(trace: Path | None, workload: str | None, count: int | None, rate: float | None, seed: int) -> Workload:
    if trace is not None and workload is not None:
        raise ValueError("give --trace or --workload, not both")
    if trace is not None:
        return load_trace(trace, count or 5000, rate, seed)
    return WORKLOADS[workload or "shared-prefix"](count or 5000, rate or 80.0, seed)


def _candidate(name: str, balancer: str) -> _Candidate:
    base = OurPolicy(balancer="round_robin" if balancer == "round_robin" else "least_request")
    if balancer == "random":
        base = replace(base, balancer="random")
    if name in POLICIES:
        return _Candidate(name, lambda: make(name, base))
    path = Path(name)
    if not path.exists():
        raise ValueError(f"{name!r} is neither a policy file nor one of {', '.join(POLICIES)}")
    policy = read_policy(path)
    own = replace(
        base,
        picker=policy.picker,
        weights=policy.pools[0].weights or policy.weights,
        capacity=policy.capacity,
        lifecycle=policy.lifecycle,
        inspect=policy.inspect,
        scrape_s=policy.signals.scrape.min_interval_s,
        tick_s=policy.control.tick_s,
        share_s=policy.control.peers_s,
    )
    return _Candidate(path.stem, lambda: Ours(own, picks=policy.pools[0].picks, name=path.stem))


def _run_all(
    chosen: list[_Candidate], spec: FleetSpec, load: Workload, seed: int, show: bool
) -> tuple[list[Run], list[Figures]]:
    runs: list[Run] = []
    rows: list[Figures] = []
    console = Console(stderr=True)
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:.0f}"), TimeElapsedColumn(),
        console=console, disable=not show,
    )  # fmt: skip
    with bar:
        for one in chosen:
            task = bar.add_task(one.name, total=len(load.requests))
            run = Simulation(spec, load.requests, one.make(), seed, load.name, partial(bar.advance, task)).run()
            run.policy = one.name
            runs.append(run)
            rows.append(figures(run, spec.slo_ttft_s, spec.slo_tpot_s))
    return runs, rows


_SPARE = {
    **dict.fromkeys(("TTFT mean s", "out tok/s", "p99 s"), "?"),
    **dict.fromkeys(("imbalance", "fallback %", "rejected %", "failed %"), "??"),
    "moved/push %": "???",
}
"""Columns that a narrow terminal may go without."""


def _print(rows: list[Figures]) -> None:
    table = Grid("|".join(["policy", *(f"{_SPARE.get(heading, '')}>{heading}" for heading, *_ in COLUMNS)]))
    for row in rows:
        table.add_row(row.policy, *(cell(row, field, factor, digits) for _, field, factor, digits in COLUMNS))
    Console(width=None if sys.stdout.isatty() else 200).print(table)
