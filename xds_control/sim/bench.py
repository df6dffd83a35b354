"""Runs cells over policies and seeds on all cores, and goes on from what was run before."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from xds_control.sim.cells import Cell
from xds_control.sim.fleet import parse_fleet
from xds_control.sim.metrics import Figures, figures
from xds_control.sim.ours import Ours
from xds_control.sim.policies import OWN, make
from xds_control.sim.simulation import FleetSpec, Simulation
from xds_control.sim.traces import load_trace
from xds_control.sim.workloads import WORKLOADS, Workload

SLO = (2.0, 0.1)
SEEDS = (1, 2)
TRACES = {
    "mooncake-conversation": "mooncake_conversation_trace.jsonl",
    "mooncake-synthetic": "mooncake_synthetic_trace.jsonl",
    "azure-code": "azure_llm_2023_code.csv",
    "azure-conversation": "azure_llm_2023_conv.csv",
    "arxiv": "arxiv_summarization_lengths.csv",
    "vtc-arena": "vtc_arena_trace_lengths.csv",
    "servegen": "servegen_msmall_rates_48h.csv",
}


@dataclass(frozen=True, slots=True)
class Job:
    """A cell under one policy and seed."""

    cell: Cell
    policy: str
    seed: int
    traces: Path


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
