"""Adapters for inference engines: one table each, and how to tell engines apart by their pages."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from xds_control.errors import XdsControlError
from xds_control.signals.adapter import Adapter
from xds_control.signals.engines.dynamo import DYNAMO
from xds_control.signals.engines.llamacpp import LLAMACPP
from xds_control.signals.engines.lmdeploy import LMDEPLOY
from xds_control.signals.engines.nim import NIM
from xds_control.signals.engines.ollama import OLLAMA
from xds_control.signals.engines.sglang import SGLANG
from xds_control.signals.engines.tgi import TGI
from xds_control.signals.engines.triton import TRITON
from xds_control.signals.engines.trtllm import TRTLLM
from xds_control.signals.engines.vllm import RAY, VLLM
from xds_control.signals.exposition import names


class UnknownEngine(XdsControlError):
    """A policy names an engine for which there is no adapter."""

    code = "unknown-engine"
    grpc_status = "INVALID_ARGUMENT"
    http_status = 400


ADAPTERS: Mapping[str, Adapter] = MappingProxyType(
    {
        adapter.name: adapter
        for adapter in (VLLM, SGLANG, TRTLLM, TRITON, TGI, LLAMACPP, LMDEPLOY, NIM, DYNAMO, RAY, OLLAMA)
    }
)
"""Engine name → adapter. `generic` ones are made from the policy."""

AUTO_PATHS = ("/metrics", "/prometheus/metrics", "/v1/metrics", "/api/ps")
"""Where a page may be while the engine is not known."""

ALIASES = {"llama.cpp": "llamacpp", "llama-cpp": "llamacpp", "trtllm-serve": "trtllm", "tensorrt-llm": "trtllm"}


def adapter_for(engine: str) -> Adapter:
    """The adapter of that name. Raises UnknownEngine."""
    adapter = ADAPTERS.get(ALIASES.get(engine, engine))
    if adapter is None:
        raise UnknownEngine(f"no adapter for engine {engine!r}; known: auto, {', '.join(sorted(ADAPTERS))}")
    return adapter


def default_path(engine: str) -> str:
    """Where the metrics page of an engine usually is; `/metrics` for "auto" and for generic ones."""
    adapter = ADAPTERS.get(ALIASES.get(engine, engine))
    return "/metrics" if adapter is None else adapter.path


def detect(page: bytes) -> str | None:
    """The engine that wrote this page, None when no adapter knows it."""
    if page.lstrip()[:1] == b"{":
        try:
            adapter = ADAPTERS["ollama"]
            assert adapter.main is not None
            adapter.main(page)
        except ValueError:
            return None
        return "ollama"
    found = names(page)
    prefixes = {name.partition("_")[0] for name in found}
    if any(name.startswith("dynamo_component_") for name in found):
        return "dynamo"
    if any(name.startswith(("nv_inference_", "nv_trt_llm_")) for name in found):
        return "triton"
    if "vllm" in prefixes:
        if b"\nray_" in page or page.startswith((b"ray_", b"# HELP ray_", b"# TYPE ray_")):
            return "ray"
        # Triton's vLLM backend alone writes vLLM's counters with the labels `model` and `version`.
        return "triton" if b'{model="' in page and "vllm_num_requests_running" not in found else "vllm"
    for prefix, engine in (
        ("sglang", "sglang"),
        ("trtllm", "trtllm"),
        ("lmdeploy", "lmdeploy"),
        ("llamacpp", "llamacpp"),
        ("tgi", "tgi"),
    ):
        if prefix in prefixes:
            return engine
    if "num_requests_running" in found:
        return "nim"
    if b'engine_type="trtllm"' in page:
        return "trtllm"
    return None
