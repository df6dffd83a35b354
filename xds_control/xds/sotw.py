"""State-of-the-world subscription of one type on one stream (pure).

A request states the whole list of names and, by its nonce, accepts or rejects one response.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from sys import intern

from xds_control.xds.plan import Fallback, Reply
from xds_control.xds.resource import STATE_MODULUS, Resource
from xds_control.xds.subscription import UNCHECKED, Subscription
from xds_control.xds.types import ResourceType
from xds_control.xds.view import TypeView, state_version


class SotwSubscription(Subscription):
    """ttl_supported: the client takes resources wrapped with a TTL."""

    def __init__(self, rtype: ResourceType, *, ttl_supported: bool = False) -> None:
        super().__init__(rtype)
        self._named = False  # a name, `*` included, was sent at some time: empty no longer means everything
        self._ttl_supported = ttl_supported

    def request(self, names: Sequence[str], nonce: str, error: str | None, now: float) -> bool:
        """Takes one DiscoveryRequest; True when it answered the outstanding response.

        A request that quotes an older nonce, or none, after something was sent acknowledges nothing; its names
        count all the same, as they are the newest that the client has said.
        """
        self._checked = UNCHECKED
        answered = self.progress.answered(nonce, error, now)
        if answered and error is None and self.type.full_state:
            self.progress.rejected.clear()
        wanted = set(map(intern, names))  # one copy of a name for all clients
        wildcard = "*" in wanted
        wanted.discard("*")
        if names:
            self._named = True
        elif not self._named:
            wildcard = self.type.legacy_wildcard
        if wildcard and not self.wildcard:
            self.answer = True
        ended = self.wildcard and not wildcard
        dropped = self.names - wanted
        self.asked |= wanted - self.names
        self.wildcard = wildcard
        self.names = wanted
        if ended:
            self.answer = False
            self._forget_all_but_names()
        if not wildcard:
            self._forget(dropped)
        self.asked &= wanted
        return answered

    def _look(
        self, view: TypeView, nonce: str, client_only: bool, hold_removals: bool, fallback: Fallback
    ) -> Reply | None:
        if client_only and not (self.answer or self.asked):
            return None
        if self.type.full_state:
            return self._full(view, nonce, hold_removals)
        return self._partial(view, nonce, client_only, fallback)

    def _full(self, view: TypeView, nonce: str, hold_removals: bool) -> Reply | None:
        """Every subscribed resource, when any of them is owed: absence means deletion."""
        candidates = [*self._candidates(view), *self._retained]
        gone = {n for n in candidates if n in self.sent and n not in view.resources}
        retain: dict[str, Resource] = {}
        if hold_removals:
            for name in gone:
                old = view.removed(name)
                if old is not None and old.version == self.sent[name]:
                    retain[name] = old
        due = (
            self.answer
            or bool(self.asked)
            or len(retain) < len(gone)
            or any(self.wants(n) and self.sent.get(n) != r.version for n in candidates if (r := view.get(n)))
        )
        self.seen = view.generation
        self._retained = set(retain)
        if not due:
            return None
        kept: Iterable[Resource]
        if self.wildcard:
            kept = view.resources.values()
        else:
            kept = (r for n in sorted(self.names) if (r := view.get(n)) is not None)
        resources = (*kept, *(retain[n] for n in sorted(retain)))
        fresh = tuple(r for r in resources if self.sent.get(r.name) != r.version)
        state = view.state + sum(r.state for r in retain.values())
        if self.wildcard and not retain:
            self.sent = view.versions
            self._shared = True
        else:
            self.sent = {r.name: r.version for r in resources}
            self._shared = False
        return self._reply(nonce, state_version(state % STATE_MODULUS), resources, fresh)

    def _partial(self, view: TypeView, nonce: str, client_only: bool, fallback: Fallback) -> Reply | None:
        """Only what is owed: other names of these types stay as the client has them. Deletion cannot be said."""
        candidates = set(self.asked)
        if not client_only:
            candidates.update(self._candidates(view))
            self.seen = view.generation
        if self.answer:
            candidates.update(view.resources)
        resources: list[Resource] = []
        fresh: list[Resource] = []
        gone: list[str] = []
        for name in sorted(candidates):
            if not self.wants(name):
                continue
            resource = view.get(name)
            if resource is None:
                self.progress.rejected.pop(name, None)
                if name in self.asked:
                    resource = fallback(name)
                elif self.wildcard:
                    gone.append(name)
                if resource is None:
                    continue
            changed = self.sent.get(name) != resource.version
            if changed or name in self.asked or self.answer:
                resources.append(resource)
                if changed:
                    fresh.append(resource)
        self.answer = False
        self.asked.clear()
        if gone and any(n in self.sent for n in gone):
            for name in gone:
                self._own().pop(name, None)
        if not resources:
            return None
        self._note(view, fresh)
        return self._reply(nonce, view.version, tuple(resources), tuple(fresh))

    def _note(self, view: TypeView, fresh: Sequence[Resource]) -> None:
        if fresh:
            self._own().update((r.name, r.version) for r in fresh)

    def _reply(self, nonce: str, version: str, resources: tuple[Resource, ...], fresh: tuple[Resource, ...]) -> Reply:
        self.answer = False
        self.asked.clear()
        wrap = version if self._ttl_supported and any(r.ttl is not None for r in resources) else None
        return Reply(self.type, False, version, resources, (), (), fresh, wrap, nonce)

    def _heartbeat(self, view: TypeView, now: float, nonce: str) -> Reply | None:
        due = self.heartbeats.due(now)
        if not due or not self._ttl_supported:
            return None
        rejected = self.progress.rejected
        if self.type.full_state:
            # Without bodies a client would read the others' absence as deletion, so all is said again.
            if rejected:
                return None
            self.answer = True
            return self._full(view, nonce, hold_removals=bool(self._retained))
        version = self.progress.version_acked
        resources = tuple(
            r for n in due if n not in rejected and (r := view.get(n)) is not None and r.version == self.sent.get(n)
        )
        if not resources or not version:
            return None
        self.heartbeats.sent(resources, now)
        # A client takes a body-less resource as a heartbeat only if it carries the version it accepted last.
        return Reply(self.type, False, version, (), (), resources, (), version, nonce)
