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


def score(combiner: Combiner, goodness: Floats, weights: Floats) -> Floats:
    """One response 0..1 per endpoint under `linear` or `topsis`. goodness, weights: curve × endpoint, weights not all 0
    in any column.

    Weights are each endpoint's own: a signal that one endpoint lacks leaves its score to the signals that it has,
    so that nobody's score depends on what others report. TOPSIS measures against the ideal (all 1) and the worst
    (all 0) instead of the pool's extremes for the same reason: a newcomer cannot reverse the order of two others.
    """
    if combiner == "topsis":
        to_best = np.sqrt((((1.0 - goodness) * weights) ** 2).sum(axis=0))
        to_worst = np.sqrt(((goodness * weights) ** 2).sum(axis=0))
        closeness: Floats = to_worst / (to_best + to_worst)
        return closeness
    linear: Floats = (goodness * weights).sum(axis=0) / weights.sum(axis=0)
    return linear
