"""Control's view of all outcomes: all processors' windows merged into sliding ones per endpoint, class and pool."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from xds_control.fleet.readings import Reading
from xds_control.proto import fleet_pb2
from xds_control.signals import orca
from xds_control.signals.catalogue import ACCESS_LOG, ORCA, class_signal
from xds_control.signals.sketch import Sketch
from xds_control.signals.sliding import SlidingSketches, SlidingSums
from xds_control.signals.stats import FAULTS, Stats, error_rate, errors_of, make_stats, ratio

SHORT: Final = (2.0, 5)
"""Width in seconds and number of slots of the fast window: 10 s."""
LONG: Final = (10.0, 6)
"""The same of the slow window: 60 s."""

TRUST: Final = 5
"""Observations within a window from which on a signal is believed."""

MAX_ENDPOINTS: Final = 20_000
MAX_CLASSES: Final = 32
"""Per endpoint and per pool; further ones are summed as `other`."""
FORGET_S: Final = 600.0
"""An endpoint without outcomes for this long is forgotten."""

_SKETCHES: Final = ("ttft_s", "tpot_s", "queue_s", "e2e_s")
_NUMBERS: Final = frozenset(
    field.name
    for field in fleet_pb2.Outcomes.DESCRIPTOR.fields
    if field.cpp_type in (field.CPPTYPE_UINT64, field.CPPTYPE_DOUBLE)
)
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


class _Cell:
    """Sums of one class at an endpoint or in a pool."""

    __slots__ = ("long", "short")

    def __init__(self) -> None:
        self.short = SlidingSums(*SHORT)
        self.long = SlidingSums(*LONG)

    def add(self, now: float, values: Mapping[str, float]) -> None:
        self.short.add(now, values)
        self.long.add(now, values)


class _Endpoint:
    __slots__ = (
        "_bad",
        "_good",
        "classes",
        "ever",
        "known_at",
        "long",
        "orca",
        "pool",
        "reported",
        "seen",
        "short",
        "streak",
        "whole",
    )

    def __init__(self, pool: str) -> None:
        self.pool = pool
        self.whole = _Cell()
        self.classes: dict[str, _Cell] = {}
        self.short = SlidingSketches(*SHORT)
        self.long = SlidingSketches(*LONG)
        self.known_at: dict[str, float] = {}
        """Field → when a window last brought it."""
        self.orca: dict[str, tuple[float, float]] = {}
        self.ever: dict[str, float] = {}
        self.reported = Counts()
        self.seen = -math.inf
        self.streak = 0
        self._good = self._bad = 0.0

    def follow(self) -> None:
        """Brings `streak` up to date after a window: any good answer in it ends the streak."""
        good = self.ever.get("ok", 0.0)
        errors = errors_of(self.ever)
        bad = sum(errors.get(kind, 0) for kind in FAULTS)
        self.streak = 0 if good > self._good else self.streak + int(bad - self._bad)
        self._good, self._bad = good, bad


class _Pool:
    __slots__ = ("classes", "ever", "long", "members", "short", "whole")

    def __init__(self) -> None:
        self.whole = _Cell()
        self.classes: dict[str, _Cell] = {}
        self.short: dict[str, SlidingSketches] = {}
        self.long: dict[str, SlidingSketches] = {}
        self.members: set[str] = set()
        self.ever: dict[str, dict[str, float]] = {}
        """Class → sums since the start, for counters."""


class FleetOutcomes:
    """Outcomes of the whole fleet. Memory is bounded by endpoints and classes, not by requests."""

    def __init__(self) -> None:
        self._endpoints: dict[str, _Endpoint] = {}
        self._pools: dict[str, _Pool] = {}
        self._last_window: float | None = None
        self._swept = -math.inf
        self.trouble: Counter[str] = Counter()
        """Rows that were not believed, by reason, since the start."""

    def add(self, window: fleet_pb2.Window, now: float) -> None:
        """Merges one window of one processor, received at `now`. A row that contradicts itself is left out whole."""
        self._last_window = now
        touched: set[str] = set()
        for row in window.outcomes:
            self._row(row, now)
            touched.add(row.endpoint)
        for address in touched:
            state = self._endpoints.get(address)
            if state is not None:
                state.follow()
        if now - self._swept > 10.0:
            self._sweep(now)

    def _row(self, row: fleet_pb2.Outcomes, now: float) -> None:
        values: dict[str, float] = {}
        for field, value in row.ListFields():
            name = field.name
            if name in _NUMBERS:
                if not 0 <= value <= _MAX_COUNT:
                    self.trouble["impossible-number"] += 1
                    return
                values[name] = float(value)
        sketches: dict[str, Sketch] = {}
        for name in _SKETCHES:
            if row.HasField(name):
                sketch = Sketch()
                if not sketch.merge_proto(getattr(row, name)):
                    self.trouble["impossible-sketch"] += 1
                    return
                sketches[name] = sketch
                values[f"{name}.sum"] = sketch.sum
                values[f"{name}.count"] = float(sketch.count)
        self._to_pool(row.pool, row.endpoint, row.service_class, values, sketches, now)
        if row.endpoint:
            self._to_endpoint(row, values, sketches, now)

    def _to_pool(
        self,
        name: str,
        address: str,
        service_class: str,
        values: Mapping[str, float],
        sketches: Mapping[str, Sketch],
        now: float,
    ) -> None:
        pool = self._pools.get(name)
        if pool is None:
            if len(self._pools) >= MAX_ENDPOINTS:
                self.trouble["too-many-pools"] += 1
                return
            pool = self._pools[name] = _Pool()
        if address:
            pool.members.add(address)
        known = _class_within(pool.classes, service_class)
        pool.whole.add(now, values)
        pool.classes.setdefault(known, _Cell()).add(now, values)
        ever = pool.ever.setdefault(known, {})
        for field, value in values.items():
            ever[field] = ever.get(field, 0.0) + value
        if sketches:
            if known not in pool.long:
                pool.short[known] = SlidingSketches(*SHORT)
                pool.long[known] = SlidingSketches(*LONG)
            pool.short[known].add(now, sketches)
            pool.long[known].add(now, sketches)

    def _to_endpoint(
        self, row: fleet_pb2.Outcomes, values: Mapping[str, float], sketches: Mapping[str, Sketch], now: float
    ) -> None:
        state = self._endpoints.get(row.endpoint)
        if state is None:
            if len(self._endpoints) >= MAX_ENDPOINTS:
                self.trouble["too-many-endpoints"] += 1
                return
            state = self._endpoints[row.endpoint] = _Endpoint(row.pool)
        state.pool = row.pool or state.pool
        state.seen = now
        state.whole.add(now, values)
        known = _class_within(state.classes, row.service_class)
        state.classes.setdefault(known, _Cell()).add(now, values)
        if sketches:
            state.short.add(now, sketches)
            state.long.add(now, sketches)
        for field, value in values.items():
            state.known_at[field] = now
            state.ever[field] = state.ever.get(field, 0.0) + value
        for name, total in row.orca.items():
            if math.isfinite(total.last) and (name in state.orca or len(state.orca) < orca.MAX_METRICS):
                state.orca[name] = (total.last, now)

    def _sweep(self, now: float) -> None:
        self._swept = now
        for address in [a for a, state in self._endpoints.items() if now - state.seen > FORGET_S]:
            self.forget(address)

    def forget(self, address: str) -> None:
        """Drops what is known about an endpoint (it left the fleet)."""
        state = self._endpoints.pop(address, None)
        if state is not None and state.pool in self._pools:
            self._pools[state.pool].members.discard(address)

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
        found: dict[str, Reading] = {}
        windows = (state.whole.short.totals(now), state.whole.long.totals(now))
        self._add_quotients(found, windows, state.known_at)
        for service_class, cell in state.classes.items():
            value = _first(
                (totals.get("slo_met", 0.0), totals.get("slo_known", 0.0))
                for totals in (cell.short.totals(now), cell.long.totals(now))
            )
            if value is not None:
                name = class_signal("slo_attainment", service_class)
                found[name] = Reading(value, state.known_at.get("slo_known", now), ACCESS_LOG)
        if self._last_window is not None and windows[1].get("usage_known"):
            # No tokens in the fast window is a rate of zero as long as windows arrive.
            covered = state.whole.short.covered_s(now)
            for name, field in (("prefill_tps", "prompt_tokens"), ("decode_tps", "completion_tokens")):
                found[name] = Reading(windows[0].get(field, 0.0) / covered, self._last_window, ACCESS_LOG)
        newest = {name: value for name, (value, _) in state.orca.items()}
        times = [at for _, at in state.orca.values()]
        for name, value in orca.signals(newest).items():
            found.setdefault(name, Reading(value, max(times), ORCA))
        return found

    @staticmethod
    def _add_quotients(
        found: dict[str, Reading], windows: Iterable[Mapping[str, float]], known_at: Mapping[str, float]
    ) -> None:
        windows = tuple(windows)
        for name, part, whole in (
            ("ttft", "ttft_s.sum", "ttft_s.count"),
            ("tpot", "tpot_s.sum", "tpot_s.count"),
            ("queue_time", "queue_s.sum", "queue_s.count"),
        ):
            for totals in windows:
                count = totals.get(whole, 0.0)
                if count >= TRUST:
                    found[name] = Reading(totals.get(part, 0.0) / count, known_at[whole], ACCESS_LOG)
                    break
        for name, part, whole in (
            ("slo_attainment", "slo_met", "slo_known"),
            ("ttft_attainment", "ttft_met", "ttft_known"),
            ("tpot_attainment", "tpot_met", "tpot_known"),
        ):
            value = _first((totals.get(part, 0.0), totals.get(whole, 0.0)) for totals in windows)
            if value is not None:
                found[name] = Reading(value, known_at[whole], ACCESS_LOG)
        for totals in windows:
            # Tokens, not requests, are counted here: usage of TRUST requests must have been seen.
            value = ratio(totals.get("cached_tokens", 0.0), totals.get("cached_known", 0.0))
            if value is not None and totals.get("usage_known", 0.0) >= TRUST:
                found["kv_hit_ratio"] = Reading(value, known_at["cached_known"], ACCESS_LOG)
                break
        for totals in windows:
            value, judged = error_rate(totals)
            if value is not None and judged >= TRUST:
                found["error_rate"] = Reading(value, max(known_at.values()), ACCESS_LOG)
                break

    def stats(self, address: str, now: float, *, long: bool = False) -> Stats | None:
        """What is known about an endpoint over the last 10 s (60 s when `long`); None when nothing ever was.
        Its classes have sums but no quantiles."""
        state = self._endpoints.get(address)
        if state is None:
            return None
        sums = state.whole.long if long else state.whole.short
        pool = self._pools.get(state.pool)
        pool_sums = None if pool is None else (pool.whole.long if long else pool.whole.short)
        return make_stats(
            sums.totals(now),
            sums.covered_s(now),
            (state.long if long else state.short).merged(now),
            pool_requests=None if pool_sums is None else pool_sums.totals(now).get("requests", 0.0),
            orca={name: value for name, (value, _) in state.orca.items()},
            classes={
                name: make_stats(part.totals(now), part.covered_s(now))
                for name, part in ((n, c.long if long else c.short) for n, c in state.classes.items())
                if part.totals(now)
            },
        )

    def pool_stats(self, name: str, now: float, *, long: bool = True) -> Stats | None:
        """What is known about a pool over the last 60 s (10 s when not `long`), with its classes; None when nothing
        ever was. Requests that reached no endpoint are in it."""
        pool = self._pools.get(name)
        if pool is None:
            return None
        per_class = {key: held.merged(now) for key, held in (pool.long if long else pool.short).items()}
        whole: dict[str, Sketch] = {}
        for sketches in per_class.values():
            for field, sketch in sketches.items():
                whole.setdefault(field, Sketch()).merge(sketch)
        sums = pool.whole.long if long else pool.whole.short
        return make_stats(
            sums.totals(now),
            sums.covered_s(now),
            whole,
            classes={
                key: make_stats(part.totals(now), part.covered_s(now), per_class.get(key))
                for key, part in ((k, c.long if long else c.short) for k, c in pool.classes.items())
                if part.totals(now)
            },
        )

    def pools(self) -> list[str]:
        """Names of pools that had outcomes, "" for requests that reached none."""
        return sorted(self._pools)

    def endpoints(self) -> list[str]:
        """Addresses that had outcomes and are not forgotten."""
        return sorted(self._endpoints)

    def totals(self) -> dict[tuple[str, str], Mapping[str, float]]:
        """Sums since the start by (pool, class), fields as in `Outcomes`: for counters, which never fall."""
        return {(name, key): ever for name, pool in self._pools.items() for key, ever in pool.ever.items()}

    def take_counts(self, address: str) -> Counts:
        """Outcomes at an endpoint since the last call."""
        state = self._endpoints.get(address)
        if state is None:
            return Counts()
        errors = errors_of(state.ever)
        ever = Counts(
            ok=int(state.ever.get("ok", 0.0)),
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


def _class_within(classes: Mapping[str, Any], name: str) -> str:
    return name if name in classes or len(classes) < MAX_CLASSES else "other"


def _first(quotients: Iterable[tuple[float, float]]) -> float | None:
    """The first quotient whose divisor has TRUST observations."""
    for part, whole in quotients:
        if whole >= TRUST:
            return ratio(part, whole)
    return None
