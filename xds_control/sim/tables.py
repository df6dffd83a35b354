"""Writes docs/policies.md: all policies on all workloads, mixed fleets, faults and what the defaults are sensitive to.

python -m xds_control.sim.tables [--output docs/policies.md] [--traces FOLDER] [--jobs N]
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from xds_control.sim.faults import Fault
from xds_control.sim.fleet import parse_fleet
from xds_control.sim.metrics import Figures, figures
from xds_control.sim.ours import OurPolicy, Ours
from xds_control.sim.policies import OWN, POLICIES, make
from xds_control.sim.simulation import FleetSpec, Simulation
from xds_control.sim.traces import load_trace
from xds_control.sim.workloads import WORKLOADS, Workload

SLO = (2.0, 0.1)
SEEDS = (1, 2)
EQUAL = "8xh100-llama-8b"
MIXED = "4xh100-llama-8b,4xa100-llama-8b"
TRACES = {
    "mooncake-conversation": "mooncake_conversation_trace.jsonl",
    "mooncake-synthetic": "mooncake_synthetic_trace.jsonl",
    "azure-code": "azure_llm_2023_code.csv",
    "azure-conversation": "azure_llm_2023_conv.csv",
    "arxiv": "arxiv_summarization_lengths.csv",
    "vtc-arena": "vtc_arena_trace_lengths.csv",
    "servegen": "servegen_msmall_rates_48h.csv",
}
LISTED = tuple(p for p in POLICIES if p not in ("random", "jsq"))
_ENVOY_ALONE = ("round_robin", "least_request", "bounded-hash")
_TIE_S, _TIE, _TIE_GOODPUT = 0.005, 1.05, 0.005


@dataclass(frozen=True, slots=True)
class Cell:
    """A workload at a rate on a fleet. count: requests. options: of `OurPolicy`, for sensitivity."""

    workload: str
    rate: float
    count: int
    fleet: str = EQUAL
    processors: int = 1
    envoys: int = 1
    scrape_s: float | None = None
    declared: tuple[float, ...] | None = None
    told: bool = True
    faults: tuple[Fault, ...] = ()
    own: OurPolicy | None = None
    label: str = ""


@dataclass(frozen=True, slots=True)
class Job:
    """A cell under one policy and seed."""

    cell: Cell
    policy: str
    seed: int
    traces: Path


LOADS: tuple[Cell, ...] = (
    Cell("uniform", 100, 3000),
    Cell("uniform", 150, 4500),
    Cell("bursty", 100, 3000),
    Cell("heavy", 40, 2000),
    Cell("heavy", 60, 3000),
    Cell("mixed", 30, 2000),
    Cell("mixed", 50, 3000),
    Cell("shared-prefix", 80, 3000),
    Cell("shared-prefix", 140, 4200),
    Cell("zipf-prefix", 80, 3000),
    Cell("zipf-prefix", 120, 3600),
    Cell("multi-turn", 150, 5000),
    Cell("diurnal", 90, 4000),
    Cell("mooncake-conversation", 4, 2000),
    Cell("mooncake-conversation", 6, 2500),
    Cell("mooncake-synthetic", 4, 2000),
    Cell("azure-code", 10, 2000),
    Cell("azure-code", 15, 2500),
    Cell("azure-conversation", 60, 2500),
    Cell("azure-conversation", 90, 3000),
    Cell("arxiv", 30, 2000),
    Cell("arxiv", 45, 2500),
    Cell("vtc-arena", 100, 1500),
    Cell("servegen", 150, 4000),
)
UNEQUAL: tuple[Cell, ...] = tuple(
    Cell(workload, rate, count, MIXED, told=told)
    for workload, rate, count in (
        ("uniform", 80, 3000),
        ("mixed", 25, 2000),
        ("heavy", 30, 2000),
        ("shared-prefix", 80, 3000),
        ("zipf-prefix", 60, 2500),
        ("mooncake-conversation", 3, 2000),
        ("azure-conversation", 50, 2500),
    )
    for told in (True, False)
)
FAULTS: tuple[Cell, ...] = tuple(
    Cell(workload, rate, count, faults=(fault,), label=label)
    for workload, rate, count in (("shared-prefix", 80, 4000), ("mixed", 25, 1500))
    for label, fault in (
        ("a replica dies for 15 s", Fault("death", 15.0, 15.0, 2)),
        ("a replica is 3 times slower for 20 s", Fault("slow", 15.0, 20.0, 2)),
        ("a replica is throttled by 20 %", Fault("throttle", 10.0, 1e6, 2)),
        ("a replica joins cold after 20 s", Fault("cold", 0.0, 20.0, 2)),
        ("the pages of a replica are dark for 20 s", Fault("blackout", 15.0, 20.0, 2)),
        ("the only processor is away for 15 s", Fault("processor", 15.0, 15.0, 0)),
    )
)


def sensitivity() -> list[Cell]:
    """Our default policy where one thing after another is worse than it should be."""
    base = OurPolicy()
    rows: list[Cell] = []
    wrong = (2.0, 0.5) * 4
    for workload, rate, count in (
        ("shared-prefix", 120, 4000),
        ("mixed", 40, 2400),
        ("mooncake-conversation", 5, 2000),
    ):
        cell = Cell(workload, rate, count, own=base)
        rows.append(replace(cell, label="as it is"))
        rows.extend(replace(cell, label=f"scrape every {s:g} s", scrape_s=s) for s in (0.05, 1.0, 2.0, 5.0))
        rows.extend(replace(cell, label=f"{n} processors, {n} Envoys", processors=n, envoys=n) for n in (3, 8))
        rows.append(
            replace(
                cell, label="8 processors that share nothing", processors=8, envoys=8, own=replace(base, share_s=0.0)
            )
        )
        rows.append(
            replace(
                cell, label="8 processors that share every 1 s", processors=8, envoys=8, own=replace(base, share_s=1.0)
            )
        )
        rows.append(replace(cell, label="capacities declared wrong by × 2 and ÷ 2", declared=wrong))
        rows.append(replace(cell, label="token estimates × 2", own=replace(base, estimate_factor=2.0)))
        rows.append(replace(cell, label="token estimates ÷ 2", own=replace(base, estimate_factor=0.5)))
        rows.append(replace(cell, label="answers tell no cached tokens", own=replace(base, usage=False)))
        rows.append(replace(cell, label="processor restarts every 10 s, index cold", own=replace(base, forget_s=10.0)))
    return rows


def workload_of(cell: Cell, seed: int, traces: Path) -> Workload:
    """The cell's requests. Raises TraceError and KeyError."""
    if cell.workload in WORKLOADS:
        return WORKLOADS[cell.workload](cell.count, cell.rate, seed)
    return load_trace(traces / TRACES[cell.workload], cell.count, cell.rate, seed)


def run_job(job: Job) -> Figures:
    """One simulation."""
    cell = job.cell
    load = workload_of(cell, job.seed, job.traces)
    engines, capacities = parse_fleet(cell.fleet)
    spec = FleetSpec(
        engines,
        capacities=cell.declared or (capacities if cell.told else None),
        processors=cell.processors,
        envoys=cell.envoys,
        scrape_s=cell.scrape_s,
        faults=cell.faults,
        slo_ttft_s=SLO[0],
        slo_tpot_s=SLO[1],
    )
    router = Ours(cell.own) if cell.own is not None else make(job.policy)
    return figures(Simulation(spec, load.requests, router, job.seed, cell.workload).run(), *SLO)


def mean(rows: Sequence[Figures], field: str) -> float:
    """Mean over the seeds."""
    return sum(float(getattr(row, field)) for row in rows) / len(rows)


_MODEL = ("engine", "envoy", "faults", "fleet", "kv", "metrics", "presets", "request", "router", "simulation")
_MODEL_FILES = tuple(f"sim/{name}.py" for name in (*_MODEL, "rivals", "traces", "workloads"))
_OWN_FILES = ("sim/control.py", "sim/facts.py", "sim/ours.py")
_OWN_PACKAGES = ("fleet", "inspect", "policy", "routing", "weights")


@functools.cache
def code_of(own: bool) -> str:
    """Fingerprint of the code that a result depends on: the fleet model, and for our own policies what decides."""
    root = Path(__file__).parent.parent
    files = [root / name for name in _MODEL_FILES]
    if own:
        files += [root / name for name in _OWN_FILES]
        for package in _OWN_PACKAGES:
            files += sorted((root / package).rglob("*.py"))
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def job_key(job: Job) -> str:
    """Names a result: what was run, and by which code. A result of other code is never taken for it."""
    return f"{code_of(job.cell.own is not None or job.policy in OWN)} {replace(job, traces=Path())!r}"


class Bench:
    """Runs cells over policies and seeds on all cores, in an order that does not matter.

    resume: a file that keeps what was run, so that a run that was stopped goes on from there; results of other code in
    it are left alone.
    """

    def __init__(
        self,
        traces: Path,
        jobs: int,
        say: Callable[[str], None],
        seeds: Sequence[int] = SEEDS,
        resume: Path | None = None,
    ) -> None:
        self._traces, self._jobs, self._say, self._seeds, self._resume = traces, jobs, say, seeds, resume
        self._known: dict[str, Figures] = {}
        if resume is not None and resume.exists():
            for line in resume.read_text().splitlines():
                key, row = json.loads(line)
                self._known[key] = Figures(**row)

    def available(self, cells: Iterable[Cell]) -> list[Cell]:
        """Without those whose trace is not there."""
        return [c for c in cells if c.workload in WORKLOADS or (self._traces / TRACES[c.workload]).exists()]

    def run(self, cells: Sequence[Cell], policies: Sequence[str]) -> list[dict[str, list[Figures]]]:
        """For each cell, figures of all seeds by policy."""
        jobs = [Job(c, p, s, self._traces) for c in cells for p in policies for s in self._seeds]
        todo = [job for job in jobs if job_key(job) not in self._known]
        with ProcessPoolExecutor(self._jobs) as pool:
            for number, (job, row) in enumerate(zip(todo, pool.map(run_job, todo), strict=True), 1):
                self._known[job_key(job)] = row
                if self._resume is not None:
                    with self._resume.open("a") as file:
                        file.write(json.dumps([job_key(job), asdict(row)]) + "\n")
                self._say(f"{number}/{len(todo)} {job.policy} {job.cell.workload} {job.cell.rate:g}/s {job.cell.label}")
        return [
            {p: [self._known[job_key(Job(c, p, s, self._traces))] for s in self._seeds] for p in policies}
            for c in cells
        ]


def matrix(
    cells: Sequence[Cell],
    found: Sequence[dict[str, list[Figures]]],
    policies: Sequence[str],
    field: str,
    factor: float,
    digits: int,
    lower: bool,
    name: Callable[[Cell], str],
) -> list[str]:
    """One Markdown table: a row for each cell, a column for each policy, the best in bold."""
    lines = ["| load | " + " | ".join(policies) + " |", "|---" * (len(policies) + 1) + "|"]
    for cell, rows in zip(cells, found, strict=True):
        values = {p: mean(rows[p], field) * factor for p in policies}
        best = min(values.values()) if lower else max(values.values())
        shown = []
        for policy in policies:
            text = f"{values[policy]:.{digits}f}"
            shown.append(f"**{text}**" if text == f"{best:.{digits}f}" else text)
        lines.append(f"| {name(cell)} | " + " | ".join(shown) + " |")
    return lines


def losses(
    cells: Sequence[Cell],
    found: Sequence[dict[str, list[Figures]]],
    name: Callable[[Cell], str],
    mine: str = "ours",
    rivals: Sequence[str] = (),
) -> list[str]:
    """Sentences on every cell where another policy is better than `mine` by more than the noise. rivals: () = all."""
    lines = []
    for cell, rows in zip(cells, found, strict=True):
        p90, goodput = mean(rows[mine], "ttft_p90"), mean(rows[mine], "goodput")
        others = [p for p in rivals or rows if p != mine]
        faster = min(others, key=lambda p: mean(rows[p], "ttft_p90"))
        better = max(others, key=lambda p: mean(rows[p], "goodput"))
        fast, good = mean(rows[faster], "ttft_p90"), mean(rows[better], "goodput")
        parts = []
        if p90 > _TIE * fast + _TIE_S:
            parts.append(f"p90 TTFT {p90:.3f} s against {fast:.3f} s of {faster} (× {p90 / fast:.2f})")
        if goodput < good - _TIE_GOODPUT:
            parts.append(f"goodput {goodput * 100:.1f} % against {good * 100:.1f} % of {better}")
        if parts:
            lines.append(f"- {name(cell)}: {'; '.join(parts)}.")
    return lines


def _load_name(cell: Cell) -> str:
    return f"{cell.workload} {cell.rate:g}/s"


def _told_name(cell: Cell) -> str:
    return f"{_load_name(cell)}, capacities {'told' if cell.told else 'not told'}"


def _fault_name(cell: Cell) -> str:
    return f"{cell.workload}: {cell.label}"


def document(bench: Bench, parts: Sequence[str] = ("loads", "unequal", "faults", "sensitivity")) -> str:
    """The whole page as Markdown."""
    lines = [
        "# Policies compared",
        "",
        "Written by `python -m xds_control.sim.tables` or `xds-control simulate --tables docs/policies.md`.",
        f"Seeds {', '.join(map(str, SEEDS))}; means over them; the first 10 % of the requests of a run are left out.",
        f"Goodput: answered with TTFT ≤ {SLO[0]:g} s and TPOT ≤ {SLO[1] * 1e3:g} ms. Everything but `ours` and",
        "`weights`, which run the real code, is a model of a published rule (`xds_control/sim/rivals.py` says which),",
        "not the program of that name. `ours`: picks and weights with the default policy; `weights`: ring 1 alone.",
        "`epp-default` scrapes every 50 ms as its program does, ours every 0.5 s. Policies that carry the answers",
        "themselves (`p2c`, `epp-default`, `sticky-until-saturated`, `sglang-cache-aware`, `dynamo-cost`) are told of",
        "first tokens and ends at once; ours hears of ends from the access log, 50 to 150 ms later.",
        "Simulated engines: vLLM-like, steps of at most 2,048 tokens with chunked prefill, paged prefix cache with",
        "LRU eviction, preemption; speeds by roofline of the named GPU and model (`xds_control/sim/presets.py`).",
        "",
        "`weights` cannot keep prompts with a common prefix together, so where prompts share much it is no better",
        "than Envoy's balancers; hashing is. Under unequal weights Envoy's least_request is a schedule by weight",
        "over active requests, close to taking turns: better than its two random choices where requests are alike,",
        "worse where a few are huge (`heavy`, `mooncake`). A wide dead band or no water-filling only moves weights",
        "from one side to the other.",
        "Without any processor, what picks had gathered in one cache is cold everywhere else: every policy that keeps",
        "prefixes together pays what the rows of the absent processor show.",
        "",
    ]
    if "loads" in parts:
        cells = bench.available(LOADS)
        found = bench.run(cells, LISTED)
        lines += ["## Eight equal replicas", "", f"Fleet `{EQUAL}`, one processor, one Envoy.", ""]
        lines += _section(cells, found, LISTED, _load_name)
    if "unequal" in parts:
        cells = bench.available(UNEQUAL)
        found = bench.run(cells, LISTED)
        lines += ["## Unequal replicas", "", f"Fleet `{MIXED}`: about 1 : 3 in prefill, 1 : 1.6 in decode.", ""]
        lines += _section(cells, found, LISTED, _told_name)
    if "faults" in parts:
        cells = bench.available(FAULTS)
        found = bench.run(cells, LISTED)
        lines += ["## Faults", "", f"Fleet `{EQUAL}`.", ""]
        lines += _section(cells, found, LISTED, _fault_name)
        lines += ["Failed requests, %:", ""]
        lines += [*matrix(cells, found, LISTED, "failed", 100, 2, True, _fault_name), ""]
    if "sensitivity" in parts:
        cells = bench.available(sensitivity())
        found = bench.run(cells, ("ours",))
        lines += ["## What the defaults are sensitive to", "", f"`ours` on `{EQUAL}`.", ""]
        lines += ["| load | with | TTFT mean s | p90 s | p99 s | TPOT p90 ms | goodput % | hit % |", "|---" * 8 + "|"]
        for cell, rows in zip(cells, found, strict=True):
            mine = rows["ours"]
            lines.append(
                f"| {_load_name(cell)} | {cell.label} | {mean(mine, 'ttft_mean'):.3f} | {mean(mine, 'ttft_p90'):.3f} | "
                f"{mean(mine, 'ttft_p99'):.3f} | {mean(mine, 'tpot_p90') * 1e3:.0f} | "
                f"{mean(mine, 'goodput') * 100:.1f} | "
                f"{mean(mine, 'hit_ratio') * 100:.1f} |"
            )
        lines.append("")
    return "\n".join(lines)


def _section(
    cells: Sequence[Cell],
    found: Sequence[dict[str, list[Figures]]],
    policies: Sequence[str],
    name: Callable[[Cell], str],
) -> list[str]:
    lines = ["p90 TTFT, s (lower is better):", ""]
    lines += [*matrix(cells, found, policies, "ttft_p90", 1, 3, True, name), "", "Goodput, % (higher is better):", ""]
    lines += [*matrix(cells, found, policies, "goodput", 100, 1, False, name), "", "Mean TTFT, s:", ""]
    lines += [*matrix(cells, found, policies, "ttft_mean", 1, 3, True, name), ""]
    lines += ["p90 TPOT, ms:", "", *matrix(cells, found, policies, "tpot_p90", 1e3, 0, True, name), ""]
    pairs = [(c, f) for c, f in zip(cells, found, strict=True) if any(mean(r, "hit_ratio") > 0 for r in f.values())]
    hits, shared = [f for _, f in pairs], [c for c, _ in pairs]
    lines += ["KV hit ratio where prompts share anything, %:", ""]
    lines += [*matrix(shared, hits, policies, "hit_ratio", 100, 1, False, name), ""]
    lost = losses(cells, found, name)
    lines.append(
        f"`ours` loses, by over 5 % + 5 ms of p90 TTFT or 0.5 points of goodput, in {len(lost)} of {len(cells)} rows:"
    )
    lines += ["", *lost, "", _spread(cells, found, name), ""]
    rivals = [p for p in _ENVOY_ALONE if p in policies]
    if "weights" in policies and rivals:
        alone = losses(cells, found, name, "weights", rivals)
        lines.append(f"`weights` alone loses as much to {', '.join(rivals)} in {len(alone)} of {len(cells)} rows:")
        lines += ["", *alone, ""]
    return lines


def _spread(cells: Sequence[Cell], found: Sequence[dict[str, list[Figures]]], name: Callable[[Cell], str]) -> str:
    """How much the seeds differ: rows that differ by less say nothing."""
    spreads = []
    for cell, rows in zip(cells, found, strict=True):
        values = [row.ttft_p90 for row in rows["ours"]]
        spreads.append((max(values) / max(1e-9, min(values)) - 1.0, name(cell)))
    spreads.sort()
    most, where = spreads[-1]
    return (
        f"Between the seeds p90 TTFT of `ours` differs by {spreads[len(spreads) // 2][0] * 100:.0f} % in the middle "
        f"row and by {most * 100:.0f} % at most ({where}): gaps below that say little."
    )


def traces_folder() -> Path:
    """Where the traces are: XDS_CONTROL_SHARED, else `shared` beside the working folder."""
    named = os.environ.get("XDS_CONTROL_SHARED")
    return (Path(named) if named else Path.cwd().parent / "shared") / "traces"


def write(
    path: Path,
    say: Callable[[str], None],
    traces: Path | None = None,
    jobs: int | None = None,
    parts: Sequence[str] = ("loads", "unequal", "faults", "sensitivity"),
    resume: Path | None = None,
) -> None:
    """Writes the page."""
    text = document(Bench(traces or traces_folder(), jobs or os.cpu_count() or 1, say, resume=resume), parts)
    path.write_text(text.rstrip() + "\n")
    say(f"written: {path}")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Writes docs/policies.md.")
    parser.add_argument("--output", type=Path, default=Path("docs/policies.md"))
    parser.add_argument("--traces", type=Path, default=None)
    parser.add_argument("--jobs", type=int, default=None)
    parser.add_argument("--resume", type=Path, default=None, help="keeps what was run, to go on after a stop")
    parser.add_argument("--parts", default="loads,unequal,faults,sensitivity")
    chosen = parser.parse_args()
    write(
        chosen.output, lambda line: print(line, file=sys.stderr, flush=True), chosen.traces, chosen.jobs,
        chosen.parts.split(","), chosen.resume,
    )  # fmt: skip


if __name__ == "__main__":
    main()
