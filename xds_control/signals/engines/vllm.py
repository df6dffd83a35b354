"""vLLM, V0 and V1 names, all renames since 0.2.3; also under Ray Serve, whose prefix is dropped before matching."""

from __future__ import annotations

from dataclasses import replace

from xds_control.signals.adapter import (
    Adapter,
    ConfigLabel,
    Extra,
    Gauge,
    Latency,
    LoraLabels,
    Rate,
    Ratio,
    Rule,
    Term,
)
from xds_control.signals.engines.pages import openai_models


def _vllm(*names: str) -> tuple[str, ...]:
    return tuple(f"vllm_{name}" for name in names)


RULES: tuple[Rule, ...] = (
    Gauge("running", Term(_vllm("num_requests_running"))),
    # Deferred requests wait for something other than room; only "capacity" is load.
    Gauge("waiting", Term(_vllm("num_requests_waiting_by_reason"), where={"reason": ("capacity",)})),
    Gauge("waiting", Term(_vllm("num_requests_waiting"))),
    Gauge("kv_usage", Term(_vllm("kv_cache_usage_perc", "gpu_cache_usage_perc")), "max"),
    # Tokens that the local cache does not have are asked of the external one, so its hits add to the local ones.
    Ratio(
        "kv_hit_ratio",
        (Term(_vllm("prefix_cache_hits_total")), Term(_vllm("external_prefix_cache_hits_total"))),
        (Term(_vllm("prefix_cache_queries_total")),),
    ),
    Ratio(
        "kv_hit_ratio",
        (Term(_vllm("gpu_prefix_cache_hits_total")),),
        (Term(_vllm("gpu_prefix_cache_queries_total")),),
    ),
    Gauge("kv_hit_ratio", Term(_vllm("gpu_prefix_cache_hit_rate")), "mean"),
    Rate("preemptions", (Term(_vllm("num_preemptions_total")),)),
    Rate("prefill_tps", (Term(_vllm("prompt_tokens_total")),)),
    Gauge("prefill_tps", Term(_vllm("avg_prompt_throughput_toks_per_s"))),
    Rate("decode_tps", (Term(_vllm("generation_tokens_total")),)),
    Gauge("decode_tps", Term(_vllm("avg_generation_throughput_toks_per_s"))),
    Latency("ttft", _vllm("time_to_first_token_seconds"), "ttft_attainment"),
    Latency(
        "tpot",
        _vllm("inter_token_latency_seconds", "time_per_output_token_seconds", "request_time_per_output_token_seconds"),
        "tpot_attainment",
    ),
    Latency("queue_time", _vllm("request_queue_time_seconds", "time_in_queue_requests")),
    Ratio(
        "error_rate",
        (Term(_vllm("request_success_total"), where={"finished_reason": ("error",)}),),
        (Term(_vllm("request_success_total")),),
    ),
    Gauge("asleep", Term(_vllm("engine_sleep_state"), where={"sleep_state": ("awake",)}, scale=-1, offset=1), "max"),
)

VLLM = Adapter(
    "vllm",
    RULES,
    config=(
        ConfigLabel("block_size", "vllm_cache_config_info", "block_size"),
        ConfigLabel("num_blocks", "vllm_cache_config_info", "num_gpu_blocks", "sum"),
    ),
    lora=LoraLabels("vllm_lora_requests_info"),
    model_families=_vllm("num_requests_running", "generation_tokens_total"),
    extras=(Extra("models", "/v1/models", openai_models, 60.0),),
)

RAY = replace(VLLM, name="ray", extras=())
"""A Ray agent's page holds all replicas of a node: their sums, unless labels of the endpoint select one."""
