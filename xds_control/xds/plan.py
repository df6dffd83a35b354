"""What a subscription decides to send, and what it knows about its client (pure)."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Final

from xds_control.xds.resource import Resource
from xds_control.xds.types import ResourceType

HEARTBEATS_PER_TTL: Final = 3
"""A TTL is renewed this often within its life, so one lost heartbeat does no harm."""

Fallback = Callable[[str], Resource | None]
"""Makes a stand-in for a missing name that a client waits for, or None."""


@dataclass(frozen=True, slots=True)
class Reply:
    """One response, before its nonce.

    version: state of the type (sent as version_info or system_version_info).
    resources: in the order sent. removed: names that are gone (delta).
    heartbeat: resources that are sent without body to renew their TTL.
    fresh: those of `resources` whose content this stream had not been sent before.
    wrap_version: version inside TTL wrappers (state of the world only), None = never wrap.
    """

    type: ResourceType
    delta: bool
    version: str
    resources: tuple[Resource, ...] = ()
    removed: tuple[str, ...] = ()
    heartbeat: tuple[Resource, ...] = ()
    fresh: tuple[Resource, ...] = ()
    wrap_version: str | None = None
    nonce: str = ""

    def key(self) -> Hashable:
        """Equal for replies whose serialised form, apart from the nonce, is equal."""
        return (
            self.type.type_url,
            self.delta,
            self.version,
            self.resources,
            self.removed,
            self.heartbeat,
            self.wrap_version,
        )


@dataclass(slots=True)
class Outstanding:
    """A response that the client has not answered yet."""

    nonce: str
    version: str
    names: tuple[tuple[str, str], ...]  # (name, version)
    removed: tuple[str, ...]
    sent_at: float


@dataclass(frozen=True, slots=True)
class Rejection:
    """One resource as the client rejected it. alone: its response held nothing else, so the fault is certain."""

    version: str
    message: str
    alone: bool


@dataclass(slots=True)
class Progress:
    """How far the client of one type has come. Times are monotonic seconds.

    rejected: resources whose newest sent version stood in a response that the client refused.
    last_error: the client's own message of its newest NACK, kept after it recovered.
    due_since: since when something waits to be sent.
    """

    version_sent: str = ""
    version_acked: str = ""
    responses: int = 0
    acks: int = 0
    nacks: int = 0
    nonce: str = ""
    outstanding: Outstanding | None = None
    rejected: dict[str, Rejection] = field(default_factory=dict)
    last_error: str = ""
    last_error_at: float | None = None
    due_since: float | None = None

    def sent(self, reply: Reply, now: float) -> None:
        """Notes a response before it is handed to the transport, so that no ACK can overtake the note."""
        self.version_sent = reply.version
        self.responses += 1
        self.nonce = reply.nonce
        names = tuple((r.name, r.version) for r in (*reply.resources, *reply.heartbeat))
        self.outstanding = Outstanding(reply.nonce, reply.version, names, reply.removed, now)
        self.due_since = None

    def answered(self, nonce: str, error: str | None, now: float) -> bool:
        """Takes an ACK (error None) or a NACK of the outstanding response; False when `nonce` is not its nonce."""
        out = self.outstanding
        if out is None or nonce != out.nonce:
            return False
        self.outstanding = None
        if error is None:
            self.acks += 1
            self.version_acked = out.version
            if self.rejected:
                for name, _ in out.names:
                    self.rejected.pop(name, None)
                for name in out.removed:
                    self.rejected.pop(name, None)
        else:
            self.nacks += 1
            self.last_error = error
            self.last_error_at = now
            alone = len(out.names) == 1
            for name, version in out.names:
                self.rejected[name] = Rejection(version, error, alone)
        return True

    def lag(self, now: float) -> float:
        """Seconds for which the client has been behind: an unanswered response or an unsent change; 0 = in step."""
        since = [t for t in (self.due_since, self.outstanding.sent_at if self.outstanding else None) if t is not None]
        return max(0.0, now - min(since)) if since else 0.0
