"""Weights: from signals to the integers that Envoy balances by. Pure, deterministic, explained."""

from xds_control.weights.engine import WeightEngine
from xds_control.weights.explain import Explanation, Factor, Stage
from xds_control.weights.inputs import EndpointInput, EndpointWeight, LocalityWeight, PoolWeights
from xds_control.weights.profiles import warnings

__all__ = [
    "EndpointInput",
    "EndpointWeight",
    "Explanation",
    "Factor",
    "LocalityWeight",
    "PoolWeights",
    "Stage",
    "WeightEngine",
    "warnings",
]
