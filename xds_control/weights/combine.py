"""Combiners: several curves' factors → one response per endpoint."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from xds_control.policy.weights import Combiner
from xds_control.weights.table import Floats


def exponents(combiner: Combiner, weights: Sequence[float]) -> list[float]:
    """Exponent of each factor under the multiplying combiners."""
    if combiner == "geometric-mean":
        total = sum(weights)
        return [w / total if total > 0.0 else 0.0 for w in weights]
    return list(weights)


def combine(combiner: Combiner, goodness: Sequence[Floats], weights: Sequence[float]) -> Floats:
    """One response 0..1 per endpoint. goodness: one array per curve, no NaN. weights: one per curve, ≥ 0, one > 0.

    TOPSIS measures against the ideal (all 1) and the worst (all 0) instead of the pool's extremes: the
    result then depends on nobody else, so it is monotone and a newcomer cannot reverse the order of two others.
    """
    stack = np.stack(list(goodness))
    column = np.array(weights, dtype=np.float64)[:, None]
    if combiner == "linear":
        linear: Floats = (stack * column).sum(axis=0) / column.sum()
        return linear
    if combiner == "topsis":
        to_best = np.sqrt((((1.0 - stack) * column) ** 2).sum(axis=0))
        to_worst = np.sqrt(((stack * column) ** 2).sum(axis=0))
        closeness: Floats = to_worst / (to_best + to_worst)
        return closeness
    result: Floats = np.ones(stack.shape[1])
    for row, exponent in zip(stack, exponents(combiner, weights), strict=True):
        result = result * np.power(row, exponent)
    return result
