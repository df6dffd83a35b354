"""What the weight engine takes in and gives out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from xds_control.fleet.endpoint import Endpoint, Locality
from xds_control.fleet.override import Override
from xds_control.fleet.rates import LearnedRates
from xds_control.fleet.readings import Readings
from xds_control.fleet.snapshot import State
from xds_control.weights.explain import Explanation

Health = Literal["healthy", "draining", "degraded", "removed"]


@dataclass(frozen=True, slots=True)
class EndpointInput:
    """One endpoint at one tick.

    state_since: monotonic seconds at which it got its state. ramp_since: when its slow start began;
    None = `state_since`, minus infinity = no ramp. learned: rates seen so far. override: operator's order.
    slots: requests it runs at once; None = the signal `max_running`, the learned figure or the policy's.
    request_rate: requests per second that it was sent, for fairness; None = unknown.
    model_missing: the model that the pool serves is not loaded there.
    """

    endpoint: Endpoint
    state: State
    state_since: float
    readings: Readings
    learned: LearnedRates | None = None
    override: Override | None = None
    ramp_since: float | None = None
    slots: float | None = None
    request_rate: float | None = None
    model_missing: bool = False


class LocalityWeight(NamedTuple):
    """Sum of the weights of one locality's endpoints at one priority; `weight` ≥ 1."""

    locality: Locality
    priority: int
    weight: int
    endpoints: int


class ExplanationSource(NamedTuple):
    """Makes explanations of one tick from its arrays."""

    explain: Callable[[int], Explanation]
    why: Callable[[int], str]


class EndpointWeight(NamedTuple):
    """What one endpoint gets.

    weight: integer for EDS; 0 = takes no traffic, and must not be sent as a weight. priority: 0 first, 1 = spill.
    health: healthy, draining (no new requests), degraded (only when the healthy are short) or removed (not in EDS).
    pickable: whether a picker may name it. gates: names of the gates that are closed. capacity: relative capacity used.
    `explanation` and `why` are made when they are asked for.
    """

    address: str
    weight: int
    priority: int
    health: Health
    pickable: bool
    gates: tuple[str, ...]
    capacity: float
    source: ExplanationSource
    row: int

    @property
    def explanation(self) -> Explanation:
        """Factor by factor, from capacity to the integer."""
        return self.source.explain(self.row)

    @property
    def why(self) -> str:
        """One sentence for people."""
        return self.source.why(self.row)

    def __repr__(self) -> str:
        return (
            f"EndpointWeight({self.address}, weight={self.weight}, priority={self.priority}, health={self.health}, "
            f"pickable={self.pickable}, gates={self.gates})"
        )


@dataclass(slots=True)
class PoolWeights:
    """Weights of one pool at one tick, endpoints sorted by address.

    changed: whether anything that Envoy or a picker sees differs from the last tick, so that a push is due.
    moved: share of the pool's traffic (0..1) that the change moves. reasons: why a push is due.
    """

    at: float
    endpoints: tuple[EndpointWeight, ...]
    localities: tuple[LocalityWeight, ...]
    changed: bool
    moved: float
    reasons: tuple[str, ...] = ()
    by_address: dict[str, EndpointWeight] = field(default_factory=dict)
