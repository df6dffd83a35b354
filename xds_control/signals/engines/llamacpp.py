"""llama.cpp's server (`--metrics`). No labels and no histograms; recent builds tell KV usage only by their slots."""

from __future__ import annotations

from xds_control.signals.adapter import Adapter, Extra, Gauge, Rate, Ratio, Rule, Term
from xds_control.signals.engines.pages import llamacpp_slots, openai_models


def _llama(*names: str) -> tuple[str, ...]:
    return tuple(f"llamacpp_{name}" for name in names)


RULES: tuple[Rule, ...] = (
    Gauge("running", Term(_llama("requests_processing"))),
    Gauge("waiting", Term(_llama("requests_deferred"))),
    Gauge("kv_usage", Term(_llama("kv_cache_usage_ratio")), "max"),
    Rate("prefill_tps", (Term(_llama("prompt_tokens_total")),)),
    Rate("decode_tps", (Term(_llama("tokens_predicted_total")),)),
    Ratio("tpot", (Term(_llama("tokens_predicted_seconds_total")),), (Term(_llama("tokens_predicted_total")),)),
)

LLAMACPP = Adapter(
    "llamacpp",
    RULES,
    extras=(
        Extra("slots", "/slots", llamacpp_slots, "scrape"),
        Extra("models", "/v1/models", openai_models, 60.0),
    ),
)
