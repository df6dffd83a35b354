"""Stabilisers: what lies between the weight that this moment asks for and the one that is pushed."""

from __future__ import annotations

import math
import zlib

import numpy as np
import numpy.typing as npt

from xds_control.policy.weights import Stabilise
from xds_control.weights.table import Bools, Floats

_MOST_SHIFT = 30.0  # natural logarithm; larger than any ratio that weights can have
_HALVINGS = 50

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
    """From the pushed weights towards the target: at most `max_step` as a ratio, times the oscillation guard's gain.

    Both sum to the pool's total and so does the result, within the limits: when one may not move as far as
    it should, the rest take up the difference.
    """
    total = float(start.sum())
    reach = np.exp(math.log(policy.max_step) * gain)
    low, high = start / reach, start * reach
    wanted = to_total(start * np.exp(np.log(target / start) * gain), total)
    if ((wanted >= low) & (wanted <= high)).all():
        return wanted
    # The sum of clipped weights rises with their common factor: halve the interval until it meets the total.
    lower, upper = -_MOST_SHIFT, _MOST_SHIFT
    for _ in range(_HALVINGS):
        middle = (lower + upper) / 2.0
        if float(np.clip(wanted * math.exp(middle), low, high).sum()) < total:
            lower = middle
        else:
            upper = middle
    return np.clip(wanted * math.exp((lower + upper) / 2.0), low, high)


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


def gain(turns: Floats, policy: Stabilise) -> Floats:
    """Share of a step that is taken after so many turns: one turn is a recovery, each further one halves the step."""
    if not policy.oscillation_guard:
        return np.ones_like(turns)
    halved: Floats = np.maximum(np.exp2(-np.maximum(turns - 1.0, 0.0)), policy.least_gain)
    return halved


def guard(
    turns: Floats, direction: Ints, start: Floats, pushed: Floats, target: Floats, dt: float, policy: Stabilise
) -> tuple[Floats, Ints]:
    """Counts turns after a push from `start` to `pushed`: one more where the weight turned around, one less each
    `gain_recovery_s`.

    direction: sign of the last real move, one of more than half of the dead band. A target that is more than two
    full steps away in the same direction is no oscillation and takes a turn back. Returns (turns, direction).
    """
    step_taken = np.log(pushed / start)
    sign = np.where(np.abs(step_taken) > math.log1p(policy.dead_band) / 2.0, np.sign(step_taken), 0.0).astype(np.int64)
    turned: Bools = sign * direction < 0
    far: Bools = (np.abs(np.log(target / start)) > 2.0 * math.log(policy.max_step)) & ~turned
    rest = turns - dt / policy.gain_recovery_s - np.where(far, 1.0, 0.0)
    most = 2.0 - math.log2(policy.least_gain)
    counted = np.clip(np.maximum(rest, 0.0) + np.where(turned, 1.0, 0.0), 0.0, most)
    return counted, np.where(sign == 0, direction, sign)


def push_delay(policy: Stabilise, seed: str, count: int) -> float:
    """Seconds to the next push: the interval with a spread that differs between seeds but not between runs."""
    unit = zlib.crc32(f"{seed}#{count}".encode()) / 2**32
    return policy.push_interval_s * (1.0 + policy.push_jitter * (2.0 * unit - 1.0))
