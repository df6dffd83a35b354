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
from xds_control.routing.outstanding import InFlight
from xds_control.routing.prefix_index import PrefixIndex, indices
from xds_control.routing.rates import PoolRates
from xds_control.routing.scorers import saturation
from xds_control.routing.subset import resolve, split_address

Floats = npt.NDArray[np.float64]
Words = npt.NDArray[np.uint64]
Places = npt.NDArray[np.intp]

INFINITE = math.inf
_CACHED = 2048
_WIDTH = 6
_ROW_BYTES = 8 * _WIDTH
_STATE_BYTES = 8 * 4
_put_row = struct.Struct("=5d").pack_into
_put_state = struct.Struct("=4d").pack_into
_SETTLE_S = 0.5
"""What depends on the whole pool is worked out this often, and at once when an endpoint comes, goes or changes."""
_GIVEN_S = 900.0
_PACE_S = 2.5
_PACE_LONG_S = 60.0
_PACE_SEEN = 60.0
_PACE_PRIOR = 4.0
_PACE_SIGMAS = 2.5
_PACE_LEAST, _PACE_MOST = 1.5, 4.0
"""How an endpoint that ends too few requests is told: over so many seconds, held against so many seconds before, where
all ends are taken to be told here before so many were; with so many ends of doubt, when it lacks so many standard
deviations, and is at least so much slower. It is never taken for more than so much slower."""
_CLOSE_S = 0.02
"""A backlog this close to what the engine's queue allows is no contradiction."""


def reading(one: EndpointSnapshot, name: str) -> float | None:
    """The value of a signal, or None when it is not known."""
    found = one.readings.get(name)
    return None if found is None else found.value


class Slot:
    """One endpoint.

    speed: factor on its times. kv_capacity, kv_used: tokens; capacity is infinite when unknown.
    eligible: may be picked at all; takes: as a decode endpoint. known: its load is known and fresh.
    belief: tokens its cache is taken to hold. rate: seconds per uncached token. sent: work since `sent_at`.
    busy: monotonic seconds at which its backlog of prefill is reckoned to be done; who comes before `joins` is read in
    the same step as the last of it. step: seconds of a decode step of those that run there now. given: seconds of
    work sent lately.
    """

    __slots__ = (
        "address",
        "belief",
        "busy",
        "cache",
        "context",
        "done",
        "done_at",
        "doubtful",
        "due",
        "eligible",
        "endpoint",
        "ends",
        "failures",
        "flight",
        "free",
        "given",
        "index",
        "info_started",
        "joins",
        "known",
        "kv_at",
        "kv_capacity",
        "kv_used",
        "label_range",
        "limit",
        "long_done",
        "long_due",
        "lora",
        "max_len",
        "misses",
        "models",
        "pace",
        "peer_tokens",
        "picked_at",
        "rate",
        "read_rate",
        "release",
        "rest_until",
        "role",
        "seed",
        "sent",
        "sent_at",
        "speed",
        "stall",
        "step",
        "takes",
        "told_busy_until",
        "usual",
        "waiting",
        "without_hit_at",
    )

    def __init__(self, index: int, endpoint: EndpointSnapshot) -> None:
        self.index = index
        self.address = endpoint.endpoint.address
        self.endpoint = endpoint
        self.flight = InFlight()
        self.speed = 1.0
        self.kv_capacity = INFINITE
        self.kv_used = 0.0
        self.kv_at = -INFINITE
        self.eligible = False
        self.takes = False
        self.known = False
        self.cache = 0.0
        self.pace = 1.0
        self.due = self.done = self.long_due = self.long_done = 0.0
        self.ends = 0
        self.context = 1000.0
        self.doubtful = False
        self.belief = 0.0
        self.limit = INFINITE
        self.stall = 0.0
        self.busy = 0.0
        self.joins = 0.0
        self.step = 0.01
        self.given = 0.0
        self.free = INFINITE
        self.release = 0.0
        self.failures = 0
        self.rest_until = -INFINITE
        self.picked_at = -INFINITE
        self.done_at = -INFINITE
        self.misses = 0
        self.info_started: float | None = None
        self.max_len: float = INFINITE
        self.lora: frozenset[str] = frozenset()
        self.label_range: tuple[float, float] | None = None
        self.role = "both"
        self.usual = 0.0
        self.waiting = 0.0
        self.peer_tokens = 0.0
        self.told_busy_until = -INFINITE
        self.models: frozenset[str] = frozenset()
        self.rate = 1e-4
        self.seed = 0
        self.read_rate = 0.0
        self.sent = 0.0
        self.sent_at = -INFINITE
        self.without_hit_at: float | None = None

    def note_reads(self, now: float) -> None:
        """Keeps `read_rate`: work per second, in tokens, that it has had to read of late."""
        if self.sent_at == -INFINITE:
            self.sent_at = now
            return
        passed = now - self.sent_at
        if passed > 0.0:
            weight = 1.0 - math.exp(-passed / 10.0)
            self.read_rate += weight * (self.sent / passed - self.read_rate)
            self.sent = 0.0
            self.sent_at = now

    def memory_fits(self) -> bool:
        """Whether the GPU memory that the endpoint needs free is free, with 20 % margin; True when unknown."""
        need = self.endpoint.endpoint.gpu_memory_need_bytes
        free = self.endpoint.readings.get("gpu_mem_free_bytes")
        return need is None or free is None or free.value >= 1.2 * need

    def value(self, name: str) -> float:
        """A signal's value, NaN when it is not known."""
        found = self.endpoint.readings.get(name)
        return math.nan if found is None else found.value


class Columns:
    """Prices of all slots for one set of cost weights: the rows of a matrix that a request multiplies by a vector.

    A row holds seconds per uncached token (what that does to the others included), per output token, the price of a KV
    token, a fixed part (infinite = not now), the time at which the backlog is done, and 1, by which `now` is taken off.
    """

    __slots__ = ("cost", "fixed", "matrix", "per_need", "per_output", "per_token", "ready", "rows")

    def __init__(self, cost: CostPolicy, size: int) -> None:
        self.cost = cost
        self.resize(size)

    def resize(self, size: int) -> None:
        """Makes room for so many slots; all must be priced again."""
        self.matrix: Floats = np.zeros((size, _WIDTH))
        self.rows = self.matrix.data
        self.per_token: Floats = self.matrix[:, 0]
        self.per_output: Floats = self.matrix[:, 1]
        self.per_need: Floats = self.matrix[:, 2]
        self.fixed: Floats = self.matrix[:, 3]
        self.ready: Floats = self.matrix[:, 4]
        self.fixed[:] = INFINITE
        self.matrix[:, 5] = 1.0

    def put(self, index: int, per_token: float, per_output: float, per_need: float, fixed: float, ready: float) -> None:
        """Prices one slot."""
        _put_row(self.rows, index * _ROW_BYTES, per_token, per_output, per_need, fixed, ready)


class PoolSlots:
    """All endpoints of one pool, with stable slots: an endpoint keeps its own until it leaves.

    Arrays by slot: prefill: seconds per uncached token; counts: requests in flight; free, release: KV tokens free, and
    seconds until one more is.
    """

    def __init__(self, name: str, policy: PickerPolicy, profiles: Sequence[ProfilePolicy]) -> None:
        self.name = name
        self._policy = policy
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
        self._places: dict[int, Places] = {}
        self._masks: dict[int, npt.NDArray[np.bool_]] = {}
        self._inside: dict[int, Floats] = {}
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
        self.vector: Floats = np.zeros(_WIDTH)
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
                self._load(self._add(one), one, now)
                whole = True
                continue
            old = before.get(slot.address)
            if old is one:
                continue
            self._load(slot, one, now)
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
        policy = self._policy
        self._pace(now - self._settled_at)
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

    def _pace(self, passed: float) -> None:
        """Holds the ends at each endpoint against its share of all ends, by the requests that run there.

        Requests that take long tell of it only when they end, but an endpoint that has become slow ends fewer of them
        at once. Only those count that are there long enough to end: where many have just come, none ends yet. Where
        others send requests too, a part of the ends is never told here: an endpoint is held against its own past.
        """
        slots = [slot for slot in self.by_address.values() if slot.takes]
        kept = math.exp(-min(passed, 1e3) / _PACE_S)
        long_kept = math.exp(-min(passed, 1e3) / _PACE_LONG_S)
        grown = 1.0 - math.exp(-min(passed, 1e3) / max(0.1, self.rates.now.residence_s))
        shares = []
        for slot in slots:
            count = slot.flight.count
            slot.usual += grown * (count - slot.usual)
            shares.append(min(count, slot.usual) * slot.pace / slot.step)
        whole = sum(shares)
        ends = sum(slot.ends for slot in slots)
        for slot, share in zip(slots, shares, strict=True):
            new = ends * share / whole if whole > 0.0 else 0.0
            told = min(1.0, (slot.long_done + _PACE_SEEN) / (slot.long_due + _PACE_SEEN))
            slot.due = slot.due * kept + new * told
            slot.done = slot.done * kept + slot.ends
            slot.long_due = slot.long_due * long_kept + new
            slot.long_done = slot.long_done * long_kept + slot.ends
            slot.ends = 0
            ratio = (slot.due + _PACE_PRIOR) / (slot.done + _PACE_PRIOR)
            sure = slot.due - slot.done > _PACE_SIGMAS * math.sqrt(slot.due)
            slot.pace = min(_PACE_MOST, ratio) if sure and ratio > _PACE_LEAST else 1.0

    def _is_known(self, slot: Slot, now: float) -> bool:
        """Whether an endpoint's load was told, and not too long ago."""
        readings = slot.endpoint.readings
        load = readings.get("running") or readings.get("waiting")
        return load is not None and now - load.at <= self._policy.limits.stale_s

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
        _put_state(self.state_rows, i * _STATE_BYTES, per_token, count, free, release)
        full = self.index.fullness(i)
        fixed = slot.stall if slot.takes and count < slot.limit else INFINITE
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

    def places(self, bits: int) -> Places:
        """Slots of a set, as an index array. Remembered, because the same sets come again and again."""
        found = self._places.get(bits)
        if found is None:
            if len(self._places) >= _CACHED:
                self._places.clear()
            if bits.bit_count() > 8:
                raw = np.frombuffer(bits.to_bytes(self.size // 8, "little"), dtype=np.uint8)
                found = np.unpackbits(raw, bitorder="little").nonzero()[0]
            else:
                found = np.array(indices(bits), dtype=np.intp)
            self._places[bits] = found
        return found

    def inside(self, bits: int) -> Floats:
        """1 for every slot of the set, 0 elsewhere. Remembered like `places`."""
        found = self._inside.get(bits)
        if found is None:
            if len(self._inside) >= _CACHED // 4:
                self._inside.clear()
            found = self._inside[bits] = np.zeros(self.size)
            found[self.places(bits)] = 1.0
        return found

    def outside(self, bits: int) -> npt.NDArray[np.bool_]:
        """True for every slot that is not in the set."""
        found = self._masks.get(bits)
        if found is None:
            if len(self._masks) >= _CACHED // 8:
                self._masks.clear()
            found = self._masks[bits] = np.ones(self.size, dtype=np.bool_)
            found[self.places(bits)] = False
        return found

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
                self._masks.clear()
                self._inside.clear()
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
        _put_state(self.state_rows, i * _STATE_BYTES, 0.0, 0.0, INFINITE, 0.0)
        self.index.purge(i)
        self.kv.clear(i)
        self.rates.forget(slot.address)
        self._free_slots.append(i)

    def _load(self, slot: Slot, one: EndpointSnapshot, now: float) -> None:
        """Takes an endpoint's new readings."""
        slot.endpoint = one
        slot.role = one.endpoint.role
        info = one.info
        slot.lora = frozenset(info.lora_running)
        slot.models = frozenset(info.models)
        slot.max_len = float(info.max_model_len or INFINITE)
        slot.label_range = _range(one.endpoint.labels.get("llm-d.ai/context-length-range"))
        self._set_memory(slot, one)
        if info.started_at is not None:
            if slot.info_started is not None and info.started_at > slot.info_started + 1.0:
                self.restarted(slot)
            slot.info_started = info.started_at
        running, waiting = one.readings.get("running"), one.readings.get("waiting")
        load = running or waiting
        if load is not None and load.at > slot.flight.anchored_at:
            queue = waiting.value if waiting is not None else 0.0
            slot.waiting = queue
            slot.flight.anchor((running.value if running is not None else 0.0) + queue, load.at)
            self._anchor_backlog(slot, one, queue, load.at)
        kv = one.readings.get("kv_usage")
        if kv is not None and kv.at > slot.kv_at and slot.kv_capacity != INFINITE:
            slot.kv_at = kv.at
            slot.kv_used = kv.value * slot.kv_capacity + slot.flight.need_since(kv.at)

    def _set_memory(self, slot: Slot, one: EndpointSnapshot) -> None:
        info = one.info
        capacity = reading(one, "kv_capacity_tokens")
        if not capacity and info.num_blocks and info.block_size:
            capacity = float(info.num_blocks * info.block_size)
        told = bool(capacity)
        size = capacity or float(self._policy.prefix.cache_tokens)
        slot.kv_capacity = size if told or reading(one, "kv_usage") is not None else INFINITE
        if slot.cache != size:
            slot.cache = slot.belief = size
            self.index.set_capacity(slot.index, size)

    def _anchor_backlog(self, slot: Slot, one: EndpointSnapshot, waiting: float, at: float) -> None:
        """Holds the backlog that was reckoned from picks against the queue that the engine tells of.

        The reckoning is the finer of the two, so it stays as long as the queue does not contradict it.
        """
        rate = self.rates.now.prefill * slot.speed
        later = slot.flight.prefill_since(at) * rate
        then = slot.busy - later - at
        # A long prompt that is being read now is in no queue.
        room = (slot.flight.largest_unread(at) + slot.peer_tokens) * rate + self.rates.now.overhead + _CLOSE_S
        tokens = reading(one, "waiting_tokens")
        if tokens is not None:
            low, high = 0.5 * tokens * rate, 2.0 * tokens * rate + room
        else:
            usual = waiting * self.rates.mean_uncached * rate
            # Who waits for a place in the batch waits until requests end, however short their prompts are. A few
            # always wait for the next step.
            running = max(1.0, slot.value("running") if "running" in one.readings else 1.0)
            places = max(0.0, waiting - 2.0 - 0.1 * running) * self.rates.now.residence_s / running
            low, high = max(0.25 * usual, 0.5 * places), max(4.0 * usual, 2.0 * places) + room
        slot.told_busy_until = at + low
        if then > high:
            slot.busy += high - then
        elif low > max(then, 0.0) + _CLOSE_S:
            slot.busy = max(slot.busy, at + low + later)

    def restarted(self, slot: Slot) -> None:
        """An engine that began anew has empty caches and nothing in flight from before."""
        self.index.purge(slot.index)
        self.kv.clear(slot.index)
        self.index.set_capacity(slot.index, slot.belief)
        slot.flight.forget()
        slot.busy = 0.0
        slot.misses = 0


def _range(label: str | None) -> tuple[float, float] | None:
    """`lo-hi` of the context-length label; a label that cannot be read is an empty range."""
    if label is None:
        return None
    low, dash, high = label.partition("-")
    try:
        return (float(low), float(high)) if dash else (1.0, 0.0)
    except ValueError:
        return (1.0, 0.0)
