from __future__ import annotations

import base64

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xds.data.orca.v3 import orca_load_report_pb2

from xds_control.signals import orca

VLLM = {"named_metrics.kv_cache_usage_perc": 0.4, "named_metrics.num_requests_waiting": 2.0}


def binary(**fields: object) -> str:
    return base64.b64encode(orca_load_report_pb2.OrcaLoadReport(**fields).SerializeToString()).decode()


@pytest.mark.parametrize(
    ("header", "values"),
    [
        ('JSON {"named_metrics": {"kv_cache_usage_perc": 0.4, "num_requests_waiting": 2.0}}', VLLM),
        ("TEXT named_metrics.kv_cache_usage_perc=0.4, named_metrics.num_requests_waiting=2.0", VLLM),
        ("TEXT named_metrics.kv_cache_usage_perc=0.4,named_metrics.num_requests_waiting=2.0,", VLLM),
        ('{"named_metrics": {"kv_cache_usage_perc": 0.4, "num_requests_waiting": 2.0}}', VLLM),
        ("named_metrics.kv_cache_usage_perc=0.4, named_metrics.num_requests_waiting=2", VLLM),
        ("BIN " + binary(named_metrics={"kv_cache_usage_perc": 0.4, "num_requests_waiting": 2.0}), VLLM),
        (
            "TEXT named_metrics.kv_cache_utilization=0.000160, named_metrics.max_token_capacity=399296",
            {"named_metrics.kv_cache_utilization": 0.00016, "named_metrics.max_token_capacity": 399296.0},
        ),
        (
            "TEXT cpu_utilization=0.5,rps_fractional=12.5,eps=0",
            {"cpu_utilization": 0.5, "rps_fractional": 12.5, "eps": 0},
        ),
        (
            "BIN " + binary(cpu_utilization=0.5, rps_fractional=12.5, utilization={"gpu": 0.9}),
            {"cpu_utilization": 0.5, "rps_fractional": 12.5, "utilization.gpu": 0.9},
        ),
        ("BIN " + binary(rps=7), {"rps_fractional": 7.0}),
        ('JSON {"cpuUtilization": 0.5, "namedMetrics": {"a": 1}}', {"cpu_utilization": 0.5, "named_metrics.a": 1.0}),
        ('JSON {"cpu_utilization": "NaN", "eps": -1, "mem_utilization": "0.25"}', {"mem_utilization": 0.25}),
        ('JSON {"cpu_utilization": null, "unknown": {"x": [1]}}', {}),
        ("TEXT a=nan, b=inf, c=-1, d=x, =3, e", None),
        ("JSON {", None),
        ("JSON [1]", None),
        ('JSON {"named_metrics": 3}', None),
        ("BIN %%%", None),
        ("BIN " + base64.b64encode(b"\xff\xff\xff").decode(), None),
        ("TEXT", None),
        ("", None),
        ("garbage", None),
        ("TEXT " + "a=1," * 5000, None),
    ],
)
def test_reports(header: str, values: dict[str, float] | None) -> None:
    assert orca.parse(header) == values


def test_old_binary_header() -> None:
    assert orca.parse_bin(binary(named_metrics={"x": 1.0})) == {"named_metrics.x": 1.0}
    url_safe = binary(named_metrics={"x": 1.0}).replace("+", "-").replace("/", "_").rstrip("=")
    assert orca.parse_bin(url_safe) == {"named_metrics.x": 1.0}


def test_a_report_cannot_grow_without_bound() -> None:
    report = orca.parse("TEXT " + ",".join(f"m{i}=1" for i in range(500)))
    assert report is not None
    assert len(report) <= orca.MAX_METRICS


def test_signals_are_named_as_in_the_catalogue() -> None:
    assert orca.signals(VLLM) == {"kv_usage": 0.4, "waiting": 2.0}
    assert orca.signals({"named_metrics.kv_cache_usage_perc": 40.0, "other": 1.0}) == {}


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=200), st.sampled_from(["", "JSON ", "TEXT ", "BIN "]))
def test_nothing_breaks_it(text: str, prefix: str) -> None:
    report = orca.parse(prefix + text)
    assert report is None or all(value >= 0 for value in report.values())
