"""Our own policies: `weights` is ring 1 alone, `ours` adds the picks of N processors. The real code decides."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from xds_control.policy.capacity import CapacityPolicy
from xds_control.policy.inspect import InspectPolicy
from xds_control.policy.lifecycle import LifecyclePolicy
from xds_control.policy.picker import PickerPolicy
from xds_control.policy.weights import WeightsPolicy
from xds_control.routing.outcome import Finished
from xds_control.routing.picker import Picker
from xds_control.routing.share import Outstanding, Peers
from xds_control.sim.control import POOL, Control
from xds_control.sim.engine import Gauges
from xds_control.sim.envoy import Algorithm
from xds_control.sim.facts import Inspection
from xds_control.sim.request import Outcome, Request
from xds_control.sim.router import Route, Router, World
from xds_control.weights.inputs import PoolWeights


@dataclass(frozen=True, slots=True)
class OurPolicy:
    """The sections of a policy that decide. share_s: how often processors hear of each other, 0 = never.

    estimate_error, estimate_factor: of prompt token estimates. usage: whether answers report cached tokens. forget_s:
    processors restart, and forget everything, this often; 0 = never.
    """

    picker: PickerPolicy = field(default_factory=PickerPolicy)
    weights: WeightsPolicy = field(default_factory=WeightsPolicy)
    capacity: CapacityPolicy = field(default_factory=CapacityPolicy)
    lifecycle: LifecyclePolicy = field(default_factory=LifecyclePolicy)
    inspect: InspectPolicy = field(default_factory=InspectPolicy)
    balancer: Algorithm = "least_request"
    scrape_s: float = 0.5
    tick_s: float = 0.2
    share_s: float = 0.1
    estimate_error: float = 0.05
    estimate_factor: float = 1.0
    usage: bool = True
    forget_s: float = 0.0


@dataclass(slots=True)
class _Note:
    processor: int
    pick: str
    prompt: int
    matched: int
    ahead: int
    batch: float


class Ours(Router):
    """Rings 1 and, with `picks`, 3."""

    def __init__(self, policy: OurPolicy, picks: bool = True, name: str = "") -> None:
        self.name = name or ("ours" if picks else "weights")
        self.balancer = policy.balancer
        self.scrape_s = policy.scrape_s
        self._policy = policy
        self._picks = picks
        self._share_s = policy.share_s if picks and policy.share_s > 0 else 0.0
        self.tick_s = policy.tick_s
        self._next_tick = 0.0
        self.weight_log: list[tuple[float, tuple[int, ...]]] = []

    def start(self, world: World) -> None:
        """Control, processors, and the first snapshot."""
        policy = self._policy
        self._world = world
        self.control = Control(
            world.capacities,
            world.kv_tokens,
            (world.slo_ttft_s, world.slo_tpot_s),
            policy.weights,
            policy.capacity,
            policy.lifecycle,
        )
        self._inspection = Inspection(policy.inspect, policy.estimate_error, policy.estimate_factor, world.seed)
        self._forgets_at = policy.forget_s or math.inf
        self._make_pickers()
        self._pushes: deque[tuple[float, PoolWeights]] = deque()
        if self._share_s and len(self._pickers) > 1:
            self.tick_s = min(self._policy.tick_s, self._share_s)
        self._next_tick = 0.0
        self.tick(0.0)

    def _make_pickers(self) -> None:
        world = self._world
        count = world.processors if self._picks else 0
        self._pickers = [Picker(self._policy.picker, seed=world.seed * 1000 + p) for p in range(count)]

    def route(self, request: Request, now: float, processor: int) -> Route:
        """The pick of one processor; Envoy decides by weights where there is none."""
        if not self._picks or processor < 0:
            return Route()
        facts = self._inspection.facts(request)
        pick = self._pickers[processor].pick(facts, POOL, now, slo_ttft_s=self._world.slo_ttft_s)
        if pick.shed:
            return Route(refused=True)
        if not pick.ok:
            return Route()
        place = self.control.place
        note = _Note(processor, pick.address, facts.prompt_tokens, pick.matched_tokens, pick.ahead_tokens, pick.batch)
        return Route([place[a] for a in pick.addresses], matched=pick.matched_tokens, note=note)

    def logged(self, outcome: Outcome, route: Route, processor: int, envoy: int, now: float) -> None:
        """Every entry reaches control; one processor gets it, whoever picked."""
        request = outcome.request
        kind = "ok" if outcome.ok else ("connect" if outcome.endpoint < 0 else "reset")
        decode = outcome.done - outcome.first if outcome.first >= 0 else 0.0
        cached = outcome.cached if self._policy.usage else None
        if outcome.endpoint >= 0:
            self.control.finished(
                outcome.endpoint, kind, now, request.prompt, cached, request.output, outcome.ttft, decode
            )
        if not self._pickers:
            return
        picker = self._pickers[envoy % len(self._pickers)]
        note = route.note if isinstance(route.note, _Note) else None
        picker.finished(
            Finished(
                POOL,
                self.control.endpoints[outcome.endpoint].address if outcome.endpoint >= 0 else "",
                note.pick if note else "",
                kind,
                outcome.attempts,
                note.prompt if note else None,
                None,
                note.matched if note else None,
                request.prompt if outcome.ok else None,
                request.output if outcome.ok else None,
                cached if outcome.ok else None,
                outcome.ttft if outcome.ok else None,
                decode if outcome.ok else None,
                outcome.done - outcome.arrived,
            ),
            now,
            ended_at=outcome.done,
            ahead_tokens=note.ahead if note else None,
            batch=note.batch if note else None,
        )

    def attempt_failed(self, host: int, now: float) -> None:
        """Envoy's log of single attempts."""
        self.control.attempt_failed(host)
        address = self.control.endpoints[host].address
        for picker in self._pickers:
            picker.failed(address, now)

    def scraped(self, host: int, gauges: Gauges | None, at: float, now: float) -> None:
        """To control."""
        self.control.scraped(host, gauges, at, now)

    def tick(self, now: float) -> None:
        """Control's tick at its interval, peers' messages at theirs, pushes when they are due."""
        while self._pushes and self._pushes[0][0] <= now:
            _, weights = self._pushes.popleft()
            self._push(weights, now)
        if now >= self._next_tick - 1e-9:
            self._next_tick = now + self._policy.tick_s
            pool, weights = self.control.tick(now)
            if now >= self._forgets_at:
                self._forgets_at = now + self._policy.forget_s
                self._make_pickers()
            for picker in self._pickers:
                picker.update({POOL: pool}, now)
            if weights.changed or not self.weight_log:
                self._pushes.append((now + self._world.eds_s, weights))
                if not self.weight_log:
                    self._push(weights, now)
        if self._share_s and len(self._pickers) > 1:
            self._exchange(now)

    def _push(self, weights: PoolWeights, now: float) -> None:
        values = [0] * self._world.hosts
        spill = []
        for one in weights.endpoints:
            i = self.control.place[one.address]
            if one.health in ("healthy", "degraded"):
                values[i] = one.weight
                if one.priority > 0:
                    spill.append(i)
        self.weight_log.append((now, tuple(values)))
        for envoy in self._world.envoys:
            envoy.update(values, spill)

    def _exchange(self, now: float) -> None:
        """What the hub does: everybody's news to everybody else, outstanding work summed."""
        shares = [picker.drain_share(now) for picker in self._pickers]
        for p, picker in enumerate(self._pickers):
            peers = Peers()
            sums: dict[str, list[int]] = {}
            for other, share in enumerate(shares):
                if other == p:
                    continue
                peers.prefixes.extend(share.prefixes)
                peers.rates.extend(share.rates)
                for one in share.outstanding:
                    total = sums.setdefault(one.endpoint, [0, 0, 0])
                    total[0] += one.requests
                    total[1] += one.prefill_tokens
                    total[2] += one.decode_tokens
            peers.outstanding.extend(Outstanding(address, *total) for address, total in sums.items())
            picker.merge_peers(peers, now)

    def report(self) -> dict[str, float]:
        """How many pushes there were and how much of the traffic the mean push moved."""
        pushes = self.control.pushes
        return {"pushes": float(pushes), "moved_per_push": self.control.moved / pushes if pushes else 0.0}
