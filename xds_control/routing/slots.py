"""The pool as the picker works on it: one slot per endpoint, prices of all slots as columns of one matrix.

A pick is then a matrix-vector product. Columns are kept current slot by slot, in constant time, whenever a
pick, an end or a scrape changes one endpoint.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import xxhash

from xds_control.fleet.snapshot import EndpointSnapshot, PoolSnapshot
from xds_control.policy.picker import CostPolicy, PickerPolicy, ProfilePolicy
from xds_control.routing.kv_index import KvIndex
from xds_control.routing.pace import pace
from xds_control.routing.prefix_index import PrefixIndex
from xds_control.routing.rates import PoolRates
from xds_control.routing.readings import load
from xds_control.routing.scorers import saturation
from xds_control.routing.sets import Sets
from xds_control.routing.slot import INFINITE, WIDTH, Columns, Floats, Slot, Words
from xds_control.routing.subset import resolve, split_address

_CACHED = 2048
STATE_BYTES = 8 * 4
_put_state = struct.Struct("=4d").pack_into
_SETTLE_S = 0.5
"""What depends on the whole pool is worked out this often, and at once when an endpoint comes, goes or changes."""
_GIVEN_S = 900.0


class PoolSlots:
    """All endpoints of one pool, with stable slots: an endpoint keeps its own until it leaves.

    Arrays by slot: prefill: seconds per uncached token; counts: requests in flight; free, release: KV tokens free, and
    seconds until one more is.
    """

    def __init__(self, name: str, policy: PickerPolicy, profiles: Sequence[ProfilePolicy]) -> None:
        self.name = name
        self.policy = policy
        self.rates = PoolRates(policy.rates)
        self.index = PrefixIndex(policy.prefix.budget_bytes, policy.prefix.ttl_s)
        self.kv = KvIndex()
        self.slots: list[Slot | None] = []
        self.by_address: dict[str, Slot] = {}
        self.size = 64
        self.columns = {cost: Columns(cost, self.size) for cost in {profile.cost: None for profile in profiles}}
        self.column_sets = tuple(self.columns.values())
        self._free_slots: list[int] = []
        self._bits_of: dict[str, int] = {}
        self._bits_of_host: dict[str, int] = {}
        self._sets = Sets(self.size)
        self.places, self.inside, self.outside = self._sets.places, self._sets.inside, self._sets.outside
        self.eligible_bits = 0
        self.prefill_bits = 0
        self.resting: list[Slot] = []
        self.shortest_context = INFINITE
        self.kv_floor = INFINITE
        self.loras: dict[str, int] = {}
        self.ranged = False
        self.cooldown_s = policy.limits.cooldown_s
        self._lora_costs: dict[tuple[str, CostPolicy], Floats] = {}
        self.told_models = False
        self._serving: dict[str, int] = {}
        self._previous: PoolSnapshot | None = None
        self._epoch = 0.0
        self._settled_at = -INFINITE
        self.congestion = 0.0
        self.bend = 0.0
        self.calibration = 1.0
        self.now = 0.0
        self._share_unit = self._share_floor = self._share_cap = 0.0
        self._allocate()

    def _allocate(self) -> None:
        """Arrays of `size` slots, with what they held."""

        state: Floats = np.zeros((self.size, 4))
        state[:, 2] = INFINITE
        before = getattr(self, "state", None)
        if before is not None:
            state[: len(before)] = before
        self.state = state
        self.state_rows = state.data
        self.state_bytes = self.state_rows.cast("B")
        self.prefill: Floats = state[:, 0]
        self.counts: Floats = state[:, 1]
        self.free: Floats = state[:, 2]
        self.release: Floats = state[:, 3]
        seeds: Words = np.zeros(self.size, dtype=np.uint64)
        old = getattr(self, "seeds", None)
        if old is not None:
            seeds[: len(old)] = old
        self.seeds = seeds
        self.costs: Floats = np.zeros(self.size)
        self.matched: Floats = np.zeros(self.size)
        self.near: npt.NDArray[np.bool_] = np.zeros(self.size, dtype=np.bool_)
        self.spare: Floats = np.zeros(self.size)
        self._zeros: Floats = np.zeros(self.size)
        self._waits: Floats = np.zeros(self.size)
        self._kv_waits: Floats = np.zeros(self.size)
        self.vector: Floats = np.zeros(WIDTH)
        self.vector_data = self.vector.data
        self.clock: Floats = np.zeros(())

    def update(self, pool: PoolSnapshot, now: float) -> None:
        """Takes a new snapshot of the pool; endpoints that are the same object as before cost next to nothing."""
        if pool is self._previous:
            if now >= self._settled_at + _SETTLE_S:
                self.settle(now)
            return
        before = {one.endpoint.address: one for one in self._previous.endpoints} if self._previous else {}
        self._previous = pool
        self.now = now
        current = {one.endpoint.address for one in pool.endpoints}
        whole = now >= self._settled_at + _SETTLE_S
        for address in [a for a in self.by_address if a not in current]:
            self._remove(self.by_address[address])
            whole = True
        for one in pool.endpoints:
            slot = self.by_address.get(one.endpoint.address)
            if slot is None:
                load(self, self._add(one), one)
                whole = True
                continue
            old = before.get(slot.address)
            if old is one:
                continue
            load(self, slot, one)
            if old is None or old.pickable != one.pickable or old.info != one.info or old.endpoint != one.endpoint:
                whole = True
            elif not whole:
                slot.known = self._is_known(slot, now)
                whole = slot.doubtful or not slot.known
                self.price(slot)
        if whole:
            self.settle(now)

    def settle(self, now: float) -> None:
        """What depends on the whole pool or on time: neutral loads, speeds, limits, prices. O(endpoints)."""
        policy = self.policy
        pace([slot for slot in self.each() if slot.takes], self.rates.now.residence_s, now - self._settled_at)
        self._settled_at = self.now = now
        self.rates.refresh(now)
        self.bend = 0.5 * self.rates.now.attention
        self.calibration = self.rates.calibration
        slots = list(self.by_address.values())
        capacities = [s.endpoint.capacity for s in slots if s.endpoint.capacity > 0]
        mean_capacity = sum(capacities) / len(capacities) if capacities else 0.0
        fresh: list[float] = []
        for slot in slots:
            slot.flight.expire(now, policy.lease_s)
            slot.note_reads(now)
            slot.known = self._is_known(slot, now)
            if slot.known and slot.endpoint.pickable:
                fresh.append(slot.flight.count)
        neutral = sum(fresh) / len(fresh) if fresh else None
        self.eligible_bits = self.prefill_bits = 0
        self.shortest_context = INFINITE
        self.ranged = self.told_models = False
        self.loras = {}
        self._lora_costs.clear()
        self._serving.clear()
        self._bits_of, self._bits_of_host = {}, {}
        for slot in slots:
            one = slot.endpoint
            doubtful = neutral is not None and not slot.known
            slot.flight.assume(neutral if doubtful and neutral is not None else 0.0)
            declared = one.capacity / mean_capacity if mean_capacity and one.capacity > 0 else None
            speed = self.rates.speed(slot.address, declared)
            slot.speed = speed * slot.pace
            slot.eligible = one.pickable
            slot.takes = one.pickable and slot.role != "prefill"
            slot.limit = policy.limits.max_concurrency or INFINITE
            slot.stall = self._stall(slot, now)
            slot.doubtful = doubtful
            bit = 1 << slot.index
            if one.pickable and slot.role == "prefill":
                self.prefill_bits |= bit
            elif one.pickable:
                self.eligible_bits |= bit
                self._bits_of[slot.address] = bit
                host, _ = split_address(slot.address)
                self._bits_of_host[host] = self._bits_of_host.get(host, 0) | bit
                self.shortest_context = min(self.shortest_context, slot.max_len)
                self.told_models = self.told_models or bool(slot.models)
                for adapter in slot.lora:
                    self.loras[adapter] = self.loras.get(adapter, 0) | bit
                self.ranged = self.ranged or slot.label_range is not None
        self.resting = [slot for slot in slots if slot.rest_until > now]
        self.kv_floor = INFINITE
        # By Little's law: requests that come to one endpoint per second of its backlog.
        mean = sum(slot.flight.count for slot in slots if slot.takes) / max(1, self.eligible_bits.bit_count())
        self.congestion = mean / max(0.05, self.rates.now.residence_s)
        self._fade(now)
        for slot in slots:
            self.price(slot)
        self.index.expire(now)

    def _is_known(self, slot: Slot, now: float) -> bool:
        """Whether an endpoint's load was told, and not too long ago."""
        readings = slot.endpoint.readings
        load = readings.get("running") or readings.get("waiting")
        return load is not None and now - load.at <= self.policy.limits.stale_s

    def _fade(self, now: float) -> None:
        """Lets work given long ago count less, and sets what having been given more than others costs."""
        faded = math.exp(-max(0.0, now - self._epoch) / _GIVEN_S)
        self._epoch = max(self._epoch, now)
        for slot in self.each():
            slot.given *= faded
        given = [slot.given for slot in self.each() if slot.takes]
        if len(given) < 2:
            self._share_unit = 0.0
            return
        mean = sum(given) / len(given)
        usual = self.rates.mean_uncached * self.rates.now.prefill
        self._share_floor = min(given)
        self._share_cap = 0.5 * mean
        # Until each was given some requests' worth of work, shares are chance.
        self._share_unit = usual / (mean + 20.0 * usual)

    def _stall(self, slot: Slot, now: float) -> float:
        """Seconds of doubt about an endpoint that runs requests but has stopped producing."""
        readings = slot.endpoint.readings
        running, decode, prefill = readings.get("running"), readings.get("decode_tps"), readings.get("prefill_tps")
        if slot.known and running is not None and running.value > 0 and decode is not None:
            if decode.value > 0 or (prefill is not None and prefill.value > 0):
                return 0.0
            # A window without a token while requests run: either they just began, or the engine hangs.
            since = slot.flight.open_since
            return 0.0 if since is None else min(30.0, max(0.0, now - max(slot.done_at, since) - 10.0))
        # Ends seen here are a measure only where this processor sees this endpoint's ends at all.
        if slot.done_at > now - 600.0 and slot.flight.count >= 1 and slot.flight.open_since is not None:
            quiet = now - max(slot.done_at, slot.flight.open_since)
            return min(30.0, max(0.0, quiet - max(10.0, 4.0 * self.rates.now.residence_s)))
        return 0.0

    def price(self, slot: Slot) -> None:
        """Brings an endpoint's columns up to date with its state."""
        rates, i = self.rates.now, slot.index
        count, speed, used = slot.flight.count, slot.speed, slot.kv_used
        slot.rate = per_token = rates.prefill * speed
        per_kv_token, per_sequence = rates.per_kv_token, rates.per_sequence
        added = per_sequence + per_kv_token * rates.context
        # Each sequence reads its own context, whether or not it shares memory with others.
        slot.step = speed * (rates.base + count * (per_sequence + per_kv_token * slot.context))
        step = slot.step + speed * count * added
        capacity = slot.kv_capacity
        use = release = 0.0
        free = INFINITE
        if capacity != INFINITE:
            free = capacity - used
            if free < self.kv_floor and slot.eligible:
                self.kv_floor = free
            use = used / capacity
            release = rates.residence_s / (used if use > 0.05 else 0.05 * capacity)
        slot.free, slot.release = free, release
        _put_state(self.state_rows, i * STATE_BYTES, per_token, count, free, release)
        full = self.index.fullness(i)
        fixed = slot.stall if slot.takes and count + slot.flight.unseen < slot.limit else INFINITE
        over = slot.given - self._share_floor
        if over > self._share_cap:
            over = self._share_cap
        share = over * self._share_unit if over > 0.0 else 0.0
        ready = slot.busy
        wait = ready - self.now
        crowd = self.congestion * wait if wait > 0.0 else 0.0
        for columns in self.column_sets:
            cost = columns.cost
            need = 0.0
            if use > cost.memory_knee:
                full_by = (use - cost.memory_knee) / (1.0 - cost.memory_knee)
                if full_by > 1.5:
                    full_by = 1.5
                need = cost.memory_price * full_by * full_by * rates.residence_s / capacity
            columns.put(
                i,
                per_token * (1.0 + cost.interference * count + cost.eviction * full + cost.congestion * crowd),
                cost.decode * step,
                need,
                fixed + cost.balance * share + (cost.stale_s if slot.doubtful else 0.0),
                ready,
            )

    def find(self, name: str) -> Slot | None:
        """The endpoint of this address or name."""
        found = self.by_address.get(name)
        if found is None:
            found = next((slot for slot in self.each() if slot.endpoint.endpoint.name == name), None)
        return found

    def each(self) -> Iterable[Slot]:
        """All endpoints."""
        return self.by_address.values()

    def at(self, index: int) -> Slot:
        """The endpoint of a slot that is in use."""
        slot = self.slots[index]
        if slot is None:
            raise IndexError(f"slot {index} of pool {self.name} is free")
        return slot

    def wait(self, columns: Columns, now: float) -> Floats:
        """Seconds of prefill ahead at every slot. The array is scratch."""
        waits = np.subtract(columns.ready, now, out=self._waits)
        return np.maximum(waits, self._zeros, out=waits)

    def kv_wait(self, need: float) -> Floats:
        """Seconds until so many KV tokens are free at every slot, as requests there end. The array is scratch."""
        waits = np.subtract(need, self.free, out=self._kv_waits)
        np.maximum(waits, self._zeros, out=waits)
        return np.multiply(waits, self.release, out=waits)

    def lora_cost(self, adapter: str, cost: CostPolicy) -> Floats:
        """Seconds to load an adapter at every slot; 0 where it is resident or nothing is known."""
        found = self._lora_costs.get((adapter, cost))
        if found is None:
            found = self._lora_costs[adapter, cost] = np.zeros(self.size)
            for slot in self.by_address.values():
                info = slot.endpoint.info
                if adapter in slot.lora or (not slot.lora and info.lora_max is None):
                    continue
                full = info.lora_max is not None and len(slot.lora) >= info.lora_max
                found[slot.index] = cost.lora_evict_s if full else cost.lora_load_s
        return found

    def resolve(self, hint: Sequence[str]) -> int:
        """Endpoints that may be picked and that a subset hint names."""
        return resolve(hint, self._bits_of, self._bits_of_host)

    def saturation(self, queue: float, kv: float) -> float:
        """Mean over the endpoints of max(waiting ÷ queue, KV use ÷ kv); 1 for one whose load is not known."""
        pods = [
            (slot.value("waiting"), slot.value("kv_usage"), not slot.known) for slot in self.of_bits(self.eligible_bits)
        ]
        return saturation([(0.0 if w != w else w, 0.0 if k != k else k, stale) for w, k, stale in pods], queue, kv)

    def serving(self, model: str) -> int:
        """Endpoints that list the model or adapter, or list nothing: others cannot answer for it."""
        found = self._serving.get(model)
        if found is None:
            if len(self._serving) >= _CACHED:
                self._serving.clear()
            found = 0
            for slot in self.each():
                if not slot.models or model in slot.models or model in slot.lora:
                    found |= 1 << slot.index
            self._serving[model] = found
        return found

    def of_bits(self, bits: int) -> Iterable[Slot]:
        """The endpoints of a set."""
        for i in self.places(bits):
            slot = self.slots[i]
            if slot is not None:
                yield slot

    def _add(self, one: EndpointSnapshot) -> Slot:
        if self._free_slots:
            index = self._free_slots.pop()
        else:
            index = len(self.slots)
            self.slots.append(None)
            if index >= self.size:
                self.size *= 2
                self._allocate()
                self._sets.resize(self.size)
                for columns in self.columns.values():
                    columns.resize(self.size)
        slot = Slot(index, one)
        self.slots[index] = slot
        self.by_address[slot.address] = slot
        slot.seed = xxhash.xxh3_64_intdigest(slot.address.encode())
        self.seeds[index] = slot.seed
        slot.context = self.rates.now.context
        # A newcomer owes nobody: it begins with what the others were given on average.
        others = [other.given for other in self.by_address.values() if other is not slot and other.takes]
        slot.given = sum(others) / len(others) if others else 0.0
        return slot

    def _remove(self, slot: Slot) -> None:
        i = slot.index
        del self.by_address[slot.address]
        self.slots[i] = None
        for columns in self.column_sets:
            columns.put(i, 0.0, 0.0, 0.0, INFINITE, 0.0)
        _put_state(self.state_rows, i * STATE_BYTES, 0.0, 0.0, INFINITE, 0.0)
        self.index.purge(i)
        self.kv.clear(i)
        self.rates.forget(slot.address)
        self._free_slots.append(i)

    def restarted(self, slot: Slot) -> None:
        """An engine that began anew has empty caches and nothing in flight from before."""
        self.index.purge(slot.index)
        self.kv.clear(slot.index)
        self.index.set_capacity(slot.index, slot.belief)
        slot.flight.forget()
        slot.busy = 0.0
        slot.misses = 0
