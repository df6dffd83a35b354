"""What the decider needs of others: a reader of bodies, a picker, admission; and what these give back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from xds_control.extproc.decision import Decision, Hold, MetadataValue
from xds_control.extproc.request import RequestView
from xds_control.inspect.facts import RequestFacts
from xds_control.routing.explain import Record
from xds_control.routing.pick import Pick as Priced


class Inspector(Protocol):
    """Reads requests; see `xds_control.inspect`."""

    def inspect(self, path: str, headers: Mapping[str, str], body: bytes) -> RequestFacts:
        """The facts of one request. Never raises for what a client sent."""
        ...

    def rewrite_model(self, headers: Mapping[str, str], body: bytes, facts: RequestFacts, model: str) -> bytes | None:
        """The body, decoded, with another model name; None when that cannot be done."""
        ...


@dataclass(frozen=True, slots=True)
class Pick:
    """What the picker chose: endpoints in order of preference, and what else the engines must be told.

    matched_tokens: prompt tokens believed cached at the first one. headers: further request headers (prefill endpoint,
    data-parallel rank). scores: by address, for those who ask for them. metadata: further facts that come back with
    the outcome. priced: the picker's own answer, for explanations.
    """

    destinations: tuple[str, ...]
    matched_tokens: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    scores: Mapping[str, float] | None = None
    metadata: Mapping[str, MetadataValue] = field(default_factory=dict)
    priced: Priced | None = None


@dataclass(frozen=True, slots=True)
class Refusal:
    """A request is refused. reason: our stable code. peer_reason: its name among llm-d's, sent beside ours.

    body_code: the code in the answer's body where the API has a well-known one of its own.
    """

    status: int
    reason: str
    message: str
    retry_after_s: float | None = None
    peer_reason: str = ""
    body_code: str = ""

    @property
    def code(self) -> str:
        """The code in the answer's body."""
        return self.body_code or self.reason


Explain = Callable[[Decision, RequestView], "tuple[Pick | Refusal | None, Record | None]"]
"""What a picker would do, without doing it."""

Beside = Callable[[RequestView, float], "Callable[[Decision], None] | None"]
"""Called before a request is decided; what it gives is told the decision. None: not this request."""


class Picker(Protocol):
    """Names endpoints of a pool for a request; see `xds_control.routing.picker`."""

    def pick(
        self,
        decision: Decision,
        headers: Mapping[str, str],
        subset: tuple[str, ...] | None,
        now: float,
    ) -> Pick | Refusal | None:
        """A pick for `decision.facts` in `decision.pool`, a refusal, or None to leave the choice to Envoy's weights."""
        ...


class Admission(Protocol):
    """Lets requests in, holds them back or refuses them; see `xds_control.admission`."""

    def admit(self, decision: Decision, headers: Mapping[str, str], now: float) -> Refusal | Hold | None:
        """None lets the request in. A Hold keeps its answer until the edge calls `Decider.finish`."""
        ...
