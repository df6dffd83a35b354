"""Weights between localities, and what an Envoy in one zone should see: its own zone first, with spill-over."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from xds_control.fleet.endpoint import Locality
from xds_control.policy.weights import LocalityWeights
from xds_control.weights.inputs import EndpointWeight, LocalityWeight

_SCALE = 10_000
_STEP = 0.1  # the share that stays local moves in such steps, so that it is not pushed with every breath


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


@dataclass(frozen=True, slots=True)
class Placed:
    """An endpoint with what preference for near ones needs. work: requests running and waiting, NaN = unknown.
    slots: requests it runs at once."""

    endpoint: EndpointWeight
    locality: Locality
    work: float = math.nan
    slots: float = math.nan


@dataclass(frozen=True, slots=True)
class LocalView:
    """What Envoys of one zone get. priorities: address → Envoy priority, without gaps. localities: weights for
    locality-weighted balancing. kept: share of their traffic (0..1) that stays in the zone while it is healthy. why: a
    sentence when it is under 1."""

    priorities: Mapping[str, int]
    localities: tuple[LocalityWeight, ...]
    kept: float
    why: str


def distance(origin: Locality, other: Locality) -> int:
    """0 in the same zone, 1 in the same region, 2 elsewhere. An origin without a zone is near to all of its region."""
    if origin.region != other.region:
        return 2
    if not origin.zone or origin.zone == other.zone:
        return 0
    return 1


def prefer_local(placed: Sequence[Placed], origin: Locality, policy: LocalityWeights) -> LocalView:
    """Near endpoints first.

    A zone that lacks capacity or is much busier than the pool keeps only a part of its traffic; the surplus
    goes to the others by their weights.
    """
    serving = [p for p in placed if p.endpoint.weight > 0 and p.endpoint.health != "removed"]
    first = [p for p in serving if p.endpoint.priority == 0 and p.endpoint.health == "healthy"]
    near = [p for p in first if distance(origin, p.locality) == 0]
    far = [p for p in first if distance(origin, p.locality) > 0]
    kept, why = _kept(placed, first, near, origin, policy) if near and far else (1.0, "")
    rank: dict[str, int] = {}
    for p in serving:
        far_away = distance(origin, p.locality)
        # Endpoints that spill come after all others, near ones first.
        base = 0 if p.endpoint.priority == 0 else 3
        rank[p.endpoint.address] = base + (0 if kept < 1.0 and base == 0 else far_away)
    levels = {value: level for level, value in enumerate(sorted(set(rank.values())))}
    priorities = {address: levels[value] for address, value in rank.items()}
    return LocalView(priorities, _weights(serving, priorities, origin, kept), kept, why)


def _kept(
    placed: Sequence[Placed],
    first: Sequence[Placed],
    near: Sequence[Placed],
    origin: Locality,
    policy: LocalityWeights,
) -> tuple[float, str]:
    all_near = sum(p.endpoint.capacity for p in placed if distance(origin, p.locality) == 0)
    in_service = sum(p.endpoint.capacity for p in near) / all_near if all_near > 0.0 else 1.0
    kept, why = 1.0, ""
    if in_service < policy.spill_below:
        kept = in_service / policy.spill_below
        why = f"{in_service:.0%} of the zone's capacity is in service".replace("%", " %")
    here, pool = _occupancy(near), _occupancy(first)
    if here > policy.spill_occupancy and pool > 0.0 and here > policy.spill_ratio * pool:
        busy = policy.spill_ratio * pool / here
        if busy < kept:
            kept = busy
            why = f"the zone is {here / pool:.1f} times as busy as the pool"
    kept = max(_STEP, math.floor(kept / _STEP + 1e-9) * _STEP)
    return (kept, why) if kept < 1.0 else (1.0, "")


def _occupancy(placed: Sequence[Placed]) -> float:
    known = [p for p in placed if math.isfinite(p.work) and math.isfinite(p.slots) and p.slots > 0.0]
    slots = sum(p.slots for p in known)
    return sum(p.work for p in known) / slots if slots > 0.0 else 0.0


def _weights(
    serving: Sequence[Placed], priorities: Mapping[str, int], origin: Locality, kept: float
) -> tuple[LocalityWeight, ...]:
    moved = [p.endpoint._replace(priority=priorities[p.endpoint.address]) for p in serving]
    plain = locality_weights([p.locality for p in serving], moved)
    if kept >= 1.0:
        return plain
    near = sum(w.weight for w in plain if w.priority == 0 and distance(origin, w.locality) == 0)
    far = sum(w.weight for w in plain if w.priority == 0 and distance(origin, w.locality) > 0)
    made = []
    for w in plain:
        weight = w.weight
        if w.priority == 0:
            part, total = (kept, near) if distance(origin, w.locality) == 0 else (1.0 - kept, far)
            weight = max(1, round(_SCALE * part * w.weight / total))
        made.append(w._replace(weight=weight))
    return tuple(made)
