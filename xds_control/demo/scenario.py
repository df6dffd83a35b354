"""What happens in the demo and when, and what is remembered of it for the summary. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

CYCLE_S: Final = 60.0
"""Without an end, or with a far one, the same things happen again every minute."""
WINDOW_S: Final = 3.0
"""Weights and shares before and after are means over this long."""


@dataclass(frozen=True, slots=True)
class Step:
    """At `at` seconds of a cycle `commands` go out: name of an engine → body for its /demo/control."""

    at: float
    title: str
    commands: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Scenario:
    """One engine is slowed, another's KV cache filled, then both are healed."""

    cycle_s: float
    slowed: str
    filled: str
    steps: tuple[Step, ...]

    def due(self, before: float, now: float) -> list[Step]:
        """The steps in (before, now], over as many cycles as have passed."""
        found: list[tuple[float, Step]] = []
        for cycle in range(int(max(before, 0.0) // self.cycle_s), int(now // self.cycle_s) + 1):
            for step in self.steps:
                at = cycle * self.cycle_s + step.at
                if before < at <= now:
                    found.append((at, step))
        return [step for _, step in sorted(found, key=lambda pair: pair[0])]


def scenario(engines: list[str], seconds: float | None, slow: float = 5.0, fill: float = 0.9) -> Scenario:
    """The steps for those demo engines. With a single engine both befall it in turn; with none nothing happens."""
    cycle = CYCLE_S if seconds is None else min(CYCLE_S, seconds)
    if not engines:
        return Scenario(cycle, "", "", ())
    slowed, filled = engines[-1], engines[-2 if len(engines) > 1 else -1]
    heal = {"heal": True}
    return Scenario(
        cycle,
        slowed,
        filled,
        (
            Step(0.20 * cycle, f"{slowed} becomes {slow:g} times slower", {slowed: {"slow": slow}}),
            Step(0.35 * cycle, f"the KV cache of {filled} is filled to {fill:.0%}", {filled: {"kv_fill": fill}}),
            Step(0.60 * cycle, f"{slowed} and {filled} are healed", {slowed: heal, filled: heal}),
        ),
    )


@dataclass(frozen=True, slots=True)
class Sample:
    """Weight (share of the pool's sum) and share of requests of each endpoint at one moment, both 0..1."""

    at: float
    weight: Mapping[str, float]
    share: Mapping[str, float]


@dataclass(slots=True)
class Course:
    """The samples of the first cycle, enough to say what moved."""

    scenario: Scenario
    samples: list[Sample] = field(default_factory=list)

    def add(self, at: float, state: Mapping[str, Any]) -> None:
        """Take the state as control told it; nothing after the first cycle."""
        if at > self.scenario.cycle_s:
            return
        weight: dict[str, float] = {}
        share: dict[str, float] = {}
        for pool in state.get("pools", ()):
            # Only the endpoints of the priority level in use compete; one that is spilled counts nothing.
            total = sum(one["weight"] for one in pool["endpoints"] if one["priority"] == 0)
            for one in pool["endpoints"]:
                counts = one["priority"] == 0 and total > 0
                weight[one["name"]] = one["weight"] / total if counts else 0.0
                share[one["name"]] = one["share"] or 0.0
        self.samples.append(Sample(at, weight, share))

    def moved(self) -> list[str]:
        """One sentence for each engine that was disturbed: before, while and, if seen, after."""
        scenario = self.scenario
        if not scenario.steps:
            return []
        slow_at, fill_at, heal_at = (step.at for step in scenario.steps)
        sentences = []
        for name, what, start in ((scenario.slowed, "slowed", slow_at), (scenario.filled, "KV full", fill_at)):
            figures = [self._mean(name, end) for end in (start, heal_at, scenario.cycle_s)]
            before, during, after = figures
            if before is None or during is None:
                continue
            steps = [before, during] + ([after] if after is not None else [])
            weights = " → ".join(f"{weight:.0%}" for weight, _ in steps)
            shares = " → ".join(f"{share:.0%}" for _, share in steps)
            sentences.append(f"{name} {what}: weight {weights}, share {shares}")
        return sentences

    def _mean(self, name: str, end: float) -> tuple[float, float] | None:
        window = min(WINDOW_S, self.scenario.cycle_s / 10)
        taken = [s for s in self.samples if end - window <= s.at < end and name in s.weight]
        if not taken:
            return None
        return sum(s.weight[name] for s in taken) / len(taken), sum(s.share[name] for s in taken) / len(taken)
