"""The types of an endpoint's life: events, actions, views, and what the state machine remembers of each endpoint."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from xds_control.fleet.endpoint import Endpoint
from xds_control.fleet.faults import Faults
from xds_control.fleet.override import Override
from xds_control.fleet.snapshot import State

ActionKind = Literal["probe", "warmup", "calibrate"]
NOT_SERVING = frozenset({State.NEW, State.PROBING, State.WARMING, State.EJECTED})


@dataclass(frozen=True, slots=True)
class Event:
    """A transition and its reason. Both states are the same when a rule wanted one and was held back."""

    address: str
    from_state: State
    to_state: State
    at: float
    reason: str


@dataclass(frozen=True, slots=True)
class Action:
    """Something the edge should do for an endpoint and report back (`on_probe`, `on_warmup`, `on_calibrated`).

    probe: see whether it answers at all. warmup: send `prompt`, at most `max_tokens` of answer, within `timeout_s`.
    calibrate: run the standard load.
    """

    kind: ActionKind
    address: str
    prompt: str = ""
    max_tokens: int = 0
    timeout_s: float = 5.0


@dataclass(frozen=True, slots=True)
class LifeView:
    """One endpoint's life as others may see it.

    ramp_since: start of the slow start, minus infinity for none. ejections: how many count now.
    until: when the present back-off or drain ends. held: reason of an ejection that the pool's guard holds back."""

    address: str
    state: State
    since: float
    ramp_since: float
    reason: str
    ejections: int
    until: float | None
    override: Override | None
    held: str


@dataclass(slots=True)
class Life:
    """The memory of one endpoint's life; only `Lifecycle` changes it."""

    endpoint: Endpoint
    state: State
    since: float
    reason: str
    trusted: bool
    ramp_since: float = -math.inf
    last_seen: float = -math.inf
    faults: Faults = field(default_factory=Faults)
    failures: int = 0
    refused: int = 0
    failing_since: float = math.inf
    good_signs: int = 0
    good_answers: int = 0
    bad_answers: int = 0
    prompt: int = 0
    ejections: int = 0
    until: float | None = None
    forgiven_at: float = -math.inf
    in_flight: int | None = None
    asked: ActionKind | None = None
    asked_at: float = -math.inf
    next_ask: float = -math.inf
    ask_interval: float = 0.0
    calibrated: bool = False
    held: str = ""
    listed: bool = True
    gpu_problem: str = ""
