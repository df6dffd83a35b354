"""An NVIDIA Dynamo worker passes its engine's metrics through and adds its own."""

from __future__ import annotations

from xds_control.signals.adapter import Adapter, Gauge, Rule, Term
from xds_control.signals.engines import sglang, trtllm, vllm

# A worker wraps one engine, so at most one of these tables finds its names on a page.
RULES: tuple[Rule, ...] = (
    *vllm.RULES,
    *sglang.RULES,
    *trtllm.RULES,
    Gauge("running", Term(("dynamo_component_inflight_requests",), where={"dynamo_endpoint": ("", "generate")})),
    Gauge("kv_usage", Term(("dynamo_component_gpu_cache_usage_percent",)), "max"),
    Gauge("kv_hit_ratio", Term(("dynamo_component_kv_cache_hit_rate",)), "mean"),
    Gauge("num_blocks", Term(("dynamo_component_total_blocks",))),
)

DYNAMO = Adapter(
    "dynamo",
    RULES,
    config=vllm.VLLM.config,
    lora=vllm.VLLM.lora,
    model_labels=("model_name", "model"),
    model_families=(
        *vllm.VLLM.model_families,
        *sglang.SGLANG.model_families,
        "trtllm_num_requests_running",
        "dynamo_component_inflight_requests",
    ),
    same=sglang.RANKS,
)
