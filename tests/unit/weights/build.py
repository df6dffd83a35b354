"""Builders for weight tests: endpoints, readings and a clock-driven fleet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from xds_control.fleet.endpoint import Endpoint
from xds_control.fleet.readings import Reading
from xds_control.fleet.snapshot import State
from xds_control.policy.weights import Fairness, Gate, Gates, HalfLife, SlowStart, Stabilise, WeightsPolicy
from xds_control.weights import EndpointInput, PoolWeights, WeightEngine

LONG_AGO = -1e6


def endpoint(index: int, **fields: Any) -> Endpoint:
    """Endpoint number `index` of pool `p`; addresses sort like the numbers."""
    return Endpoint(f"10.0.{100 + index // 100}.{100 + index % 100}:8000", "p", **fields)


def item(
    index: int,
    now: float,
    signals: Mapping[str, float] | None = None,
    *,
    age: float = 0.0,
    state: State = State.READY,
    since: float = LONG_AGO,
    capacity: float | None = None,
    fields: Mapping[str, Any] | None = None,
    **inputs: Any,
) -> EndpointInput:
    """One input whose signals are `age` seconds old."""
    readings = {name: Reading(value, now - age, "test") for name, value in (signals or {}).items()}
    return EndpointInput(endpoint(index, capacity=capacity, **(fields or {})), state, since, readings, **inputs)


def bare(**changes: Any) -> WeightsPolicy:
    """A policy without memory or limits between the raw weight and the integer, to look at the formula itself."""
    settings: dict[str, Any] = {
        "half_life": HalfLife(worsen_s=0.0, recover_s=0.0),
        "slow_start": SlowStart(window_s=0.0),
        "fairness": Fairness(enabled=False),
        "stabilise": Stabilise(dead_band=0.0, max_ratio=1000.0, floor_share=0.0, max_step=100.0, push_jitter=0.0),
        "scale": 1_000_000,
    }
    settings.update(changes)
    return WeightsPolicy(**settings)


def fast() -> WeightsPolicy:
    """Short half-lives and pushes each 0.2 s, as a demonstration uses them."""
    return WeightsPolicy(half_life=HalfLife(worsen_s=0.1, recover_s=0.5), stabilise=Stabilise(push_interval_s=0.2))


def no_gates() -> Gates:
    """All gates off."""
    names = ("gpu_memory", "kv", "waiting", "slo_miss", "error_rate", "throttled", "asleep", "model_missing")
    default = Gates()
    return msgspec.structs.replace(default, **{name: Gate(enabled=False, enter=1.0, leave=1.0) for name in names})


def once(policy: WeightsPolicy, inputs: Iterable[EndpointInput], now: float = 0.0) -> PoolWeights:
    """The first tick of a new engine."""
    return WeightEngine(policy, pool="p").tick(list(inputs), now)


def weights(result: PoolWeights) -> list[int]:
    """Integers in address order."""
    return [e.weight for e in result.endpoints]


def shares(result: PoolWeights) -> list[float]:
    """Shares of traffic in address order, of those at priority 0."""
    total = sum(e.weight for e in result.endpoints if e.priority == 0)
    return [e.weight / total if e.priority == 0 else 0.0 for e in result.endpoints]
