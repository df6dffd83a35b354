"""What the weight engine needs to know of each signal: its good direction, range and age limit.

Names, ranges and age limits are those of the catalogue in `signals` (a test compares them). A signal
that is not listed here gets its direction from the curve that uses it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class SignalSpec:
    """lower_better: direction. low, high: range that values are clipped to. age_limit_s: neutral from this age on.
    worsen_s, recover_s: half-lives that replace the policy's general ones (None = the general ones).
    label: words for people."""

    lower_better: bool
    low: float = 0.0
    high: float = math.inf
    age_limit_s: float = 15.0
    worsen_s: float | None = None
    recover_s: float | None = None
    label: str = ""


_QUEUE = {"worsen_s": 1.0, "recover_s": 1.0}

SPECS: Mapping[str, SignalSpec] = MappingProxyType(
    {
        "running": SignalSpec(True, age_limit_s=10.0, label="requests running", **_QUEUE),
        "waiting": SignalSpec(True, age_limit_s=10.0, label="requests waiting", **_QUEUE),
        "waiting_tokens": SignalSpec(True, age_limit_s=10.0, label="tokens waiting", **_QUEUE),
        "kv_usage": SignalSpec(True, high=1.0, age_limit_s=10.0, label="KV cache"),
        "kv_hit_ratio": SignalSpec(False, high=1.0, age_limit_s=120.0, label="KV hit ratio"),
        "preemptions": SignalSpec(True, age_limit_s=15.0, label="preemptions per second"),
        "prefill_tps": SignalSpec(False, age_limit_s=15.0, label="prefill tokens per second"),
        "decode_tps": SignalSpec(False, age_limit_s=15.0, label="output tokens per second"),
        "ttft": SignalSpec(True, high=86400.0, age_limit_s=30.0, label="time to first token"),
        "tpot": SignalSpec(True, high=3600.0, age_limit_s=30.0, label="time per output token"),
        "queue_time": SignalSpec(True, high=86400.0, age_limit_s=30.0, label="queue time"),
        "ttft_attainment": SignalSpec(False, high=1.0, age_limit_s=30.0, label="TTFT attainment"),
        "tpot_attainment": SignalSpec(False, high=1.0, age_limit_s=30.0, label="TPOT attainment"),
        "slo_attainment": SignalSpec(False, high=1.0, age_limit_s=30.0, label="SLO attainment"),
        "error_rate": SignalSpec(True, high=1.0, age_limit_s=30.0, label="errors"),
        "asleep": SignalSpec(True, high=1.0, age_limit_s=30.0, label="engine asleep"),
        "gpu_mem_used_ratio": SignalSpec(True, high=1.0, age_limit_s=60.0, label="GPU memory"),
        "gpu_mem_free_bytes": SignalSpec(False, age_limit_s=60.0, label="free GPU memory"),
        "gpu_util": SignalSpec(True, high=1.0, age_limit_s=60.0, label="GPU busy"),
        "gpu_mem_bw_util": SignalSpec(True, high=1.0, age_limit_s=60.0, label="GPU memory bandwidth"),
        "gpu_temp": SignalSpec(True, low=-50.0, high=250.0, age_limit_s=60.0, label="GPU temperature"),
        "gpu_power_ratio": SignalSpec(True, high=2.0, age_limit_s=60.0, label="GPU power"),
        "gpu_throttled": SignalSpec(True, high=1.0, age_limit_s=60.0, label="GPU throttled"),
        "net_tx_ratio": SignalSpec(True, high=1.0, age_limit_s=30.0, label="network"),
        "max_running": SignalSpec(False, age_limit_s=600.0, label="slots"),
        "occupancy": SignalSpec(True, age_limit_s=10.0, label="slots in use", **_QUEUE),
    }
)

RATIOS = frozenset(name for name, spec in SPECS.items() if spec.high == 1.0)


def describe(signal: str, value: float) -> str:
    """A signal's value in words: `KV cache 94 % full`, `12 requests waiting`, `time to first token 0.82 s`."""
    spec = SPECS.get(signal)
    label = spec.label if spec else signal
    if signal == "kv_usage":
        return f"KV cache {value:.0%} full".replace("%", " %")
    if signal in ("asleep", "gpu_throttled"):
        return label
    if signal in RATIOS or signal == "occupancy":
        return f"{label} {value:.0%}".replace("%", " %")
    if signal in ("running", "waiting"):
        return f"{value:.3g} {label}"
    if signal in ("ttft", "tpot", "queue_time"):
        return f"{label} {value:.3g} s"
    if signal == "gpu_mem_free_bytes":
        return f"{label} {value / 2**30:.1f} GiB"
    return f"{label} {value:.4g}"
