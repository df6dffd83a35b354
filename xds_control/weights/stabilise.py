"""Stabilisers: what lies between the weight that this moment asks for and the one that is pushed."""

from __future__ import annotations

import math
import zlib

import numpy as np
import numpy.typing as npt

from xds_control.policy.weights import Stabilise
from xds_control.weights.table import Bools, Floats

Ints = npt.NDArray[np.int64]


def to_total(values: Floats, total: float) -> Floats:
    """Values scaled to a sum; the pool's total stays constant so that a change of all moves nothing."""
    scaled: Floats = values * (total / float(values.sum()))
    return scaled


def bound(values: Floats, capacity: Floats, policy: Stabilise) -> Floats:
    """Weights per capacity held within `max_ratio` of the largest and above `floor_share` of the fair weight."""
    total = float(values.sum())
    fair = to_total(capacity, total)
    relative = values / fair
    least = max(policy.floor_share, float(relative.max()) / policy.max_ratio)
    return to_total(np.maximum(relative, least) * fair, total)


def step(start: Floats, target: Floats, gain: Floats, policy: Stabilise) -> Floats:
    """From the pushed weights towards the target: at most `max_step` as a ratio, times the oscillation guard's gain."""
    limit = math.log(policy.max_step)
    delta = np.log(target / start)
    moved: Floats = start * np.exp(np.clip(delta, -limit, limit) * gain)
    return moved


def equalise(values: Floats, dead_band: float) -> Floats:
    """Weights within the dead band of each other made exactly equal, the sum unchanged.

    Groups grow from the smallest value up, so the order of weights never turns round. Envoy's
    least_request is power of two choices only while all weights are the same.
    """
    if dead_band <= 0.0 or len(values) < 2:
        return values
    order = np.argsort(values, kind="stable")
    ranked = values[order]
    out = ranked.copy()
    begin = 0
    n = len(ranked)
    while begin < n:
        end = int(np.searchsorted(ranked, ranked[begin] * (1.0 + dead_band), side="right"))
        if ranked[begin] != ranked[end - 1]:
            out[begin:end] = ranked[begin:end].mean()
        begin = end
    result = np.empty_like(values)
    result[order] = out
    return result


def quantise(values: Floats) -> Ints:
    """Integers for Envoy, 1 at least."""
    return np.maximum(np.rint(values), 1.0).astype(np.int64)


def moved(before: Ints, after: Ints, dead_band: float) -> bool:
    """Whether any weight moved by more than the dead band."""
    if not len(after):
        return False
    ratio = np.abs(np.log(after / before))
    return bool((ratio >= math.log1p(dead_band)).any()) and bool((before != after).any())


def guard(
    gain: Floats, direction: Ints, start: Floats, target: Floats, dt: float, policy: Stabilise
) -> tuple[Floats, Ints]:
    """The oscillation guard after a push: gain halves where the weight turned around, and comes back with time.

    direction: sign of the last real move. A target more than two full steps away is no oscillation, it
    doubles the gain. Returns (gain, direction).
    """
    delta = np.log(target / start)
    sign = np.where(np.abs(delta) > math.log1p(policy.dead_band), np.sign(delta), 0.0).astype(np.int64)
    turned = sign * direction < 0
    far: Bools = (np.abs(delta) > 2.0 * math.log(policy.max_step)) & ~turned
    recovered = gain * 2.0 ** (min(dt, 3600.0) / policy.gain_recovery_s)
    if not policy.oscillation_guard:
        return np.ones_like(gain), np.where(sign == 0, direction, sign)
    new = np.where(turned, gain * 0.5, np.where(far, recovered * 2.0, recovered))
    return np.clip(new, policy.least_gain, 1.0), np.where(sign == 0, direction, sign)


def push_delay(policy: Stabilise, seed: str, count: int) -> float:
    """Seconds to the next push: the interval with a spread that differs between seeds but not between runs."""
    unit = zlib.crc32(f"{seed}#{count}".encode()) / 2**32
    return policy.push_interval_s * (1.0 + policy.push_jitter * (2.0 * unit - 1.0))
