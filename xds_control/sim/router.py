"""What the simulation asks of a policy, and the policies that are Envoy alone."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from xds_control.sim.engine import Gauges
from xds_control.sim.envoy import Algorithm, Envoy
from xds_control.sim.request import Outcome, Request


@dataclass(slots=True)
class Route:
    """Hosts in the order in which they are tried; () = Envoy's own balancer decides. refused: 429 by prediction.

    matched: prompt tokens believed cached at the first. note: whatever the policy wants back with the outcome.
    """

    hosts: Sequence[int] = ()
    refused: bool = False
    matched: int = 0
    note: Any = None


@dataclass(slots=True)
class World:
    """What policies may know before the start. capacities: as declared. kv_tokens, max_seqs: by host.

    envoys: their balancers, which a policy with a control plane feeds by EDS.
    """

    hosts: int
    capacities: Sequence[float]
    kv_tokens: Sequence[int]
    block: int
    envoys: Sequence[Envoy]
    processors: int
    slo_ttft_s: float
    slo_tpot_s: float
    eds_s: float
    seed: int
    options: Mapping[str, Any] = field(default_factory=dict)


class Router:
    """Base of all policies: Envoy alone, nothing seen. Times are seconds of the simulation."""

    name = "router"
    balancer: Algorithm = "least_request"
    scrape_s: float = 0.0
    """Time between two scrapes of one host; 0 = never scrapes."""
    tick_s: float = 0.0
    """Time between two calls of `tick`; 0 = never."""
    sees_ends = False
    """Whether it carries the answers itself, so that ends and first tokens are known at once."""

    def start(self, world: World) -> None:
        """Takes the fleet."""

    def route(self, request: Request, now: float, processor: int) -> Route:
        """Where to. processor: which of the policy's processes was asked, −1 = none is there."""
        return Route()

    def key(self, request: Request) -> int:
        """Hash key for balancers that hash."""
        return 0

    def first_token(self, request: Request, host: int, processor: int, now: float) -> None:
        """The first token passed by (only when `sees_ends`)."""

    def ended(self, request: Request, host: int, processor: int, now: float) -> None:
        """The answer ended or broke off (only when `sees_ends`)."""

    def attempt_failed(self, host: int, now: float) -> None:
        """An attempt found nobody listening, and the request went on to another host."""

    def logged(self, outcome: Outcome, route: Route, processor: int, envoy: int, now: float) -> None:
        """The access log entry of a request arrived."""

    def scraped(self, host: int, gauges: Gauges | None, at: float, now: float) -> None:
        """A metrics page as of `at` arrived; None = nobody answered."""

    def tick(self, now: float) -> None:
        """Time passes."""

    def report(self) -> dict[str, float]:
        """Figures of its own, such as how much weights moved."""
        return {}


class EnvoyAlone(Router):
    """One of Envoy's balancers with equal weights."""

    def __init__(self, name: str, balancer: Algorithm) -> None:
        self.name = name
        self.balancer = balancer


class BoundedHashing(Router):
    """Envoy's maglev with bounded load (factor 1.25) by session, else by the first 256 prompt tokens."""

    name = "bounded-hash"
    balancer = "maglev"

    def key(self, request: Request) -> int:
        """The session, or what stands at the end of the first 256 tokens."""
        if request.session:
            return request.session
        blocks = max(1, 256 // request.block)
        keys = request.keys
        return keys[min(blocks, len(keys)) - 1] if keys else request.index + 1


class Processes(Router):
    """A policy of several processes, each with its own view and its own random choices."""

    sees_ends = True

    def start(self, world: World) -> None:
        """Takes the fleet; nobody has anything in flight."""
        self.world = world
        self.hosts = world.hosts
        self.flight = [[0] * world.hosts for _ in range(world.processors)]
        self.rngs = [random.Random(f"{self.name}/{world.seed}/{p}") for p in range(world.processors)]

    def route(self, request: Request, now: float, processor: int) -> Route:
        """Asks `choose` of that process, and counts the pick."""
        if processor < 0:
            return Route()
        host = self.choose(request, now, processor)
        self.flight[processor][host] += 1
        return Route((host,))

    def choose(self, request: Request, now: float, processor: int) -> int:
        """The host for a request."""
        raise NotImplementedError

    def ended(self, request: Request, host: int, processor: int, now: float) -> None:
        """One less in flight."""
        if processor >= 0:
            self.flight[processor][host] -= 1

    def least(self, values: Sequence[float], processor: int, among: Sequence[int] | None = None) -> int:
        """The host of the least value, ties at random."""
        hosts = range(self.hosts) if among is None else among
        low = min(values[i] for i in hosts)
        ties = [i for i in hosts if values[i] <= low + 1e-12]
        return ties[int(self.rngs[processor].random() * len(ties))]


class PowerOfTwo(Processes):
    """Two hosts at random, the one with fewer own requests in flight (vLLM router, SGLang gateway: power_of_two)."""

    name = "p2c"

    def choose(self, request: Request, now: float, processor: int) -> int:
        """One of two."""
        rng = self.rngs[processor]
        one, other = int(rng.random() * self.hosts), int(rng.random() * self.hosts)
        flight = self.flight[processor]
        return one if flight[one] <= flight[other] else other


class JoinShortest(Processes):
    """The fewest own requests in flight over all hosts (AIBrix least-request)."""

    name = "jsq"

    def choose(self, request: Request, now: float, processor: int) -> int:
        """The least of all."""
        return self.least(self.flight[processor], processor)
