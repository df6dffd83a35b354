"""Synthetic workloads, each from a seed: the same arguments give the same requests."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from xds_control.sim.request import Request

BLOCK = 64


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests in order of arrival. rate: requests per second that the fleet is offered, on average."""

    name: str
    about: str
    requests: Sequence[Request]

    @property
    def rate(self) -> float:
        """Mean arrivals per second over the time of arrivals."""
        if len(self.requests) < 2:
            return 0.0
        span = max(r.at for r in self.requests) - min(r.at for r in self.requests)
        return len(self.requests) / span if span > 0 else math.inf


class Keys:
    """Makes block keys that nobody else has."""

    def __init__(self) -> None:
        self._next = 1

    def fresh(self, tokens: int, block: int = BLOCK) -> list[int]:
        """Keys of the full blocks of so many tokens."""
        count = tokens // block
        keys = list(range(self._next, self._next + count))
        self._next += count
        return keys


def lognormal(rng: np.random.Generator, mean: float, cv: float, size: int, most: int) -> list[int]:
    """Lengths ≥ 1 with this mean and coefficient of variation, cut at `most`."""
    sigma2 = math.log(1.0 + cv * cv)
    values = rng.lognormal(math.log(mean) - sigma2 / 2, math.sqrt(sigma2), size)
    return [int(v) for v in np.clip(values, 1, most)]


def poisson(rng: np.random.Generator, rate: float, size: int) -> list[float]:
    """Arrival times of a Poisson process."""
    return [float(t) for t in np.cumsum(rng.exponential(1.0 / rate, size))]


def uniform(n: int, rate: float, seed: int) -> Workload:
    """Prompts of 200 to 1,000 tokens that share nothing, answers of 100 to 300, Poisson arrivals."""
    rng = np.random.default_rng(seed)
    keys = Keys()
    prompts = rng.integers(200, 1001, n)
    outputs = rng.integers(100, 301, n)
    requests = [
        Request(i, at, int(p), int(o), keys.fresh(int(p)), BLOCK)
        for i, (at, p, o) in enumerate(zip(poisson(rng, rate, n), prompts, outputs, strict=True))
    ]
    return Workload("uniform", uniform.__doc__ or "", requests)


def heavy(n: int, rate: float, seed: int) -> Workload:
    """Nothing shared; prompts of 1,500 tokens on average with a tail to 60,000, answers of 200 with a tail to 4,000."""
    rng = np.random.default_rng(seed)
    keys = Keys()
    prompts = lognormal(rng, 1500, 2.5, n, 60_000)
    outputs = lognormal(rng, 200, 1.5, n, 4000)
    requests = [
        Request(i, at, p, o, keys.fresh(p), BLOCK)
        for i, (at, p, o) in enumerate(zip(poisson(rng, rate, n), prompts, outputs, strict=True))
    ]
    return Workload("heavy", heavy.__doc__ or "", requests)


def bursty(n: int, rate: float, seed: int) -> Workload:
    """Like uniform, but Gamma inter-arrival times with a coefficient of variation of 4."""
    rng = np.random.default_rng(seed)
    base = uniform(n, rate, seed)
    shape = 1.0 / 16.0
    for request, at in zip(base.requests, np.cumsum(rng.gamma(shape, 1.0 / (rate * shape), n)), strict=True):
        request.at = float(at)
    return Workload("bursty", bursty.__doc__ or "", base.requests)


def diurnal(n: int, rate: float, seed: int) -> Workload:
    """Shared-prefix requests whose rate swings by ± 60 % over three days squeezed into the run."""
    base = shared_prefix(n, rate, seed)
    span = n / rate
    swing, turns = 0.6, 3.0

    def warped(share: float) -> float:
        # Inverts Λ(x) = x + swing/(2π·turns) · (1 − cos(2π·turns·x)) by bisection.
        low, high = 0.0, 1.0
        for _ in range(40):
            middle = 0.5 * (low + high)
            wave = swing / (2 * math.pi * turns) * (1 - math.cos(2 * math.pi * turns * middle))
            low, high = (middle, high) if middle + wave < share else (low, middle)
        return low

    for request in base.requests:
        request.at = warped(min(1.0, request.at / span)) * span
    return Workload("diurnal", diurnal.__doc__ or "", base.requests)


def shared_prefix(
    n: int, rate: float, seed: int, groups: int = 60, prefix: int = 3000, own: int = 400, output: int = 150
) -> Workload:
    """60 groups that share a system prompt of 3,000 tokens each, 400 own tokens, answers of 150, Poisson arrivals."""
    rng = np.random.default_rng(seed)
    keys = Keys()
    heads = [keys.fresh(prefix) for _ in range(groups)]
    requests = []
    owns = lognormal(rng, own, 0.5, n, 8 * own)
    outputs = lognormal(rng, output, 0.7, n, 2000)
    chosen = rng.integers(0, groups, n)
    for i, at in enumerate(poisson(rng, rate, n)):
        head = heads[chosen[i]]
        shared = len(head) * BLOCK
        requests.append(
            Request(
                i, at, shared + owns[i], outputs[i], [*head, *keys.fresh(owns[i])], BLOCK, shared,
                client=f"group-{chosen[i]}",
            )
        )  # fmt: skip
    return Workload("shared-prefix", shared_prefix.__doc__ or "", requests)


def zipf_prefix(n: int, rate: float, seed: int) -> Workload:
    """200 groups of Zipf popularity (exponent 1.1) that share 2,000 to 6,000 tokens, 300 own, answers of 120."""
    rng = np.random.default_rng(seed)
    keys = Keys()
    groups = 200
    heads = [keys.fresh(int(k)) for k in rng.integers(2000, 6001, groups)]
    popularity = 1.0 / np.arange(1, groups + 1) ** 1.1
    chosen = rng.choice(groups, n, p=popularity / popularity.sum())
    owns = lognormal(rng, 300, 0.7, n, 4000)
    outputs = lognormal(rng, 120, 0.7, n, 1500)
    requests = []
    for i, at in enumerate(poisson(rng, rate, n)):
        head = heads[chosen[i]]
        shared = len(head) * BLOCK
        requests.append(
            Request(
                i, at, shared + owns[i], outputs[i], [*head, *keys.fresh(owns[i])], BLOCK, shared,
                client=f"group-{chosen[i]}",
            )
        )  # fmt: skip
    return Workload("zipf-prefix", zipf_prefix.__doc__ or "", requests)


def multi_turn(n: int, rate: float, seed: int) -> Workload:
    """Chats of 6 turns on average over a common system prompt of 1,000 tokens; a turn comes about 15 s after the last
    answer and repeats all before it; 150 tokens asked, 200 answered. The rate is what comes out at light load."""
    rng = np.random.default_rng(seed)
    keys = Keys()
    system = keys.fresh(1024)
    requests: list[Request] = []
    chats = poisson(rng, rate / 6.0, max(1, n))
    made = 0
    for session, start in enumerate(chats, 1):
        turns = int(rng.geometric(1 / 6.0))
        context = list(system)
        tokens = len(system) * BLOCK
        before: int | None = None
        at = start
        for _ in range(turns):
            asked = int(np.clip(rng.lognormal(math.log(120), 0.7), 16, 2000))
            answered = int(np.clip(rng.lognormal(math.log(160), 0.7), 16, 1500))
            think = float(rng.exponential(15.0))
            prompt = tokens + asked
            while len(context) < prompt // BLOCK:
                context.extend(keys.fresh(BLOCK))
            own = context[: prompt // BLOCK]
            whole = prompt + answered
            while len(context) < whole // BLOCK:
                context.extend(keys.fresh(BLOCK))
            answer = context[prompt // BLOCK : whole // BLOCK]
            request = Request(
                made, at, prompt, answered, own, BLOCK, 1024, answer, session, f"chat-{session}", before,
                think if before is not None else 0.0,
            )  # fmt: skip
            requests.append(request)
            before = made
            made += 1
            tokens = whole
            at += think
        if made >= n:
            break
    return Workload("multi-turn", multi_turn.__doc__ or "", requests)


def mixed(n: int, rate: float, seed: int) -> Workload:
    """70 % short chats, 20 % prompts of 8,000 tokens with short answers, 10 % short prompts with answers of 1,000."""
    rng = np.random.default_rng(seed)
    keys = Keys()
    requests = []
    for i, at in enumerate(poisson(rng, rate, n)):
        kind = rng.random()
        if kind < 0.7:
            prompt, output = rng.integers(100, 800), rng.integers(50, 250)
        elif kind < 0.9:
            prompt, output = rng.integers(5000, 11000), rng.integers(30, 120)
        else:
            prompt, output = rng.integers(100, 400), rng.integers(600, 1400)
        requests.append(Request(i, at, int(prompt), int(output), keys.fresh(int(prompt)), BLOCK))
    return Workload("mixed", mixed.__doc__ or "", requests)


WORKLOADS: dict[str, Callable[[int, float, int], Workload]] = {
    "uniform": uniform,
    "heavy": heavy,
    "bursty": bursty,
    "mixed": mixed,
    "shared-prefix": shared_prefix,
    "zipf-prefix": zipf_prefix,
    "multi-turn": multi_turn,
    "diurnal": diurnal,
}
