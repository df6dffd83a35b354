"""NVIDIA NIM with the TensorRT-LLM engine: vLLM-like names without any prefix. NIM over vLLM writes vLLM's own."""

from __future__ import annotations

from xds_control.signals.adapter import Adapter, Extra, Gauge, Latency, Rate, Ratio, Rule, Term
from xds_control.signals.engines.pages import openai_models

RULES: tuple[Rule, ...] = (
    Gauge("running", Term(("num_requests_running",))),
    Gauge("waiting", Term(("num_requests_waiting",))),
    Gauge("kv_usage", Term(("gpu_cache_usage_perc", "kv_cache_usage_perc")), "max"),
    Rate("prefill_tps", (Term(("prompt_tokens_total",)),)),
    Rate("decode_tps", (Term(("generation_tokens_total",)),)),
    Latency("ttft", ("time_to_first_token_seconds",), "ttft_attainment"),
    Latency("tpot", ("time_per_output_token_seconds", "inter_token_latency_seconds"), "tpot_attainment"),
    Latency("queue_time", ("request_queue_time_seconds",)),
    Ratio(
        "error_rate",
        (Term(("request_failure_total",)),),
        (Term(("request_failure_total",)), Term(("request_success_total",))),
    ),
    Gauge("max_running", Term(("num_request_max",))),
)

NIM = Adapter(
    "nim",
    RULES,
    model_families=("num_requests_running",),
    path="/v1/metrics",
    extras=(Extra("models", "/v1/models", openai_models, 60.0),),
)
