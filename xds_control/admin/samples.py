"""Control's metric samples, read from state that exists anyway."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from xds_control.observe.metrics import Sample, sample
from xds_control.signals.stats import Quantiles

if TYPE_CHECKING:
    from xds_control.admin.control import Control

_OUTCOMES = (
    ("ok", "ok"),
    ("connect", "errors_connect"),
    ("timeout", "errors_timeout"),
    ("reset", "errors_reset"),
    ("5xx", "errors_5xx"),
    ("4xx", "errors_4xx"),
    ("aborted", "aborted"),
    ("backpressure", "backpressure"),
)


def control_samples(control: Control, now: float) -> Iterable[Sample]:
    """Everything that `/metrics` of control says."""
    yield from _process(control)
    yield from _endpoints(control, now)
    yield from _requests(control, now)
    yield from _xds(control)
    yield from _processors(control)


def _process(control: Control) -> Iterator[Sample]:
    core = control.core
    yield sample("tick_seconds", control.tick_s)
    yield sample("ticks", control.ticks)
    yield sample("snapshot_version", 0 if core.snapshot is None else core.snapshot.version)
    yield sample("policy_info", 1, core.policy_version)
    yield sample("policy_rejected", control.policy_rejected)
    for source, count in control.policy_switches.items():
        yield sample("policy_switches", count, source)
    yield sample("problems", len(control.problems()))
    orders = Counter(order.kind for order in core.lifecycle.overrides().values())
    for kind in ("drain", "pin", "eject"):
        yield sample("orders", orders[kind], kind)
    for code, failed in control.admin.errors.items() if control.admin is not None else ():
        yield sample("errors", failed, code)
    for port, count in (
        ("admin", control.gate.refused if control.gate is not None else 0),
        ("fleet", control.strangers),
        ("xds", control.xds.stats.unauthorised),
    ):
        yield sample("calls_refused", count, port)


def _endpoints(control: Control, now: float) -> Iterator[Sample]:
    core = control.core
    for pool in core.snapshot.pools.values() if core.snapshot is not None else ():
        for one in pool.endpoints:
            where = (pool.name, one.endpoint.address)
            yield sample("endpoint_weight", one.weight, *where)
            yield sample("endpoint_state", 1, *where, one.state.value)
            yield sample("endpoint_pickable", float(one.pickable), *where)
            for gate in one.gates:
                yield sample("endpoint_gate", 1, *where, gate)
            for name, reading in one.readings.items():
                yield sample("endpoint_signal", reading.value, *where, name)
                yield sample("endpoint_signal_age_seconds", max(now - reading.at, 0.0), *where, name)
            stats = core.outcomes.stats(one.endpoint.address, now)
            if stats is not None:
                yield sample("endpoint_share", stats.share or 0.0, *where)
                yield from _quantiles("endpoint_ttft_seconds", stats.ttft, *where)
    for address, scraped in (control.scraper.all_stats() if control.scraper else {}).items():
        yield sample("scrape_failures", sum(scraped.errors.values()), address)
        yield sample("scrape_duration_seconds", scraped.last_duration_s or 0.0, address)
        yield sample("scrape_bytes", scraped.last_bytes, address)
    for address, dropped in core.dropped.items():
        for reason, count in dropped.items():
            yield sample("values_dropped", count, address, reason)


def _requests(control: Control, now: float) -> Iterator[Sample]:
    core = control.core
    tokens: dict[str, list[float]] = {}
    for (pool, service_class), sums in core.outcomes.totals().items():
        for outcome, field in _OUTCOMES:
            yield sample("requests", sums.get(field, 0.0), pool, service_class, outcome)
        have = tokens.setdefault(pool, [0.0, 0.0, 0.0])
        for index, field in enumerate(("prompt_tokens", "completion_tokens", "cached_tokens")):
            have[index] += sums.get(field, 0.0)
    for pool, (prompt, completion, cached) in tokens.items():
        yield sample("prompt_tokens", prompt, pool)
        yield sample("completion_tokens", completion, pool)
        yield sample("cached_tokens", cached, pool)
        whole = core.outcomes.pool_stats(pool, now)
        for name, stats in whole.classes.items() if whole is not None else ():
            yield from _quantiles("ttft_seconds", stats.ttft, pool, name)
            yield from _quantiles("tpot_seconds", stats.tpot, pool, name)
            if stats.slo_attainment is not None:
                yield sample("slo_attainment", stats.slo_attainment, pool, name)
    for (pool, rule, reason), count in core.decisions.items():
        yield sample("decisions", count, pool, rule, reason)


def _xds(control: Control) -> Iterator[Sample]:
    stats = control.xds.stats
    yield sample("xds_clients", len({client.node_id for client in control.xds.clients()}))
    for kind, count in stats.responses.items():
        yield sample("xds_pushes", count, kind)
    for kind, count in stats.nacks.items():
        yield sample("xds_nacks", count, kind)
    yield sample("xds_rejected_resources", control.cache.stats.rejected, "all")


def _processors(control: Control) -> Iterator[Sample]:
    yield sample("processors", len(control.hub.watchers))
    yield sample("agents", sum(1 for kind in control.fleet.sources.values() if kind == "agent"))
    for name, reporter in control.hub.reporters.items():
        load = reporter.load
        yield sample("processor_streams", load.streams, name)
        yield sample("processor_requests", load.requests, name)
        yield sample("processor_cpu_seconds", load.cpu_seconds, name)
        yield sample("processor_access_log_entries", load.access_log_entries, name)
        yield sample("processor_rss_bytes", load.rss_bytes, name)


def _quantiles(name: str, found: Quantiles | None, *labels: str) -> Iterator[Sample]:
    if found is not None:
        for label, value in (("0.5", found.p50), ("0.9", found.p90), ("0.99", found.p99)):
            yield sample(name, value, *labels, label)
