"""One stream's order and waits, what a NACK means for what comes later, heartbeats."""

from __future__ import annotations

from typing import Any

import pytest
from envoy.service.discovery.v3 import discovery_pb2

from tests.protocol.xds_world import make
from xds_control.xds import CDS, EDS, LDS, RDS, ResourceType, SnapshotCache, StreamEnd, Wrapped
from xds_control.xds.encode import Encoder
from xds_control.xds.plan import Reply
from xds_control.xds.stream import TTL_IN_SOTW, Limits, StreamState

WAIT = 2.0


class Peer:
    """A stream with a client that answers when told to."""

    def __init__(self, *, delta: bool, features: tuple[str, ...] = (), **world: dict[str, int]) -> None:
        self.cache = SnapshotCache()
        self.state = StreamState(delta=delta, prefix="n", limits=Limits(order_wait_s=WAIT))
        self.state.open("node", features)
        self.delta = delta
        self.now = 0.0
        self.names: dict[str, list[str]] = {}
        self.change(None, **world)

    def change(self, remove: dict[ResourceType, list[str]] | None = None, **put: dict[str, int]) -> None:
        types = {t.short: t for t in (CDS, EDS, LDS, RDS)}
        resources: dict[str, dict[str, Any]] = {}
        for short, revisions in put.items():
            rtype = types[short.upper()]
            resources[rtype.type_url] = {n: make(rtype, n, r) for n, r in revisions.items()}
        self.cache.update("", resources, {t.type_url: n for t, n in (remove or {}).items()})
        self.state.view = self.cache.group("")

    def ask(self, rtype: ResourceType, *names: str) -> None:
        self.names[rtype.type_url] = list(names)
        if self.delta:
            self.state.delta_request(rtype.type_url, names, (), {}, "", None, self.now)
        else:
            self.state.sotw_request(rtype.type_url, names, "", None, self.now)

    def answer(self, reply: Reply, error: str | None = None) -> Any:
        url = reply.type.type_url
        if self.delta:
            return self.state.delta_request(url, (), (), {}, reply.nonce, error, self.now)
        return self.state.sotw_request(url, self.names[url], reply.nonce, error, self.now)

    def take(self) -> Reply:
        reply = self.state.take(self.now)
        assert reply is not None
        return reply

    def quiet(self) -> bool:
        return self.state.take(self.now) is None

    def settle(self) -> None:
        while (reply := self.state.take(self.now)) is not None:
            self.answer(reply)


def said(reply: Reply) -> tuple[str, list[str], list[str]]:
    return reply.type.short, [r.name for r in reply.resources], list(reply.removed)


both = pytest.mark.parametrize("delta", [False, True], ids=["sotw", "delta"])


def full(delta: bool) -> Peer:
    peer = Peer(delta=delta, cds={"a": 1}, eds={"a": 1}, lds={"l": 1}, rds={"r": 1})
    peer.ask(CDS)
    peer.ask(EDS, "a")
    peer.ask(LDS)
    peer.ask(RDS, "r")
    peer.settle()
    return peer


@both
def test_routes_wait_until_new_clusters_and_their_endpoints_are_accepted(delta: bool) -> None:
    peer = full(delta)
    peer.change(cds={"b": 1}, eds={"b": 1}, rds={"r": 2})
    clusters = peer.take()
    assert clusters.type == CDS
    assert peer.quiet(), "the route waits"
    peer.answer(clusters)
    assert peer.quiet(), "the client has not asked for the endpoints yet"
    peer.ask(EDS, "a", "b") if not delta else peer.ask(EDS, "b")
    endpoints = peer.take()
    assert said(endpoints)[:2] == ("EDS", ["b"])
    assert peer.quiet(), "the endpoints are not accepted yet"
    peer.answer(endpoints)
    assert said(peer.take())[:2] == ("RDS", ["r"])


@both
def test_the_wait_is_bounded(delta: bool) -> None:
    peer = full(delta)
    peer.now = 100.0
    peer.change(cds={"b": 1}, eds={"b": 1}, rds={"r": 2})
    peer.answer(peer.take())
    assert peer.quiet()
    assert peer.state.wake_at() == 100.0 + WAIT
    peer.now = 100.0 + WAIT
    routes = peer.take()
    assert routes.type == RDS
    peer.answer(routes)
    # What was given up once is not waited for again.
    peer.now = 200.0
    peer.change(rds={"r": 3})
    peer.settle()
    peer.change(rds={"r": 4})
    assert peer.take().type == RDS


@both
def test_weights_never_wait(delta: bool) -> None:
    peer = full(delta)
    peer.change(cds={"a": 2})
    assert peer.take().type == CDS
    resent = peer.take()
    assert resent.type == EDS, "a changed cluster gets its endpoints again"
    peer.answer(resent)
    peer.change(eds={"a": 2})
    assert said(peer.take())[:2] == ("EDS", ["a"]), "though the clusters are not accepted yet"


@both
def test_what_the_client_asks_for_never_waits(delta: bool) -> None:
    peer = full(delta)
    peer.change(cds={"b": 1}, eds={"b": 1}, rds={"r": 2, "s": 1})
    peer.take()
    peer.ask(RDS, "s") if delta else peer.ask(RDS, "r", "s")
    assert said(peer.take())[1] == ["s"]


@both
def test_removals_come_last_and_wait_for_the_routes(delta: bool) -> None:
    peer = full(delta)
    peer.change(cds={"b": 1}, rds={"r": 2}, remove={CDS: ["a"], EDS: ["a"]})
    clusters = peer.take()
    assert said(clusters) == ("CDS", ["b"] if delta else ["b", "a"], [])
    version = clusters.version
    peer.answer(clusters)
    assert peer.quiet()
    peer.now += WAIT  # the client never asks for the endpoints of b
    routes = peer.take()
    assert routes.type == RDS, "the order holds though the wait was given up"
    assert peer.quiet(), "the route is not accepted yet"
    peer.answer(routes)
    last = peer.take()
    assert said(last) == ("CDS", [] if delta else ["b"], ["a"] if delta else [])
    assert delta or last.version != version
    peer.answer(last)
    if delta:
        assert said(peer.take()) == ("EDS", [], ["a"])
    assert peer.quiet()
    assert peer.state.wake_at() is None


@both
def test_a_client_that_never_accepts_the_route_loses_the_cluster_in_the_end(delta: bool) -> None:
    peer = full(delta)
    peer.change(rds={"r": 2}, remove={CDS: ["a"]})
    assert peer.take().type == RDS
    assert peer.quiet()
    assert peer.state.wake_at() == WAIT
    peer.now = WAIT
    assert peer.take().type == CDS
    assert peer.state.wake_at() is None


@both
def test_a_retained_cluster_that_returns_is_no_removal(delta: bool) -> None:
    peer = full(delta)
    peer.change(rds={"r": 2}, remove={CDS: ["a"]})
    routes = peer.take()
    peer.change(cds={"a": 1})
    peer.answer(routes)
    assert peer.quiet()


@both
def test_waits_that_become_void_leave_no_timer(delta: bool) -> None:
    peer = full(delta)
    peer.change(cds={"b": 1}, rds={"r": 2})
    peer.take()
    assert peer.quiet()
    assert peer.state.wake_at() is not None
    peer.change(rds={"r": 1})
    assert peer.quiet()
    assert peer.state.wake_at() is None


def test_removals_in_a_rejected_delta_are_said_again_with_the_next() -> None:
    peer = Peer(delta=True, cds={"a": 1, "b": 1})
    peer.ask(CDS)
    peer.settle()
    peer.change(cds={"b": 2}, remove={CDS: ["a"]})
    nack = peer.answer(peer.take(), "no")
    assert (nack.names, nack.message) == (("b",), "no")
    assert peer.quiet()
    peer.change(cds={"b": 3})
    assert said(peer.take()) == ("CDS", ["b"], ["a"])


@both
def test_a_certain_culprit_is_not_sent_again_after_its_cluster_a_suspect_is(delta: bool) -> None:
    peer = Peer(delta=delta, cds={"a": 1, "b": 1}, eds={"a": 1, "b": 1})
    peer.ask(CDS)
    peer.ask(EDS, "a", "b")
    peer.settle()
    peer.change(eds={"a": 2})
    peer.answer(peer.take(), "bad")
    peer.change(cds={"a": 2})
    peer.answer(peer.take())
    assert peer.quiet(), "a@2 alone was rejected: it would be again"
    peer.change(eds={"a": 3, "b": 3})
    peer.answer(peer.take(), "one of them is bad")
    peer.change(cds={"b": 2})
    peer.answer(peer.take())
    assert said(peer.take())[1] == ["b"], "it may have been the other"


def test_a_listener_that_changed_gets_its_routes_again() -> None:
    from tests.envoy.xds_harness import listener, routes

    peer = Peer(delta=False)
    peer.cache.set("", {LDS.type_url: {"l": listener("l", 80, "r")}, RDS.type_url: {"r": routes("r", "c")}})
    peer.state.view = peer.cache.group("")
    peer.ask(LDS)
    peer.settle()
    peer.ask(RDS, "r")
    peer.settle()
    peer.cache.update("", {LDS.type_url: {"l": listener("l", 81, "r")}})
    peer.state.view = peer.cache.group("")
    assert peer.take().type == LDS
    assert said(peer.take())[:2] == ("RDS", ["r"])


def test_lag_counts_unsent_changes_and_unanswered_responses() -> None:
    peer = Peer(delta=True, eds={"a": 1})
    peer.ask(EDS, "a")
    first = peer.take()
    (subscription,) = peer.state.subscriptions
    peer.now = 3.0
    peer.change(eds={"a": 2})
    assert peer.quiet()
    peer.now = 5.0
    assert subscription.progress.lag(peer.now) == 5.0
    peer.answer(first)
    second = peer.take()
    assert subscription.progress.lag(6.0) == 1.0
    peer.answer(second)
    assert subscription.progress.lag(60.0) == 0.0


def test_nonces_never_repeat_and_begin_with_the_streams_own_prefix() -> None:
    peer = full(True)
    seen = set()
    for revision in range(2, 50):
        peer.change(eds={"a": revision})
        reply = peer.take()
        seen.add(reply.nonce)
        peer.answer(reply)
    assert len(seen) == 48
    assert all(n.startswith("n") for n in seen)


# -- heartbeats ---------------------------------------------------------------------------------------------------


def lease(peer: Peer, **ttls: float | None) -> None:
    resources = {n: Wrapped(make(EDS, n, 1), ttl=ttl) for n, ttl in ttls.items()}
    peer.cache.update("", {EDS.type_url: resources})
    peer.state.view = peer.cache.group("")


def test_delta_heartbeats_renew_before_the_end_without_bodies() -> None:
    peer = Peer(delta=True)
    lease(peer, a=9.0, b=None)
    peer.ask(EDS, "a", "b")
    first = peer.take()
    assert peer.state.wake_at() is None, "an answer is outstanding"
    peer.answer(first)
    for turn in (3.0, 6.0, 9.0):
        assert peer.state.wake_at() == turn
        peer.now = turn - 0.01
        assert peer.quiet()
        peer.now = turn
        beat = peer.take()
        assert ([r.name for r in beat.heartbeat], beat.resources) == (["a"], ())
        raw = discovery_pb2.DeltaDiscoveryResponse.FromString(Encoder().encode(beat))
        assert raw.resources[0].ttl.seconds == 9
        assert raw.resources[0].version == first.resources[0].version
        assert not raw.resources[0].HasField("resource")
        peer.answer(beat)
    peer.cache.update("", remove={EDS.type_url: ["a"]})
    peer.state.view = peer.cache.group("")
    peer.settle()
    assert peer.state.wake_at() is None


@pytest.mark.parametrize("feature", sorted(TTL_IN_SOTW))
def test_sotw_heartbeats_carry_the_version_that_was_accepted(feature: str) -> None:
    peer = Peer(delta=False, features=(feature,))
    lease(peer, a=3.0)
    peer.ask(EDS, "a")
    first = peer.take()
    raw = discovery_pb2.DiscoveryResponse.FromString(Encoder().encode(first))
    wrapped = discovery_pb2.Resource()
    assert raw.resources[0].Unpack(wrapped)
    assert (wrapped.name, wrapped.ttl.seconds, wrapped.version) == ("a", 3, first.version)
    assert wrapped.resource.type_url == EDS.type_url
    peer.answer(first)
    peer.now = 1.0
    beat = peer.take()
    raw = discovery_pb2.DiscoveryResponse.FromString(Encoder().encode(beat))
    wrapped = discovery_pb2.Resource()
    assert raw.resources[0].Unpack(wrapped)
    assert (wrapped.name, wrapped.version, raw.version_info) == ("a", first.version, first.version)
    assert not wrapped.HasField("resource")


def test_sotw_clients_that_do_not_know_leases_get_plain_resources() -> None:
    peer = Peer(delta=False)
    lease(peer, a=3.0)
    peer.ask(EDS, "a")
    first = peer.take()
    raw = discovery_pb2.DiscoveryResponse.FromString(Encoder().encode(first))
    assert raw.resources[0].type_url == EDS.type_url
    peer.answer(first)
    peer.now = 100.0
    assert peer.quiet()


@both
def test_a_rejected_lease_is_not_renewed(delta: bool) -> None:
    peer = Peer(delta=delta, features=tuple(TTL_IN_SOTW))
    lease(peer, a=3.0)
    peer.ask(EDS, "a")
    peer.answer(peer.take(), "no")
    peer.now = 10.0
    assert peer.quiet()


# -- odd requests -------------------------------------------------------------------------------------------------


def test_a_stream_without_node_type_or_bounds_ends() -> None:
    with pytest.raises(StreamEnd, match=r"node\.id") as end:
        StreamState(delta=True).open("")
    assert end.value.status == "INVALID_ARGUMENT"
    state = StreamState(delta=False, only=EDS, limits=Limits(max_names=3))
    state.open("n")
    with pytest.raises(StreamEnd, match="on the service of"):
        state.sotw_request(CDS.type_url, (), "", None, 0.0)
    state.sotw_request("", ("a", "b", "c"), "", None, 0.0)
    with pytest.raises(StreamEnd, match="more than 3 names"):
        state.sotw_request("", ("a", "b", "c", "d"), "", None, 0.0)


def test_a_subscription_by_alias_gets_the_resource() -> None:
    peer = Peer(delta=True)
    put = {EDS.type_url: {"a": Wrapped(make(EDS, "a", 1), aliases=("other", "third"))}}
    peer.cache.update("", put)
    peer.state.view = peer.cache.group("")
    peer.ask(EDS, "other")
    reply = peer.take()
    assert said(reply) == ("EDS", ["a"], [])
    raw = discovery_pb2.DeltaDiscoveryResponse.FromString(Encoder().encode(reply))
    assert list(raw.resources[0].aliases) == ["other", "third"]
    peer.answer(reply)
    peer.cache.update("", {EDS.type_url: {"a": Wrapped(make(EDS, "a", 2), aliases=("other",))}})
    peer.state.view = peer.cache.group("")
    reply = peer.take()
    assert said(reply) == ("EDS", ["a"], [])
    peer.answer(reply)
    peer.cache.update("", remove={EDS.type_url: ["a"]})
    peer.state.view = peer.cache.group("")
    assert said(peer.take()) == ("EDS", [], ["a"])


def test_an_idle_client_that_holds_the_world_costs_no_memory_per_resource() -> None:
    for delta in (False, True):
        peer = Peer(delta=delta, cds={f"c{i}": 1 for i in range(50)}, eds={f"c{i}": 1 for i in range(50)})
        peer.ask(CDS)
        peer.ask(EDS, *(f"c{i}" for i in range(50)))
        peer.settle()
        for revision in (2, 3):
            peer.change(cds={"c7": revision}, eds={"c7": revision, "c8": revision})
            peer.settle()
        view = peer.cache.group("")
        assert view is not None
        for subscription in peer.state.subscriptions:
            assert subscription.sent is view[subscription.type.type_url].versions


@both
def test_without_a_wait_the_order_is_kept_all_the_same(delta: bool) -> None:
    peer = full(delta)
    peer.state = StreamState(delta=delta, limits=Limits(order_wait_s=0.0))
    peer.state.open("n")
    peer.state.view = peer.cache.group("")
    for rtype, names in ((CDS, ()), (EDS, ("a",)), (LDS, ()), (RDS, ("r",))):
        peer.ask(rtype, *names)
    peer.settle()
    peer.change(cds={"b": 1}, eds={"a": 2}, lds={"l": 2}, rds={"r": 2}, remove={CDS: ["a"]})
    sent = []
    while (reply := peer.state.take(0.0)) is not None:
        sent.append(said(reply)[0])
    assert sent == ["CDS", "EDS", "LDS", "RDS"]
    assert peer.state.wake_at() is None


def test_groups_with_the_same_content_share_it() -> None:
    cache = SnapshotCache()
    for group in ("a", "b"):
        cache.set(group, {EDS.type_url: {"x": make(EDS, "x", 1)}})
    one, two = (cache.view_of(g, EDS.type_url).resources["x"] for g in ("a", "b"))
    assert one is two
    cache.set("b", {EDS.type_url: {"x": make(EDS, "x", 2)}})
    assert cache.view_of("a", EDS.type_url).resources["x"] is one
