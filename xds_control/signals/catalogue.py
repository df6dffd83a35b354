"""The catalogue: every signal about an inference endpoint, as data. Names, units, ranges, age limits, trust."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

PUSH = "push"  # the engine's or a sidecar's own word over Fleet.Report
ENGINE = "engine"  # a scraped metrics page, whatever the adapter
NVML = "nvml"  # the GPU agent
DCGM = "dcgm"  # a DCGM exporter page
ACCESS_LOG = "accesslog"  # windows over Envoy's access log
ORCA = "orca"  # load reports in logged response headers
LRS = "lrs"  # Envoy's load reporting service
PROBE = "probe"  # our own warm-up and health probes

NOT_ENGINE = frozenset({PUSH, NVML, DCGM, ACCESS_LOG, ORCA, LRS, PROBE})


@dataclass(frozen=True, slots=True)
class SignalSpec:
    """What one signal means.

    unit: of its values ("" for a plain number). low, high: values outside are impossible and are dropped.
    better: the direction in which an endpoint is better off, None when neither is.
    age_limit_s: from this age on a value says nothing. sources: kinds of source, most trusted first.
    tolerance: two sources that differ by more than this plus a quarter of the larger value disagree.
    """

    name: str
    unit: str
    low: float
    high: float
    better: Literal["lower", "higher"] | None
    age_limit_s: float
    sources: tuple[str, ...]
    doc: str
    tolerance: float = 0.0


_QUEUE = (PUSH, ENGINE, ORCA)
_OUTCOME = (ACCESS_LOG, ENGINE, PUSH, ORCA)
_GPU = (NVML, DCGM, PUSH, ENGINE)
_CONFIG = (PUSH, ENGINE)
_INF = math.inf

_SPECS = (
    SignalSpec("running", "requests", 0, _INF, "lower", 10, _QUEUE, "requests in the running batch", 4),
    SignalSpec("waiting", "requests", 0, _INF, "lower", 10, _QUEUE, "requests that wait for room in the batch", 4),
    SignalSpec(
        "waiting_tokens", "tokens", 0, _INF, "lower", 10, _QUEUE, "uncached prompt tokens of waiting requests", 4096
    ),
    SignalSpec(
        "kv_usage",
        "ratio",
        0,
        1,
        "lower",
        10,
        _QUEUE,
        "share of the KV cache held by live requests; the fullest rank where there are several",
        0.1,
    ),
    SignalSpec(
        "kv_hit_ratio",
        "ratio",
        0,
        1,
        "higher",
        120,
        (PUSH, ENGINE, ACCESS_LOG, ORCA),
        "share of prompt tokens found in the KV cache over the window",
        0.15,
    ),
    SignalSpec("preemptions", "1/s", 0, _INF, "lower", 15, _CONFIG, "requests evicted from the batch per second", 0.5),
    SignalSpec(
        "prefill_tps",
        "tokens/s",
        0,
        _INF,
        "higher",
        15,
        (PUSH, ENGINE, ACCESS_LOG),
        "prompt tokens taken in per second, cached ones included",
        500,
    ),
    SignalSpec(
        "decode_tps",
        "tokens/s",
        0,
        _INF,
        "higher",
        15,
        (PUSH, ENGINE, ACCESS_LOG),
        "output tokens per second over all requests",
        100,
    ),
    SignalSpec("ttft", "s", 0, 86400, "lower", 30, _OUTCOME, "mean time to first token over the window", 0.1),
    SignalSpec("tpot", "s", 0, 3600, "lower", 30, _OUTCOME, "mean time per output token over the window", 0.01),
    SignalSpec("queue_time", "s", 0, 86400, "lower", 30, (ENGINE, PUSH, ACCESS_LOG), "mean time in the queue", 0.1),
    SignalSpec(
        "ttft_attainment",
        "ratio",
        0,
        1,
        "higher",
        30,
        _OUTCOME,
        "share of requests whose time to first token met the target over the window",
        0.1,
    ),
    SignalSpec(
        "tpot_attainment",
        "ratio",
        0,
        1,
        "higher",
        30,
        _OUTCOME,
        "share of output tokens or requests whose time per output token met the target over the window",
        0.1,
    ),
    SignalSpec(
        "slo_attainment",
        "ratio",
        0,
        1,
        "higher",
        30,
        _OUTCOME,
        "share of requests that met their SLO over the window; of one class as `slo_attainment:CLASS`",
        0.1,
    ),
    SignalSpec(
        "error_rate",
        "ratio",
        0,
        1,
        "lower",
        30,
        (ACCESS_LOG, ENGINE, PUSH, LRS),
        "share of requests that failed by the endpoint's fault over the window",
        0.05,
    ),
    SignalSpec("oom_count", "count", 0, _INF, "lower", 300, _CONFIG, "out-of-memory failures since the engine's start"),
    SignalSpec("asleep", "flag", 0, 1, "lower", 30, _CONFIG, "1 when the engine sleeps and cannot serve"),
    SignalSpec(
        "gpu_mem_used_ratio", "ratio", 0, 1, "lower", 60, _GPU, "used share of GPU memory, the fullest of its GPUs", 0.1
    ),
    SignalSpec(
        "gpu_mem_free_bytes", "bytes", 0, _INF, "higher", 60, _GPU, "free GPU memory, the fullest of its GPUs", 2.0**30
    ),
    SignalSpec("gpu_util", "ratio", 0, 1, "lower", 60, _GPU, "share of time in which a kernel ran, busiest GPU", 0.3),
    SignalSpec("gpu_mem_bw_util", "ratio", 0, 1, "lower", 60, _GPU, "share of time in which memory was accessed", 0.3),
    SignalSpec("gpu_temp", "°C", -50, 250, "lower", 60, _GPU, "temperature of the hottest GPU", 10),
    SignalSpec("gpu_power_ratio", "ratio", 0, 2, "lower", 60, _GPU, "power draw as a share of the enforced limit", 0.2),
    SignalSpec(
        "gpu_throttled",
        "flag",
        0,
        1,
        "lower",
        60,
        _GPU,
        "1 when a GPU is slowed down by heat, power brake or hardware slowdown",
    ),
    SignalSpec("xid", "code", 0, 65535, None, 300, (NVML, DCGM), "last Xid error code, 0 for none"),
    SignalSpec("xid_count", "count", 0, _INF, "lower", 300, (NVML, DCGM), "Xid errors seen since the agent's start"),
    SignalSpec(
        "ecc_uncorrected", "count", 0, _INF, "lower", 300, (NVML, DCGM), "uncorrected ECC errors since driver load"
    ),
    SignalSpec("nvlink_rx", "bytes/s", 0, _INF, None, 60, _GPU, "NVLink receive rate, busiest GPU", 1e9),
    SignalSpec("nvlink_tx", "bytes/s", 0, _INF, None, 60, _GPU, "NVLink transmit rate, busiest GPU", 1e9),
    SignalSpec("pcie_rx", "bytes/s", 0, _INF, None, 60, _GPU, "PCIe receive rate, busiest GPU", 1e9),
    SignalSpec("pcie_tx", "bytes/s", 0, _INF, None, 60, _GPU, "PCIe transmit rate, busiest GPU", 1e9),
    SignalSpec("net_tx_ratio", "ratio", 0, 1, "lower", 30, (PUSH, ENGINE), "transmit rate over the NIC's rate", 0.2),
    SignalSpec("lora_loaded", "adapters", 0, _INF, None, 60, _CONFIG, "LoRA adapters that are running or loaded", 1),
    SignalSpec("lora_max", "adapters", 0, _INF, None, 600, _CONFIG, "LoRA adapters that fit at once"),
    SignalSpec("model_len", "tokens", 0, _INF, None, 600, _CONFIG, "longest context that the engine serves"),
    SignalSpec("block_size", "tokens", 0, _INF, None, 600, _CONFIG, "tokens per KV block"),
    SignalSpec("num_blocks", "blocks", 0, _INF, None, 600, _CONFIG, "KV blocks of all ranks together"),
    SignalSpec("kv_capacity_tokens", "tokens", 0, _INF, None, 600, _CONFIG, "tokens that the KV cache can hold"),
    SignalSpec("max_running", "requests", 0, _INF, None, 600, _CONFIG, "requests that the engine runs at once"),
)

CATALOGUE: Mapping[str, SignalSpec] = MappingProxyType({spec.name: spec for spec in _SPECS})
"""Signal name → meaning. `slo_attainment` also exists per class, see `spec_of`."""

VITAL = ("running", "waiting", "kv_usage")
"""Signals without which an endpoint's load is unknown."""

PER_CLASS = frozenset({"slo_attainment", "ttft", "tpot", "ttft_attainment", "tpot_attainment", "error_rate"})


def class_signal(name: str, service_class: str) -> str:
    """The name of a signal of one service class: `slo_attainment:high`."""
    return f"{name}:{service_class}"


def spec_of(name: str) -> SignalSpec | None:
    """The entry for a signal name, also for a per-class one; None when the catalogue has none."""
    spec = CATALOGUE.get(name)
    if spec is None and ":" in name:
        base = name.partition(":")[0]
        return CATALOGUE.get(base) if base in PER_CLASS else None
    return spec


def source_kind(source: str) -> str:
    """The kind of a source: adapters ("vllm", "llamacpp", ...) are all "engine"; others may be "kind:instance"."""
    head = source.partition(":")[0]
    return head if head in NOT_ENGINE else ENGINE


def freshness(age_s: float, limit_s: float) -> float:
    """How much a value of this age still counts: 1 up to half of its limit, then linearly down to 0 at the limit."""
    if age_s >= limit_s:
        return 0.0
    half = limit_s / 2
    return 1.0 if age_s <= half else (limit_s - age_s) / half


def goodness(spec: SignalSpec, value: float) -> float | None:
    """The value on 0 (worst) to 1 (best) of its range; None without a direction or a finite range."""
    if spec.better is None or not math.isfinite(spec.low) or not math.isfinite(spec.high):
        return None
    share = min(1.0, max(0.0, (value - spec.low) / (spec.high - spec.low)))
    return share if spec.better == "higher" else 1.0 - share


def unknown_names(names: Iterable[str]) -> list[str]:
    """Those of the names that the catalogue does not have."""
    return [name for name in names if spec_of(name) is None]


def reference() -> str:
    """The catalogue as a Markdown table, for the reference page."""
    rows = ["| signal | unit | range | better | age limit | sources, most trusted first | meaning |"]
    rows.append("|---|---|---|---|---|---|---|")
    rows.extend(
        f"| `{spec.name}` | {spec.unit} | {spec.low:g} to {'∞' if math.isinf(spec.high) else f'{spec.high:g}'} | "
        f"{spec.better or '–'} | {spec.age_limit_s:g} s | {', '.join(spec.sources)} | {spec.doc} |"
        for spec in _SPECS
    )
    return "\n".join(rows) + "\n"


def admit(name: str, value: float) -> float | None:
    """The value if the signal can have it, else None. Up to 5 % over a finite top is rounding and is cut off."""
    spec = spec_of(name)
    if spec is None:
        return None
    if spec.low <= value <= spec.high:
        return value if math.isfinite(value) else None
    if spec.high < value <= spec.high * 1.05:
        return spec.high
    return None
