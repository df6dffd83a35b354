"""SGLang (`--enable-metrics`). Its series repeat for each tensor-, pipeline- and expert-parallel rank."""

from __future__ import annotations

from xds_control.signals.adapter import Adapter, Extra, Gauge, Latency, Quotient, Rate, Ratio, Rule, Term
from xds_control.signals.engines.pages import openai_models, sglang_loads

RANKS = ("tp_rank", "pp_rank", "moe_ep_rank")

# With priority scheduling the total stands under priority="" beside a series for each priority.
_TOTAL = {"priority": ("",)}


def _sglang(*names: str) -> tuple[str, ...]:
    return tuple(f"sglang_{name}" for name in names)


def _total(*names: str) -> Term:
    return Term(_sglang(*names), where=_TOTAL)


RULES: tuple[Rule, ...] = (
    Gauge("running", _total("num_running_reqs")),
    Gauge(
        "waiting",
        _total("num_queue_reqs"),
        plus=(
            _total("num_prefill_bootstrap_queue_reqs"),
            _total("num_prefill_inflight_queue_reqs"),
            _total("num_decode_prealloc_queue_reqs"),
            _total("num_decode_transfer_queue_reqs"),
        ),
    ),
    Gauge("kv_usage", Term(_sglang("token_usage")), "max"),
    Ratio("kv_hit_ratio", (Term(_sglang("cached_tokens_total")),), (Term(_sglang("prompt_tokens_total")),)),
    Gauge("kv_hit_ratio", Term(_sglang("cache_hit_rate")), "mean"),
    Rate("preemptions", (Term(_sglang("num_retracted_requests_total")),)),
    # The counters of finished requests stand still while a long request runs; these ones move with every step.
    Rate(
        "prefill_tps",
        (Term(_sglang("realtime_tokens_total"), where={"mode": ("prefill_compute", "prefill_cache")}),),
    ),
    Rate("prefill_tps", (Term(_sglang("prompt_tokens_total")),)),
    Rate("decode_tps", (Term(_sglang("realtime_tokens_total"), where={"mode": ("decode",)}),)),
    Gauge("decode_tps", Term(_sglang("gen_throughput"))),
    Rate("decode_tps", (Term(_sglang("generation_tokens_total")),)),
    Latency("ttft", _sglang("time_to_first_token_seconds"), "ttft_attainment"),
    Latency(
        "tpot",
        _sglang(
            "inter_token_latency_seconds", "time_per_output_token_seconds", "request_time_per_output_token_seconds"
        ),
        "tpot_attainment",
    ),
    Latency("queue_time", _sglang("queue_time_seconds")),
    Gauge("kv_capacity_tokens", Term(_sglang("max_total_num_tokens"))),
    Gauge("block_size", Term(_sglang("page_size")), "max"),
    Gauge("num_blocks", Term(_sglang("num_pages"))),
    Gauge("model_len", Term(_sglang("context_len")), "min"),
    Gauge("lora_loaded", Term(_sglang("lora_pool_slots_used"))),
    Gauge("lora_max", Term(_sglang("lora_pool_slots_total"))),
    Quotient("kv_usage", Term(_sglang("num_used_tokens")), Term(_sglang("max_total_num_tokens")), match=("dp_rank",)),
)

SGLANG = Adapter(
    "sglang",
    RULES,
    same=RANKS,
    model_families=_sglang("num_running_reqs", "generation_tokens_total"),
    extras=(
        Extra("models", "/v1/models", openai_models, 60.0),
        Extra("loads", "/v1/loads?include=core,queues", sglang_loads, "scrape"),
    ),
)
