"""Curves: one signal's values over the pool → factors between the curve's floor and 1. Vectorised."""

from __future__ import annotations

import numpy as np

from xds_control.policy.weights import Curve
from xds_control.weights.table import Floats


def normalise(curve: Curve, values: Floats) -> Floats:
    """Values as goodness 0..1 before floor and weight; NaN stays NaN. Monotone in the signal's good direction."""
    if curve.shape == "table":
        xs = np.array([x for x, _ in curve.points])
        ys = np.array([y for _, y in curve.points])
        return np.where(np.isnan(values), np.nan, np.interp(np.nan_to_num(values), xs, ys))
    if curve.shape == "effective-capacity":
        # A hit ratio h saves h × share of the work, so capacity grows by 1/(1 − h·share); the best possible is 1.
        rest = 1.0 - curve.prefill_share
        clipped: Floats = rest / (1.0 - np.clip(values, 0.0, 1.0) * curve.prefill_share)
        return clipped
    good = _best(curve, values) if curve.relative else curve.good
    if curve.shape == "inverse":
        return _inverse(values, good, lower_better=curve.good < curve.bad)
    bad = curve.bad
    if curve.relative and (good <= bad if curve.good > curve.bad else good >= bad):
        # Even the best is at or beyond `bad`: the pool as a whole is there, so nobody is worse than the others for it.
        return np.where(np.isnan(values), np.nan, 1.0)
    t: Floats = np.clip((values - bad) / (good - bad), 0.0, 1.0)
    if curve.shape == "power":
        return np.power(t, curve.power)
    if curve.shape == "threshold":
        return np.where(np.isnan(t), np.nan, (t >= curve.midpoint).astype(np.float64))
    if curve.shape == "sigmoid":
        low = _logistic(curve.steepness * (0.0 - curve.midpoint))
        high = _logistic(curve.steepness * (1.0 - curve.midpoint))
        risen: Floats = (1.0 / (1.0 + np.exp(-curve.steepness * (t - curve.midpoint))) - low) / (high - low)
        return np.clip(risen, 0.0, 1.0)
    return t


def with_floor(curve: Curve, goodness: Floats) -> Floats:
    """Goodness, not under the curve's floor."""
    return np.maximum(goodness, curve.floor)


def lower_better(curve: Curve) -> bool:
    """Which direction of the signal is the good one."""
    if curve.shape == "table":
        return curve.points[0][1] >= curve.points[-1][1]
    if curve.shape == "effective-capacity":
        return False
    return curve.good < curve.bad


def _best(curve: Curve, values: Floats) -> float:
    known = values[~np.isnan(values)]
    if not len(known):
        return curve.good
    return float(known.min() if curve.good < curve.bad else known.max())


def _inverse(values: Floats, reference: float, *, lower_better: bool) -> Floats:
    # reference/x for a latency, x/reference for a rate; a reference of 0 makes every value at 0 perfect.
    positive = np.maximum(values, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        if lower_better:
            ratio = np.where(positive <= reference, 1.0, max(reference, 0.0) / positive)
        else:
            ratio = np.where(positive >= reference, 1.0, positive / reference if reference > 0.0 else 1.0)
    return np.where(np.isnan(values), np.nan, np.clip(ratio, 0.0, 1.0))


def _logistic(x: float) -> float:
    return float(1.0 / (1.0 + np.exp(-x)))
