"""Water-filling (Dahlin): share the arrivals of the next horizon so that work per slot is level afterwards."""

from __future__ import annotations

import numpy as np

from xds_control.weights.table import Floats


def level(room: Floats, queue: Floats, arrivals: float) -> float:
    """The water level L with Σ max(0, L·room − queue) = arrivals. room > 0, queue ≥ 0, arrivals > 0, not empty."""
    ratio = queue / room
    order = np.argsort(ratio, kind="stable")
    levels = (arrivals + np.cumsum(queue[order])) / np.cumsum(room[order])
    # Endpoint k is under water when the level that includes it lies above its own ratio; that holds for a prefix.
    wet = int(np.count_nonzero(levels > ratio[order]))
    return float(levels[max(wet, 1) - 1])


def factors(room: Floats, queue: Floats, arrivals: float, floor: float, ceiling: float) -> Floats:
    """Space under the water level per room, 1 = as much as the pool's mean, bounded by floor and ceiling."""
    top = level(room, queue, arrivals)
    mean = arrivals / float(room.sum())
    space: Floats = (top - queue / room) / mean
    return np.clip(space, floor, ceiling)


def horizon_arrivals(
    running: float, update_s: float, service_s: float, service_times: float, slots: float, least_slots: float
) -> float:
    """Requests expected within max(update period, `service_times` service times), by Little's law from those that run.

    running: requests in service over the pool. slots: those that it could run. At least `least_slots` of
    the slots, so that on an idle pool a single request does not turn the weights over.
    """
    horizon = max(update_s / service_s, service_times)
    return max(running * horizon, slots * least_slots)
