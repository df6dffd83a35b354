"""The factors of the raw weight, column by column, in the order in which they are multiplied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from xds_control.policy.weights import Fairness, SlowStart, Waterfill
from xds_control.weights.combine import exponents, score
from xds_control.weights.curves import normalise, with_floor
from xds_control.weights.profiles import Form
from xds_control.weights.table import Bools, Column, Floats, fill
from xds_control.weights.waterfill import factors as fill_factors
from xds_control.weights.waterfill import horizon_arrivals

_LEAST_RESPONSE = 1e-3


@dataclass(slots=True)
class FactorColumn:
    """One factor over the pool. column: the signal behind it, None for none. normalised, exponent: of a curve."""

    name: str
    factor: Floats
    column: Column | None = None
    normalised: Floats | None = None
    exponent: float = 1.0


def waterfill_column(
    policy: Waterfill,
    columns: Mapping[str, Column],
    capacity: Floats,
    unit: Floats,
    slots: Floats,
    serving: Bools,
    service_s: float,
    update_s: float,
) -> FactorColumn:
    """Room for work under the common water level; endpoints whose load is unknown count as loaded like the rest.

    What is levelled is work per slot. Under shares by capacity a slow endpoint runs as many requests at once as a fast
    one with the same slots, each for longer: levelling work per speed would starve it. A request that waits
    counts by the time it will wait, so by 1 / `unit`, the capacity with a mean of 1.
    """
    running, waiting = columns["running"], columns["waiting"]
    factor = np.ones(len(capacity))
    if serving.any():
        has_running, has_waiting = running.confidence > 0.0, waiting.confidence > 0.0
        work = np.where(has_running, running.value, 0.0) + np.where(has_waiting, waiting.value / unit, 0.0)
        confidence = np.where(
            has_running & has_waiting,
            np.minimum(running.confidence, waiting.confidence),
            np.maximum(running.confidence, waiting.confidence),
        )
        confidence = np.where(serving, confidence, 0.0)
        known = confidence > 0.0
        if known.any():
            # A fading endpoint counts by its confidence; one whose work is unknown gets the mean factor of the rest.
            trust = confidence[known]
            room, queue = slots[known] * trust, work[known] * trust
            # What is in service is at most the slots. Counting it so keeps the answer monotone: less work at an
            # endpoint never costs it share.
            in_service = float(np.minimum(queue, room).sum())
            arrivals = horizon_arrivals(
                in_service,
                update_s,
                service_s,
                policy.horizon_service_times,
                float(room.sum()),
                policy.least_horizon_slots,
            )
            factor[known] = fill_factors(room, queue, arrivals, policy.floor, policy.ceiling)
            factor = np.where(serving, fill(factor, confidence, 1.0, confidence * capacity), 1.0)
    return FactorColumn("load", factor, columns["occupancy"])


def curve_columns(
    form: Form, columns: Mapping[str, Column], serving: Bools
) -> tuple[list[FactorColumn], list[FactorColumn]]:
    """(factors, terms): one factor a curve when they multiply, else one factor `response` and its terms."""
    found: list[FactorColumn] = []
    weights: list[float] = []
    trust: list[Floats] = []
    for curve in form.curves:
        column = columns[curve.signal]
        confidence = np.where(serving, column.confidence, 0.0)
        if not confidence.any():
            continue  # nobody knows it: the curve says nothing
        known = confidence > 0.0
        goodness = np.where(known, with_floor(curve, normalise(curve, np.where(known, column.value, np.nan))), 0.0)
        found.append(FactorColumn(curve.signal, goodness, column, goodness, curve.weight))
        weights.append(curve.weight)
        trust.append(confidence)
    if not found:
        return [], []
    if form.combiner in ("product", "geometric-mean"):
        for item, exponent, confidence in zip(found, exponents(form.combiner, weights), trust, strict=True):
            item.exponent = exponent
            item.factor = item.normalised = fill(item.factor, confidence, 1.0)
            if exponent != 1.0:
                item.factor = np.power(item.factor, exponent)
        return found, []
    return _scored(form, found, np.array(weights), np.stack(trust))


def _scored(
    form: Form, found: list[FactorColumn], weights: Floats, trust: Floats
) -> tuple[list[FactorColumn], list[FactorColumn]]:
    """One factor `response` and its terms, for the combiners that add up or rank."""
    goodness = np.stack([item.factor for item in found])
    own = weights[:, None] * trust
    knows = own.sum(axis=0) > 0.0
    response = np.zeros(len(knows))
    response[knows] = score(form.combiner, goodness[:, knows], own[:, knows])
    # One that knows nothing at all stands at the mean of the rest.
    mean = float(response[knows].mean())
    response[~knows] = mean
    goodness[:, ~knows], own[:, ~knows] = mean, weights[:, None]
    share = own / own.sum(axis=0)
    terms = []
    for item, good, part in zip(found, goodness, share, strict=True):
        terms.append(FactorColumn(item.name, good * part, item.column, good, float(part.mean())))
    return [FactorColumn("response", np.maximum(response, _LEAST_RESPONSE))], terms


def ramp_column(policy: SlowStart, age_s: Floats) -> FactorColumn:
    """Slow start: `least` at the beginning, 1 from the end of the window on."""
    if policy.window_s <= 0.0:
        return FactorColumn("ramp", np.ones(len(age_s)))
    t = np.clip(age_s / policy.window_s, 0.0, 1.0)
    return FactorColumn("ramp", np.maximum(policy.least, np.power(t, 1.0 / policy.aggression)))


def errors_column(columns: Mapping[str, Column], floor: float, serving: Bools) -> FactorColumn:
    """1 − error rate, not under the floor."""
    column = columns["error_rate"]
    good = np.where(column.confidence > 0.0, 1.0 - column.value, 1.0)
    confidence = np.where(serving, column.confidence, 0.0)
    return FactorColumn("errors", fill(np.maximum(good, floor), confidence, 1.0), column)


def fairness_column(policy: Fairness, rates: Sequence[float | None], due: Floats, serving: Bools) -> FactorColumn:
    """Damps endpoints that get far more than their due share, lifts starved ones. due: pushed weights, NaN = none."""
    n = len(due)
    factor = np.ones(n)
    rate = np.array([np.nan if r is None else r for r in rates], dtype=np.float64)
    known = serving & np.isfinite(rate) & np.isfinite(due) & (due > 0.0)
    if policy.enabled and int(known.sum()) >= 2:
        total = float(rate[known].sum())
        expected = due[known] / float(due[known].sum()) * total
        ratio = (rate[known] + 0.5) / (expected + 0.5)  # half a request per second keeps noise of rare ones out
        over = np.maximum(ratio / policy.band, 1.0)
        under = np.maximum(1.0 / (ratio * policy.band), 1.0)
        factor[known] = np.clip((under / over) ** policy.gain, 1.0 / policy.limit, policy.limit)
    return FactorColumn("fairness", factor)
