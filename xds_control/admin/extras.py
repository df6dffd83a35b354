"""Clusters beside those of the policy in force, so that a push of pools fails no request (pure).

A new pool's cluster is with every Envoy before a processor may name it; a removed pool's stays until nobody does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from xds_control.xds.resources.world import World
from xds_control.xds.types import CDS, EDS


class Extras:
    """Clusters with their assignments, each until a time (monotonic seconds)."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[bytes, bytes, float]] = {}

    def keep(self, name: str, cluster: bytes, assignment: bytes, until: float) -> None:
        """Serves a cluster until `until`, or as long as the policy has it itself."""
        self._kept[name] = (cluster, assignment, until)

    def drop(self, names: Iterable[str]) -> None:
        """Serves them no longer."""
        for name in names:
            self._kept.pop(name, None)

    def added_to(self, world: World, now: float) -> World:
        """The world with the clusters that it lacks."""
        for name in [name for name, (_c, _a, until) in self._kept.items() if now >= until]:
            del self._kept[name]
        lacking = {name: kept for name, kept in self._kept.items() if name not in world.get(CDS.type_url, {})}
        if not lacking:
            return world
        clusters = {name: cluster for name, (cluster, _a, _u) in lacking.items()}
        assignments = {name: assignment for name, (_c, assignment, _u) in lacking.items()}
        return {
            **world,
            CDS.type_url: {**world.get(CDS.type_url, {}), **clusters},
            EDS.type_url: {**world.get(EDS.type_url, {}), **assignments},
        }

    def due(self, now: float) -> bool:
        """Whether something kept is over its time."""
        return any(now >= until for _c, _a, until in self._kept.values())

    def __len__(self) -> int:
        return len(self._kept)


def pair(world: Mapping[str, Mapping[str, bytes]], name: str) -> tuple[bytes, bytes] | None:
    """(cluster, assignment) of a pool in a world."""
    cluster, assignment = world.get(CDS.type_url, {}).get(name), world.get(EDS.type_url, {}).get(name)
    return (cluster, assignment) if cluster is not None and assignment is not None else None
