"""Whole courses of events, driven by a clock."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import pytest

from tests.unit.weights.build import endpoint
from xds_control.fleet.endpoint import Endpoint
from xds_control.fleet.lifecycle import Lifecycle, Outcomes
from xds_control.fleet.rates import LearnedRates
from xds_control.fleet.readings import Reading
from xds_control.fleet.snapshot import State
from xds_control.policy.lifecycle import LifecyclePolicy, WarmUp
from xds_control.policy.weights import WeightsPolicy
from xds_control.weights import EndpointInput, PoolWeights, WeightEngine

TICK_S = 0.2
SCRAPE_S = 1.0


@dataclass
class Engine:
    """A fluid model of one batching engine: `rate` requests per second when all its slots are busy."""

    rate: float
    slots: float = 32.0
    work: float = 0.0
    alive: bool = True
    scraped: dict[str, float] = field(default_factory=dict)
    scraped_at: float = -math.inf
    served: float = 0.0

    def run(self, arrivals: float, dt: float) -> None:
        done = min(self.work + arrivals, self.rate * min(1.0, self.work / self.slots) * dt)
        self.work += arrivals - done
        self.served += arrivals

    def scrape(self, now: float) -> None:
        running = min(self.work, self.slots)
        self.scraped = {"running": running, "waiting": self.work - running, "kv_usage": 0.9 * running / self.slots}
        self.scraped_at = now


class Fleet:
    """Lifecycle, weight engine and a model of the engines on one clock."""

    def __init__(
        self,
        rates: list[float],
        *,
        capacities: list[float | None] | None = None,
        policy: WeightsPolicy | None = None,
        life: LifecyclePolicy | None = None,
    ) -> None:
        declared: list[float | None] = capacities or [None] * len(rates)
        self.endpoints: list[Endpoint] = [endpoint(i, capacity=c) for i, c in enumerate(declared)]
        self.engines = {e.address: Engine(r) for e, r in zip(self.endpoints, rates, strict=True)}
        self.weights = WeightEngine(policy or WeightsPolicy(), pool="p")
        self.life = Lifecycle(life or LifecyclePolicy())
        self.now = 0.0
        self.pushes: list[float] = []
        self.result: PoolWeights | None = None
        self.last: PoolWeights | None = None
        self.scrapes = True
        self.learned: dict[str, LearnedRates] = {}
        self.life.sync(self.endpoints, 0.0)

    def add(self, rate: float) -> str:
        new = endpoint(len(self.endpoints))
        self.endpoints.append(new)
        self.engines[new.address] = Engine(rate)
        self.life.sync(self.endpoints, self.now)
        return new.address

    def tick(self, requests_per_s: float) -> PoolWeights:
        if self.result is not None:
            live = [e for e in self.result.endpoints if e.priority == 0 and e.weight > 0]
            total = sum(e.weight for e in live)
            for e in live:
                engine = self.engines[e.address]
                share = requests_per_s * TICK_S * e.weight / total
                if engine.alive:
                    engine.run(share, TICK_S)
        for index, (address, engine) in enumerate(self.engines.items()):
            # Scrapes are spread over the interval, as real ones are.
            turn = round(self.now / TICK_S) % round(SCRAPE_S / TICK_S) == index % round(SCRAPE_S / TICK_S)
            if not (self.scrapes and turn):
                continue
            if engine.alive:
                engine.scrape(self.now)
            self.life.on_scrape(address, engine.alive, self.now, refused=not engine.alive)
        self.life.tick(self.now)
        for action in self.life.actions(self.now):
            if action.kind == "probe":
                self.life.on_probe(action.address, self.engines[action.address].alive, self.now)
            elif action.kind == "warmup":
                self.life.on_warmup(action.address, self.engines[action.address].alive, 0.1, self.now)
        self.last = self.result
        self.result = self.weights.tick([self._input(e) for e in self.endpoints], self.now)
        if self.result.changed:
            self.pushes.append(self.now)
        self.now += TICK_S
        return self.result

    def run(self, seconds: float, requests_per_s: float) -> PoolWeights:
        for _ in range(round(seconds / TICK_S)):
            self.tick(requests_per_s)
        assert self.result is not None
        return self.result

    def shares(self) -> list[float]:
        assert self.result is not None
        total = sum(e.weight for e in self.result.endpoints if e.priority == 0)
        return [e.weight / total if e.priority == 0 else 0.0 for e in self.result.endpoints]

    def _input(self, e: Endpoint) -> EndpointInput:
        view = self.life.view(e.address)
        assert view is not None
        engine = self.engines[e.address]
        readings = {name: Reading(value, engine.scraped_at, "test") for name, value in engine.scraped.items()}
        return EndpointInput(
            e, view.state, view.since, readings, self.learned.get(e.address), view.override, view.ramp_since
        )


def test_a_steady_fleet_stays_equal_and_quiet() -> None:
    fleet = Fleet([10.0] * 4)
    fleet.run(20, 20.0)
    fleet.pushes.clear()
    fleet.run(60, 20.0)
    assert fleet.shares() == [0.25] * 4
    assert fleet.pushes == []


@pytest.mark.parametrize("period_s", [1.0, 2.0, 5.0, 10.0, 20.0])
def test_oscillating_load_does_not_make_weights_flap(period_s: float) -> None:
    """Bursts that hit half of the endpoints, then the other half: at most 12 pushes a minute, no large moves."""
    policy = WeightsPolicy()
    engine = WeightEngine(policy, pool="p")
    pushes, least, most = [], 1.0, 1.0
    for k in range(round(300 / TICK_S)):
        now = k * TICK_S
        phase = int(now / (period_s / 2)) % 2
        rows = []
        for i in range(4):
            busy = 30.0 if i % 2 == phase else 14.0
            e = endpoint(i)
            rows.append(EndpointInput(e, State.READY, -1e6, {"running": Reading(busy, now, "t")}))
        result = engine.tick(rows, now)
        if now >= 60.0:
            if result.changed:
                pushes.append(now)
            values = [e.weight for e in result.endpoints]
            least, most = min(least, min(values) / 10_000), max(most, max(values) / 10_000)
    assert len(pushes) / 4.0 <= 12.0
    assert least > 0.75
    assert most < 1.25


def test_an_unequal_fleet_settles_without_declared_capacities_being_right() -> None:
    """Two of four endpoints half as fast, unknown to the policy, learned from what they deliver."""
    fleet = Fleet([10.0, 10.0, 5.0, 5.0])
    fleet.learned = {
        e.address: LearnedRates(capacity=fleet.engines[e.address].rate, confidence=1.0, at=0.0) for e in fleet.endpoints
    }
    fleet.run(120, 24.0)
    assert fleet.shares() == pytest.approx([1 / 3, 1 / 3, 1 / 6, 1 / 6], abs=0.02)
    occupancy = [engine.work / engine.slots for engine in fleet.engines.values()]
    assert max(occupancy) - min(occupancy) < 0.1


def test_load_response_carries_an_unequal_fleet_when_nothing_is_learned() -> None:
    fleet = Fleet([10.0, 10.0, 5.0, 5.0])
    fleet.run(300, 24.0)
    # Equal weights would send 6 requests per second to an endpoint that does 5.
    for engine in fleet.engines.values():
        assert engine.work < 2 * engine.slots
    fast, slow = fleet.shares()[0], fleet.shares()[2]
    assert fast > 1.3 * slow


def test_a_dead_engine_is_out_within_three_scrape_intervals() -> None:
    fleet = Fleet([10.0] * 4)
    fleet.run(20, 20.0)
    victim = fleet.endpoints[1].address
    fleet.engines[victim].alive = False
    died = fleet.now
    out_at = None
    while fleet.now < died + 10 and out_at is None:
        got = fleet.tick(20.0).by_address[victim]
        if got.priority > 0 or got.weight == 0:
            out_at = fleet.now
            assert not got.pickable
    assert out_at is not None
    assert out_at - died <= 3 * SCRAPE_S
    fleet.run(5, 20.0)
    view = fleet.life.view(victim)
    assert view is not None
    assert view.state is State.EJECTED


def test_a_dead_engine_under_traffic_is_out_with_the_first_reports() -> None:
    fleet = Fleet([10.0] * 4)
    fleet.run(20, 20.0)
    victim = fleet.endpoints[2].address
    fleet.life.on_outcomes(victim, Outcomes(connect=5), fleet.now)
    got = fleet.tick(20.0).by_address[victim]
    assert (got.weight, got.health) == (0, "removed")


def test_a_cold_engine_ramps() -> None:
    life = LifecyclePolicy(warm_up=WarmUp(prompts=("hello",)))
    fleet = Fleet([10.0] * 4, life=life)
    fleet.run(10, 20.0)
    new = fleet.add(10.0)
    seen: list[tuple[float, str, int]] = []
    joined = fleet.now
    while fleet.now < joined + 45:
        result = fleet.tick(20.0)
        view = fleet.life.view(new)
        assert view is not None
        seen.append((fleet.now - joined, view.state.value, result.by_address[new].weight))
    states = [s for _, s, _ in seen]
    assert states.index("warming") < states.index("ready")
    assert all(w == 0 for _, s, w in seen if s != "ready")
    ready_at = next(t for t, s, _ in seen if s == "ready")
    ramp = [w for t, s, w in seen if s == "ready"]
    assert ramp[0] <= 2_500  # a tenth, and some more because it is idle
    assert ramp == sorted(ramp)
    assert ramp[-1] >= 9_000
    half = next(t for t, _, w in seen if w >= 5_000)
    assert 8.0 <= half - ready_at <= 25.0


def test_when_all_metrics_go_stale_the_declared_capacities_hold() -> None:
    policy = WeightsPolicy()
    fleet = Fleet([10.0, 10.0, 20.0], capacities=[1.0, 1.0, 2.0], policy=policy)
    fleet.run(20, 30.0)
    fleet.engines[fleet.endpoints[0].address].work = 400.0
    fleet.run(10, 30.0)
    assert fleet.shares()[0] < 0.2
    fleet.scrapes = False
    fleet.run(90, 30.0)
    assert fleet.result is not None
    # Nobody has shown life for long: all are suspect, and all serve by what was declared.
    assert [e.priority for e in fleet.result.endpoints] == [0, 0, 0]
    assert fleet.shares() == pytest.approx([0.25, 0.25, 0.5], abs=0.02)


def test_half_of_the_fleet_failing_leaves_the_other_half_serving() -> None:
    fleet = Fleet([10.0] * 8)
    fleet.run(20, 30.0)
    for e in fleet.endpoints[:4]:
        fleet.engines[e.address].alive = False
    fleet.run(10, 30.0)
    assert fleet.shares() == pytest.approx([0.0] * 4 + [0.25] * 4, abs=0.01)
    states = [view.state for view in fleet.life.views()]
    assert states[:4] == [State.EJECTED] * 4
    assert states[4:] == [State.READY] * 4


def test_all_of_the_fleet_failing_leaves_half_of_it_in_the_weights() -> None:
    fleet = Fleet([10.0] * 4)
    fleet.run(20, 10.0)
    for engine in fleet.engines.values():
        engine.alive = False
    fleet.run(20, 10.0)
    states = [view.state for view in fleet.life.views()]
    assert states.count(State.SUSPECT) == 2
    assert sum(state in (State.EJECTED, State.PROBING) for state in states) == 2
    assert sum(s > 0 for s in fleet.shares()) == 2


def test_a_restart_of_control_disturbs_nothing() -> None:
    """Endpoints that are there at the start serve at once, by capacity, and do not ramp."""
    fleet = Fleet([10.0, 20.0], capacities=[1.0, 2.0])
    fleet.tick(0.0)
    assert fleet.shares() == pytest.approx([1 / 3, 2 / 3], abs=1e-3)
    fleet.run(3, 5.0)
    assert [view.state for view in fleet.life.views()] == [State.READY, State.READY]
    assert fleet.shares() == pytest.approx([1 / 3, 2 / 3], abs=1e-3)
