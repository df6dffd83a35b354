"""Triton Inference Server with any backend: its own counters, the TensorRT-LLM backend's and the vLLM backend's."""

from __future__ import annotations

from xds_control.signals.adapter import Adapter, Difference, Gauge, Latency, Quotient, Rate, Ratio, Rule, Term
from xds_control.signals.engines import vllm

_MODEL = ("model", "version")
_MICRO = 1e-6


def _requests(kind: str) -> Term:
    return Term(("nv_trt_llm_request_metrics",), where={"request_type": (kind,)})


def _blocks(kind: str) -> Term:
    return Term(("nv_trt_llm_kv_cache_block_metrics",), where={"kv_cache_block_type": (kind,)})


RULES: tuple[Rule, ...] = (
    Gauge("running", _requests("scheduled")),
    Gauge("waiting", _requests("waiting")),
    # "fraction" does not agree with used and max on real pages.
    Quotient("kv_usage", _blocks("used"), _blocks("max"), match=_MODEL),
    Gauge("block_size", _blocks("tokens_per"), "max"),
    Gauge("num_blocks", _blocks("max")),
    Gauge("max_running", _requests("max")),
    *vllm.RULES,
    # Without a gauge, the requests being computed are the time that they were given per second of time.
    Rate(
        "running",
        (Term(("nv_inference_request_duration_us",), scale=_MICRO),),
        (Term(("nv_inference_queue_duration_us",), scale=_MICRO),),
    ),
    Gauge("waiting", Term(("nv_inference_pending_request_count",))),
    Latency("ttft", ("nv_inference_first_response_histogram_ms",), "ttft_attainment", 1e-3),
    Ratio(
        "queue_time",
        (Term(("nv_inference_queue_duration_us",), scale=_MICRO),),
        (Term(("nv_inference_request_success",)),),
    ),
    Ratio(
        "error_rate",
        (Term(("nv_inference_request_failure",), unless={"reason": ("CANCELED", "REJECTED")}),),
        (
            Term(("nv_inference_request_success",)),
            Term(("nv_inference_request_failure",), unless={"reason": ("CANCELED", "REJECTED")}),
        ),
    ),
    Gauge("gpu_util", Term(("nv_gpu_utilization",)), "max"),
    Quotient(
        "gpu_mem_used_ratio",
        Term(("nv_gpu_memory_used_bytes",)),
        Term(("nv_gpu_memory_total_bytes",)),
        match=("gpu_uuid",),
    ),
    Difference(
        "gpu_mem_free_bytes",
        Term(("nv_gpu_memory_total_bytes",)),
        Term(("nv_gpu_memory_used_bytes",)),
        match=("gpu_uuid",),
    ),
    Quotient("gpu_power_ratio", Term(("nv_gpu_power_usage",)), Term(("nv_gpu_power_limit",)), match=("gpu_uuid",)),
)

TRITON = Adapter(
    "triton",
    RULES,
    model_labels=("model",),
    model_families=(
        "nv_inference_request_success",
        "nv_inference_pending_request_count",
        "nv_trt_llm_request_metrics",
        "nv_trt_llm_v1_metrics",
        "vllm_generation_tokens_total",
    ),
)
