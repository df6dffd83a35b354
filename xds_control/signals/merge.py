"""Control's view of all outcomes: all processors' windows merged into sliding ones per endpoint, class and pool."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from xds_control.fleet.readings import Reading
from xds_control.proto import fleet_pb2
from xds_control.signals import orca
from xds_control.signals.catalogue import ACCESS_LOG, ORCA, class_signal
from xds_control.signals.sketch import Sketch
from xds_control.signals.sliding import SHORT_S, SlidingSketches, SlidingTable
from xds_control.signals.stats import FAULTS, Stats, error_rate, errors_of, make_stats, ratio

TRUST: Final = 5
"""Observations within a window from which on a signal is believed."""

MAX_ENDPOINTS: Final = 20_000
MAX_POOLS: Final = 2_000
MAX_CLASSES: Final = 32
"""Per endpoint and per pool; further ones are summed as `other`."""
FORGET_S: Final = 600.0
"""An endpoint without outcomes for this long is forgotten."""

_SKETCHES: Final = ("ttft_s", "tpot_s", "queue_s", "e2e_s")
_NUMBERS: Final = tuple(
    field.name
    for field in fleet_pb2.Outcomes.DESCRIPTOR.fields
    if field.cpp_type in (field.CPPTYPE_UINT64, field.CPPTYPE_DOUBLE)
)
_FIELDS: Final = _NUMBERS + tuple(f"{name}.{part}" for name in _SKETCHES for part in ("sum", "count"))
_COLUMN: Final = {name: column for column, name in enumerate(_FIELDS)}
_KNOWN: Final = _COLUMN["slo_known"]
_MET: Final = _COLUMN["slo_met"]
_MAX_COUNT: Final = 1e12  # no honest window sums to more


@dataclass(frozen=True, slots=True)
class Counts:
    """Outcomes at an endpoint since the last call, for its life cycle. streak: failures by its own fault since its last
    good answer, over all calls."""

    ok: int = 0
    connect: int = 0
    timeout: int = 0
    reset: int = 0
    status_5xx: int = 0
    client: int = 0
    backpressure: int = 0
    aborted: int = 0
    streak: int = 0


class _Endpoint:
    __slots__ = ("bad", "good", "made", "orca", "pool", "reported", "rows", "seen", "sketches", "streak")

    def __init__(self, pool: str, now: float) -> None:
        self.pool = pool
        self.made = now
        self.rows: dict[str, int] = {}
        """Class → row of the table."""
        self.sketches = SlidingSketches()
        self.orca: dict[str, tuple[float, float]] = {}
        """Name in a load report → newest value, when."""
        self.reported = Counts()
        self.seen = 0.0
        self.streak = 0
        self.good = self.bad = 0.0


class _Pool:
    __slots__ = ("rows", "sketches")

    def __init__(self) -> None:
        self.rows: dict[str, int] = {}
        self.sketches: dict[str, SlidingSketches] = {}


class _Batch:
    """Lines to add to the table in one go."""

    __slots__ = ("lines", "rows")

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.lines: list[list[float]] = []

    def add(self, row: int, line: list[float]) -> None:
        self.rows.append(row)
        self.lines.append(line)


class FleetOutcomes:
    """Outcomes of the whole fleet. Memory is bounded by endpoints, pools and classes, not by requests."""

    def __init__(self) -> None:
        self._endpoints: dict[str, _Endpoint] = {}
        self._pools: dict[str, _Pool] = {}
        self._table = SlidingTable(_FIELDS)
        self._last_window: float | None = None
        self._swept = -math.inf
        self._touched: set[str] = set()
        self.trouble: Counter[str] = Counter()
        """Rows that were not believed, by reason, since the start."""

    def add(self, window: fleet_pb2.Window, now: float) -> None:
        """Merges one window of one processor, received at `now`. A row that contradicts itself is left out whole."""
        self._last_window = now
        batch = _Batch()
        touched: set[str] = set()
        for row in window.outcomes:
            if self._take(row, batch, now) and row.endpoint:
                touched.add(row.endpoint)
        if batch.rows:
            self._table.add(now, batch.rows, np.array(batch.lines))
        self._touched |= touched
        for address in touched:
            self._follow(address)
        if now - self._swept > 10.0:
            self._sweep(now)

    def _take(self, row: fleet_pb2.Outcomes, batch: _Batch, now: float) -> bool:
        line = [0.0] * len(_FIELDS)
        sketches: dict[str, Sketch] = {}
        for field, value in row.ListFields():
            name = field.name
            column = _COLUMN.get(name)
            if column is not None:
                if not 0 <= value <= _MAX_COUNT:
                    self.trouble["impossible-number"] += 1
                    return False
                line[column] = value
            elif name in _SKETCHES:
                sketch = Sketch()
                if not sketch.merge_proto(value):
                    self.trouble["impossible-sketch"] += 1
                    return False
                sketches[name] = sketch
                column = _COLUMN[f"{name}.sum"]
                line[column] = sketch.sum
                line[column + 1] = sketch.count
        if row.requests:  # single attempts are their endpoint's, not the pool's: the request may have gone well
            self._to_pool(row, line, sketches, batch, now)
        if row.endpoint:
            self._to_endpoint(row, line, sketches, batch, now)
        return True

    def _to_pool(
        self, row: fleet_pb2.Outcomes, line: list[float], sketches: Mapping[str, Sketch], batch: _Batch, now: float
    ) -> None:
        pool = self._pools.get(row.pool)
        if pool is None:
            if len(self._pools) >= MAX_POOLS:
                self.trouble["too-many-pools"] += 1
                return
            pool = self._pools[row.pool] = _Pool()
        known = _class_within(pool.rows, row.service_class)
        if known not in pool.rows:
            pool.rows[known] = self._table.make(now)
            pool.sketches[known] = SlidingSketches()
        batch.add(pool.rows[known], line)
        if sketches:
            pool.sketches[known].add(now, sketches)

    def _to_endpoint(
        self, row: fleet_pb2.Outcomes, line: list[float], sketches: Mapping[str, Sketch], batch: _Batch, now: float
    ) -> None:
        state = self._endpoints.get(row.endpoint)
        if state is None:
            if len(self._endpoints) >= MAX_ENDPOINTS:
                self.trouble["too-many-endpoints"] += 1
                return
            state = self._endpoints[row.endpoint] = _Endpoint(row.pool, now)
        state.pool = row.pool or state.pool
        state.seen = now
        known = _class_within(state.rows, row.service_class)
        if known not in state.rows:
            state.rows[known] = self._table.make(now)
        batch.add(state.rows[known], line)
        if sketches:
            state.sketches.add(now, sketches)
        for name, total in row.orca.items():
            if math.isfinite(total.last) and (name in state.orca or len(state.orca) < orca.MAX_METRICS):
                state.orca[name] = (total.last, now)

    def _follow(self, address: str) -> None:
        """Brings an endpoint's streak of failures up to date: any good answer in a window ends it."""
        state = self._endpoints.get(address)
        if state is None:
            return
        ever = self._table.total(state.rows.values())
        errors = errors_of(ever)
        bad = float(sum(errors.get(kind, 0) for kind in FAULTS))
        state.streak = 0 if ever["ok"] > state.good else state.streak + int(bad - state.bad)
        state.good, state.bad = ever["ok"], bad

    def _sweep(self, now: float) -> None:
        self._swept = now
        for address in [a for a, state in self._endpoints.items() if now - state.seen > FORGET_S]:
            self.forget(address)

    def forget(self, address: str) -> None:
        """Drops what is known about an endpoint (it left the fleet)."""
        state = self._endpoints.pop(address, None)
        self._touched.discard(address)
        if state is not None:
            for row in state.rows.values():
                self._table.free(row)

    def signals(self, address: str, now: float) -> dict[str, float]:
        """Signals of an endpoint by catalogue name (see `readings`)."""
        return {name: reading.value for name, reading in self.readings(address, now).items()}

    def readings(self, address: str, now: float) -> dict[str, Reading]:
        """Signals of an endpoint with their sources and times (when last observed).

        Each needs `TRUST` observations in the last 10 s, or else in the last 60 s; without them it is absent. Load
        reports of the engine (source `orca`) need one.
        """
        state = self._endpoints.get(address)
        if state is None:
            return {}
        rows = list(state.rows.values())
        by_class = self._table.windows(rows, now)
        short, long = (self._table.named(sums.sum(axis=0)) for sums in by_class)
        found: dict[str, Reading] = {}
        if any(long.values()):
            last = self._table.last_of(rows)
            _add_outcomes(found, (short, long), last)
            for line, service_class in enumerate(state.rows):
                for sums in by_class:
                    known = float(sums[line, _KNOWN])
                    if known >= TRUST:
                        reading = Reading(float(sums[line, _MET]) / known, last["slo_known"], ACCESS_LOG)
                        found[class_signal("slo_attainment", service_class)] = reading
                        break
            if self._last_window is not None and long["usage_known"]:
                # No tokens in the fast window is a rate of zero as long as windows arrive.
                covered = self._table.covered_s(rows, now)
                for name, field in (("prefill_tps", "prompt_tokens"), ("decode_tps", "completion_tokens")):
                    found[name] = Reading(short[field] / covered, self._last_window, ACCESS_LOG)
        if state.orca:
            newest = {name: value for name, (value, _) in state.orca.items()}
            at = max(at for _, at in state.orca.values())
            for name, value in orca.signals(newest).items():
                found.setdefault(name, Reading(value, at, ORCA))
        return found

    def request_rates(self, now: float) -> dict[str, float]:
        """Requests per second over the last 10 s at every endpoint that had outcomes; cheap enough for every tick."""
        sums = self._table.short_column("requests", now)
        return {
            address: sum([sums[row] for row in state.rows.values()]) / max(1.0, min(SHORT_S, now - state.made))
            for address, state in self._endpoints.items()
        }

    def take_touched(self) -> set[str]:
        """Endpoints that had outcomes since the last call: those whose `readings` and counts are new."""
        touched, self._touched = self._touched, set()
        return touched

    def stats(self, address: str, now: float, *, long: bool = False) -> Stats | None:
        """What is known about an endpoint over the last 10 s (60 s when `long`); None when nothing ever was.
        Its classes have sums but no quantiles."""
        state = self._endpoints.get(address)
        if state is None:
            return None
        pool = self._pools.get(state.pool)
        return make_stats(
            self._sums(state.rows.values(), now, long),
            self._table.covered_s(list(state.rows.values()), now, long=long),
            state.sketches.long(now) if long else state.sketches.short(now),
            pool_requests=None if pool is None else self._sums(pool.rows.values(), now, long)["requests"],
            orca={name: value for name, (value, _) in state.orca.items()},
            classes=self._classes(state.rows, {}, now, long),
        )

    def pool_stats(self, name: str, now: float, *, long: bool = True) -> Stats | None:
        """What is known about a pool over the last 60 s (10 s when not `long`), with its classes; None when nothing
        ever was. Requests that reached no endpoint are in it."""
        pool = self._pools.get(name)
        if pool is None:
            return None
        per_class = {key: held.long(now) if long else held.short(now) for key, held in pool.sketches.items()}
        whole: dict[str, Sketch] = {}
        for sketches in per_class.values():
            for field, sketch in sketches.items():
                whole.setdefault(field, Sketch()).merge(sketch)
        return make_stats(
            self._sums(pool.rows.values(), now, long),
            self._table.covered_s(list(pool.rows.values()), now, long=long),
            whole,
            classes=self._classes(pool.rows, per_class, now, long),
        )

    def _sums(self, rows: Collection[int], now: float, long: bool) -> dict[str, float]:
        chosen = list(rows)
        return self._table.long(chosen, now) if long else self._table.short(chosen, now)

    def _classes(
        self, rows: Mapping[str, int], sketches: Mapping[str, Mapping[str, Sketch]], now: float, long: bool
    ) -> dict[str, Stats]:
        found = {}
        for service_class, row in rows.items():
            if not service_class:
                continue  # single attempts
            sums = self._sums((row,), now, long)
            if any(sums.values()):
                covered = self._table.covered_s((row,), now, long=long)
                found[service_class] = make_stats(sums, covered, sketches.get(service_class))
        return found

    def pools(self) -> list[str]:
        """Names of pools that had outcomes, "" for requests that reached none."""
        return sorted(self._pools)

    def endpoints(self) -> list[str]:
        """Addresses that had outcomes and are not forgotten."""
        return sorted(self._endpoints)

    def totals(self) -> dict[tuple[str, str], Mapping[str, float]]:
        """Sums since the start by (pool, class), fields as in `Outcomes`: for counters, which never fall."""
        return {
            (name, key): self._table.total((row,))
            for name, pool in self._pools.items()
            for key, row in pool.rows.items()
        }

    def take_counts(self, address: str) -> Counts:
        """Outcomes at an endpoint since the last call."""
        state = self._endpoints.get(address)
        if state is None:
            return Counts()
        totals = self._table.total(state.rows.values())
        errors = errors_of(totals)
        ever = Counts(
            ok=int(totals["ok"]),
            connect=errors.get("connect", 0),
            timeout=errors.get("timeout", 0),
            reset=errors.get("reset", 0),
            status_5xx=errors.get("5xx", 0),
            client=errors.get("4xx", 0),
            backpressure=errors.get("backpressure", 0),
            aborted=errors.get("aborted", 0),
        )
        before = state.reported
        state.reported = ever
        return Counts(
            ok=ever.ok - before.ok,
            connect=ever.connect - before.connect,
            timeout=ever.timeout - before.timeout,
            reset=ever.reset - before.reset,
            status_5xx=ever.status_5xx - before.status_5xx,
            client=ever.client - before.client,
            backpressure=ever.backpressure - before.backpressure,
            aborted=ever.aborted - before.aborted,
            streak=state.streak,
        )


def _add_outcomes(found: dict[str, Reading], windows: Sequence[Mapping[str, float]], last: Mapping[str, float]) -> None:
    for name, part, whole in (
        ("ttft", "ttft_s.sum", "ttft_s.count"),
        ("tpot", "tpot_s.sum", "tpot_s.count"),
        ("queue_time", "queue_s.sum", "queue_s.count"),
    ):
        for sums in windows:
            if sums[whole] >= TRUST:
                found[name] = Reading(sums[part] / sums[whole], last[whole], ACCESS_LOG)
                break
    for name, part, whole in (
        ("slo_attainment", "slo_met", "slo_known"),
        ("ttft_attainment", "ttft_met", "ttft_known"),
        ("tpot_attainment", "tpot_met", "tpot_known"),
    ):
        value = _first_ratio(windows, part, whole)
        if value is not None:
            found[name] = Reading(value, last[whole], ACCESS_LOG)
    for sums in windows:
        # Tokens, not requests, are counted here: usage of TRUST requests must have been seen.
        value = ratio(sums["cached_tokens"], sums["cached_known"])
        if value is not None and sums["usage_known"] >= TRUST:
            found["kv_hit_ratio"] = Reading(value, last["cached_known"], ACCESS_LOG)
            break
    for sums in windows:
        value, judged = error_rate(sums)
        if value is not None and judged >= TRUST:
            found["error_rate"] = Reading(value, max(last.values()), ACCESS_LOG)
            break


def _class_within(classes: Mapping[str, int], name: str) -> str:
    return name if name in classes or len(classes) < MAX_CLASSES else "other"


def _first_ratio(windows: Sequence[Mapping[str, float]], part: str, whole: str) -> float | None:
    """The ratio in the first window whose divisor has TRUST observations."""
    for sums in windows:
        if sums[whole] >= TRUST:
            return ratio(sums[part], sums[whole])
    return None
