from __future__ import annotations

import math

import pytest

from xds_control.signals.catalogue import (
    CATALOGUE,
    VITAL,
    admit,
    class_signal,
    freshness,
    goodness,
    reference,
    source_kind,
    spec_of,
    unknown_names,
)

DESIGN = """running waiting waiting_tokens kv_usage kv_hit_ratio preemptions prefill_tps decode_tps ttft tpot queue_time
gpu_mem_used_ratio gpu_mem_free_bytes gpu_util gpu_mem_bw_util gpu_temp gpu_power_ratio gpu_throttled xid xid_count
ecc_uncorrected nvlink_rx nvlink_tx pcie_rx pcie_tx net_tx_ratio error_rate oom_count slo_attainment lora_loaded
lora_max model_len block_size num_blocks""".split()  # noqa: SIM905 - as the design lists them


def test_the_catalogue_has_every_signal_of_the_design() -> None:
    assert set(DESIGN) <= CATALOGUE.keys()
    assert set(VITAL) <= CATALOGUE.keys()
    assert unknown_names([*DESIGN, "slo_attainment:high", "nonsense", "kv_usage:high"]) == ["nonsense", "kv_usage:high"]


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_entry_makes_sense(name: str) -> None:
    spec = CATALOGUE[name]
    assert spec.name == name
    assert spec.low < spec.high
    assert spec.age_limit_s > 0
    assert len(set(spec.sources)) == len(spec.sources) > 0
    assert spec.unit
    assert spec.doc
    assert spec.tolerance >= 0
    assert f"| `{name}` |" in reference()


def test_signals_of_a_class_share_the_entry() -> None:
    assert spec_of(class_signal("slo_attainment", "critical")) is CATALOGUE["slo_attainment"]
    assert spec_of("running:critical") is None


def test_kinds_of_sources() -> None:
    assert [
        source_kind(name) for name in ("vllm", "llamacpp", "nvml", "dcgm:node", "accesslog", "push", "my-engine")
    ] == [
        "engine",
        "engine",
        "nvml",
        "dcgm",
        "accesslog",
        "push",
        "engine",
    ]


def test_freshness_fades_to_nothing_at_the_limit() -> None:
    assert [freshness(age, 10.0) for age in (0.0, 5.0, 7.5, 10.0, 11.0)] == [1.0, 1.0, 0.5, 0.0, 0.0]


def test_goodness_needs_a_direction_and_a_range() -> None:
    assert goodness(CATALOGUE["kv_usage"], 0.25) == 0.75
    assert goodness(CATALOGUE["kv_hit_ratio"], 0.25) == 0.25
    assert goodness(CATALOGUE["running"], 5) is None
    assert goodness(CATALOGUE["xid"], 5) is None


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("kv_usage", 0.5, 0.5),
        ("kv_usage", 1.02, 1.0),
        ("kv_usage", 1.2, None),
        ("kv_usage", -0.01, None),
        ("running", math.nan, None),
        ("running", math.inf, None),
        ("gpu_temp", -10.0, -10.0),
        ("nonsense", 1.0, None),
    ],
)
def test_only_possible_values_are_admitted(name: str, value: float, allowed: float | None) -> None:
    assert admit(name, value) == allowed
