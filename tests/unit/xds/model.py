"""A correct client, and the wire between it and the state machine, for property tests.

Messages wait in queues in both directions, so that answers cross requests as they do on a network.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from envoy.service.discovery.v3 import discovery_pb2

from tests.protocol.xds_world import make, read
from xds_control.xds import CDS, EDS, LDS, RDS, ResourceType, SnapshotCache
from xds_control.xds.encode import Encoder
from xds_control.xds.intake import open_stream, take_request
from xds_control.xds.stream import StreamState

TYPES = (CDS, EDS, LDS, RDS)


class World:
    """What the server should make clients hold: type → name → revision."""

    def __init__(self) -> None:
        self.cache = SnapshotCache()
        self.revisions: dict[str, dict[str, int]] = {t.type_url: {} for t in TYPES}
        self.cache.set("", {})

    def change(self, changes: dict[tuple[ResourceType, str], int | None]) -> None:
        put: dict[str, dict[str, Any]] = {}
        remove: dict[str, list[str]] = {}
        for (rtype, name), revision in changes.items():
            if revision is None:
                self.revisions[rtype.type_url].pop(name, None)
                remove.setdefault(rtype.type_url, []).append(name)
            else:
                self.revisions[rtype.type_url][name] = revision
                put.setdefault(rtype.type_url, {})[name] = make(rtype, name, revision)
        self.cache.update("", put, remove)


@dataclass
class Wish:
    """One type as the client wants it, and what it holds. tainted: names in responses it rejected as a whole."""

    rtype: ResourceType
    wildcard: bool = False
    names: set[str] = field(default_factory=set)
    named_ever: bool = False
    subscribed: bool = False
    nonce: str = ""
    version: str = ""
    held: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    tainted: bool = False
    epoch: int = 0  # counts the client's changes of mind

    def wants(self, name: str) -> bool:
        return self.wildcard or name in self.names


class Client:
    """One client on an aggregated stream. `sent` and `received` hold what is on its way."""

    def __init__(self, world: World, *, delta: bool) -> None:
        self.world = world
        self.delta = delta
        self.now = 0.0
        self.streams = 0
        self.wishes = {t.type_url: Wish(t) for t in TYPES}
        self.to_server: deque[tuple[Any, int]] = deque()  # request, epoch of the wish it states
        self.to_client: deque[tuple[Any, int]] = deque()  # response, epoch of the newest wish that it may answer
        self.known: dict[str, int] = {}  # newest epoch that the server has taken, by type
        self.encoder = Encoder()
        self.nonces: set[str] = set()
        self.rejected: dict[tuple[str, str], str] = {}  # (type, name) → version that must not come again
        self.state = self._new_stream()

    # -- the client's side ----------------------------------------------------------------------------------------

    def _new_stream(self) -> StreamState:
        self.streams += 1
        self.first = True
        return StreamState(delta=self.delta, prefix=f"{self.streams}.")

    def reconnect(self) -> None:
        """Everything on the way is lost. What is held stays, and is claimed on the new stream."""
        self.to_server.clear()
        self.to_client.clear()
        self.state = self._new_stream()
        self.rejected.clear()
        for wish in self.wishes.values():
            wish.nonce = ""
            wish.named_ever = False
            if wish.subscribed and (wish.wildcard or wish.names):
                if self.delta:
                    self._send_delta(wish, sub=self._delta_names(wish), initial=wish.versions)
                else:
                    self._send_sotw(wish)

    def subscribe(self, rtype: ResourceType, wildcard: bool, names: set[str]) -> None:
        """The client changes its mind about one type."""
        wish = self.wishes[rtype.type_url]
        wildcard = wildcard and rtype.legacy_wildcard
        if not wish.subscribed and not wildcard and not names:
            return  # saying nothing would mean everything
        before = (wish.wildcard, set(wish.names))
        first, wish.subscribed = not wish.subscribed, True
        wish.wildcard, wish.names = wildcard, set(names)
        wish.epoch += 1
        for name in [n for n in wish.held if not wish.wants(n)]:
            del wish.held[name]
            wish.versions.pop(name, None)
        for key in [k for k in self.rejected if k[0] == rtype.type_url]:
            if key[1] in names - before[1] or wildcard != before[0] or rtype.full_state:
                del self.rejected[key]  # asked for anew
        if not self.delta:
            self._send_sotw(wish)
            return
        was = self._delta_set(before[0], before[1])
        now = self._delta_set(wildcard, names)
        if first:
            self._send_delta(wish, sub=self._delta_names(wish))
            return
        self._send_delta(wish, sub=sorted(now - was), unsub=sorted(was - now))

    def _delta_set(self, wildcard: bool, names: set[str]) -> set[str]:
        return {*names, "*"} if wildcard else set(names)

    def _delta_names(self, wish: Wish) -> list[str]:
        return [] if wish.wildcard and not wish.names else sorted(self._delta_set(wish.wildcard, wish.names))

    def _send_sotw(self, wish: Wish, error: str | None = None) -> None:
        names = sorted(wish.names)
        if wish.wildcard and (wish.named_ever or names):
            names = ["*", *names]
        wish.named_ever = wish.named_ever or bool(names)
        message = discovery_pb2.DiscoveryRequest(
            type_url=wish.rtype.type_url, version_info=wish.version, response_nonce=wish.nonce, resource_names=names
        )
        self._post(message, error)

    def _send_delta(
        self,
        wish: Wish,
        sub: list[str] | None = None,
        unsub: list[str] | None = None,
        initial: dict[str, str] | None = None,
        nonce: str = "",
        error: str | None = None,
    ) -> None:
        message = discovery_pb2.DeltaDiscoveryRequest(
            type_url=wish.rtype.type_url,
            resource_names_subscribe=sub or [],
            resource_names_unsubscribe=unsub or [],
            initial_resource_versions=initial or {},
            response_nonce=nonce,
        )
        self._post(message, error)

    def _post(self, message: Any, error: str | None) -> None:
        if self.first:
            message.node.id = "n"
            self.first = False
        if error is not None:
            message.error_detail.message = error
        self.to_server.append((message, self.wishes[message.type_url].epoch))

    def read_one(self, reject: bool) -> None:
        """Takes one response and accepts or, as a whole, rejects it."""
        if not self.to_client:
            return
        raw, epoch = self.to_client.popleft()
        wish = self.wishes[raw.type_url]
        assert raw.nonce, "empty nonce"
        assert raw.nonce not in self.nonces, "a nonce came twice"
        self.nonces.add(raw.nonce)
        if self.delta:
            self._read_delta(wish, raw, reject, epoch == wish.epoch)
        else:
            self._read_sotw(wish, raw, reject, epoch == wish.epoch)

    def _read_sotw(self, wish: Wish, raw: Any, reject: bool, current: bool) -> None:
        wish.nonce = raw.nonce
        got = dict(read(wish.rtype, r.value) for r in raw.resources)
        assert len(got) == len(raw.resources), "a name came twice"
        key = (raw.type_url, "")
        assert self.rejected.get(key) != raw.version_info or not wish.rtype.full_state, "a rejected version came again"
        if reject:
            wish.tainted = True
            if current:  # otherwise a newer wish is owed its own answer
                self.rejected[key] = raw.version_info
            self._send_sotw(wish, "no")
            return
        self.rejected.pop(key, None)
        wish.version = raw.version_info
        wanted = {n: r for n, r in got.items() if wish.wants(n)}
        if wish.rtype.full_state:
            wish.held = wanted
            wish.tainted = False
        else:
            wish.held.update(wanted)
        self._send_sotw(wish)

    def _read_delta(self, wish: Wish, raw: Any, reject: bool, current: bool) -> None:
        names = [r.name for r in raw.resources]
        assert len(set(names)) == len(names), "a name came twice"
        assert not set(names) & set(raw.removed_resources), "a name is both there and removed"
        for resource in raw.resources:
            assert resource.version
            key = (raw.type_url, resource.name)
            assert self.rejected.get(key) != resource.version, "a rejected version came again"
            self.rejected.pop(key, None)
        if reject:
            wish.tainted = True
            if len(names) == 1 and current:
                self.rejected[(raw.type_url, names[0])] = raw.resources[0].version
            self._send_delta(wish, nonce=raw.nonce, error="no")
            return
        for resource in raw.resources:
            if wish.wants(resource.name):
                wish.held[resource.name] = read(wish.rtype, resource.resource.value)[1]
                wish.versions[resource.name] = resource.version
        for name in raw.removed_resources:
            wish.held.pop(name, None)
            wish.versions.pop(name, None)
        self._send_delta(wish, nonce=raw.nonce)

    # -- the server's side ----------------------------------------------------------------------------------------

    def deliver_one(self) -> None:
        """The server takes one request."""
        if not self.to_server:
            return
        message, epoch = self.to_server.popleft()
        if not self.state.opened:
            open_stream(self.state, message)
        take_request(self.state, message, self.now)
        self.known[message.type_url] = epoch

    def serve(self) -> None:
        """The server sends what it has to say."""
        self.state.view = self.world.cache.group("")
        while (reply := self.state.take(self.now)) is not None:
            kind = discovery_pb2.DeltaDiscoveryResponse if self.delta else discovery_pb2.DiscoveryResponse
            self.to_client.append((kind.FromString(self.encoder.encode(reply)), self.known[reply.type.type_url]))
        for subscription in self.state.subscriptions:
            waiting = [m for m, _ in self.to_client if m.type_url == subscription.type.type_url]
            assert len(waiting) <= 1, "two responses of one type are on their way"

    def exchange(self) -> None:
        """All that is on its way arrives, and is accepted."""
        while self.to_server:
            self.deliver_one()
        self.serve()
        while self.to_client:
            self.read_one(reject=False)

    def settle(self) -> None:
        """Everything is delivered, accepted and sent until nothing happens any more."""
        for _ in range(200):
            before = (len(self.nonces), len(self.to_server))
            while self.to_server:
                self.deliver_one()
                self.serve()
            self.serve()
            while self.to_client:
                self.read_one(reject=False)
            self.now += 0.1
            if before == (len(self.nonces), len(self.to_server)) and not self.to_client and self.now > self.quiet_at:
                return
            if before[0] != len(self.nonces):
                self.quiet_at = self.now + 5.0
        raise AssertionError("the two never come to rest")

    quiet_at = 0.0

    def check(self, *, exactly: bool) -> None:
        """What is held is what the world has of what is wanted; a type that rejected something only when `exactly`."""
        for type_url, wish in self.wishes.items():
            if wish.tainted and not exactly:
                continue
            world = {n: str(r) for n, r in self.world.revisions[type_url].items() if wish.wants(n)}
            if not wish.subscribed:
                world = {}
            held = wish.held
            if not self.delta and not wish.rtype.full_state:
                held = {n: r for n, r in held.items() if n in world}  # deletion cannot be said there
            assert held == world, f"{wish.rtype.short}: holds {held}, the world has {world}"
