"""The weight engine of one pool: inputs of a tick → weights, deterministic, with only the stabilisers' memory."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from xds_control.fleet.endpoint import Endpoint
from xds_control.fleet.snapshot import State
from xds_control.policy.capacity import CapacityPolicy
from xds_control.policy.weights import WeightsPolicy
from xds_control.weights import gates as gating
from xds_control.weights.capacity import Declared, blend, confidence_of, declared_capacity, hold
from xds_control.weights.curves import lower_better
from xds_control.weights.frame import Frame
from xds_control.weights.inputs import EndpointInput, EndpointWeight, ExplanationSource, Health, PoolWeights
from xds_control.weights.locality import locality_weights
from xds_control.weights.profiles import form_of
from xds_control.weights.response import (
    FactorColumn,
    curve_columns,
    errors_column,
    fairness_column,
    ramp_column,
    waterfill_column,
)
from xds_control.weights.settle import Settler, Tier
from xds_control.weights.spec import SPECS
from xds_control.weights.table import Bools, Column, Floats, SignalTable

_ALWAYS = ("running", "waiting", "max_running", *gating.SIGNALS)
_LONGEST_S = 86400.0
_UNPROVEN = frozenset({State.NEW, State.PROBING, State.WARMING, State.EJECTED})


class WeightEngine:
    """Weights of one pool. Call `tick` at least once a push interval, `now` in monotonic seconds.

    capacity: how capacity is found. age_limits: signal → seconds, the catalogue's; the policy's own go before.
    pool: names the pool, and with it the spread of push times; give control replicas different `seed`s.
    """

    def __init__(
        self,
        policy: WeightsPolicy,
        capacity: CapacityPolicy | None = None,
        *,
        pool: str = "",
        seed: str = "",
        age_limits: Mapping[str, float] | None = None,
    ) -> None:
        self._policy = policy
        self._capacity_policy = capacity or CapacityPolicy()
        self._form = form_of(policy)
        directions = {c.signal: lower_better(c) for c in self._form.curves}
        wanted = dict.fromkeys((*_ALWAYS, *(c.signal for c in self._form.curves)))
        wanted.pop("occupancy", None)
        self._table = SignalTable.of(policy, tuple(wanted), directions, age_limits)
        self._gates = gating.GateBank(policy.gates)
        self._settler = Settler(policy, f"{pool}/{seed}")
        self._addresses: list[str] = []
        self._declared: dict[str, tuple[Endpoint, Declared]] = {}
        self._capacity: Floats = np.zeros(0)

    @property
    def policy(self) -> WeightsPolicy:
        """The policy that it was made with."""
        return self._policy

    def adopt(self, other: WeightEngine) -> None:
        """Goes on from the weights that an earlier policy's engine pushed, so that a new policy moves them stepwise."""
        self._addresses = list(other._addresses)
        self._capacity = other._capacity.copy()
        self._table.adopt(other._table)
        self._gates.adopt(other._gates)
        self._settler.adopt(other._settler)

    def tick(self, inputs: Sequence[EndpointInput], now: float) -> PoolWeights:
        """Weights for this moment. The order of `inputs` does not matter; a repeated address counts once, the first."""
        ordered = _ordered(inputs)
        self._follow([i.endpoint.address for i in ordered])
        n = len(ordered)
        columns = self._table.update([i.readings for i in ordered], now)
        capacity, unit = self._capacities(ordered, now)
        slots = self._slots(ordered, columns, unit)
        columns["occupancy"] = _occupancy(columns, slots)

        tiers, gate_result, notes = self._tiers(ordered, columns)
        serving: Bools = (tiers == Tier.ACTIVE) | (tiers == Tier.SPILL)
        active: Bools = tiers == Tier.ACTIVE
        factors, terms = self._factors(ordered, columns, capacity, unit, slots, active, serving, gate_result.limit, now)
        raw = np.ones(n)
        for column in factors:
            raw = raw * column.factor

        pins = {
            i: item.override.weight
            for i, item in enumerate(ordered)
            if item.override is not None and item.override.weight is not None and serving[i]
        }
        settled = self._settler.settle(tiers, raw, capacity, pins, now)
        frame = Frame(ordered, factors, terms, raw, settled.stages, settled.weights, settled.fair, notes)
        for i, weight in pins.items():
            notes[i] = f"pinned to weight {weight} by {ordered[i].override.by or 'an operator'}"  # type: ignore[union-attr]
        return self._result(
            ordered, frame, tiers, gate_result, capacity, settled.due, settled.moved, settled.reasons, now
        )

    def _follow(self, addresses: list[str]) -> None:
        if addresses == self._addresses:
            return
        where = {a: i for i, a in enumerate(self._addresses)}
        old_index = np.array([where.get(a, -1) for a in addresses], dtype=np.int64)
        self._table.reorder(old_index)
        self._gates.reorder(old_index)
        self._settler.reorder(old_index)
        self._capacity = (
            np.where(old_index >= 0, self._capacity[old_index], np.nan)
            if len(self._capacity)
            else np.full(len(addresses), np.nan)
        )
        self._addresses = addresses
        gone = self._declared.keys() - set(addresses)
        for address in gone:
            del self._declared[address]

    def _capacities(self, inputs: Sequence[EndpointInput], now: float) -> tuple[Floats, Floats]:
        """(capacity in use, the same with a mean of 1)."""
        declared = np.empty(len(inputs))
        for i, item in enumerate(inputs):
            known = self._declared.get(item.endpoint.address)
            if known is None or known[0] is not item.endpoint:
                known = (item.endpoint, declared_capacity(item.endpoint, self._capacity_policy))
                self._declared[item.endpoint.address] = known
            declared[i] = known[1].value
        learn = self._capacity_policy.learn
        learned, confidence = confidence_of([i.learned for i in inputs], now, learn)
        target = blend(declared, learned, confidence, learn)
        used = np.where(np.isfinite(self._capacity), self._capacity, declared)
        self._capacity = hold(used, target, confidence <= 0.0, learn.dead_band)
        mean = float(self._capacity.mean()) if len(inputs) else 1.0
        return self._capacity, self._capacity / mean

    def _slots(self, inputs: Sequence[EndpointInput], columns: Mapping[str, Column], unit: Floats) -> Floats:
        known = columns["max_running"]
        told = np.array([math.nan if i.slots is None else i.slots for i in inputs], dtype=np.float64)
        learned = np.array(
            [math.nan if i.learned is None or i.learned.slots is None else i.learned.slots for i in inputs],
            dtype=np.float64,
        )
        slots = np.where(told > 0.0, told, np.where(known.raw > 0.0, known.raw, learned))
        # Where slots are unknown, half of a larger capacity is taken for speed and half for room: whichever
        # it really is, the error stays small.
        return np.where(np.isfinite(slots) & (slots >= 1.0), slots, self._policy.waterfill.slots * np.sqrt(unit))

    def _tiers(
        self, inputs: Sequence[EndpointInput], columns: Mapping[str, Column]
    ) -> tuple[np.ndarray[tuple[int], np.dtype[np.int8]], gating.GateResult, dict[int, str]]:
        n = len(inputs)
        notes: dict[int, str] = {}
        tiers = np.full(n, Tier.ACTIVE, dtype=np.int8)
        ready = np.ones(n, dtype=bool)
        ordered_out: set[int] = set()
        for i, item in enumerate(inputs):
            if item.state is State.READY and item.override is None:
                continue
            tiers[i], note = _standing(item)
            ready[i] = tiers[i] == Tier.ACTIVE
            if note:
                notes[i] = note
            if item.state in (State.DRAINING, State.GONE) or _taken_out(item):
                ordered_out.add(i)
        need = np.array(
            [
                math.nan if i.endpoint.gpu_memory_need_bytes is None else i.endpoint.gpu_memory_need_bytes
                for i in inputs
            ],
            dtype=np.float64,
        )
        missing = np.array([i.model_missing for i in inputs], dtype=bool)
        result = self._gates.update(columns, need, missing, ready)
        for mask, tier in ((result.spill, Tier.SPILL), (result.drain, Tier.DRAINING), (result.remove, Tier.REMOVED)):
            tiers[ready & mask] = tier
        for i in np.flatnonzero(ready & (result.spill | result.drain | result.remove)).tolist():
            shut = [name for name, values in result.closed.items() if values[i]]
            notes[i] = f"{_gate_words(shut, columns, i)}: takes no new requests while others can"
        if not (tiers == Tier.ACTIVE).any() and self._policy.serve_unproven:
            self._promote(inputs, tiers, ordered_out, notes)
        return tiers, result, notes

    def _promote(
        self,
        inputs: Sequence[EndpointInput],
        tiers: np.ndarray[tuple[int], np.dtype[np.int8]],
        ordered_out: set[int],
        notes: dict[int, str],
    ) -> None:
        """Never an empty pool: the least bad kind of endpoint serves. What an operator took out stays out."""
        kinds: tuple[list[int], ...] = (
            [i for i in range(len(inputs)) if tiers[i] == Tier.SPILL],
            [i for i, item in enumerate(inputs) if item.state is State.READY and i not in ordered_out],
            [i for i, item in enumerate(inputs) if item.state in _UNPROVEN - {State.EJECTED} and i not in ordered_out],
            [i for i, item in enumerate(inputs) if item.state in _UNPROVEN and i not in ordered_out],
        )
        for kind in kinds:
            if kind:
                for i in kind:
                    tiers[i] = Tier.ACTIVE
                    notes[i] = f"{inputs[i].state.value}, but nothing better is left: serves by its capacity"
                return

    def _factors(
        self,
        inputs: Sequence[EndpointInput],
        columns: Mapping[str, Column],
        capacity: Floats,
        unit: Floats,
        slots: Floats,
        active: Bools,
        serving: Bools,
        limited: Bools,
        now: float,
    ) -> tuple[list[FactorColumn], list[FactorColumn]]:
        policy = self._policy
        n = len(inputs)
        factors = [
            FactorColumn("capacity", capacity),
            FactorColumn("health", serving.astype(np.float64)),
            errors_column(columns, policy.error_floor, active),
        ]
        started = np.array(
            [
                -math.inf if i.state is not State.READY else i.state_since if i.ramp_since is None else i.ramp_since
                for i in inputs
            ],
            dtype=np.float64,
        )
        factors.append(ramp_column(policy.slow_start, now - started))
        if self._form.waterfill and n:
            service = [
                i.learned.service_s
                for i in inputs
                if i.learned is not None and i.learned.service_s and 0.0 < i.learned.service_s < _LONGEST_S
            ]
            factors.append(
                waterfill_column(
                    policy.waterfill,
                    columns,
                    capacity,
                    unit,
                    slots,
                    active,
                    float(np.median(service)) if service else policy.waterfill.service_time_s,
                    policy.stabilise.push_interval_s,
                )
            )
        curves, terms = curve_columns(self._form, columns, serving)
        factors.extend(curves)
        factors.append(FactorColumn("gates", np.where(limited, policy.gates.limit_factor, 1.0)))
        factors.append(
            fairness_column(policy.fairness, [i.request_rate for i in inputs], self._settler.pushed(), active)
        )
        return factors, terms

    def _result(
        self,
        inputs: Sequence[EndpointInput],
        frame: Frame,
        tiers: np.ndarray[tuple[int], np.dtype[np.int8]],
        gate_result: gating.GateResult,
        capacity: Floats,
        due: bool,
        moved: float,
        reasons: tuple[str, ...],
        now: float,
    ) -> PoolWeights:
        source = ExplanationSource(frame.explain, frame.why)
        n = len(inputs)
        gates: list[tuple[str, ...]] = [()] * n
        for name, closed in gate_result.closed.items():
            for i in np.flatnonzero(closed).tolist():
                gates[i] = (*gates[i], name)
        standing = [_health(tier, self._policy.gates.spill_as == "degraded") for tier in sorted(Tier)]
        health, priority = zip(*(standing[tier] for tier in tiers.tolist()), strict=True) if n else ((), ())
        ready = np.array([item.state is State.READY for item in inputs], dtype=bool)
        pickable = (tiers == Tier.ACTIVE) & ready & (frame.weights > 0)
        rows = zip(
            self._addresses,
            frame.weights.tolist(),
            priority,
            health,
            pickable.tolist(),
            gates,
            capacity.tolist(),
            [source] * n,
            range(n),
            strict=True,
        )
        made_tuple = tuple(map(EndpointWeight._make, rows))
        return PoolWeights(
            at=now,
            endpoints=made_tuple,
            localities=locality_weights([i.endpoint.locality for i in inputs], made_tuple),
            changed=due,
            moved=moved,
            reasons=reasons,
            by_address={e.address: e for e in made_tuple},
        )


def _ordered(inputs: Sequence[EndpointInput]) -> list[EndpointInput]:
    seen: dict[str, EndpointInput] = {}
    for item in inputs:
        seen.setdefault(item.endpoint.address, item)
    return [seen[address] for address in sorted(seen)]


def _taken_out(item: EndpointInput) -> bool:
    order = item.override
    return order is not None and (order.kind != "pin" or order.weight == 0)


def _standing(item: EndpointInput) -> tuple[Tier, str]:
    """(tier before gates, sentence) by state and operator's order."""
    order = item.override
    if order is not None and order.kind == "eject":
        return Tier.REMOVED, f"ejected by {order.by or 'an operator'}" + (f": {order.reason}" if order.reason else "")
    if item.state is State.GONE:
        if order is not None and order.kind == "drain":
            return Tier.REMOVED, f"drained by {order.by or 'an operator'}"
        return Tier.REMOVED, "gone"
    if item.state is State.DRAINING or (order is not None and order.kind == "drain"):
        return Tier.DRAINING, "draining: running requests finish, no new ones"
    if order is not None and order.weight == 0:
        return Tier.DRAINING, f"pinned to weight 0 by {order.by or 'an operator'}"
    if item.state is State.READY:
        return Tier.ACTIVE, ""
    if item.state is State.SUSPECT:
        return Tier.SPILL, "suspect: only used when the others fail"
    if item.state is State.EJECTED:
        return Tier.REMOVED, "ejected: takes no traffic"
    return Tier.REMOVED, f"{item.state.value}: takes no traffic yet"


def _occupancy(columns: Mapping[str, Column], slots: Floats) -> Column:
    running, waiting = columns["running"], columns["waiting"]
    confidence = np.maximum(running.confidence, waiting.confidence)
    known = confidence > 0.0
    raw = np.where(known, (np.nan_to_num(running.raw) + np.nan_to_num(waiting.raw)) / slots, np.nan)
    value = np.where(known, (np.nan_to_num(running.value) + np.nan_to_num(waiting.value)) / slots, np.nan)
    age = np.fmax(running.age, waiting.age)
    return Column("occupancy", SPECS["occupancy"], raw, value, age, confidence, bool(known.any()))


def _health(tier: int, degraded: bool) -> tuple[Health, int]:
    if tier == Tier.ACTIVE:
        return "healthy", 0
    if tier == Tier.SPILL:
        return ("degraded", 0) if degraded else ("healthy", 1)
    return ("draining", 0) if tier == Tier.DRAINING else ("removed", 0)


def _gate_words(shut: Sequence[str], columns: Mapping[str, Column], index: int) -> str:
    words = {
        "gpu_memory": "GPU memory short",
        "kv": "KV cache full",
        "waiting": "queue too long",
        "slo_miss": "SLO missed",
        "error_rate": "too many errors",
        "throttled": "GPU throttled",
        "asleep": "engine asleep",
        "model_missing": "model not loaded",
    }
    parts = [words[name] for name in shut]
    if "kv" in shut:
        parts[shut.index("kv")] = f"KV cache {columns['kv_usage'].raw[index]:.0%} full".replace("%", " %")
    return " and ".join(parts) if parts else "gated"
