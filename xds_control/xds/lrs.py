"""Load reports (LRS) as plain rows (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

SEND_ALL_CLUSTERS: Final = "envoy.lrs.supports_send_all_clusters"
"""Client feature: it can be asked for all clusters instead of a list."""


@dataclass(frozen=True, slots=True)
class LoadReport:
    """Requests of one node to one endpoint, or to one locality, or to one cluster, in one interval.

    address: `ip:port` as in the assignment, "" for a locality or a cluster. locality: (region, zone, sub-zone), None
    for a cluster. interval_s: seconds that the counts cover. issued, succeeded, failed: counts within the interval;
    in_progress: unfinished at its end. metrics: name → (requests that reported it, sum), from ORCA.
    dropped: category → requests that Envoy refused (clusters only; "" = all categories).
    """

    node_id: str
    cluster: str
    service: str
    locality: tuple[str, str, str] | None
    priority: int
    address: str
    interval_s: float
    issued: int = 0
    succeeded: int = 0
    failed: int = 0
    in_progress: int = 0
    metrics: Mapping[str, tuple[int, float]] = field(default_factory=dict)
    dropped: Mapping[str, int] = field(default_factory=dict)


def load_reports(node_id: str, request: Any) -> list[LoadReport]:
    """The rows of one LoadStatsRequest: per endpoint where the client counts by endpoint, and per locality."""
    rows: list[LoadReport] = []
    for cluster in request.cluster_stats:
        interval = cluster.load_report_interval.seconds + cluster.load_report_interval.nanos / 1e9
        base = (node_id, cluster.cluster_name, cluster.cluster_service_name)
        for place in cluster.upstream_locality_stats:
            where = (place.locality.region, place.locality.zone, place.locality.sub_zone)
            for endpoint in place.upstream_endpoint_stats:
                address = _address(endpoint.address)
                rows.append(LoadReport(*base, where, place.priority, address, interval, **_counts(endpoint)))
            rows.append(LoadReport(*base, where, place.priority, "", interval, **_counts(place)))
        if cluster.total_dropped_requests or cluster.dropped_requests:
            dropped = {d.category: int(d.dropped_count) for d in cluster.dropped_requests}
            dropped[""] = int(cluster.total_dropped_requests)
            rows.append(LoadReport(*base, None, 0, "", interval, dropped=dropped))
    return rows


def _counts(stats: Any) -> dict[str, Any]:
    return {
        "issued": int(stats.total_issued_requests),
        "succeeded": int(stats.total_successful_requests),
        "failed": int(stats.total_error_requests),
        "in_progress": int(stats.total_requests_in_progress),
        "metrics": {
            m.metric_name: (int(m.num_requests_finished_with_metric), float(m.total_metric_value))
            for m in stats.load_metric_stats
        },
    }


def _address(address: Any) -> str:
    kind = address.WhichOneof("address")
    if kind == "socket_address":
        host, port = address.socket_address.address, address.socket_address.port_value
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    if kind == "pipe":
        return str(address.pipe.path)
    return ""
