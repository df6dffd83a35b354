"""From windows of outcomes to learned capacities in the core."""

from __future__ import annotations

import pytest

from xds_control.admin.learning import FleetLearning
from xds_control.policy.capacity import Learning
from xds_control.proto import fleet_pb2 as pb


def row(endpoint: str, service_class: str, tpot_s: float, requests: int = 10) -> pb.Outcomes:
    return pb.Outcomes(
        pool="p",
        endpoint=endpoint,
        service_class=service_class,
        requests=requests,
        ok=requests,
        prompt_tokens=400 * requests,
        completion_tokens=101 * requests,
        prefill_seconds=0.1 * requests,
        timed_prefill_tokens=400 * requests,
        decode_seconds=100 * requests * tpot_s,
        timed_decode_tokens=100 * requests,
    )


def test_windows_become_rates_and_classes_are_summed() -> None:
    learning = FleetLearning(Learning())
    for k in range(10):
        now = float(k)
        for endpoint in ("a", "b"):
            learning.on_scrape("p", endpoint, {"running": 8.0, "waiting": 0.0}, now)
        learning.on_window(
            [row("a", "high", 0.01), row("a", "low", 0.01), row("b", "high", 0.02), row("", "high", 9.0)], now
        )
    a, b = learning.rates("p", "a"), learning.rates("p", "b")
    assert a is not None
    assert b is not None
    assert a.decode_tps is not None
    assert b.decode_tps is not None
    assert a.decode_tps / b.decode_tps == pytest.approx(2.0)
    assert a.capacity is not None
    assert b.capacity is not None
    assert a.capacity > b.capacity
    assert a.confidence == 1.0
    learning.retain({"b"})
    assert learning.rates("p", "a") is None
    assert learning.rates("q", "b") is None


def test_failed_requests_teach_nothing() -> None:
    learning = FleetLearning(Learning())
    learning.on_window([pb.Outcomes(pool="p", endpoint="a", requests=5, errors_5xx=5)], 0.0)
    assert learning.rates("p", "a") is None
