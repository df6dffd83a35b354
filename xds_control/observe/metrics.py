"""The one list of our Prometheus metrics, and how samples become a page.

Values are collected when a page is asked for, from state that exists anyway; nothing is counted twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

Kind = Literal["gauge", "counter"]


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One metric: name, kind, label names, what it says. Counters are written without `_total` here."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    doc: str


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of a metric, labels in the spec's order."""

    name: str
    value: float
    labels: tuple[str, ...] = ()


def _m(name: str, kind: Kind, labels: str, doc: str) -> MetricSpec:
    return MetricSpec(f"xds_control_{name}", kind, tuple(labels.split()), doc)


METRICS: tuple[MetricSpec, ...] = (
    # control: endpoints and weights
    _m(
        "endpoint_weight",
        "gauge",
        "pool endpoint",
        "Weight of an endpoint as last computed; 0 takes no traffic by weight.",
    ),
    _m("endpoint_state", "gauge", "pool endpoint state", "1 for the state that an endpoint is in."),
    _m("endpoint_pickable", "gauge", "pool endpoint", "1 when the picker may name the endpoint."),
    _m("endpoint_gate", "gauge", "pool endpoint gate", "1 for each gate that is closed."),
    _m(
        "endpoint_signal", "gauge", "pool endpoint signal", "Newest trusted value of a signal, in the catalogue's unit."
    ),
    _m("endpoint_signal_age_seconds", "gauge", "pool endpoint signal", "Age of that value."),
    _m(
        "endpoint_share",
        "gauge",
        "pool endpoint",
        "Share of the pool's requests in the last 10 s, as Envoy's access log saw them.",
    ),
    _m("endpoint_ttft_seconds", "gauge", "pool endpoint quantile", "True time to first token over the last 10 s."),
    _m("scrape_failures", "counter", "endpoint", "Scrapes of an endpoint that failed."),
    _m("scrape_duration_seconds", "gauge", "endpoint", "Time that the last scrape took."),
    _m("scrape_bytes", "gauge", "endpoint", "Size of the last page."),
    _m("values_dropped", "counter", "endpoint reason", "Values on pages that were not believed, by reason."),
    _m("tick_seconds", "gauge", "", "Time that the last control tick took."),
    _m("ticks", "counter", "", "Control ticks."),
    _m("snapshot_version", "gauge", "", "Version of the newest snapshot."),
    _m("policy_info", "gauge", "version", "1 for the policy version in force."),
    _m("policy_rejected", "counter", "", "Policies that were refused."),
    _m("policy_switches", "counter", "source", "Policies put into force: push, file, rollback."),
    _m("problems", "gauge", "", "Things that are wrong now, as `xds-control status` lists them."),
    _m("orders", "gauge", "kind", "Operators' orders in force: drain, pin, eject."),
    _m("calls_refused", "counter", "port", "Calls refused for want of a token or a role, by port: admin, fleet, xds."),
    _m("errors", "counter", "code", "Admin calls that ended with an error, by its stable code."),
    # control: requests
    _m(
        "requests",
        "counter",
        "pool class outcome",
        "Requests that ended, by outcome: ok, connect, timeout, 5xx, 4xx, aborted, backpressure.",
    ),
    _m("prompt_tokens", "counter", "pool", "Prompt tokens of requests whose usage was seen."),
    _m("completion_tokens", "counter", "pool", "Output tokens of requests whose usage was seen."),
    _m("cached_tokens", "counter", "pool", "Prompt tokens that came from the KV cache."),
    _m("ttft_seconds", "gauge", "pool class quantile", "True time to first token over the last 60 s."),
    _m("tpot_seconds", "gauge", "pool class quantile", "Time per output token over the last 60 s."),
    _m("slo_attainment", "gauge", "pool class", "Share of requests over the last 60 s that met their class's targets."),
    _m("decisions", "counter", "pool rule reason", "Decisions of the processors."),
    # control: xDS
    _m("xds_clients", "gauge", "", "Connected xDS clients."),
    _m("xds_pushes", "counter", "type", "Responses sent, by resource type."),
    _m("xds_nacks", "counter", "type", "Responses that clients rejected, by resource type."),
    _m("xds_rejected_resources", "counter", "type", "Resources that were held back because clients would reject them."),
    _m("processors", "gauge", "", "Processors that watch the fleet."),
    _m("agents", "gauge", "", "GPU agents that report."),
    # processors
    _m("processor_streams", "gauge", "processor", "Open ext_proc streams."),
    _m("processor_requests", "counter", "processor", "Requests that a processor has decided."),
    _m("processor_cpu_seconds", "counter", "processor", "CPU time of a processor."),
    _m("processor_access_log_entries", "counter", "processor", "Access log entries taken in."),
    _m(
        "processor_in_flight",
        "gauge",
        "processor pool endpoint",
        "Requests that a processor believes to be in flight on an endpoint, whoever picked.",
    ),
    _m(
        "processor_kv_blocks",
        "gauge",
        "processor pool endpoint",
        "KV blocks that an endpoint holds by its own events, where it publishes them.",
    ),
    _m("processor_queued", "gauge", "processor", "Requests that wait for admission in a processor."),
    _m("processor_rss_bytes", "gauge", "processor", "Resident memory of a processor."),
    _m(
        "processor_errors",
        "counter",
        "processor code",
        "ext_proc streams that failed, by stable code; Envoy's failure mode decided for these requests.",
    ),
    _m(
        "processor_picks_passed_over",
        "counter",
        "processor pool",
        "Requests that ended at another endpoint than the picked one: retried, or fallen back to the weights.",
    ),
    _m(
        "processor_pick_margin_seconds",
        "gauge",
        "processor pool quantile",
        "How much more the next best endpoint would have cost, by 512 of the newest picks; 0 = a toss-up.",
    ),
    _m("processor_spans_sent", "counter", "processor", "Trace spans that the collector took."),
    _m("processor_spans_lost", "counter", "processor", "Trace spans lost because the collector was slow or away."),
    _m("processor_snapshot_age_seconds", "gauge", "processor", "Age of the snapshot that a processor works with."),
)
BY_NAME: Mapping[str, MetricSpec] = {spec.name: spec for spec in METRICS}


class _Source(Collector):
    def __init__(self, collect: Callable[[], Iterable[Sample]]) -> None:
        self._collect = collect

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for sample in self._collect():
            spec = BY_NAME[sample.name]
            family = families.get(spec.name)
            if family is None:
                make = GaugeMetricFamily if spec.kind == "gauge" else CounterMetricFamily
                family = families[spec.name] = make(spec.name, spec.doc, labels=spec.labels)
            family.add_metric(list(sample.labels), sample.value)  # type: ignore[attr-defined]
        yield from families.values()


def page(collect: Callable[[], Iterable[Sample]]) -> bytes:
    """The exposition page of everything that `collect` yields; names have to be in METRICS."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Source(collect))
    return generate_latest(registry)


def sample(short_name: str, value: float, *labels: str) -> Sample:
    """A sample of `xds_control_<short_name>`; raises KeyError for a name that is not listed."""
    name = f"xds_control_{short_name}"
    if len(labels) != len(BY_NAME[name].labels):
        raise KeyError(f"{name} has the labels {BY_NAME[name].labels}, got {labels}")
    return Sample(name, value, labels)
