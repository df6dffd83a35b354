"""Any interleaving of world changes, requests, answers and reconnects ends with what was asked for, exactly."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.xds.model import TYPES, Client, World
from xds_control.xds import CDS, EDS, LDS, RDS

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
