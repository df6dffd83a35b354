"""Named scorers: one number from 0 (worst) to 1 (best) per endpoint, with the leading picker's formulas.

All are pure functions over arrays of the candidates' values. An endpoint whose values are unknown or too old
gets the mean of the others' scores, less a little: it neither attracts nor repels, and a known one wins a tie.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from xds_control.fleet.endpoint import Locality

Scores = npt.NDArray[np.float64]
Values = npt.ArrayLike

UNKNOWN_DISCOUNT: Final = 0.05
TOPOLOGY: Final = {"host": 1.0, "rack": 0.2, "zone": 0.05, "region": 0.02, "none": 0.0}


def fill_unknown(scores: Scores, known: npt.NDArray[np.bool_]) -> Scores:
    """Gives endpoints that are not known the mean score of the known ones, less `UNKNOWN_DISCOUNT`."""
    if known.all():
        return scores
    mean = float(scores[known].mean()) - UNKNOWN_DISCOUNT if known.any() else 0.5
    filled = scores.copy()
    filled[~known] = max(0.0, mean)
    return filled


def _falling(values: Values) -> Scores:
    """(max − x) ÷ (max − min); 1 for all when they are equal."""
    array = np.asarray(values, dtype=np.float64)
    if array.size == 0:
        return array
    high, low = float(array.max()), float(array.min())
    if high <= low:
        return np.ones_like(array)
    return (high - array) / (high - low)


def queue(waiting: Values) -> Scores:
    """`queue`: min–max over the waiting requests."""
    return _falling(waiting)


def queue_depth(waiting: Values, scale: float = 8.0) -> Scores:
    """`queue-depth`: 1 ÷ (1 + waiting ÷ scale), by absolute depth, so that queues of 0 and 1 are nearly equal."""
    return 1.0 / (1.0 + np.asarray(waiting, dtype=np.float64) / scale)


def running(values: Values) -> Scores:
    """`running`: min–max over the running requests."""
    return _falling(values)


def kv(usage: Values) -> Scores:
    """`kv`: 1 − KV use."""
    return np.clip(1.0 - np.asarray(usage, dtype=np.float64), 0.0, 1.0)


def load_aware(waiting: Values, threshold: float) -> Scores:
    """`load-aware`: 0.5 without a queue, falling to 0 at `threshold`."""
    array = np.asarray(waiting, dtype=np.float64)
    return 0.5 * (1.0 - np.minimum(array, threshold) / threshold)


def lora_one(want: str, loaded: Collection[str], waiting: Collection[str], slots: int) -> float:
    """`lora` of one endpoint: resident 1; free slot 0.8; on its way 0.6; full 0."""
    if want in loaded:
        return 1.0
    if len(loaded) + len(waiting) < slots:
        return 0.8
    return 0.6 if want in waiting else 0.0


def prefix(matched: Values, total: int, length_weight: float = 0.0, length_scale: float = 8192.0) -> Scores:
    """`prefix`: matched share of the prompt, optionally blended with the square of matched length."""
    array = np.asarray(matched, dtype=np.float64)
    if total <= 0:
        return np.zeros_like(array)
    share = np.minimum(array / total, 1.0)
    if length_weight <= 0.0:
        return share
    length = np.minimum(1.0, array / length_scale) ** 2
    return (1.0 - length_weight) * share + length_weight * length


def active_request(counts: Values, idle: float, max_busy: float) -> Scores:
    """`active-request`: 1 up to `idle`, then (max − count) ÷ max · max_busy."""
    array = np.asarray(counts, dtype=np.float64)
    high = float(array.max()) if array.size else 0.0
    busy = (high - array) / high * max_busy if high > 0 else np.ones_like(array)
    return np.where(array <= idle, 1.0, busy)


def token_load(in_flight: Values, uncached: Values, threshold: float) -> Scores:
    """`token-load`: 1 − (tokens in flight + this request's uncached ones) ÷ threshold, at least 0."""
    total = np.asarray(in_flight, dtype=np.float64) + np.asarray(uncached, dtype=np.float64)
    return 1.0 - np.minimum(total, threshold) / threshold


def context_length_one(tokens: float, span: tuple[float, float] | None) -> float:
    """`context-length` of one endpoint by its labelled range: inside by narrowness and room; outside by distance."""
    if span is None:
        return 0.5
    low, high = span
    if high < low:
        return 0.0
    width = high - low
    if low <= tokens <= high:
        headroom = (high - tokens) / width if width > 0 else 0.0
        return 0.3 + 0.7 * (0.7 / (1.0 + width / 10_000.0) + 0.3 * headroom)
    distance = low - tokens if tokens < low else tokens - high
    return 0.3 / (1.0 + distance / 1000.0)


def session_affinity(count: int, pinned: int | None) -> Scores:
    """`session-affinity`: the pinned endpoint 1, all others 0."""
    scores = np.zeros(count)
    if pinned is not None:
        scores[pinned] = 1.0
    return scores


def no_hit_lru(any_hit: bool, last_used: Sequence[float | None]) -> Scores:
    """`no-hit-lru`: only when nobody has a prefix: never used first, then least recently used; else 0.5 for all."""
    count = len(last_used)
    if any_hit:
        return np.full(count, 0.5)
    if count <= 1:
        return np.ones(count)
    order = sorted(range(count), key=lambda i: (last_used[i] is not None, last_used[i] or 0.0))
    scores = np.empty(count)
    for rank, i in enumerate(order):
        scores[i] = 1.0 - rank / (count - 1)
    return scores


def least_latency(expected_s: Values) -> Scores:
    """`least-latency`: min–max over expected time to first token."""
    return _falling(expected_s)


def lmetric(uncached: Values, batch: Values) -> Scores:
    """`lmetric`: min–max over uncached work × (batch + 1)."""
    return _falling(np.asarray(uncached, dtype=np.float64) * (np.asarray(batch, dtype=np.float64) + 1.0))


def common_level(one: Locality, host: str, other: Locality, other_host: str) -> str:
    """The narrowest place that two endpoints share: host, rack, zone, region or none."""
    if host and host == other_host:
        return "host"
    if one.region != other.region:
        return "none"
    if one.zone and one.zone == other.zone:
        return "rack" if one.sub_zone and one.sub_zone == other.sub_zone else "zone"
    return "region" if one.region else "none"


def saturation(
    pods: Sequence[tuple[float, float, bool] | None], queue_threshold: float = 5.0, kv_threshold: float = 0.8
) -> float:
    """Mean over (waiting, KV use, stale) of max(waiting ÷ threshold, KV ÷ threshold); unknown, stale, empty: 1."""
    if not pods:
        return 1.0
    total = 0.0
    for pod in pods:
        if pod is None or pod[2]:
            total += 1.0
        else:
            total += max(pod[0] / queue_threshold, pod[1] / kv_threshold)
    return total / len(pods)


def reject_probability(saturated: float, power: float = 5.0, factor: float = 300.0) -> float:
    """Probability of refusing sheddable work: min(saturation^power · factor, 1)."""
    return float(min(max(0.0, saturated) ** power * factor, 1.0))
