"""Control's core: everything that is known goes in, a snapshot comes out at each tick. Pure: no I/O, no clock.

All times are monotonic seconds of the control process.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from xds_control.admin.learning import FleetLearning
from xds_control.fleet.endpoint import Endpoint
from xds_control.fleet.faults import Outcomes
from xds_control.fleet.life import Action, Event
from xds_control.fleet.lifecycle import Lifecycle
from xds_control.fleet.override import Override
from xds_control.fleet.rates import LearnedRates
from xds_control.fleet.readings import ModelInfo
from xds_control.fleet.snapshot import EndpointSnapshot, PoolSnapshot, Snapshot, State
from xds_control.policy.capacity import CapacityPolicy
from xds_control.policy.pools import PoolPolicy
from xds_control.policy.schema import Policy
from xds_control.proto import fleet_pb2 as pb
from xds_control.signals import gpu_wire
from xds_control.signals.catalogue import CATALOGUE
from xds_control.signals.gpu import GpuFleet, GpuState
from xds_control.signals.loadreport import LoadReports, LoadRow
from xds_control.signals.merge import FleetOutcomes
from xds_control.signals.reader import Observations, SloTargets
from xds_control.signals.store import SignalStore
from xds_control.weights.engine import WeightEngine
from xds_control.weights.inputs import EndpointInput, PoolWeights

MAX_EVENTS = 10_000
SIGNALS_PER_TICK = 200
"""Endpoints whose access-log signals are taken in at one tick (about 40 µs each), the longest waiting first."""
RESTART_SLACK_S = 2.0
GPU_FORGET_S = 600.0
"""A node whose agent and exporter were silent for this long is dropped."""
_NO_INFO = ModelInfo()
AGE_LIMITS: Mapping[str, float] = {name: spec.age_limit_s for name, spec in CATALOGUE.items()}


@dataclass(frozen=True, slots=True)
class Tick:
    """What one tick decided. changed: whether the snapshot differs from the one before.

    weights: per pool, with explanations. actions: probes and warm-up prompts for the edge. events: transitions.
    """

    snapshot: Snapshot
    changed: bool
    weights: Mapping[str, PoolWeights]
    actions: Sequence[Action]
    events: Sequence[Event]


@dataclass(slots=True)
class ControlCore:
    """State of the control process between ticks."""

    policy: Policy
    policy_version: str
    epoch: str
    store: SignalStore = field(init=False)
    outcomes: FleetOutcomes = field(default_factory=FleetOutcomes, init=False)
    load_reports: LoadReports = field(default_factory=LoadReports, init=False)
    lifecycle: Lifecycle = field(init=False)
    learning: FleetLearning = field(init=False)
    gpus: GpuFleet = field(init=False)
    engines: dict[str, WeightEngine] = field(default_factory=dict, init=False)
    events: deque[Event] = field(default_factory=lambda: deque(maxlen=MAX_EVENTS), init=False)
    snapshot: Snapshot | None = field(default=None, init=False)
    weights: dict[str, PoolWeights] = field(default_factory=dict, init=False)
    endpoints: tuple[Endpoint, ...] = field(default=(), init=False)
    dropped: dict[str, dict[str, int]] = field(default_factory=dict, init=False)
    decisions: dict[tuple[str, str, str], int] = field(default_factory=dict, init=False)
    _known: dict[str, Endpoint] = field(default_factory=dict, init=False)
    _info: dict[str, ModelInfo] = field(default_factory=dict, init=False)
    _due: dict[str, None] = field(default_factory=dict, init=False)
    _fresh: list[Event] = field(default_factory=list, init=False)
    _gpus_swept: float = field(default=0.0, init=False)
    _form: tuple[CapacityPolicy, Mapping[str, float]] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.store = SignalStore(self.policy.signals.age_limits_s, self.policy.signals.ignore_sources)
        self.lifecycle = Lifecycle(self.policy.lifecycle, calibrate=self.policy.capacity.calibrate.enabled)
        self.learning = FleetLearning(self.policy.capacity.learn)
        self.gpus = GpuFleet(self.policy.signals.gpu.max_gpus)
        self._make_engines()

    # What changes rarely.

    def use_policy(self, policy: Policy, version: str, now: float) -> None:
        """A new policy, in force from the next tick on. Weights go on from where they are."""
        old = self.policy.signals
        self.policy, self.policy_version = policy, version
        new = policy.signals
        if (old.age_limits_s, old.ignore_sources) != (new.age_limits_s, new.ignore_sources):
            self.store = _carried(self.store, SignalStore(new.age_limits_s, new.ignore_sources), now)
        self.lifecycle.policy = policy.lifecycle
        self.lifecycle.calibrate = policy.capacity.calibrate.enabled
        self.learning.use_policy(policy.capacity.learn)
        self._make_engines()

    def set_endpoints(self, endpoints: Iterable[Endpoint], now: float) -> None:
        """Everything that discovery knows now."""
        self.endpoints = tuple(endpoints)
        self._known.update({endpoint.address: endpoint for endpoint in self.endpoints})
        self._note(self.lifecycle.sync(self.endpoints, now))
        alive = {view.address for view in self.lifecycle.views()}
        self.store.retain(alive)
        self.learning.retain(alive)
        for address in [known for known in self._info if known not in alive]:
            del self._info[address]
            self.outcomes.forget(address)
            self.load_reports.forget(address)
        for address in [known for known in self._known if known not in alive]:
            del self._known[address]

    def override(self, address: str, order: Override | None, now: float) -> None:
        """An operator's order for an endpoint, None to clear it."""
        self._note(self.lifecycle.override(address, order, now))

    def slo_targets(self, _endpoint: Endpoint) -> SloTargets:
        """Against what an engine's own latency histograms are judged: the default class's targets."""
        scrape = self.policy.signals.scrape
        default = self.policy.classes.by_name()[self.policy.classes.default]
        return SloTargets(
            ttft_s=scrape.ttft_target_s if scrape.ttft_target_s is not None else default.ttft_s,
            tpot_s=scrape.tpot_target_s if scrape.tpot_target_s is not None else default.tpot_s,
        )

    # What is seen.

    def on_observations(self, endpoint: Endpoint, seen: Observations, now: float) -> None:
        """A page of an engine was read."""
        address = endpoint.address
        if seen.recognised:
            self._note(self.lifecycle.on_scrape(address, True, now))
        if seen.restarted:
            self.store.forget_source(address, seen.source)  # its counters and caches began anew
        self.store.put_all(address, seen.values, seen.at, seen.source)
        self.learning.on_scrape(endpoint.pool, address, seen.values, now)
        if seen.info is not None:
            self._learn_info(address, seen.info, now)
        self._note(self.lifecycle.on_readings(address, self.store.readings(address, now), now))
        if seen.dropped:
            counts = self.dropped.setdefault(address, {})
            for reason, count in seen.dropped.items():
                counts[reason] = counts.get(reason, 0) + count

    def on_scrape_failure(self, endpoint: Endpoint, reason: str, detail: str, now: float) -> None:
        """A page could not be had."""
        self._note(self.lifecycle.on_scrape(endpoint.address, False, now, refused=reason == "connect", detail=detail))

    def on_window(self, window: pb.Window, now: float) -> None:
        """A processor's window of outcomes."""
        self.outcomes.add(window, now)
        self.learning.on_window(window.outcomes, now)
        for entry in window.decisions:
            key = (entry.pool, entry.rule, entry.reason)
            if key in self.decisions or len(self.decisions) < MAX_EVENTS:
                self.decisions[key] = self.decisions.get(key, 0) + entry.count

    def on_signals(self, message: pb.Signals, now: float, wall: float) -> None:
        """An engine's or sidecar's own word about an endpoint. Raises ValueError for one that is not in the fleet."""
        if self.lifecycle.view(message.endpoint) is None:
            raise ValueError(f"there is no endpoint {message.endpoint!r}")
        at = now
        if message.HasField("at_unix_s"):
            at = min(now, now - (wall - message.at_unix_s))
        self._note(self.lifecycle.on_scrape(message.endpoint, True, now))
        self.store.put_all(message.endpoint, message.values, at, "push")

    def on_load_reports(self, rows: Sequence[LoadRow], now: float) -> None:
        """What one Envoy counted since its last load report."""
        known = [row for row in rows if row.address in self._known]
        self.load_reports.add(known, now)
        for address in {row.address for row in known}:
            for name, reading in self.load_reports.readings(address, now).items():
                self.store.put(address, name, reading.value, reading.at, reading.source)

    def on_gpus(self, report: pb.GpuReport, sender: str, now: float) -> None:
        """What an agent says of its node's GPUs; it counts from the next tick on."""
        gpu_wire.take_report(self.gpus, report, sender, now)

    def on_gpu_page(self, node: str, states: Sequence[GpuState], at: float) -> None:
        """What an exporter's page says of its node's GPUs: all of them."""
        self.gpus.report(node, states, at, "dcgm", full=True)

    def on_probe(self, address: str, ok: bool, now: float, detail: str = "") -> None:
        """A probe ended."""
        self._note(self.lifecycle.on_probe(address, ok, now, detail))

    def on_warmup(self, address: str, ok: bool, latency_s: float, now: float, detail: str = "") -> None:
        """A warm-up prompt was answered, or not."""
        self._note(self.lifecycle.on_warmup(address, ok, latency_s, now, detail))

    def on_calibrated(
        self,
        address: str,
        ok: bool,
        now: float,
        detail: str = "",
        rates: LearnedRates | None = None,
        batch: float = 1.0,
    ) -> None:
        """The standard load ended. rates: what it showed, at `batch` requests at once."""
        endpoint = self._known.get(address)
        if rates is not None and endpoint is not None:
            self.learning.seed(endpoint.pool, address, rates, batch, now)
        self._note(self.lifecycle.on_calibrated(address, ok, now, detail))

    def endpoint(self, address: str) -> Endpoint | None:
        """A discovered endpoint, or one on its way out."""
        return self._known.get(address)

    def base_url(self, address: str) -> str:
        """`scheme://host:port` of an endpoint's API."""
        endpoint = self._known.get(address)
        scheme = "https" if endpoint is not None and (endpoint.metrics_url or "").startswith("https:") else "http"
        return f"{scheme}://{address}"

    def model_of(self, address: str) -> str:
        """A model that the endpoint serves: as it says itself, else as its pool declares."""
        models = self._info.get(address, _NO_INFO).models
        if models:
            return models[0]
        endpoint = self._known.get(address)
        for pool in self.policy.pools:
            if endpoint is not None and pool.name == endpoint.pool and pool.models:
                return pool.models[0]
        return ""

    # Time.

    def tick(self, now: float) -> Tick:
        """Decides everything anew from what is known now."""
        self._take_gpus(now)
        self._take_outcomes(now)
        self._note(self.lifecycle.tick(now))
        rates = self.outcomes.request_rates(now)
        pools: dict[str, PoolSnapshot] = {}
        changed = False
        old = self.snapshot.pools if self.snapshot is not None else {}
        by_pool: dict[str, list[Endpoint]] = {pool.name: [] for pool in self.policy.pools}
        for endpoint in self.members():
            by_pool.setdefault(endpoint.pool, []).append(endpoint)
        for spec in self.policy.pools:
            members = by_pool[spec.name]
            result = self.engines[spec.name].tick(self._inputs(spec.models, members, rates, now), now)
            self.weights[spec.name] = result
            made = self._pool(spec.name, tuple(spec.models), members, result, old.get(spec.name), now)
            changed = changed or made is not old.get(spec.name)
            pools[spec.name] = made
        for gone in self.weights.keys() - pools.keys():
            del self.weights[gone]
        changed = changed or old.keys() != pools.keys()
        if self.snapshot is None or changed or self.snapshot.policy_version != self.policy_version:
            version = 1 if self.snapshot is None else self.snapshot.version + 1
            self.snapshot = Snapshot(self.epoch, version, now, MappingProxyType(pools), self.policy_version)
        events, self._fresh = self._fresh, []
        return Tick(self.snapshot, changed, self.weights, self.lifecycle.actions(now), events)

    # Inside.

    def _take_outcomes(self, now: float) -> None:
        """What the windows since the last tick say: errors of every endpoint at once, signals of some at a time."""
        touched = self.outcomes.take_touched()
        for address in touched:
            counts = self.outcomes.take_counts(address)
            seen = Outcomes(
                ok=counts.ok,
                connect=counts.connect,
                timeout=counts.timeout,
                server=counts.reset + counts.status_5xx,
                neutral=counts.client + counts.backpressure + counts.aborted,
            )
            self._note(self.lifecycle.on_outcomes(address, seen, now))
        self._due.update(dict.fromkeys(sorted(touched)))
        for address in list(self._due)[:SIGNALS_PER_TICK]:
            del self._due[address]
            for name, reading in self.outcomes.readings(address, now).items():
                self.store.put(address, name, reading.value, reading.at, reading.source)

    def _take_gpus(self, now: float) -> None:
        """GPU signals of the endpoints whose nodes were heard of. One that lost a GPU is out as a whole."""
        for endpoint in self.gpus.fill(self.store, self.endpoints):
            address = endpoint.address
            bad = [state.uuid for state in self.gpus.of(endpoint) if state.lost]
            self._note(self.lifecycle.on_gpus(address, f"lost GPU {', '.join(bad)}" if bad else None, now))
            self._note(self.lifecycle.on_readings(address, self.store.readings(address, now), now))
        if now - self._gpus_swept > GPU_FORGET_S / 10.0:
            self._gpus_swept = now
            self.gpus.forget_before(now - GPU_FORGET_S)

    def _make_engines(self) -> None:
        """Engines of the policy's pools; one whose own part of the policy is the same goes on as it is."""
        made: dict[str, WeightEngine] = {}
        form = (self.policy.capacity, self.policy.signals.age_limits_s)
        for pool in self.policy.pools:
            weights = pool.weights or self.policy.weights
            before = self.engines.get(pool.name)
            if before is not None and before.policy == weights and form == self._form:
                made[pool.name] = before
                continue
            made[pool.name] = self.new_engine(self.policy, pool)
            if before is not None:
                made[pool.name].adopt(before)
        self.engines, self._form = made, form

    @staticmethod
    def new_engine(policy: Policy, pool: PoolPolicy) -> WeightEngine:
        """The engine of a pool, without any memory."""
        limits = {**AGE_LIMITS, **policy.signals.age_limits_s}
        return WeightEngine(pool.weights or policy.weights, policy.capacity, pool=pool.name, age_limits=limits)

    def members(self) -> Iterable[Endpoint]:
        """Endpoints that are discovered, and those that are on their way out."""
        listed = {endpoint.address for endpoint in self.endpoints}
        yield from self.endpoints
        for life in self.lifecycle.views():
            if life.address not in listed and life.address in self._known:
                yield self._known[life.address]

    def inputs_of(
        self, models: Sequence[str], members: Sequence[Endpoint], now: float, *, assume_ready: bool = False
    ) -> list[EndpointInput]:
        """What the weights of these endpoints are made from.

        assume_ready: endpoints that have not served yet are taken as if they were ready and ramped up.
        """
        found = self._inputs(models, members, self.outcomes.request_rates(now), now)
        if not assume_ready:
            return found
        have = {item.endpoint.address for item in found}
        found += [EndpointInput(one, State.READY, now, {}) for one in members if one.address not in have]
        return [
            replace(item, state=State.READY, ramp_since=-math.inf)
            if item.state in (State.NEW, State.PROBING, State.WARMING)
            else replace(item, ramp_since=-math.inf)
            for item in found
        ]

    def _inputs(
        self, models: Sequence[str], members: Sequence[Endpoint], rates: Mapping[str, float], now: float
    ) -> list[EndpointInput]:
        serving = {
            endpoint.address: bool(set(models) & set(self._info.get(endpoint.address, _NO_INFO).models))
            for endpoint in members
        }
        some_serve = any(serving.values())
        inputs: list[EndpointInput] = []
        for endpoint in members:
            address = endpoint.address
            life = self.lifecycle.view(address)
            if life is None:
                continue
            readings = self.store.readings(address, now)
            if life.state is State.DRAINING and "running" in readings:
                waiting = readings["waiting"].value if "waiting" in readings else 0.0
                counted = readings["running"]
                self._note(self.lifecycle.on_in_flight(address, round(counted.value + waiting), now, at=counted.at))
                life = self.lifecycle.view(address) or life
            info = self._info.get(address, _NO_INFO)
            inputs.append(
                EndpointInput(
                    endpoint=endpoint,
                    state=life.state,
                    state_since=life.since,
                    readings=readings,
                    learned=self.learning.rates(endpoint.pool, address),
                    override=life.override,
                    ramp_since=life.ramp_since,
                    request_rate=rates.get(address),
                    # Only a model that others of the pool do serve is missing: names in policy may be aliases.
                    model_missing=some_serve and bool(info.models) and not serving[address],
                )
            )
        return inputs

    def _pool(
        self,
        name: str,
        models: tuple[str, ...],
        members: Sequence[Endpoint],
        result: PoolWeights,
        before: PoolSnapshot | None,
        now: float,
    ) -> PoolSnapshot:
        known = {e.endpoint.address: e for e in before.endpoints} if before else {}
        by_address = {endpoint.address: endpoint for endpoint in members}
        made: list[EndpointSnapshot] = []
        same = before is not None and before.models == models and len(known) == len(result.endpoints)
        for weight in result.endpoints:
            old = known.get(weight.address)
            life = self.lifecycle.view(weight.address)
            state = life.state if life is not None else State.GONE
            new = EndpointSnapshot(
                endpoint=by_address[weight.address],
                state=state,
                weight=weight.weight,
                priority=weight.priority,
                pickable=weight.pickable,
                capacity=weight.capacity,
                readings=self.store.readings(weight.address, now),
                info=self._info.get(weight.address, _NO_INFO),
                gates=weight.gates,
                why=old.why if old is not None else "",
                health=weight.health,
            )
            if old is not None and old == new:
                new = old
            else:
                # the sentence has numbers in it: it is made when something else moved, not at each tick
                new = replace(new, why=weight.why)
                same = False
            made.append(new)
        return before if same and before is not None else PoolSnapshot(name, models, tuple(made))

    def _learn_info(self, address: str, info: ModelInfo, now: float) -> None:
        before = self._info.get(address)
        self._info[address] = info
        if before is None or before.started_at is None or info.started_at is None:
            return
        if info.started_at > before.started_at + RESTART_SLACK_S:
            self.outcomes.forget(address)
            self._note(self.lifecycle.on_restart(address, now))

    def _note(self, events: Sequence[Event]) -> None:
        if events:
            self.events.extend(events)
            self._fresh.extend(events)


def _carried(old: SignalStore, new: SignalStore, now: float) -> SignalStore:
    """The new store with everything that the old one holds."""
    for address in old.addresses():
        for raw in old.raw(address, now):
            new.put(address, raw.name, raw.value, now - raw.age_s, raw.source)
    return new
