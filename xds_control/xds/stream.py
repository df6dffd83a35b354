"""One discovery stream: its subscriptions and the order among types (pure).

Make before break: clusters, their endpoints, then listeners, then routes, and only then what is no longer needed.
Types that depend on others wait for these to be accepted, for a bounded time; what a client asks for itself never
waits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from xds_control.xds.delta import DeltaSubscription
from xds_control.xds.errors import StreamEnd
from xds_control.xds.plan import Reply
from xds_control.xds.refs import empty_assignment
from xds_control.xds.resource import Resource
from xds_control.xds.sotw import SotwSubscription
from xds_control.xds.types import CDS, EDS, LDS, RDS, ResourceType, resource_type
from xds_control.xds.view import GroupView

TTL_IN_SOTW: Final = frozenset(("xds.config.supports-resource-in-sotw", "xds.config.resource-in-sotw"))
"""Client feature, as the protocol text and as Envoy spell it: state-of-the-world resources may carry a TTL."""

_DEPENDENTS: Final = {CDS.type_url: EDS.type_url, LDS.type_url: RDS.type_url}
"""After a changed cluster or listener the client waits for these anew, and may do so without asking."""


@dataclass(frozen=True, slots=True)
class Limits:
    """order_wait_s: how long dependent types and removals wait for the types before them.
    max_names: subscribed names per stream. max_name_bytes: their length together, in characters.
    max_types: resource types per stream."""

    order_wait_s: float = 2.0
    max_names: int = 100_000
    max_name_bytes: int = 16 << 20
    max_types: int = 32


@dataclass(frozen=True, slots=True)
class Nack:
    """A client rejected a response: the version, the resources that it held, and the client's own message."""

    type: ResourceType
    version: str
    names: tuple[str, ...]
    message: str


class _Wait:
    """A wait that is given up after a while, and starts afresh once its reason has gone."""

    __slots__ = ("_expired", "_limit", "_since")

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._since: float | None = None
        self._expired = False

    def holds(self, reason: bool, now: float) -> bool:
        if not reason:
            self.reset()
            return False
        if self._since is None:
            self._since = now
        self._expired = self._expired or now >= self._since + self._limit
        return not self._expired

    def reset(self) -> None:
        """Nothing waits."""
        self._since = None
        self._expired = False

    def ends_at(self) -> float | None:
        """When it will be given up. It may have passed: what was not seen to expire must still be looked at."""
        return None if self._since is None or self._expired else self._since + self._limit


class StreamState:
    """Everything about one stream except the transport.

    delta: which of the two protocols it speaks. only: the type of a per-type service, None on ADS.
    prefix: begins every nonce; unlike for every stream, so that a nonce of another stream is not taken for ours.
    Feed it `sotw_request` or `delta_request` and set `view`; then call `take` until it returns None.
    """

    def __init__(
        self, *, delta: bool, only: ResourceType | None = None, prefix: str = "", limits: Limits | None = None
    ) -> None:
        self.delta = delta
        self.only = only
        self.view: GroupView | None = None
        self.opened = False
        self.limits = limits or Limits()
        self._ttl_supported = False
        self._prefix = prefix
        self._count = 0
        self._subscriptions: dict[str, SotwSubscription | DeltaSubscription] = {}
        self._ordered: list[SotwSubscription | DeltaSubscription] = []
        self._needed: set[str] = set()  # endpoints that changed clusters wait for
        self._make = _Wait(self.limits.order_wait_s)
        self._break = _Wait(self.limits.order_wait_s)

    # -- requests -------------------------------------------------------------------------------------------------

    def open(self, node_id: str, features: Sequence[str] = ()) -> None:
        """Takes the node of the first message. Raises StreamEnd when it has no id."""
        if not node_id:
            raise StreamEnd("INVALID_ARGUMENT", "the first message of a stream must carry node.id")
        self._ttl_supported = not TTL_IN_SOTW.isdisjoint(features)
        self.opened = True

    def type_of(self, type_url: str) -> ResourceType:
        """The type that a request is about. Raises StreamEnd when it names none, or not that of this service."""
        if self.only is not None:
            if type_url and type_url != self.only.type_url:
                raise StreamEnd("INVALID_ARGUMENT", f"type_url {type_url} on the service of {self.only.type_url}")
            return self.only
        if not type_url:
            raise StreamEnd("INVALID_ARGUMENT", "type_url is required on an aggregated stream")
        found = self._subscriptions.get(type_url)
        return found.type if found is not None else resource_type(type_url)

    def sotw_request(
        self, type_url: str, names: Sequence[str], nonce: str, error: str | None, now: float
    ) -> Nack | None:
        """Takes a DiscoveryRequest; returns the NACK that it was, if any. Raises StreamEnd."""
        rtype = self.type_of(type_url)
        subscription = self._subscription(rtype)
        assert isinstance(subscription, SotwSubscription)
        outstanding = subscription.progress.outstanding
        answered = subscription.request(names, nonce, error, now)
        self._check_names()
        if not answered or outstanding is None:
            return None
        return self._answered(rtype, outstanding.version, outstanding.names, outstanding.removed, error)

    def delta_request(
        self,
        type_url: str,
        subscribe: Sequence[str],
        unsubscribe: Sequence[str],
        initial: Mapping[str, str],
        nonce: str,
        error: str | None,
        now: float,
    ) -> Nack | None:
        """Takes a DeltaDiscoveryRequest; returns the NACK that it was, if any. Raises StreamEnd."""
        rtype = self.type_of(type_url)
        subscription = self._subscription(rtype)
        assert isinstance(subscription, DeltaSubscription)
        if len(initial) > self.limits.max_names:
            raise StreamEnd("RESOURCE_EXHAUSTED", f"more than {self.limits.max_names} initial resource versions")
        outstanding = subscription.progress.outstanding
        answered = subscription.request(subscribe, unsubscribe, initial, nonce, error, now)
        self._check_names()
        if not answered or outstanding is None:
            return None
        return self._answered(rtype, outstanding.version, outstanding.names, outstanding.removed, error)

    # -- responses ------------------------------------------------------------------------------------------------

    def take(self, now: float) -> Reply | None:
        """The next response to send, already noted as sent; None when nothing is due now."""
        view = self.view
        if view is None:
            return None
        ordered = len(self._ordered) > 1
        waits = holds = None
        for subscription in self._ordered:
            rtype = subscription.type
            type_view = view[rtype.type_url]
            client_only = hold = False
            if ordered and not subscription.idle(type_view):
                if rtype.rank > EDS.rank:
                    if waits is None and subscription.behind(type_view):
                        waits = self._make.holds(self._clusters_pending(view), now)
                        if not waits:
                            self._needed.clear()
                    client_only = waits or False
                else:
                    if holds is None:
                        holds = self._users_wait(view, now)
                    hold = holds
            reply = subscription.take(
                type_view,
                now,
                f"{self._prefix}{self._count + 1}",
                client_only=client_only,
                hold_removals=hold,
                fallback=self._stand_in if rtype is EDS and not self.delta else _none,
            )
            if reply is not None:
                self._count += 1
                self._sent(reply)
                return reply
        if waits is None:
            self._make.reset()
        if holds is None:
            self._break.reset()
        return None

    def wake_at(self) -> float | None:
        """When `take` should be called again though nothing happened; None = no such time."""
        times = [self._make.ends_at(), self._break.ends_at()]
        times += [s.wake_at() for s in self._ordered if s.progress.outstanding is None]
        return min((t for t in times if t is not None), default=None)

    def subscription(self, type_url: str) -> SotwSubscription | DeltaSubscription | None:
        """The subscription to one type, None when the stream has none."""
        return self._subscriptions.get(type_url)

    @property
    def subscriptions(self) -> Sequence[SotwSubscription | DeltaSubscription]:
        """In the order in which types are pushed."""
        return self._ordered

    # -- inside ---------------------------------------------------------------------------------------------------

    def _subscription(self, rtype: ResourceType) -> SotwSubscription | DeltaSubscription:
        found = self._subscriptions.get(rtype.type_url)
        if found is None:
            if len(self._subscriptions) >= self.limits.max_types:
                raise StreamEnd("RESOURCE_EXHAUSTED", f"more than {self.limits.max_types} resource types on one stream")
            if self.delta:
                found = DeltaSubscription(rtype)
            else:
                found = SotwSubscription(rtype, ttl_supported=self._ttl_supported)
            self._subscriptions[rtype.type_url] = found
            self._ordered = sorted(self._subscriptions.values(), key=lambda s: (s.type.rank, s.type.type_url))
        return found

    def _check_names(self) -> None:
        if sum(len(s.names) for s in self._ordered) > self.limits.max_names:
            raise StreamEnd("RESOURCE_EXHAUSTED", f"more than {self.limits.max_names} names on one stream")
        if sum(sum(map(len, s.names)) for s in self._ordered) > self.limits.max_name_bytes:
            raise StreamEnd("RESOURCE_EXHAUSTED", "the names of one stream are too long together")

    def _answered(
        self,
        rtype: ResourceType,
        version: str,
        names: tuple[tuple[str, str], ...],
        removed: tuple[str, ...],
        error: str | None,
    ) -> Nack | None:
        if rtype is EDS and self._needed:
            self._needed.difference_update(n for n, _ in names)
            self._needed.difference_update(removed)
        if error is None:
            return None
        if rtype is CDS:
            # What was rejected will not ask for its endpoints.
            self._needed.clear()
        return Nack(rtype, version, tuple(n for n, _ in names), error)

    def _sent(self, reply: Reply) -> None:
        dependent = self._subscriptions.get(_DEPENDENTS.get(reply.type.type_url, ""))
        if dependent is None:
            return
        for resource in reply.fresh:
            for name in resource.refs:
                dependent.resend(name)
                if reply.type is CDS:
                    self._needed.add(name)

    def _clusters_pending(self, view: GroupView) -> bool:
        """Whether new or changed clusters, or the endpoints they wait for, are still on their way."""
        clusters = self._subscriptions.get(CDS.type_url)
        if clusters is None:
            return False
        if clusters.progress.outstanding is not None or clusters.behind(view[CDS.type_url]):
            return True
        return bool(self._needed)

    def _users_wait(self, view: GroupView, now: float) -> bool:
        """Whether listeners, routes or others that may use clusters are still to change.

        What is not sent yet will be soon, for its own wait is bounded; only the client's answers may take for ever.
        """
        unanswered = unsent = False
        for subscription in self._ordered:
            if subscription.type.rank > EDS.rank:
                if subscription.progress.outstanding is not None:
                    unanswered = True
                elif subscription.behind(view[subscription.type.type_url]):
                    unsent = True
        return self._break.holds(unanswered and not unsent, now) or unsent

    def _stand_in(self, name: str) -> Resource | None:
        """An empty assignment for a cluster that exists but has none: unblocks its warming."""
        assert self.view is not None
        if any(name in r.refs for r in self._clusters_using(name)):
            return empty_assignment(name)
        return None

    def _clusters_using(self, name: str) -> Sequence[Resource]:
        assert self.view is not None
        clusters = self.view[CDS.type_url]
        same = clusters.get(name)
        return (same,) if same is not None and name in same.refs else tuple(clusters.resources.values())


def _none(name: str) -> Resource | None:
    return None
