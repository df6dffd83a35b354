"""The control process inside the simulation: real lifecycle, capacity learning and weights over simulated pages."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from xds_control.fleet.endpoint import Endpoint
from xds_control.fleet.faults import Outcomes
from xds_control.fleet.lifecycle import Lifecycle
from xds_control.fleet.readings import ModelInfo, Reading
from xds_control.fleet.snapshot import EndpointSnapshot, PoolSnapshot, State
from xds_control.policy.capacity import CapacityPolicy
from xds_control.policy.lifecycle import LifecyclePolicy
from xds_control.policy.weights import WeightsPolicy
from xds_control.signals.catalogue import CATALOGUE
from xds_control.sim.engine import Gauges
from xds_control.sim.facts import MODEL
from xds_control.weights.engine import WeightEngine
from xds_control.weights.inputs import EndpointInput, PoolWeights
from xds_control.weights.learn import CapacityLearner, Delivered

POOL = "pool"
_WINDOW_S = 10.0
_TRUST = 5
_AGE_LIMITS = {name: spec.age_limit_s for name, spec in CATALOGUE.items()}
_FAILURES = ("connect", "timeout", "reset", "5xx")


class _Host:
    """What is known of one endpoint."""

    __slots__ = ("counters", "delivered", "info", "outcomes", "readings", "unreported")

    def __init__(self, kv_tokens: int, block: int) -> None:
        self.readings: dict[str, Reading] = {}
        self.counters: deque[tuple[float, int, int]] = deque()
        self.outcomes: deque[tuple[float, bool, bool, int, int]] = deque()  # at, ok, met, prompt, cached
        self.delivered = [0.0] * 8
        self.unreported: dict[str, int] = {}
        self.info = ModelInfo((MODEL,), block_size=block, num_blocks=max(1, kv_tokens // block))


class Control:
    """Takes pages and outcomes, gives snapshots and weights. Times: seconds of the simulation."""

    def __init__(
        self,
        capacities: Sequence[float],
        kv_tokens: Sequence[int],
        slo: tuple[float, float],
        weights: WeightsPolicy,
        capacity: CapacityPolicy,
        lifecycle: LifecyclePolicy,
    ) -> None:
        self.endpoints = [
            Endpoint(f"10.0.{i // 250}.{i % 250 + 1}:8000", POOL, "vllm", c) for i, c in enumerate(capacities)
        ]
        self.place = {e.address: i for i, e in enumerate(self.endpoints)}
        self._hosts = [_Host(tokens, 16) for tokens in kv_tokens]
        self._slo = slo
        self._learner = CapacityLearner(capacity.learn)
        self._engine = WeightEngine(weights, capacity, pool=POOL, age_limits=_AGE_LIMITS)
        self._life = Lifecycle(lifecycle)
        self._life.sync(self.endpoints, -1.0)
        for endpoint in self.endpoints:
            self._life.on_scrape(endpoint.address, True, -1.0)
        self._life.tick(-1.0)
        self._pool: PoolSnapshot | None = None
        self.weights: PoolWeights | None = None
        self.pushes = 0
        self.moved = 0.0

    def scraped(self, host: int, gauges: Gauges | None, at: float, now: float) -> None:
        """A page as of `at`; None when nobody answered."""
        known, address = self._hosts[host], self.endpoints[host].address
        if gauges is None:
            self._life.on_scrape(address, False, now, refused=True, detail="connection refused")
            return
        self._life.on_scrape(address, True, now)
        readings = known.readings
        before = known.info.started_at
        if before is None or gauges.started_at > before:
            known.info = replace(known.info, started_at=gauges.started_at)
            if before is not None:
                # What was seen of the process before says nothing about this one.
                known.outcomes.clear()
                known.counters.clear()
                for name in ("error_rate", "slo_attainment", "kv_hit_ratio", "prefill_tps", "decode_tps"):
                    readings.pop(name, None)
                self._life.on_restart(address, now)
        readings["running"] = Reading(float(gauges.running), at, "vllm")
        readings["waiting"] = Reading(float(gauges.waiting), at, "vllm")
        readings["kv_usage"] = Reading(gauges.kv_usage, at, "vllm")
        counters = known.counters
        counters.append((at, gauges.prompt_tokens, gauges.output_tokens))
        while len(counters) > 2 and counters[1][0] <= at - _WINDOW_S:
            counters.popleft()
        first = counters[0]
        if at > first[0] + 1.0:
            span = at - first[0]
            readings["prefill_tps"] = Reading((gauges.prompt_tokens - first[1]) / span, at, "vllm")
            readings["decode_tps"] = Reading((gauges.output_tokens - first[2]) / span, at, "vllm")
        self._learner.on_scrape(address, gauges.running, gauges.waiting, at)

    def finished(
        self,
        host: int,
        kind: str,
        now: float,
        prompt: int,
        cached: int | None,
        output: int,
        ttft_s: float,
        decode_s: float,
    ) -> None:
        """An access log entry."""
        known = self._hosts[host]
        ok = kind == "ok"
        known.unreported[kind] = known.unreported.get(kind, 0) + 1
        tpot = decode_s / (output - 1) if output > 1 else 0.0
        met = ok and ttft_s <= self._slo[0] and tpot <= self._slo[1]
        known.outcomes.append((now, ok, met, prompt, cached or 0))
        if ok:
            total = known.delivered
            for place, value in enumerate(
                (1, prompt, cached or 0, output, ttft_s, max(0, prompt - (cached or 0)), decode_s, max(0, output - 1))
            ):
                total[place] += value

    def attempt_failed(self, host: int) -> None:
        """An attempt found nobody listening."""
        known = self._hosts[host]
        known.unreported["connect"] = known.unreported.get("connect", 0) + 1

    def tick(self, now: float) -> tuple[PoolSnapshot, PoolWeights]:
        """Decides anew. The same snapshot object comes back while nothing differs."""
        for endpoint, known in zip(self.endpoints, self._hosts, strict=True):
            address = endpoint.address
            if known.delivered[0]:
                total = known.delivered
                self._learner.on_window(address, Delivered(int(total[0]), *total[1:]), now)
                known.delivered = [0.0] * 8
            if known.unreported:
                counts, known.unreported = known.unreported, {}
                self._life.on_outcomes(
                    address,
                    Outcomes(
                        ok=counts.get("ok", 0),
                        connect=counts.get("connect", 0),
                        timeout=0,
                        server=counts.get("reset", 0) + counts.get("5xx", 0),
                        neutral=0,
                    ),
                    now,
                )
            self._sliding(known, now)
        self._life.tick(now)
        for action in self._life.actions(now):
            if action.kind == "probe":
                # Whoever answers its pages answers a probe; the next scrape tells.
                running = self._hosts[self.place[action.address]].readings.get("running")
                alive = running is not None and now - running.at <= 3.0
                self._life.on_probe(action.address, alive, now)
            elif action.kind == "warmup":
                self._life.on_warmup(action.address, True, 0.5, now)
            else:
                self._life.on_calibrated(action.address, True, now)
        result = self._engine.tick(self._inputs(now), now)
        self.weights = result
        if result.changed:
            self.pushes += 1
            self.moved += result.moved
        self._pool = self._snapshot(result)
        return self._pool, result

    def _sliding(self, known: _Host, now: float) -> None:
        outcomes, readings = known.outcomes, known.readings
        while outcomes and outcomes[0][0] < now - _WINDOW_S:
            outcomes.popleft()
        if len(outcomes) < _TRUST:
            return
        at = outcomes[-1][0]
        good = [o for o in outcomes if o[1]]
        readings["error_rate"] = Reading(1.0 - len(good) / len(outcomes), at, "accesslog")
        if len(good) >= _TRUST:
            readings["slo_attainment"] = Reading(sum(o[2] for o in good) / len(good), at, "accesslog")
            prompt = sum(o[3] for o in good)
            readings["kv_hit_ratio"] = Reading(sum(o[4] for o in good) / max(1, prompt), at, "accesslog")

    def _inputs(self, now: float) -> list[EndpointInput]:
        inputs = []
        for endpoint, known in zip(self.endpoints, self._hosts, strict=True):
            life = self._life.view(endpoint.address)
            if life is None:
                continue
            outcomes = known.outcomes
            rate = len(outcomes) / _WINDOW_S if outcomes else None
            inputs.append(
                EndpointInput(
                    endpoint,
                    life.state,
                    life.since,
                    dict(known.readings),
                    self._learner.rates(endpoint.address),
                    ramp_since=life.ramp_since,
                    request_rate=rate,
                )
            )
        return inputs

    def _snapshot(self, result: PoolWeights) -> PoolSnapshot:
        before = {e.endpoint.address: e for e in self._pool.endpoints} if self._pool else {}
        made = []
        same = bool(before)
        for weight in result.endpoints:
            i = self.place[weight.address]
            life = self._life.view(weight.address)
            new = EndpointSnapshot(
                self.endpoints[i],
                life.state if life is not None else State.GONE,
                weight.weight,
                weight.priority,
                weight.pickable,
                weight.capacity,
                dict(self._hosts[i].readings),
                self._hosts[i].info,
                weight.gates,
                "",
                weight.health,
            )
            old = before.get(weight.address)
            if old is not None and old == new:
                made.append(old)
            else:
                made.append(new)
                same = False
        if same and self._pool is not None:
            return self._pool
        return PoolSnapshot(POOL, (MODEL,), tuple(made))
