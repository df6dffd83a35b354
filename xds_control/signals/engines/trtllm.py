"""TensorRT-LLM's own server. Its `/metrics` is JSON, emptied by each read: the text is at `/prometheus/metrics`."""

from __future__ import annotations

from xds_control.signals.adapter import Adapter, Extra, Gauge, Latency, Quotient, Rate, Ratio, Rule, Term
from xds_control.signals.engines.pages import openai_models


def _trtllm(*names: str) -> tuple[str, ...]:
    """With the prefix, and bare as builds of the 1.1 era write them."""
    return tuple(f"{prefix}{name}" for name in names for prefix in ("trtllm_", ""))


RULES: tuple[Rule, ...] = (
    Gauge("running", Term(("trtllm_num_requests_running",))),
    Gauge("waiting", Term(("trtllm_num_requests_waiting",))),
    Gauge("kv_usage", Term(("trtllm_kv_cache_utilization",)), "max"),
    Quotient("kv_usage", Term(("trtllm_kv_cache_used_blocks",)), Term(("trtllm_kv_cache_max_blocks",))),
    Ratio(
        "kv_hit_ratio",
        (Term(("trtllm_kv_cache_reused_blocks_total",)),),
        (Term(("trtllm_kv_cache_reused_blocks_total",)), Term(("trtllm_kv_cache_missed_blocks_total",))),
    ),
    Ratio(
        "kv_hit_ratio",
        (Term(("trtllm_prompt_cached_tokens_total",)),),
        (Term(("trtllm_prompt_tokens_total",)),),
    ),
    Gauge("kv_hit_ratio", Term(("trtllm_kv_cache_iter_reuse_rate", "trtllm_kv_cache_hit_rate")), "mean"),
    Rate("prefill_tps", (Term(("trtllm_prompt_tokens_total",)),)),
    Rate("decode_tps", (Term(("trtllm_generation_tokens_total",)),)),
    Latency("ttft", _trtllm("time_to_first_token_seconds"), "ttft_attainment"),
    Latency("tpot", _trtllm("time_per_output_token_seconds"), "tpot_attainment"),
    Latency("queue_time", _trtllm("request_queue_time_seconds")),
    # 4xx are the client's.
    Ratio(
        "error_rate",
        (Term(("trtllm_request_error_total",), where={"http_code": ("500", "501", "502", "503", "504")}),),
        (Term(("trtllm_request_error_total",)), Term(("trtllm_request_success_total",))),
    ),
    Gauge("block_size", Term(("trtllm_kv_cache_tokens_per_block",)), "max"),
    Gauge("num_blocks", Term(("trtllm_kv_cache_max_blocks",))),
    Gauge("max_running", Term(("trtllm_max_num_active_requests",))),
)

TRTLLM = Adapter(
    "trtllm",
    RULES,
    model_families=("trtllm_num_requests_running", *_trtllm("request_success_total")),
    path="/prometheus/metrics",
    extras=(Extra("models", "/v1/models", openai_models, 60.0),),
)
