"""Envoy's load reports (LRS): what each Envoy sent to each endpoint since its last report. Counts only, no latency."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from xds_control.fleet.readings import Reading
from xds_control.signals import orca
from xds_control.signals.catalogue import LRS
from xds_control.signals.sliding import SlidingTable
from xds_control.signals.stats import ratio

TRUST: Final = 5
"""Requests within a window from which on the error rate is believed."""
MAX_ENDPOINTS: Final = 20_000
MAX_NODES: Final = 1_000
"""Envoys whose requests in progress are kept per endpoint."""
FORGET_S: Final = 600.0
_MAX_COUNT: Final = 1e12
_FIELDS: Final = ("successful", "errors", "issued")


@dataclass(frozen=True, slots=True)
class LoadRow:
    """One endpoint in one load report of one Envoy.

    cluster: Envoy's cluster (the pool). address: `ip:port`, IPv6 in brackets; "" for a locality's sum where the Envoy
    reports no single endpoints. successful, errors, issued: requests since the last report; errors are those answered
    with 5xx or reset. in_progress: now. interval_s: since the last report. metrics: named load metrics of the engine,
    mean over the requests that carried them. node: id of the Envoy.
    """

    cluster: str
    address: str
    successful: int
    errors: int
    issued: int
    in_progress: int
    interval_s: float
    metrics: Mapping[str, float] = field(default_factory=dict)
    node: str = ""
    region: str = ""
    zone: str = ""
    sub_zone: str = ""


def rows_of(cluster_stats: Any, node: str = "") -> list[LoadRow]:
    """The rows in an `envoy.config.endpoint.v3.ClusterStats` message: its endpoints, and localities without any."""
    interval = cluster_stats.load_report_interval
    interval_s = max(0.0, interval.seconds + interval.nanos * 1e-9)
    cluster = cluster_stats.cluster_service_name or cluster_stats.cluster_name
    rows: list[LoadRow] = []
    for locality in cluster_stats.upstream_locality_stats:
        place = locality.locality
        for stats in locality.upstream_endpoint_stats or (locality,):
            address = "" if stats is locality else _address(stats.address.socket_address)
            rows.append(
                LoadRow(
                    cluster=cluster,
                    address=address,
                    successful=stats.total_successful_requests,
                    errors=stats.total_error_requests,
                    issued=stats.total_issued_requests,
                    in_progress=stats.total_requests_in_progress,
                    interval_s=interval_s,
                    metrics=_metrics(stats.load_metric_stats),
                    node=node,
                    region=place.region,
                    zone=place.zone,
                    sub_zone=place.sub_zone,
                )
            )
    return rows


def _address(socket: Any) -> str:
    host = socket.address
    if not host:
        return ""
    return f"[{host}]:{socket.port_value}" if ":" in host else f"{host}:{socket.port_value}"


def _metrics(stats: Iterable[Any]) -> dict[str, float]:
    found: dict[str, float] = {}
    for one in stats:
        count = one.num_requests_finished_with_metric
        if count and len(found) < orca.MAX_METRICS and len(one.metric_name) <= orca.MAX_NAME:
            mean = one.total_metric_value / count
            if math.isfinite(mean) and mean >= 0:
                found[one.metric_name] = mean
    return found


class _Endpoint:
    __slots__ = ("in_progress", "metrics", "row", "seen")

    def __init__(self, row: int) -> None:
        self.row = row
        self.in_progress: dict[str, tuple[int, float]] = {}
        """Envoy → requests in progress, until when that counts."""
        self.metrics: dict[str, tuple[float, float]] = {}
        self.seen = 0.0


class LoadReports:
    """Load reports of all Envoys, merged per endpoint."""

    def __init__(self) -> None:
        self._table = SlidingTable(_FIELDS)
        self._endpoints: dict[str, _Endpoint] = {}
        self._swept = -math.inf
        self.trouble: Counter[str] = Counter()
        """Rows that were not believed, by reason, since the start."""

    def add(self, rows: Iterable[LoadRow], now: float) -> None:
        """Takes in the rows of a report received at `now`; rows without an address say nothing of an endpoint."""
        numbers: list[int] = []
        lines: list[tuple[int, int, int]] = []
        for row in rows:
            if not row.address:
                continue
            counts = (row.successful, row.errors, row.issued)
            if not all(0 <= count <= _MAX_COUNT for count in (*counts, row.in_progress)):
                self.trouble["impossible-number"] += 1
                continue
            state = self._endpoints.get(row.address)
            if state is None:
                if len(self._endpoints) >= MAX_ENDPOINTS:
                    self.trouble["too-many-endpoints"] += 1
                    continue
                state = self._endpoints[row.address] = _Endpoint(self._table.make(now))
            state.seen = now
            numbers.append(state.row)
            lines.append(counts)
            if row.node in state.in_progress or len(state.in_progress) < MAX_NODES:
                # An Envoy that stops reporting took its requests with it: three intervals are enough.
                state.in_progress[row.node] = (row.in_progress, now + 3 * max(1.0, row.interval_s))
            for name, value in row.metrics.items():
                if name in state.metrics or len(state.metrics) < orca.MAX_METRICS:
                    state.metrics[name] = (value, now)
        if numbers:
            self._table.add(now, numbers, np.array(lines, dtype=np.float64))
        if now - self._swept > 10.0:
            self._swept = now
            for address in [a for a, state in self._endpoints.items() if now - state.seen > FORGET_S]:
                self.forget(address)

    def forget(self, address: str) -> None:
        """Drops what is known about an endpoint (it left the fleet)."""
        state = self._endpoints.pop(address, None)
        if state is not None:
            self._table.free(state.row)

    def in_progress(self, address: str, now: float) -> int | None:
        """Requests that Envoys had open at the endpoint at their last reports; None when none reported lately."""
        state = self._endpoints.get(address)
        if state is None:
            return None
        counts = [count for count, until in state.in_progress.values() if now <= until]
        return sum(counts) if counts else None

    def readings(self, address: str, now: float) -> dict[str, Reading]:
        """Signals of an endpoint: `error_rate` over 10 s or else 60 s, and what its load metrics say."""
        state = self._endpoints.get(address)
        if state is None:
            return {}
        found: dict[str, Reading] = {}
        rows = (state.row,)
        for sums in (self._table.short(rows, now), self._table.long(rows, now)):
            ended = sums["successful"] + sums["errors"]
            value = ratio(sums["errors"], ended)
            if value is not None and ended >= TRUST:
                last = self._table.last_of(rows)
                found["error_rate"] = Reading(value, max(last["successful"], last["errors"]), LRS)
                break
        for name, (value, at) in state.metrics.items():
            for signal, number in orca.signals({name: value, f"named_metrics.{name}": value}).items():
                found.setdefault(signal, Reading(number, at, LRS))
        return found
