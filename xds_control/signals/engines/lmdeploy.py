"""LMDeploy's api_server (`--enable-metrics`): vLLM's look-alike under its own prefix."""

from __future__ import annotations

from xds_control.signals.adapter import Adapter, Extra, Gauge, Latency, Rate, Ratio, Rule, Term
from xds_control.signals.engines.pages import openai_models


def _lmdeploy(*names: str) -> tuple[str, ...]:
    return tuple(f"lmdeploy_{name}" for name in names)


RULES: tuple[Rule, ...] = (
    Gauge("running", Term(_lmdeploy("num_requests_running"))),
    Gauge("waiting", Term(_lmdeploy("num_requests_waiting")), plus=(Term(_lmdeploy("num_api_requests_waiting")),)),
    Gauge("kv_usage", Term(_lmdeploy("gpu_cache_usage_perc", "kv_cache_usage_perc")), "max"),
    Ratio("kv_hit_ratio", (Term(_lmdeploy("cached_tokens_total")),), (Term(_lmdeploy("prompt_tokens_total")),)),
    Gauge("kv_hit_ratio", Term(_lmdeploy("prefix_cache_hit_rate")), "mean"),
    Rate("prefill_tps", (Term(_lmdeploy("prompt_tokens_total")),)),
    Rate("decode_tps", (Term(_lmdeploy("generation_tokens_total")),)),
    Latency("ttft", _lmdeploy("time_to_first_token_seconds"), "ttft_attainment"),
    Latency("tpot", _lmdeploy("time_per_output_token_seconds", "iter_token_latency"), "tpot_attainment"),
    Latency("queue_time", _lmdeploy("request_queue_time_seconds")),
    Ratio(
        "error_rate",
        (Term(_lmdeploy("request_success_total"), where={"finished_reason": ("error",)}),),
        (Term(_lmdeploy("request_success_total")),),
    ),
)

LMDEPLOY = Adapter(
    "lmdeploy",
    RULES,
    model_families=_lmdeploy("num_requests_running", "generation_tokens_total"),
    extras=(Extra("models", "/v1/models", openai_models, 60.0),),
)
