"""A request of a workload, and what became of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Request:
    """One request.

    at: arrival, seconds from the start. prompt, output: tokens, ≥ 1. keys: one for each full block of `block` prompt
    tokens, equal keys = equal prefix up to there. head: tokens of system prompt and tools. answer_keys: keys of what
    the answer adds to the prompt, where a later prompt repeats it. session: 0 = none. client: who sent it. after: index
    of the request whose end, plus `think_s`, lets this one arrive; None = it arrives at `at`.
    """

    index: int
    at: float
    prompt: int
    output: int
    keys: Sequence[int] = ()
    block: int = 64
    head: int = 0
    answer_keys: Sequence[int] = ()
    session: int = 0
    client: str = ""
    after: int | None = None
    think_s: float = 0.0
    facts_keys: tuple[int, ...] | None = field(default=None, repr=False)
    facts_ends: tuple[int, ...] = field(default=(), repr=False)


@dataclass(slots=True)
class Outcome:
    """What its user felt. Times: seconds of the simulation, −1 = never.

    endpoint: index, −1 = none. status: 200, 429 (refused by prediction), 503 (nobody took it). attempts: upstream
    tries. fallback: Envoy's own balancer chose. cached: prompt tokens that the engine had. matched: believed.
    """

    request: Request
    arrived: float = -1.0
    first: float = -1.0
    done: float = -1.0
    endpoint: int = -1
    status: int = 0
    attempts: int = 0
    fallback: bool = False
    cached: int = 0
    matched: int = 0
    preemptions: int = 0

    @property
    def ok(self) -> bool:
        """Whether it was answered whole."""
        return self.status == 200

    @property
    def ttft(self) -> float:
        """Seconds from arrival to the first token."""
        return self.first - self.arrived

    @property
    def tpot(self) -> float:
        """Seconds for each further output token; 0 for answers of one."""
        output = self.request.output
        return (self.done - self.first) / (output - 1) if output > 1 else 0.0
