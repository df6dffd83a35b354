"""Figures of a run: what users felt, and how the fleet was used."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from xds_control.sim.simulation import Run


@dataclass(frozen=True, slots=True)
class Figures:
    """Times in seconds. goodput: share of all requests answered within both targets; goodput_rps: the same a second.

    hit_ratio: cached ÷ prompt tokens. imbalance: busiest host's busy time ÷ mean. spread: mean over time of (max − min)
    requests inside. fallback: share that Envoy placed although a host was named. rejected: share refused (429).
    failed: share without a whole answer for other reasons. Requests that failed count as missed, not as fast.
    """

    policy: str
    workload: str
    requests: int
    ttft_mean: float
    ttft_p50: float
    ttft_p90: float
    ttft_p99: float
    tpot_p50: float
    tpot_p90: float
    e2e_p50: float
    goodput: float
    goodput_rps: float
    output_tps: float
    hit_ratio: float
    imbalance: float
    spread: float
    utilisation: float
    preemptions: int
    pushes: float
    moved_per_push: float
    fallback: float
    rejected: float
    failed: float
    retries: int
    duration_s: float


def quantile(values: Sequence[float], q: float) -> float:
    """By linear interpolation; NaN without values."""
    return float(np.quantile(np.asarray(values), q)) if len(values) else math.nan


def figures(run: Run, slo_ttft_s: float, slo_tpot_s: float, skip: float = 0.1) -> Figures:
    """Figures of a run without the first `skip` of its requests, in which caches and counters fill."""
    start = int(len(run.outcomes) * skip)
    counted = sorted(run.outcomes, key=lambda o: o.arrived)[start:]
    good = [o for o in counted if o.ok]
    ttft = [o.ttft for o in good]
    tpot = [o.tpot for o in good if o.request.output > 1]
    met = sum(o.ttft <= slo_ttft_s and o.tpot <= slo_tpot_s for o in good)
    span = max(1e-9, max((o.arrived for o in counted), default=0.0) - min((o.arrived for o in counted), default=0.0))
    whole = max(1e-9, max((o.done for o in counted), default=0.0) - min((o.arrived for o in counted), default=0.0))
    prompt = sum(o.request.prompt for o in good)
    total = max(1, len(counted))
    spreads = [max(inside) - min(inside) for _, inside in run.samples]
    busy = run.busy or [0.0]
    mean_busy = sum(busy) / len(busy)
    return Figures(
        run.policy,
        run.workload,
        len(counted),
        float(np.mean(ttft)) if ttft else math.nan,
        quantile(ttft, 0.5),
        quantile(ttft, 0.9),
        quantile(ttft, 0.99),
        quantile(tpot, 0.5),
        quantile(tpot, 0.9),
        quantile([o.done - o.arrived for o in good], 0.5),
        met / total,
        met / span,
        sum(o.request.output for o in good) / whole,
        sum(o.cached for o in good) / prompt if prompt else 0.0,
        max(busy) / mean_busy if mean_busy > 0 else 1.0,
        sum(spreads) / len(spreads) if spreads else 0.0,
        mean_busy,
        run.preemptions,
        run.extra.get("pushes", 0.0),
        run.extra.get("moved_per_push", 0.0),
        sum(o.fallback for o in counted) / total,
        sum(o.status == 429 for o in counted) / total,
        sum(not o.ok and o.status != 429 for o in counted) / total,
        sum(max(0, o.attempts - 1) for o in counted),
        run.duration_s,
    )
