"""What is known about each connected client, as plain values for listings and metrics (pure)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from xds_control.xds.delta import DeltaSubscription
from xds_control.xds.sotw import SotwSubscription
from xds_control.xds.stream import StreamState


@dataclass(frozen=True, slots=True)
class TypeStatus:
    """One type on one stream.

    names: subscribed by name, sorted. version_sent, version_acked: state of the type, "" before the first.
    outstanding: a response is not answered yet. rejected: names whose newest version was refused.
    last_error: the client's own message of its newest NACK, kept after it recovered.
    lag_s: seconds for which the client has been behind, 0 = in step.
    """

    type: str
    type_url: str
    wildcard: bool
    names: tuple[str, ...]
    held: int
    version_sent: str
    version_acked: str
    outstanding: bool
    rejected: tuple[str, ...]
    last_error: str
    lag_s: float
    responses: int
    acks: int
    nacks: int


@dataclass(frozen=True, slots=True)
class ClientStatus:
    """One discovery stream.

    protocol: "sotw" or "delta". service: "ADS" or the abbreviation of a per-type service. age_s: since it opened.
    writing_s: seconds for which the client has not taken the bytes of a response, 0 = it keeps up.
    stuck: it has owed an answer, or taken no bytes, for longer than allowed.
    """

    id: str
    peer: str
    node_id: str
    cluster: str
    group: str
    user_agent: str
    protocol: str
    service: str
    age_s: float
    writing_s: float
    stuck: bool
    types: tuple[TypeStatus, ...]

    @property
    def lag_s(self) -> float:
        """The longest lag of its types."""
        return max((t.lag_s for t in self.types), default=0.0)


def type_statuses(state: StreamState, now: float) -> Iterator[TypeStatus]:
    """The types of one stream, in push order."""
    for subscription in state.subscriptions:
        yield _status(subscription, now)


def _status(subscription: SotwSubscription | DeltaSubscription, now: float) -> TypeStatus:
    progress = subscription.progress
    return TypeStatus(
        type=subscription.type.short,
        type_url=subscription.type.type_url,
        wildcard=subscription.wildcard,
        names=tuple(sorted(subscription.names)),
        held=len(subscription.sent),
        version_sent=progress.version_sent,
        version_acked=progress.version_acked,
        outstanding=progress.outstanding is not None,
        rejected=tuple(sorted(progress.rejected)),
        last_error=progress.last_error,
        lag_s=progress.lag(now),
        responses=progress.responses,
        acks=progress.acks,
        nacks=progress.nacks,
    )
