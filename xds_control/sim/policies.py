"""Policies by name."""

from __future__ import annotations

from collections.abc import Callable

from xds_control.sim.ours import OurPolicy, Ours
from xds_control.sim.rivals import DynamoCost, EppDefault, SglangCacheAware, StickyUntilSaturated
from xds_control.sim.router import BoundedHashing, EnvoyAlone, JoinShortest, PowerOfTwo, Router

OWN = ("ours", "weights")
RIVALS: dict[str, Callable[[], Router]] = {
    "random": lambda: EnvoyAlone("random", "random"),
    "round_robin": lambda: EnvoyAlone("round_robin", "round_robin"),
    "least_request": lambda: EnvoyAlone("least_request", "least_request"),
    "p2c": PowerOfTwo,
    "jsq": JoinShortest,
    "bounded-hash": BoundedHashing,
    "epp-default": EppDefault,
    "sticky-until-saturated": StickyUntilSaturated,
    "sglang-cache-aware": SglangCacheAware,
    "dynamo-cost": DynamoCost,
}
POLICIES = (*OWN, *RIVALS)


def make(name: str, own: OurPolicy | None = None) -> Router:
    """A new router. Raises ValueError for unknown names."""
    if name == "ours":
        return Ours(own or OurPolicy())
    if name == "weights":
        return Ours(own or OurPolicy(), picks=False)
    found = RIVALS.get(name)
    if found is None:
        raise ValueError(f"unknown policy {name!r}; known are {', '.join(POLICIES)}")
    return found()
