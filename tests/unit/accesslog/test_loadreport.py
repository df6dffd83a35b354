from __future__ import annotations

import pytest
from envoy.config.endpoint.v3 import load_report_pb2

from xds_control.signals import loadreport
from xds_control.signals.loadreport import LoadReports, LoadRow, rows_of

A = "10.0.0.1:8000"


def row(**changes: object) -> LoadRow:
    fields: dict[str, object] = {
        "cluster": "chat",
        "address": A,
        "successful": 8,
        "errors": 2,
        "issued": 11,
        "in_progress": 3,
        "interval_s": 1.0,
        "node": "envoy-1",
    }
    return LoadRow(**{**fields, **changes})  # type: ignore[arg-type]


def test_a_report_is_read() -> None:
    stats = load_report_pb2.ClusterStats(cluster_name="chat")
    stats.load_report_interval.nanos = 500_000_000
    locality = stats.upstream_locality_stats.add()
    locality.locality.zone = "z1"
    one = locality.upstream_endpoint_stats.add(
        total_successful_requests=8, total_error_requests=2, total_issued_requests=11, total_requests_in_progress=3
    )
    one.address.socket_address.address = "2001:db8::1"
    one.address.socket_address.port_value = 8000
    one.load_metric_stats.add(metric_name="kv", num_requests_finished_with_metric=4, total_metric_value=2.0)
    one.load_metric_stats.add(metric_name="never", num_requests_finished_with_metric=0, total_metric_value=2.0)
    stats.upstream_locality_stats.add(total_successful_requests=5)
    first, second = rows_of(stats, "envoy-1")
    assert first == row(address="[2001:db8::1]:8000", interval_s=0.5, metrics={"kv": 0.5}, zone="z1")
    assert (second.address, second.successful) == ("", 5)


def test_error_rate_needs_enough_requests() -> None:
    reports = LoadReports()
    reports.add([row(successful=3, errors=1)], 100.0)
    assert reports.readings(A, 100.0) == {}
    reports.add([row(successful=5, errors=1)], 101.0)
    assert reports.readings(A, 101.0)["error_rate"] == (0.2, 101.0, "lrs")
    assert reports.readings(A, 130.0)["error_rate"] == (0.2, 101.0, "lrs")
    assert reports.readings(A, 200.0) == {}


def test_requests_in_progress_are_those_of_envoys_that_still_report() -> None:
    reports = LoadReports()
    assert reports.in_progress(A, 100.0) is None
    reports.add([row(node="envoy-1"), row(node="envoy-2", in_progress=4)], 100.0)
    assert reports.in_progress(A, 101.0) == 7
    reports.add([row(node="envoy-2", in_progress=5)], 102.0)
    assert reports.in_progress(A, 104.0) == 5
    assert reports.in_progress(A, 106.0) is None


@pytest.mark.parametrize("name", ["named_metrics.kv_cache_usage_perc", "kv_cache_usage_perc"])
def test_load_metrics_are_signals(name: str) -> None:
    reports = LoadReports()
    reports.add([row(metrics={name: 0.4, "other": 9.0})], 100.0)
    assert reports.readings(A, 100.0)["kv_usage"] == (0.4, 100.0, "lrs")


def test_what_cannot_be_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loadreport, "MAX_ENDPOINTS", 2)
    reports = LoadReports()
    reports.add([row(successful=1 << 60), row(address="")], 100.0)
    assert reports.in_progress(A, 100.0) is None
    reports.add([row(address=f"10.0.0.{n}:1") for n in range(5)], 100.0)
    assert dict(reports.trouble) == {"impossible-number": 1, "too-many-endpoints": 3}


def test_endpoints_that_are_gone_are_forgotten() -> None:
    reports = LoadReports()
    reports.add([row()], 100.0)
    reports.add([row(address="10.0.0.2:1")], 101.0 + loadreport.FORGET_S)
    assert reports.in_progress(A, 101.0) is None
