"""The snapshot: the immutable, versioned result of one control tick. Processors, xDS and admin read only this."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from xds_control.fleet.endpoint import Endpoint
from xds_control.fleet.readings import ModelInfo, Readings


class State(enum.StrEnum):
    """Where an endpoint is in its life (design section 8)."""

    NEW = "new"
    PROBING = "probing"
    WARMING = "warming"
    READY = "ready"
    SUSPECT = "suspect"
    EJECTED = "ejected"
    DRAINING = "draining"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class EndpointSnapshot:
    """One endpoint as decided in this tick.

    weight: the integer that Envoy gets, 0 = takes no traffic by weight.
    health: healthy, draining (no new requests), degraded (only when the healthy are short) or removed (not listed).
    priority: Envoy priority level, 0 is served first; > 0 is spill.
    pickable: whether the picker may name it (lifecycle and gates allow it).
    gates: names of the gates that are closed now.
    why: one sentence for people.
    """

    endpoint: Endpoint
    state: State
    weight: int
    priority: int
    pickable: bool
    capacity: float
    readings: Readings
    info: ModelInfo
    gates: tuple[str, ...] = ()
    why: str = ""
    health: str = "healthy"


@dataclass(frozen=True, slots=True)
class PoolSnapshot:
    """A pool's endpoints, sorted by address."""

    name: str
    models: tuple[str, ...]
    endpoints: tuple[EndpointSnapshot, ...]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """version counts up by one each time anything in `pools` differs from the tick before.

    at: monotonic seconds of control when it was computed. epoch: changes when control restarts.
    """

    epoch: str
    version: int
    at: float
    pools: Mapping[str, PoolSnapshot]
    policy_version: str
