"""Engines of common GPU and model pairs, by roofline from the vendors' data sheets.

prefill: 2 × active parameters FLOP per token at 50 % of the dense BF16 peak (llm-d publishes 15,928 tok/s for
Qwen3-32B on two H100; this formula gives 14,300). decode: weights read once per step and KV bytes once per token
at 70 % of the memory bandwidth, plus 2 ms of launch and scheduling. KV memory: 90 % of the GPU less the weights.
Peaks are those of the data sheets of NVIDIA's L4, A10, A100 80GB SXM, L40S, H100 SXM, H200 and B200; model shapes are
those of the models' published configurations (layers × KV heads × head size × 2 × 2 bytes for a token's KV).
"""

from __future__ import annotations

from dataclasses import dataclass

from xds_control.sim.engine import EngineSpec

_MFU = 0.5
_MBU = 0.7
_STEP_S = 0.002
_PARALLEL = 0.95


@dataclass(frozen=True, slots=True)
class Gpu:
    """tflops: dense BF16 peak. gb_s: memory bandwidth. gb: memory."""

    tflops: float
    gb_s: float
    gb: float


@dataclass(frozen=True, slots=True)
class Model:
    """params: total, active: used per token, both in 10⁹. kv_bytes: of one token. bytes_per_param: 2 = BF16."""

    params: float
    active: float
    kv_bytes: float
    bytes_per_param: float = 2.0


GPUS = {
    "l4": Gpu(121, 300, 24),
    "a10": Gpu(125, 600, 24),
    "a100": Gpu(312, 2039, 80),
    "l40s": Gpu(362, 864, 48),
    "h100": Gpu(989, 3350, 80),
    "h200": Gpu(989, 4800, 141),
    "b200": Gpu(2250, 8000, 180),
}
MODELS = {
    "llama-8b": Model(8.03, 8.03, 32 * 8 * 128 * 4),
    "qwen2.5-7b": Model(7.6, 7.6, 28 * 4 * 128 * 4),
    "qwen3-32b": Model(32.8, 32.8, 64 * 8 * 128 * 4),
    "llama-70b": Model(70.6, 70.6, 80 * 8 * 128 * 4),
    "qwen3-30b-a3b": Model(30.5, 3.3, 48 * 4 * 128 * 4),
}


def engine(gpu: str, model: str, count: int = 1, max_seqs: int = 256, max_batched_tokens: int = 2048) -> EngineSpec:
    """The engine of a model on `count` GPUs. Raises ValueError for unknown names and for a model that does not fit."""
    if gpu not in GPUS:
        raise ValueError(f"unknown GPU {gpu!r}; known are {', '.join(GPUS)}")
    if model not in MODELS:
        raise ValueError(f"unknown model {model!r}; known are {', '.join(MODELS)}")
    card, shape = GPUS[gpu], MODELS[model]
    share = count * _PARALLEL ** (count - 1)
    flops = card.tflops * 1e12 * share * _MFU
    bandwidth = card.gb_s * 1e9 * share * _MBU
    weights = shape.params * 1e9 * shape.bytes_per_param
    memory = 0.9 * card.gb * 1e9 * count - weights
    if memory <= 1024 * shape.kv_bytes:
        raise ValueError(f"{model} does not fit into {count} × {gpu}")
    read = shape.active * 1e9 * shape.bytes_per_param
    return EngineSpec(
        prefill_s=2 * shape.active * 1e9 / flops,
        attention_s=shape.kv_bytes * 6 / flops,
        decode_s=read / bandwidth,
        sequence_s=5e-5,
        kv_s=shape.kv_bytes / bandwidth,
        step_s=_STEP_S,
        kv_tokens=int(memory / shape.kv_bytes),
        max_seqs=max_seqs,
        max_batched_tokens=max_batched_tokens,
    )


PRESETS: dict[str, tuple[str, str, int]] = {
    "l4-qwen2.5-7b": ("l4", "qwen2.5-7b", 1),
    "a10-qwen2.5-7b": ("a10", "qwen2.5-7b", 1),
    "a100-llama-8b": ("a100", "llama-8b", 1),
    "l40s-llama-8b": ("l40s", "llama-8b", 1),
    "h100-llama-8b": ("h100", "llama-8b", 1),
    "h100x2-qwen3-32b": ("h100", "qwen3-32b", 2),
    "h200-qwen3-32b": ("h200", "qwen3-32b", 1),
    "h100x4-llama-70b": ("h100", "llama-70b", 4),
    "b200-llama-70b": ("b200", "llama-70b", 1),
    "h100-qwen3-30b-a3b": ("h100", "qwen3-30b-a3b", 1),
}


def preset(name: str) -> EngineSpec:
    """An engine by the name of its preset. Raises ValueError with the known ones."""
    found = PRESETS.get(name)
    if found is None:
        raise ValueError(f"unknown engine {name!r}; known are {', '.join(PRESETS)}")
    return engine(*found)
