"""Incremental subscription of one type on one stream (pure).

A request edits the subscription; what must be sent follows from each resource's own version.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from sys import intern

from xds_control.xds.names import canonical, glob_prefix
from xds_control.xds.plan import Fallback, Reply
from xds_control.xds.resource import Resource
from xds_control.xds.subscription import UNCHECKED, Subscription
from xds_control.xds.types import ResourceType
from xds_control.xds.view import TypeView


class DeltaSubscription(Subscription):
    """`sent` is what the client holds as far as we know: sent by us, or claimed by it on reconnecting."""

    delta = True

    def __init__(self, rtype: ResourceType) -> None:
        super().__init__(rtype)
        self._first = True
        self._globs: dict[str, str] = {}  # subscribed xdstp glob → the prefix it covers
        self._unheard: set[str] = set()  # removals in a rejected response: said again with the next one

    def request(
        self,
        subscribe: Sequence[str],
        unsubscribe: Sequence[str],
        initial: Mapping[str, str],
        nonce: str,
        error: str | None,
        now: float,
    ) -> bool:
        """Takes one DeltaDiscoveryRequest; True when it answered the outstanding response.

        The edits count whatever the nonce: they will not be repeated. Unsubscribing comes first, so that a name in
        both lists is subscribed to anew.
        """
        outstanding = self.progress.outstanding
        self._checked = UNCHECKED
        answered = self.progress.answered(nonce, error, now)
        if answered and error is not None and outstanding is not None:
            self._unheard.update(outstanding.removed)
        first, self._first = self._first, False
        dropped = [canonical(n) for n in unsubscribe]
        names = [intern(canonical(n)) for n in subscribe]  # one copy of a name for all clients
        had_wildcard = self.wildcard
        if "*" in dropped:
            self.wildcard = False
        dropped = [n for n in dropped if n in self.names]
        self.names.difference_update(dropped)
        globs = [n for n in dropped if self._globs.pop(n, None) is not None]
        if "*" in names or (first and not names and "*" not in unsubscribe and self.type.legacy_wildcard):
            if had_wildcard:
                self.asked.update(self.sent)
            self.wildcard = self.answer = True
            self.seen = -1
        for name in names:
            if name == "*":
                continue
            self.names.add(name)
            prefix = glob_prefix(name)
            if prefix is not None:
                self._globs[name] = prefix
            # Asking again for what was sent sends it again: the client may have dropped it.
            self.asked.add(name)
        self._leave(dropped, globs, had_wildcard and not self.wildcard)
        if first:
            for name, version in initial.items():
                name = intern(canonical(name))
                if self.wants(name):
                    self._own()[name] = intern(version)
                    # Compared by version, neither sent nor denied unseen.
                    self.asked.discard(name)
        return answered

    def wants(self, name: str) -> bool:
        if self.wildcard or name in self.names:
            return True
        return bool(self._globs) and any(name.startswith(p) for p in self._globs.values())

    def _leave(self, dropped: Sequence[str], globs: Sequence[str], wildcard_ended: bool) -> None:
        """Forgets what no wish covers any more."""
        if wildcard_ended:
            self.answer = False
        if wildcard_ended or globs:
            self._forget_all_but_names()
            self.asked = {n for n in self.asked if self.wants(n)}
            self.asked.difference_update(globs)
        for name in dropped:
            if name in globs:
                continue
            if self.wants(name):
                # A wildcard still covers it, or begins to: the client must be told which.
                self.asked.add(name)
            else:
                self._forget((name,))

    def _look(
        self, view: TypeView, nonce: str, client_only: bool, hold_removals: bool, fallback: Fallback
    ) -> Reply | None:
        candidates = set(self.asked)
        candidates |= self._retained
        if self.answer or not client_only:
            candidates.update(self._candidates(view))
            self.seen = view.generation
        asked = self.asked
        send: dict[str, Resource] = {}
        removed: list[str] = []
        retained: set[str] = set()
        for name in sorted(candidates):
            resource = view.resolve(name)
            if resource is None:
                if name in self._globs:
                    matches = self._matches(view, name)
                    send.update((r.name, r) for r in matches)
                    if not matches:
                        removed.append(name)
                elif name in asked:
                    removed.append(name)
                elif name in self.sent:
                    if hold_removals:
                        retained.add(name)
                    else:
                        removed.append(name)
            elif name in asked or (self._wants(resource) and self.sent.get(resource.name) != resource.version):
                send[resource.name] = resource
        self._retained = retained
        owed = self.answer
        self.answer = False
        self.asked = set()
        if not (send or removed or owed):
            return None
        if self._unheard:
            removed += [n for n in sorted(self._unheard) if n not in removed and view.resolve(n) is None]
            self._unheard.clear()
        resources = tuple(send[n] for n in sorted(send))
        fresh = tuple(r for r in resources if self.sent.get(r.name) != r.version)
        self._hold(view, fresh, removed)
        return Reply(self.type, True, view.version, resources, tuple(removed), (), fresh, None, nonce)

    def _wants(self, resource: Resource) -> bool:
        return self.wants(resource.name) or any(a in self.names for a in resource.aliases)

    def _matches(self, view: TypeView, glob: str) -> list[Resource]:
        prefix = self._globs[glob]
        return [r for n, r in view.resources.items() if n.startswith(prefix)]

    def _hold(self, view: TypeView, fresh: Sequence[Resource], removed: Sequence[str]) -> None:
        if not fresh and not any(n in self.sent for n in removed):
            return
        held = self._own()
        held.update((r.name, r.version) for r in fresh)
        for name in removed:
            held.pop(name, None)
            self.progress.rejected.pop(name, None)

    def _heartbeat(self, view: TypeView, now: float, nonce: str) -> Reply | None:
        rejected = self.progress.rejected
        resources = tuple(
            r
            for n in self.heartbeats.due(now)
            if n not in rejected and (r := view.get(n)) is not None and r.version == self.sent.get(n)
        )
        if not resources:
            return None
        self.heartbeats.sent(resources, now)
        return Reply(self.type, True, view.version, (), (), resources, (), None, nonce)
