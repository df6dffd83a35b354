"""The server's counters in Prometheus form: register a collector with any registry."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from xds_control.xds.server import XdsServer

Metric = Any


class XdsCollector(Collector):
    """`REGISTRY.register(XdsCollector(server))`. Labels are types and gRPC statuses, never node names."""

    def __init__(self, server: XdsServer) -> None:
        self._server = server

    def collect(self) -> Iterator[Metric]:
        server = self._server
        stats, cache = server.stats, server.cache.stats
        yield _counter("xds_control_xds_responses", "Discovery responses sent", "type", stats.responses)
        yield _counter("xds_control_xds_response_bytes", "Bytes of discovery responses sent", "type", stats.bytes_sent)
        yield _counter("xds_control_xds_nacks", "Responses that clients rejected", "type", stats.nacks)
        yield _counter("xds_control_xds_streams_ended", "Streams ended by the server", "status", stats.ended)
        for name, text, value in (
            ("streams_opened", "Discovery streams opened", stats.streams_opened),
            ("streams_refused", "Streams over the limit", stats.refused),
            ("abandoned", "Streams whose client took no bytes within the write deadline", stats.abandoned),
            ("unauthorised", "Calls without a valid token", stats.unauthorised),
            ("snapshots", "Changes of the cache", cache.changes),
            ("invalid", "Snapshots with a resource that clients would reject", cache.rejected),
            ("serialisations", "Resources turned into bytes", cache.serialisations),
            ("bodies", "Response bodies made, each for one or many clients", server.encoder.bodies),
        ):
            family = CounterMetricFamily(f"xds_control_xds_{name}", text)
            family.add_metric([], value)
            yield family
        yield from self._clients()

    def _clients(self) -> Iterator[Metric]:
        streams: Counter[tuple[str, str]] = Counter()
        lag: dict[str, float] = defaultdict(float)
        rejecting: Counter[str] = Counter()
        stuck = 0
        for client in self._server.clients():
            streams[(client.protocol, client.service)] += 1
            stuck += client.stuck
            for status in client.types:
                lag[status.type] = max(lag[status.type], status.lag_s)
                rejecting[status.type] += bool(status.rejected)
        family = GaugeMetricFamily("xds_control_xds_streams", "Open discovery streams", labels=["protocol", "service"])
        for (protocol, service), count in streams.items():
            family.add_metric([protocol, service], count)
        yield family
        yield _gauge("xds_control_xds_lag_seconds", "Longest time a client has been behind", "type", lag)
        yield _gauge("xds_control_xds_rejecting", "Streams that hold to an older version", "type", rejecting)
        family = GaugeMetricFamily("xds_control_xds_stuck", "Streams that do not answer or do not read")
        family.add_metric([], stuck)
        yield family


def _counter(name: str, text: str, label: str, values: Counter[str]) -> CounterMetricFamily:
    family = CounterMetricFamily(name, text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


def _gauge(name: str, text: str, label: str, values: Any) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family
