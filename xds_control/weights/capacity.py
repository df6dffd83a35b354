"""Capacity of endpoints: declared, from the GPU table, corrected by what was learned."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from xds_control.fleet.endpoint import Endpoint
from xds_control.fleet.rates import LearnedRates
from xds_control.policy.capacity import CapacityPolicy, Learning
from xds_control.weights.table import Bools, Floats

GPU_MODELS: Mapping[str, float] = MappingProxyType(
    {
        "B300": 5.3,
        "B200": 5.3,
        "GB300": 5.3,
        "GB200": 5.3,
        "H200": 2.7,
        "GH200": 2.5,
        "H100-NVL": 2.3,
        "H100-SXM": 2.3,
        "H100-PCIE": 1.6,
        "H100": 2.3,
        "H800": 2.3,
        "H20": 1.0,
        "MI325X": 3.5,
        "MI300X": 3.3,
        "MI250X": 1.4,
        "A100-80GB": 1.0,
        "A100-40GB": 0.87,
        "A100": 1.0,
        "A800": 1.0,
        "A40": 0.44,
        "A30": 0.5,
        "A10G": 0.3,
        "A10": 0.34,
        "L40S": 0.7,
        "L40": 0.5,
        "L4": 0.24,
        "RTX-PRO-6000": 0.95,
        "RTX-6000-ADA": 0.52,
        "RTX-A6000": 0.44,
        "RTX-5090": 0.75,
        "RTX-4090": 0.5,
        "RTX-3090": 0.33,
        "V100": 0.42,
        "T4": 0.18,
    }
)
"""Starting points, A100-80GB = 1: the geometric mean of memory bandwidth (decode) and dense 16-bit throughput (prefill)
from the makers' data sheets. What a model really gets out of a card is learned."""

_WORDS = re.compile(r"[A-Z]+|\d+")
_MIG = re.compile(r"(\d+)G\.(\d+)GB")
_LEAST, _MOST = 1e-6, 1e6


@dataclass(frozen=True, slots=True)
class Declared:
    """A capacity before learning, and where it came from: `declared`, `gpu:MODEL` or `default`."""

    value: float
    source: str


def declared_capacity(endpoint: Endpoint, policy: CapacityPolicy) -> Declared:
    """What policy or the GPU table says of an endpoint; 1 when neither does."""
    if endpoint.capacity is not None and math.isfinite(endpoint.capacity) and endpoint.capacity > 0.0:
        return Declared(min(max(endpoint.capacity, _LEAST), _MOST), "declared")
    if endpoint.gpu_model:
        model = lookup_gpu(endpoint.gpu_model, policy.gpu_models)
        if model is not None:
            name, value = model
            slice_ = _MIG.search(endpoint.gpu_model.upper())
            share = int(slice_.group(1)) / 7.0 if slice_ else 1.0
            count = max(1, len(endpoint.gpus))
            return Declared(value * share * (1.0 + (count - 1) * policy.parallel_efficiency), f"gpu:{name}")
    return Declared(1.0, "default")


def lookup_gpu(model: str, extra: Mapping[str, float]) -> tuple[str, float] | None:
    """Entry of the GPU table whose words all occur in the model name, the most exact one first.

    `NVIDIA H100 80GB HBM3` finds `H100`; policy's own entries go before built-in ones of the same exactness.
    """
    words = set(_WORDS.findall(model.upper()))
    best: tuple[int, int, str, float] | None = None
    for rank, table in ((0, GPU_MODELS), (1, extra)):
        for name, value in table.items():
            wanted = set(_WORDS.findall(name.upper()))
            if wanted and wanted <= words:
                found = (len(wanted), rank, name, value)
                if best is None or found[:2] > best[:2]:
                    best = found
    return None if best is None else (best[2], best[3])


def confidence_of(learned: Sequence[LearnedRates | None], now: float, policy: Learning) -> tuple[Floats, Floats]:
    """(learned capacity, confidence by amount and age) per endpoint; 0 confidence where nothing usable was learned."""
    n = len(learned)
    values, confidence = np.zeros(n), np.zeros(n)
    if not policy.enabled:
        return values, confidence
    rows = [
        (i, r.capacity, r.confidence, r.at) for i, r in enumerate(learned) if r is not None and r.capacity is not None
    ]
    if not rows:
        return values, confidence
    index, capacity, trust, at = (np.array(column) for column in zip(*rows, strict=True))
    fresh = np.clip((policy.age_limit_s - np.maximum(now - at, 0.0)) / (policy.age_limit_s * 0.5), 0.0, 1.0)
    usable = np.isfinite(capacity) & (capacity > 0.0) & np.isfinite(trust)
    values[index] = np.where(usable, capacity, 0.0)
    confidence[index] = np.where(usable, np.clip(trust, 0.0, 1.0) * fresh, 0.0)
    return values, confidence


def blend(declared: Floats, learned: Floats, confidence: Floats, policy: Learning) -> Floats:
    """Declared capacity moved towards the learned one by its confidence.

    Learned figures are brought to the declared scale over the endpoints that have both, so only
    differences within the pool count and one endpoint alone never moves.
    """
    known = confidence > 0.0
    if not known.any():
        return declared
    scale = float((declared * confidence).sum() / (learned * confidence).sum())
    bound = math.log(policy.limit)
    with np.errstate(divide="ignore"):
        shift = np.where(known, np.log(np.where(known, learned, 1.0) * scale / declared), 0.0)
    result: Floats = declared * np.exp(confidence * np.clip(shift, -bound, bound))
    return result


def hold(used: Floats, target: Floats, unlearned: Bools, dead_band: float) -> Floats:
    """Keeps the capacity in use until the new one leaves its dead band; without learning it is the target."""
    with np.errstate(divide="ignore", invalid="ignore"):
        moved = ~(np.abs(np.log(target / used)) < dead_band)
    return np.where(moved | unlearned, target, used)
