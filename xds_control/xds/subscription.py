"""What state-of-the-world and delta subscriptions share: wishes, what was sent, and comparing it with the world (pure).

At most one response is outstanding. What changes meanwhile is not queued but found, in its newest form, when the
answer has come: a slow client costs one comparison, whatever happened while it was slow.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from xds_control.xds.heartbeat import Heartbeats
from xds_control.xds.plan import Fallback, Progress, Reply
from xds_control.xds.resource import Resource
from xds_control.xds.types import ResourceType
from xds_control.xds.view import TypeView

UNCHECKED: Final = (-1, False)


def no_fallback(name: str) -> Resource | None:
    """A missing name stays missing."""
    return None


class Subscription:
    """What one client wants of one type on one stream, and what it was sent.

    names: asked for by name (`*` apart, in `wildcard`). sent: name → version last put on the wire; a NACK does not
    change it, and so a rejected version is not repeated. asked: names owed to the client whether or not they changed.
    answer: a response is owed, even an empty one. seen: generation of the world that was compared last, -1 = none.
    """

    delta = False

    def __init__(self, rtype: ResourceType) -> None:
        self.type = rtype
        self.wildcard = False
        self.names: set[str] = set()
        self.sent: dict[str, str] = {}
        self.asked: set[str] = set()
        self.answer = False
        self.seen = -1
        self.progress = Progress()
        self.heartbeats = Heartbeats()
        self._shared = False  # `sent` is the world's own dict of versions: copy before changing it
        self._retained: set[str] = set()  # gone from the world, not yet from the client
        self._checked = UNCHECKED  # generation, result of `behind`; void once wishes or `sent` change

    def wants(self, name: str) -> bool:
        """Whether a resource of this name is subscribed to."""
        return self.wildcard or name in self.names

    def idle(self, view: TypeView) -> bool:
        """Whether a look at the world is needless."""
        return view.generation == self.seen and not (self.answer or self.asked or self._retained)

    def behind(self, view: TypeView) -> bool:
        """Whether the world holds something that this client wants and was not sent, removals apart."""
        if view.generation == self.seen:
            return False
        if self._checked[0] != view.generation:
            found = any(
                self.wants(n) and (r := view.get(n)) is not None and self.sent.get(n) != r.version
                for n in self._candidates(view)
            )
            self._checked = (view.generation, found)
        return self._checked[1]

    def take(
        self,
        view: TypeView,
        now: float,
        nonce: str,
        *,
        client_only: bool = False,
        hold_removals: bool = False,
        fallback: Fallback = no_fallback,
    ) -> Reply | None:
        """The next response, noted as sent; None when there is nothing to say or an answer is outstanding.

        client_only: send only what the client itself asked for, other types go first.
        hold_removals: keep for now what the world no longer has.
        fallback: stand-in for a name that the world does not have and the client waits for.
        """
        progress = self.progress
        if progress.outstanding is not None:
            self._note_lag(view, now)
            return None
        reply = None
        if not self.idle(view):
            reply = self._look(view, nonce, client_only, hold_removals, fallback)
        if reply is None:
            reply = self._heartbeat(view, now, nonce)
        if reply is None:
            self._note_lag(view, now)
        else:
            self._checked = UNCHECKED
            progress.sent(reply, now)
            self.heartbeats.sent(reply.resources, now)
            if reply.removed:
                self.heartbeats.forget(reply.removed)
            self._share(view)
        return reply

    def _note_lag(self, view: TypeView, now: float) -> None:
        """Since when the client has waited for something that may not be sent yet."""
        if not self.behind(view):
            self.progress.due_since = None
        elif self.progress.due_since is None:
            self.progress.due_since = now

    def resend(self, name: str) -> None:
        """Marks a name to be sent again although it did not change, unless the client is sure to reject it again."""
        rejected = self.progress.rejected.get(name)
        if self.wants(name) and not (rejected and rejected.alone and rejected.version == self.sent.get(name)):
            self.asked.add(name)

    def wake_at(self) -> float | None:
        """When time alone makes something due."""
        return self.heartbeats.next()

    # -- for the two kinds ----------------------------------------------------------------------------------------

    def _look(
        self, view: TypeView, nonce: str, client_only: bool, hold_removals: bool, fallback: Fallback
    ) -> Reply | None:
        raise NotImplementedError

    def _heartbeat(self, view: TypeView, now: float, nonce: str) -> Reply | None:
        raise NotImplementedError

    def _candidates(self, view: TypeView) -> Iterable[str]:
        """Names that may differ from what was sent."""
        changed = view.changed_since(self.seen)
        if changed is not None:
            return changed
        if self.wildcard:
            return [*view.resources, *(n for n in self.sent if n not in view.resources)]
        return self.names.union(self.sent)

    def _own(self) -> dict[str, str]:
        if self._shared:
            self.sent = dict(self.sent)
            self._shared = False
        return self.sent

    def _forget(self, names: Iterable[str]) -> None:
        """The client no longer wants these: asking again sends them again."""
        for name in names:
            if name in self.sent:
                self._own().pop(name)
            self.asked.discard(name)
            self._retained.discard(name)
            self.progress.rejected.pop(name, None)
            self.heartbeats.forget((name,))

    def _forget_all_but_names(self) -> None:
        """The wildcard has ended."""
        self._forget([n for n in self.sent if not self.wants(n)])

    def _share(self, view: TypeView) -> None:
        """One dict for all clients that hold exactly the world: an idle client then costs no memory per resource."""
        if not self._shared and len(self.sent) == len(view.resources) and self.sent == view.versions:
            self.sent = view.versions
            self._shared = True
