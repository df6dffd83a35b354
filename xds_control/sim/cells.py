"""Which cells docs/policies.md tells of: all workloads, mixed fleets, faults and what the defaults are sensitive to."""

from __future__ import annotations

from dataclasses import dataclass, replace

from xds_control.sim.faults import Fault
from xds_control.sim.ours import OurPolicy

EQUAL = "8xh100-llama-8b"
MIXED = "4xh100-llama-8b,4xa100-llama-8b"


@dataclass(frozen=True, slots=True)
class Cell:
    """A workload at a rate on a fleet. count: requests. own: options of our policy, for sensitivity."""

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
