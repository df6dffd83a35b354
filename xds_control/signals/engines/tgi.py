"""Hugging Face text-generation-inference. It has no time to first token: queue and prefill means are added up."""

from __future__ import annotations

from xds_control.signals.adapter import (
    Adapter,
    Extra,
    Gauge,
    Latency,
    Quotient,
    Rate,
    Ratio,
    Rule,
    SumOfRatios,
    Term,
)
from xds_control.signals.engines.pages import tgi_info

_PREFILL = {"method": ("prefill",)}
_FORWARD = ("tgi_batch_forward_duration", "tgi_batch_inference_duration")

RULES: tuple[Rule, ...] = (
    Gauge("running", Term(("tgi_batch_current_size",))),
    Gauge("waiting", Term(("tgi_queue_size",))),
    Quotient("kv_usage", Term(("tgi_batch_current_max_tokens",)), Term(("tgi_batch_max_total_tokens",))),
    Rate("prefill_tps", (Term(("tgi_request_input_length",), part="sum"),)),
    Rate("decode_tps", (Term(("tgi_request_generated_tokens",), part="sum"),)),
    SumOfRatios(
        "ttft",
        (
            Ratio(
                "ttft",
                (Term(("tgi_request_queue_duration",), part="sum"),),
                (Term(("tgi_request_queue_duration",), part="count"),),
            ),
            Ratio(
                "ttft",
                (Term(_FORWARD, where=_PREFILL, part="sum"),),
                (Term(_FORWARD, where=_PREFILL, part="count"),),
            ),
        ),
    ),
    Latency("tpot", ("tgi_request_mean_time_per_token_duration",), "tpot_attainment"),
    Latency("queue_time", ("tgi_request_queue_duration",)),
    # Overloaded is back-pressure and validation is the client's.
    Ratio(
        "error_rate",
        (Term(("tgi_request_failure",), where={"err": ("incomplete", "dropped", "generation")}),),
        (Term(("tgi_request_count",)),),
    ),
    Gauge("kv_capacity_tokens", Term(("tgi_batch_max_total_tokens",))),
)

TGI = Adapter("tgi", RULES, extras=(Extra("info", "/info", tgi_info, 60.0),))
