"""Weights between localities, and what an Envoy in one zone should see of the others."""

from __future__ import annotations

from collections.abc import Sequence

from xds_control.fleet.endpoint import Locality
from xds_control.weights.inputs import EndpointWeight, LocalityWeight


def locality_weights(localities: Sequence[Locality], endpoints: Sequence[EndpointWeight]) -> tuple[LocalityWeight, ...]:
    """Sum of weights per (priority, locality), in a fixed order. The two sequences run in parallel."""
    sums: dict[tuple[int, str, str, str], tuple[Locality, int, int]] = {}
    for locality, endpoint in zip(localities, endpoints, strict=True):
        if endpoint.weight <= 0 or endpoint.health == "removed":
            continue
        key = (endpoint.priority, locality.region, locality.zone, locality.sub_zone)
        _, weight, count = sums.get(key, (locality, 0, 0))
        sums[key] = (locality, weight + endpoint.weight, count + 1)
    return tuple(
        LocalityWeight(locality, key[0], weight, count) for key, (locality, weight, count) in sorted(sums.items())
    )
