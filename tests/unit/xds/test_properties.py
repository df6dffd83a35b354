"""Any interleaving of world changes, requests, answers and reconnects ends with what was asked for, exactly."""

from __future__ import annotations

from typing import Any

import pytest
from envoy.service.discovery.v3 import discovery_pb2
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.xds.model import TYPES, Client, World
from xds_control.xds import CDS, EDS, LDS, RDS
from xds_control.xds.encode import Encoder
from xds_control.xds.stream import StreamState

NAMES = {CDS: ("a", "b", "c"), EDS: ("a", "b", "c"), LDS: ("l", "m"), RDS: ("r", "s")}


def _steps(types: list[Any]) -> Any:
    """Steps about these types only, so that one run does much to few things."""
    named = st.sampled_from([(t, n) for t in types for n in NAMES[t]])
    change = st.dictionaries(named, st.one_of(st.none(), st.integers(1, 3)), min_size=1, max_size=3)
    wish = st.sampled_from(types).flatmap(
        lambda t: st.tuples(st.just("subscribe"), st.just(t), st.booleans(), st.sets(st.sampled_from(NAMES[t])))
    )
    return st.lists(
        st.one_of(
            change.map(lambda c: ("world", c)),
            change.map(lambda c: ("world", c)),
            wish,
            wish,
            st.just(("exchange",)),
            st.just(("exchange",)),
            st.just(("deliver",)),
            st.just(("serve",)),
            st.just(("read", False)),
            st.just(("read", True)),
            st.sampled_from((("wait",), ("reconnect",))),
        ),
        max_size=25,
    )


_plans = st.lists(st.sampled_from(TYPES), min_size=1, max_size=3, unique=True).flatmap(_steps)


def _client(delta: bool, steps: list[Any]) -> Client:
    world = World()
    world.change({(t, n): 1 for t in TYPES for n in NAMES[t][:2]})
    client = Client(world, delta=delta)
    _run(client, steps)
    return client


def _run(client: Client, steps: list[Any]) -> None:
    for step in steps:
        match step:
            case ("world", changes):
                client.world.change(changes)
            case ("subscribe", rtype, wildcard, names):
                client.subscribe(rtype, wildcard, names)
            case ("deliver",):
                client.deliver_one()
            case ("serve",):
                client.serve()
            case ("read", reject):
                client.read_one(reject)
            case ("exchange",):
                client.exchange()
            case ("wait",):
                client.now += 1.0
            case ("reconnect",):
                client.reconnect()


@pytest.mark.parametrize("delta", [False, True], ids=["sotw", "delta"])
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=_plans)
def test_the_client_ends_with_exactly_the_world_it_asked_for(delta: bool, steps: list[Any]) -> None:
    client = _client(delta, steps)
    client.settle()
    client.check(exactly=False)
    # New versions of everything heal what was rejected.
    client.world.change({(t, n): 9 for t in TYPES for n in NAMES[t]})
    client.settle()
    client.check(exactly=True)
    # And everything can be taken away again, where the protocol can say so.
    client.world.change({(t, n): None for t in TYPES for n in NAMES[t]})
    client.settle()
    client.check(exactly=True)


@pytest.mark.parametrize("delta", [False, True], ids=["sotw", "delta"])
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps=_plans)
def test_at_rest_nothing_is_sent_and_nothing_is_due(delta: bool, steps: list[Any]) -> None:
    client = _client(delta, steps)
    client.settle()
    for _ in range(50):
        client.now += 1.0
        assert client.state.take(client.now) is None
        assert client.state.wake_at() is None
    assert all(s.progress.lag(client.now) == 0 for s in client.state.subscriptions)


_odd_names = st.lists(
    st.sampled_from(["*", "", "a", "b", "c", "a", "xdstp://x/t/*", "xdstp://x/t/a?z=1&y=2", "\0", "ü" * 300]),
    max_size=4,
)
_odd_nonces = st.sampled_from(["", "s1", "s2", "s3", "s99", "x"])
_odd_types = st.sampled_from([CDS.type_url, EDS.type_url, LDS.type_url, "acme/Thing", "garbage"])
_odd_request = st.tuples(
    _odd_types,
    _odd_names,
    _odd_names,
    st.dictionaries(st.sampled_from(["a", "b", "*", "", "q"]), st.sampled_from(["", "v"]), max_size=3),
    _odd_nonces,
    st.sampled_from([None, None, "", "bad"]),
)


@pytest.mark.parametrize("delta", [False, True], ids=["sotw", "delta"])
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    steps=st.lists(
        st.one_of(
            _odd_request,
            _odd_request,
            st.dictionaries(
                st.sampled_from([(t, n) for t in (CDS, EDS, LDS) for n in ("a", "b", "xdstp://x/t/a?y=2&z=1")]),
                st.one_of(st.none(), st.integers(1, 2)),
                max_size=3,
            ),
        ),
        max_size=25,
    )
)
def test_no_request_however_odd_breaks_the_rules_of_responses(delta: bool, steps: list[Any]) -> None:
    world = World()
    world.change({(t, n): 1 for t in TYPES for n in NAMES[t][:2]})
    state = StreamState(delta=delta, prefix="s")
    state.open("n")
    state.view = world.cache.group("")
    encoder = Encoder()
    nonces = set()
    now = 0.0
    for step in steps:
        now += 0.7
        if isinstance(step, dict):
            world.change(step)
            state.view = world.cache.group("")
        else:
            type_url, names, others, initial, nonce, error = step
            if delta:
                state.delta_request(type_url, names, others, initial, nonce, error, now)
            else:
                state.sotw_request(type_url, names, nonce, error, now)
        for count in range(10):
            reply = state.take(now)
            if reply is None:
                break
            assert count < 9, "it never stops talking"
            assert reply.nonce not in nonces
            nonces.add(reply.nonce)
            sent = [r.name for r in reply.resources]
            assert len(set(sent)) == len(sent)
            assert len(set(reply.removed)) == len(reply.removed)
            assert not set(sent) & set(reply.removed)
            kind = discovery_pb2.DeltaDiscoveryResponse if delta else discovery_pb2.DiscoveryResponse
            raw = kind.FromString(encoder.encode(reply))
            assert raw.type_url == reply.type.type_url
            assert raw.nonce == reply.nonce
            assert len(raw.resources) == len(sent)
            assert delta or raw.version_info
