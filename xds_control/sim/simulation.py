"""The event loop: requests through Envoys and processors to engines, pages and access logs back. Deterministic."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from xds_control.sim.engine import Engine, EngineSpec, Gauges
from xds_control.sim.engine import Sequence as Running
from xds_control.sim.envoy import Envoy
from xds_control.sim.faults import Fault
from xds_control.sim.request import Outcome, Request
from xds_control.sim.router import Route, Router, World

_CONNECT_S = 0.001
_SAMPLES = 400


@dataclass(frozen=True, slots=True)
class FleetSpec:
    """The fleet and the delays around it. Times in seconds.

    engines: one for each host; ranks: data-parallel ranks in each. capacities: as declared to the control plane, None =
    nothing is declared. processors: of the policy. scrape_s: overrides the policies' own interval. scrape_delay_s: from
    the page's moment to its use. access_log_s: from an answer's end to its entry. eds_s: from decision to Envoy's use.
    retries: upstream attempts after the first. pick_s: what asking a processor takes.
    """

    engines: Sequence[EngineSpec]
    ranks: int = 1
    capacities: Sequence[float] | None = None
    envoys: int = 1
    processors: int = 1
    scrape_s: float | None = None
    scrape_delay_s: float = 0.02
    access_log_s: float = 0.1
    eds_s: float = 0.05
    retries: int = 2
    pick_s: float = 0.0005
    faults: Sequence[Fault] = ()
    slo_ttft_s: float = 2.0
    slo_tpot_s: float = 0.1

    def __post_init__(self) -> None:
        if not self.engines or self.ranks < 1 or self.envoys < 1 or self.processors < 1:
            raise ValueError("a fleet needs at least one engine, rank, Envoy and processor")
        if self.capacities is not None and len(self.capacities) != len(self.engines):
            raise ValueError("capacities must be as many as engines")
        for fault in self.faults:
            size = self.processors if fault.kind == "processor" else len(self.engines)
            if fault.target >= size:
                raise ValueError(f"fault {fault.kind} names target {fault.target} of {size}")


@dataclass(slots=True)
class Run:
    """What came out. samples: time and requests inside each host. busy: share of the time that each host worked."""

    policy: str
    workload: str
    seed: int
    outcomes: list[Outcome]
    duration_s: float
    hosts: int
    prompt_tokens: list[int] = field(default_factory=list)
    output_tokens: list[int] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)
    preemptions: int = 0
    samples: list[tuple[float, tuple[int, ...]]] = field(default_factory=list)
    extra: dict[str, float] = field(default_factory=dict)
    weight_log: list[tuple[float, tuple[int, ...]]] = field(default_factory=list)
    picks: list[int] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _Flight:
    """A request on its way."""

    outcome: Outcome
    envoy: int
    processor: int
    route: Route
    tried: list[int] = field(default_factory=list)
    rank: int = 0


class Simulation:
    """One policy, one fleet, one workload, one seed. Use `run`."""

    def __init__(
        self,
        fleet: FleetSpec,
        requests: Sequence[Request],
        router: Router,
        seed: int = 0,
        workload: str = "",
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self._fleet = fleet
        self._requests = requests
        self._router = router
        self._seed = seed
        self._workload = workload
        self._progress = progress
        self._heap: list[tuple[float, int, int, Any]] = []
        self._serial = 0
        self._rng = random.Random(f"sim/{seed}")
        self._hosts = len(fleet.engines)
        ranks = fleet.ranks
        self._ranks = [[Engine(spec) for _ in range(ranks)] for spec in fleet.engines]
        rng = random.Random(f"envoys/{seed}")
        self._envoys = [Envoy(self._hosts, router.balancer, rng) for _ in range(fleet.envoys)]
        self._inside = [0] * self._hosts
        self._flights: dict[Running, _Flight] = {}
        self._outcomes: list[Outcome] = []
        self._open = len(requests)
        self._processors_up = list(range(fleet.processors))
        self._blackouts = [False] * self._hosts
        self._picks = [0] * self._hosts
        self._now = 0.0
        self._later: dict[int, list[Request]] = {}

    def run(self) -> Run:
        """Runs until every request has ended."""
        fleet, router = self._fleet, self._router
        block = self._requests[0].block if self._requests else 64
        world = World(
            self._hosts,
            fleet.capacities or [1.0] * self._hosts,
            [spec.kv_tokens * fleet.ranks for spec in fleet.engines],
            block,
            self._envoys,
            fleet.processors,
            fleet.slo_ttft_s,
            fleet.slo_tpot_s,
            fleet.eds_s,
            self._seed,
            {"peak_prefill_tps": fleet.ranks / max(1e-9, fleet.engines[0].prefill_s)},
        )
        for fault in fleet.faults:
            self._at(fault.at, _FAULT, (fault, True))
            self._at(fault.at + fault.seconds, _FAULT, (fault, False))
            if fault.kind == "cold":
                self._fault(fault, True, 0.0)
        router.start(world)
        last = 0.0
        for request in self._requests:
            last = max(last, request.at)
            if request.after is None:
                self._at(request.at, _ARRIVAL, request)
            else:
                self._later.setdefault(request.after, []).append(request)
        interval = fleet.scrape_s or router.scrape_s
        self._scrape_every = interval if router.scrape_s > 0 else 0.0
        if self._scrape_every > 0:
            for host in range(self._hosts):
                self._at(self._rng.random() * self._scrape_every, _SCRAPE, host)
        if router.tick_s > 0:
            self._at(router.tick_s, _TICK, None)
        self._sample_every = max(0.05, last / _SAMPLES)
        self._at(self._sample_every, _SAMPLE, None)
        self._samples: list[tuple[float, tuple[int, ...]]] = []
        self._loop()
        duration = max([o.done for o in self._outcomes if o.done >= 0] or [last])
        engines = [e for ranks in self._ranks for e in ranks]
        return Run(
            router.name,
            self._workload,
            self._seed,
            sorted(self._outcomes, key=lambda o: o.request.index),
            duration,
            self._hosts,
            [sum(e.prompt_tokens for e in ranks) for ranks in self._ranks],
            [sum(e.output_tokens for e in ranks) for ranks in self._ranks],
            [sum(e.busy_s for e in ranks) / fleet.ranks / max(duration, 1e-9) for ranks in self._ranks],
            sum(e.preemptions for e in engines),
            self._samples,
            router.report(),
            list(getattr(router, "weight_log", [])),
            self._picks,
        )

    def _at(self, when: float, kind: int, what: Any) -> None:
        self._serial += 1
        heapq.heappush(self._heap, (when, self._serial, kind, what))

    def _loop(self) -> None:
        heap = self._heap
        router, fleet = self._router, self._fleet
        pop = heapq.heappop
        done_before = 0
        while heap and self._open > 0:
            now, _, kind, what = pop(heap)
            self._now = now
            if kind == _STEP:
                engine, version, host = what
                if engine.version == version:
                    news = engine.end_step(now)
                    if news:
                        self._news(news, host, now)
                    if engine.wakes_at != _NEVER:
                        self._serial += 1
                        heapq.heappush(heap, (engine.wakes_at, self._serial, _STEP, (engine, engine.version, host)))
            elif kind == _ARRIVAL:
                self._arrive(what, now)
            elif kind == _SEND:
                self._send(what, now)
            elif kind == _LOGGED:
                flight = what
                router.logged(flight.outcome, flight.route, flight.processor, flight.envoy, now)
            elif kind == _SCRAPE:
                self._scrape(what, now)
            elif kind == _PAGE:
                host, gauges, at = what
                router.scraped(host, gauges, at, now)
            elif kind == _TICK:
                router.tick(now)
                self._at(now + router.tick_s, _TICK, None)
            elif kind == _SAMPLE:
                self._samples.append((now, tuple(self._inside)))
                self._at(now + self._sample_every, _SAMPLE, None)
                if self._progress is not None:
                    done = len(self._outcomes)
                    self._progress(done - done_before)
                    done_before = done
            else:
                self._fault(what[0], what[1], now)
        if self._progress is not None:
            self._progress(len(self._outcomes) - done_before)
        del fleet

    def _arrive(self, request: Request, now: float) -> None:
        outcome = Outcome(request, now)
        envoy = self._rng.randrange(len(self._envoys)) if len(self._envoys) > 1 else 0
        up = self._processors_up
        processor = up[self._rng.randrange(len(up))] if len(up) > 1 else (up[0] if up else -1)
        flight = _Flight(outcome, envoy, processor, Route())
        route = flight.route = self._router.route(request, now, processor)
        outcome.matched = route.matched
        if route.refused:
            outcome.status = 429
            self._end(flight, now)
            return
        self._at(now + self._fleet.pick_s, _SEND, flight)

    def _send(self, flight: _Flight, now: float) -> None:
        outcome, route = flight.outcome, flight.route
        envoy = self._envoys[flight.envoy]
        if outcome.attempts > self._fleet.retries:
            outcome.status = 503
            self._end(flight, now)
            return
        host = next((h for h in route.hosts if h not in flight.tried and envoy.has(h)), -1)
        if host < 0:
            outcome.fallback = outcome.fallback or bool(route.hosts)
            host = envoy.choose(self._router.key(outcome.request), flight.tried)
        outcome.attempts += 1
        if host < 0:
            outcome.status = 503
            self._end(flight, now)
            return
        flight.tried.append(host)
        self._picks[host] += 1
        ranks = self._ranks[host]
        rank = 0
        if len(ranks) > 1:
            rank = min(range(len(ranks)), key=lambda i: 4 * len(ranks[i].waiting) + len(ranks[i].running))
        engine = ranks[rank]
        sequence = Running(outcome.request)
        version = engine.version
        if not engine.submit(sequence, now):
            self._router.attempt_failed(host, now)
            self._at(now + _CONNECT_S, _SEND, flight)
            return
        flight.rank = rank
        outcome.endpoint = host
        envoy.active[host] += 1
        self._inside[host] += 1
        self._flights[sequence] = flight
        if engine.version != version:
            self._at(engine.wakes_at, _STEP, (engine, engine.version, host))

    def _news(self, news: Sequence[Running], host: int, now: float) -> None:
        router = self._router
        for sequence in news:
            flight = self._flights[sequence]
            outcome = flight.outcome
            if outcome.first < 0 <= sequence.first:
                outcome.first = sequence.first
                if router.sees_ends:
                    router.first_token(outcome.request, host, flight.processor, now)
            if sequence.done >= 0:
                outcome.status = 200
                outcome.cached = max(0, sequence.cached)
                outcome.preemptions = sequence.preemptions
                self._leave(sequence, flight, host, now)
                self._end(flight, now)

    def _leave(self, sequence: Running, flight: _Flight, host: int, now: float) -> None:
        del self._flights[sequence]
        self._envoys[flight.envoy].active[host] -= 1
        self._inside[host] -= 1
        if self._router.sees_ends:
            # A policy counts where it sent the request, so that is where the end is told.
            sent = flight.route.hosts[0] if flight.route.hosts else host
            self._router.ended(flight.outcome.request, sent, flight.processor, now)

    def _end(self, flight: _Flight, now: float) -> None:
        outcome = flight.outcome
        outcome.done = now
        self._outcomes.append(outcome)
        self._open -= 1
        if not outcome.ok and outcome.endpoint < 0 and flight.route.hosts and self._router.sees_ends:
            self._router.ended(outcome.request, flight.route.hosts[0], flight.processor, now)
        if outcome.status != 429:
            self._at(now + self._fleet.access_log_s * (0.5 + self._rng.random()), _LOGGED, flight)
        for follower in self._later.pop(outcome.request.index, ()):
            self._at(max(follower.at if not follower.think_s else 0.0, now + follower.think_s), _ARRIVAL, follower)

    def _scrape(self, host: int, now: float) -> None:
        every = self._scrape_every
        if not self._blackouts[host]:
            alive = [e.gauges(now) for e in self._ranks[host] if e.alive]
            page = _merge(alive) if alive else None
            self._at(now + self._fleet.scrape_delay_s, _PAGE, (host, page, now))
        self._at(now + every * (0.95 + 0.1 * self._rng.random()), _SCRAPE, host)

    def _fault(self, fault: Fault, begins: bool, now: float) -> None:
        kind, target = fault.kind, fault.target
        if kind == "processor":
            if begins and target in self._processors_up:
                self._processors_up.remove(target)
            elif not begins and target not in self._processors_up:
                self._processors_up.append(target)
            return
        if kind == "blackout":
            self._blackouts[target] = begins
            return
        for engine in self._ranks[target]:
            if kind in ("slow", "throttle"):
                version = engine.version
                engine.set_slow(fault.factor if begins else 1.0, now)
                if engine.version != version:
                    self._at(engine.wakes_at, _STEP, (engine, engine.version, target))
            elif begins:
                for sequence in engine.kill():
                    self._lost(sequence, target, now)
            else:
                engine.revive(now)

    def _lost(self, sequence: Running, host: int, now: float) -> None:
        """An engine died under a request: before the first byte Envoy retries, after it the answer is broken."""
        flight = self._flights[sequence]
        if sequence.first < 0:
            del self._flights[sequence]
            self._envoys[flight.envoy].active[host] -= 1
            self._inside[host] -= 1
            flight.outcome.endpoint = -1
            self._router.attempt_failed(host, now)
            self._at(now + _CONNECT_S, _SEND, flight)
            return
        flight.outcome.status = 502
        self._leave(sequence, flight, host, now)
        self._end(flight, now)


def _merge(pages: Sequence[Gauges]) -> Gauges:
    """Several ranks: queues and counters sum, of KV use the worst counts."""
    if len(pages) == 1:
        return pages[0]
    return Gauges(
        sum(p.running for p in pages),
        sum(p.waiting for p in pages),
        max(p.kv_usage for p in pages),
        sum(p.prompt_tokens for p in pages),
        sum(p.output_tokens for p in pages),
        sum(p.preemptions for p in pages),
        sum(p.cached_tokens for p in pages),
        max(p.started_at for p in pages),
    )


_NEVER = float("inf")
_ARRIVAL, _SEND, _STEP, _LOGGED, _SCRAPE, _PAGE, _TICK, _SAMPLE, _FAULT = range(9)
