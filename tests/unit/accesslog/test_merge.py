from __future__ import annotations

import math
from typing import Any

import pytest

from tests.unit.accesslog.entries import UPSTREAM_END, USED, entry
from xds_control.policy.classes import ClassesPolicy
from xds_control.proto import fleet_pb2
from xds_control.signals import merge
from xds_control.signals.accesslog import AccessLog
from xds_control.signals.catalogue import unknown_names
from xds_control.signals.merge import TRUST, Counts, FleetOutcomes

A = "10.0.0.1:8000"
B = "10.0.0.2:8000"


def window(*made: Any) -> fleet_pb2.Window:
    classes = ClassesPolicy()
    log = AccessLog(classes.by_name(), classes.default, now=0.0)
    log.take(made)
    return fleet_pb2.Window.FromString(log.drain(1.0).SerializeToString())


def answered(endpoint: str = A, *, ttft_s: float = 0.3, service_class: str = "high", **more: Any) -> Any:
    return entry(endpoint=endpoint, ttft_s=ttft_s, metadata={**USED, "class": service_class}, **more)


def test_windows_of_two_processors_are_one_fleet() -> None:
    fleet = FleetOutcomes()
    fleet.add(window(*[answered(ttft_s=0.2)] * 3), 100.0)
    fleet.add(window(*[answered(ttft_s=0.4)] * 3), 100.05)
    stats = fleet.stats(A, 101.0)
    assert stats is not None
    assert (stats.requests, stats.ok, stats.streamed) == (6, 6, 6)
    assert stats.ttft is not None
    assert stats.ttft.count == 6
    assert stats.ttft.mean == pytest.approx(0.3)
    assert stats.ttft.p99 == pytest.approx(0.4, rel=0.02)
    assert stats.kv_hit_ratio == pytest.approx(0.64)
    assert stats.decode_speed == pytest.approx(100 / 0.4)
    assert stats.requests_per_s == pytest.approx(6.0)


def test_signals_have_the_catalogues_names_and_values() -> None:
    fleet = FleetOutcomes()
    fleet.add(window(*[answered()] * 10), 100.0)
    signals = fleet.signals(A, 102.0)
    assert unknown_names(signals) == []
    assert signals == pytest.approx(
        {
            "ttft": 0.3,
            "tpot": 0.004,
            "queue_time": 0.002,
            "error_rate": 0.0,
            "kv_hit_ratio": 0.64,
            "slo_attainment": 1.0,
            "ttft_attainment": 1.0,
            "tpot_attainment": 1.0,
            "slo_attainment:high": 1.0,
            "prefill_tps": 5000.0,
            "decode_tps": 505.0,
        }
    )
    readings = fleet.readings(A, 102.0)
    assert {reading.source for reading in readings.values()} == {"accesslog"}
    assert {reading.at for reading in readings.values()} == {100.0}


def test_too_few_say_nothing() -> None:
    fleet = FleetOutcomes()
    fleet.add(window(*[answered()] * (TRUST - 1)), 100.0)
    assert set(fleet.signals(A, 100.5)) == {"prefill_tps", "decode_tps"}
    assert fleet.signals(B, 100.5) == {}
    assert fleet.stats(B, 100.5) is None


def test_slow_traffic_is_read_over_the_longer_window() -> None:
    fleet = FleetOutcomes()
    for second in range(0, 50, 10):
        fleet.add(window(answered(ttft_s=0.5)), 100.0 + second)
    assert fleet.signals(A, 141.0)["ttft"] == pytest.approx(0.5)
    fleet.add(window(*[answered(ttft_s=0.1)] * TRUST), 142.0)
    assert fleet.signals(A, 143.0)["ttft"] == pytest.approx((0.5 + 5 * 0.1) / 6)


def test_values_go_away_with_their_requests() -> None:
    fleet = FleetOutcomes()
    fleet.add(window(*[answered()] * 10), 100.0)
    fleet.add(fleet_pb2.Window(period_s=0.1), 130.0)
    assert fleet.signals(A, 130.0)["decode_tps"] == 0.0
    assert fleet.readings(A, 130.0)["decode_tps"].at == 130.0
    assert fleet.readings(A, 130.0)["ttft"].at == 100.0
    assert fleet.signals(A, 190.0) == {}


def test_error_rate_leaves_out_what_is_not_the_endpoints_fault() -> None:
    fleet = FleetOutcomes()
    fleet.add(
        window(
            *[answered()] * 6,
            *[answered(code=500)] * 2,
            answered(code=504, flags=("upstream_request_timeout",)),
            answered(code=503, flags=("upstream_connection_failure",)),
            *[answered(code=404)] * 20,
            *[answered(code=429)] * 20,
            *[answered(flags=("downstream_remote_reset",))] * 20,
        ),
        100.0,
    )
    assert fleet.signals(A, 100.0)["error_rate"] == pytest.approx(0.4)
    stats = fleet.stats(A, 100.0)
    assert stats is not None
    assert stats.errors == {"5xx": 2, "timeout": 1, "connect": 1, "4xx": 20, "backpressure": 20, "aborted": 20}


def failed_attempt() -> Any:
    return entry(endpoint=A, code=0, flags=("upstream_connection_failure",), attempts=0, kind=UPSTREAM_END)


def test_attempts_that_failed_here_count_here_and_once() -> None:
    fleet = FleetOutcomes()
    # Two attempts at A fail; one of the two requests succeeds at B, the other fails for good at A.
    fleet.add(
        window(
            failed_attempt(),
            answered(B, attempts=2),
            failed_attempt(),
            answered(A, code=503, flags=("upstream_connection_failure",)),
        ),
        100.0,
    )
    assert fleet.take_counts(A) == Counts(connect=2, streak=2)
    assert fleet.take_counts(B) == Counts(ok=1)
    stats = fleet.stats(A, 100.0)
    assert stats is not None
    assert stats.errors == {"connect": 2}
    assert set(stats.classes) == {"high"}
    pool = fleet.pool_stats("chat", 100.0)
    assert pool is not None
    assert pool.errors == {"connect": 1}


def test_counts_are_since_the_last_call() -> None:
    fleet = FleetOutcomes()
    fleet.add(window(answered(), answered(code=500)), 100.0)
    assert fleet.take_counts(A) == Counts(ok=1, status_5xx=1)
    fleet.add(window(answered(code=500)), 101.0)
    fleet.add(window(answered(code=502, flags=("upstream_remote_reset",))), 102.0)
    assert fleet.take_counts(A) == Counts(status_5xx=1, reset=1, streak=2)
    assert fleet.take_counts(A) == Counts(streak=2)
    fleet.add(window(answered()), 103.0)
    assert fleet.take_counts(A) == Counts(ok=1)
    assert fleet.take_counts("10.9.9.9:1") == Counts()


def test_client_errors_are_no_streak() -> None:
    fleet = FleetOutcomes()
    fleet.add(window(answered(code=404), answered(code=429)), 100.0)
    assert fleet.take_counts(A) == Counts(client=1, backpressure=1)


def test_rates_of_all_endpoints_at_once() -> None:
    fleet = FleetOutcomes()
    fleet.add(window(*[answered(A)] * 6, *[answered(A, service_class="low")] * 2, answered(B)), 100.0)
    assert fleet.request_rates(102.0) == {A: 4.0, B: 0.5}
    assert fleet.request_rates(150.0) == {A: 0.0, B: 0.0}
    assert fleet.take_touched() == {A, B}
    assert fleet.take_touched() == set()


def test_shares_and_classes() -> None:
    fleet = FleetOutcomes()
    fleet.add(window(*[answered(A)] * 6, *[answered(B, service_class="low")] * 3, answered(B, ttft_s=5.0)), 100.0)
    stats = fleet.stats(B, 100.0)
    assert stats is not None
    assert stats.share == pytest.approx(0.4)
    assert {name: one.requests for name, one in stats.classes.items()} == {"low": 3, "high": 1}
    pool = fleet.pool_stats("chat", 100.0)
    assert pool is not None
    assert pool.requests == 10
    assert pool.classes["high"].requests == 7
    assert pool.classes["high"].slo_attainment == pytest.approx(6 / 7)
    high = pool.classes["high"].ttft
    assert high is not None
    assert high.p50 == pytest.approx(0.3, rel=0.02)
    assert pool.ttft is not None
    assert pool.ttft.count == 10
    assert fleet.pools() == ["chat"]
    assert fleet.endpoints() == [A, B]


def test_requests_that_reached_no_endpoint_belong_to_the_pool() -> None:
    fleet = FleetOutcomes()
    fleet.add(window(entry(endpoint=None, code=503, flags=("no_healthy_upstream",))), 100.0)
    pool = fleet.pool_stats("chat", 100.0)
    assert pool is not None
    assert pool.errors == {"5xx": 1}
    assert fleet.endpoints() == []


def test_counters_never_fall() -> None:
    fleet = FleetOutcomes()
    for second in range(0, 300, 50):
        fleet.add(window(answered()), float(second))
    assert fleet.totals()[("chat", "high")]["requests"] == 6
    assert fleet.totals()[("chat", "high")]["prompt_tokens"] == 6000


def test_load_reports_are_signals_of_their_own_source() -> None:
    fleet = FleetOutcomes()
    header = {
        "endpoint-load-metrics": "TEXT named_metrics.kv_cache_usage_perc=0.4,named_metrics.num_requests_waiting=2"
    }
    fleet.add(window(answered(headers=header)), 100.0)
    readings = fleet.readings(A, 101.0)
    assert readings["kv_usage"] == (0.4, 100.0, "orca")
    assert readings["waiting"] == (2.0, 100.0, "orca")
    stats = fleet.stats(A, 101.0)
    assert stats is not None
    assert stats.orca["named_metrics.num_requests_waiting"] == 2.0


@pytest.mark.parametrize(
    "row",
    [
        fleet_pb2.Outcomes(pool="p", endpoint=A, requests=1 << 50),
        fleet_pb2.Outcomes(pool="p", endpoint=A, requests=1, decode_seconds=math.nan),
        fleet_pb2.Outcomes(pool="p", endpoint=A, requests=1, decode_seconds=-1.0),
        fleet_pb2.Outcomes(pool="p", endpoint=A, requests=1, prefill_seconds=math.inf),
        fleet_pb2.Outcomes(pool="p", endpoint=A, requests=1, ttft_s=fleet_pb2.Sketch(index=[1], count=[1, 2])),
    ],
)
def test_a_row_that_cannot_be_is_left_out_whole(row: fleet_pb2.Outcomes) -> None:
    fleet = FleetOutcomes()
    fleet.add(fleet_pb2.Window(outcomes=[row]), 100.0)
    assert fleet.endpoints() == []
    assert fleet.trouble.total() == 1


def test_state_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge, "MAX_ENDPOINTS", 10)
    fleet = FleetOutcomes()
    rows = [
        fleet_pb2.Outcomes(pool="p", endpoint=f"10.0.0.{n}:1", service_class=f"c{n}", requests=1) for n in range(90)
    ]
    fleet.add(fleet_pb2.Window(outcomes=rows), 100.0)
    assert len(fleet.endpoints()) == 10
    assert fleet.trouble["too-many-endpoints"] == 80
    pool = fleet.pool_stats("p", 100.0)
    assert pool is not None
    assert len(pool.classes) == merge.MAX_CLASSES + 1
    assert pool.classes["other"].requests == 90 - merge.MAX_CLASSES
    assert pool.requests == 90


def test_endpoints_without_outcomes_are_forgotten() -> None:
    fleet = FleetOutcomes()
    fleet.add(window(answered()), 100.0)
    fleet.add(window(answered(B)), 100.0 + merge.FORGET_S + 1)
    assert fleet.endpoints() == [B]
    fleet.forget(B)
    assert fleet.endpoints() == []
    assert fleet.signals(B, 800.0) == {}
