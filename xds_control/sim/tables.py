"""Writes docs/policies.md: all policies on all workloads, mixed fleets, faults and what the defaults are sensitive to.

python -m xds_control.sim.tables [--output docs/policies.md] [--traces FOLDER] [--jobs N]
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from xds_control.sim.bench import SEEDS, SLO, Bench
from xds_control.sim.cells import EQUAL, FAULTS, LOADS, MIXED, UNEQUAL, Cell, sensitivity
from xds_control.sim.metrics import Figures
from xds_control.sim.policies import POLICIES

LISTED = tuple(p for p in POLICIES if p not in ("random", "jsq"))
PARTS = ("loads", "unequal", "faults", "sensitivity")
_ENVOY_ALONE = ("round_robin", "least_request", "bounded-hash")
_TIE_S, _TIE, _TIE_GOODPUT = 0.005, 1.05, 0.005


def mean(rows: Sequence[Figures], field: str) -> float:
    """Mean over the seeds."""
    return sum(float(getattr(row, field)) for row in rows) / len(rows)


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


def document(bench: Bench, parts: Sequence[str] = PARTS) -> str:
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
    parts: Sequence[str] = PARTS,
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
    parser.add_argument("--parts", default=",".join(PARTS))
    chosen = parser.parse_args()
    write(
        chosen.output, lambda line: print(line, file=sys.stderr, flush=True), chosen.traces, chosen.jobs,
        chosen.parts.split(","), chosen.resume,
    )  # fmt: skip


if __name__ == "__main__":
    main()
