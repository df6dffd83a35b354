"""One endpoint as the picker works on it, and the prices of all as columns of one matrix."""

from __future__ import annotations

import math
import struct

import numpy as np
import numpy.typing as npt

from xds_control.fleet.snapshot import EndpointSnapshot
from xds_control.policy.picker import CostPolicy
from xds_control.routing.outstanding import InFlight

Floats = npt.NDArray[np.float64]
Words = npt.NDArray[np.uint64]
Places = npt.NDArray[np.intp]

INFINITE = math.inf
WIDTH = 6
"""Of a row of `Columns`."""
ROW_BYTES = 8 * WIDTH
_put_row = struct.Struct("=5d").pack_into


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

    __slots__ = ("cost", "fixed", "matrix", "per_need", "per_output", "per_token", "ready", "row_bytes", "rows")

    def __init__(self, cost: CostPolicy, size: int) -> None:
        self.cost = cost
        self.resize(size)

    def resize(self, size: int) -> None:
        """Makes room for so many slots; all must be priced again."""
        self.matrix: Floats = np.zeros((size, WIDTH))
        self.rows = self.matrix.data
        self.row_bytes = self.rows.cast("B")
        self.per_token: Floats = self.matrix[:, 0]
        self.per_output: Floats = self.matrix[:, 1]
        self.per_need: Floats = self.matrix[:, 2]
        self.fixed: Floats = self.matrix[:, 3]
        self.ready: Floats = self.matrix[:, 4]
        self.fixed[:] = INFINITE
        self.matrix[:, 5] = 1.0

    def put(self, index: int, per_token: float, per_output: float, per_need: float, fixed: float, ready: float) -> None:
        """Prices one slot."""
        _put_row(self.rows, index * ROW_BYTES, per_token, per_output, per_need, fixed, ready)
