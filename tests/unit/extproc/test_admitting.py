"""The gate between the queue and the edge: room is given once, leaving costs nothing, stopping answers everybody."""

from __future__ import annotations

import asyncio

import pytest

from xds_control.errors import PolicyError
from xds_control.extproc.admitting import GOING_S, Gate
from xds_control.extproc.decide import Refusal
from xds_control.extproc.decision import Decision, Hold
from xds_control.inspect.facts import RequestFacts
from xds_control.policy.load import parse_policy

POLICY = """
version: xds-control/v1
pools:
- {name: p, endpoints: [{address: "127.0.0.1:1"}]}
- {name: weights, picks: false, endpoints: [{address: "127.0.0.1:2"}]}
admission: {enabled: true, retry_after_s: 7}
picker: {limits: {max_concurrency: 1}}
classes:
  default: medium
  items:
  - {name: medium, priority: 50, max_queue_s: 5}
  - {name: never, priority: 10, max_queue_s: 0}
"""


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class World:
    def __init__(self) -> None:
        self.room: int | None = 0
        self.clock = Clock()
        self.gate = Gate(parse_policy(POLICY), lambda _: self.room, self.clock)

    def ask(self, name: str, service_class: str = "medium", pool: str = "p") -> Refusal | Hold | None:
        decision = Decision(name, RequestFacts(), "p0")
        decision.pool, decision.service_class = pool, service_class
        return self.gate.admit(decision, {}, self.clock.now)

    def hold(self, name: str) -> asyncio.Future[Refusal | None]:
        held = self.ask(name)
        assert isinstance(held, Hold)
        assert held.wait_s == 5.0
        return self.gate.wait(held)


@pytest.fixture
async def world() -> World:
    return World()


async def test_room_is_given_once_until_the_pick_counts(world: World) -> None:
    first, second = world.hold("1"), world.hold("2")
    world.room = 1
    world.gate.kick(world.clock.now)
    assert first.done()
    assert first.result() is None
    world.gate.kick(world.clock.now)
    assert not second.done()
    assert world.ask("3") is not None, "nobody overtakes"
    world.gate.decided("1")  # its pick took the room
    world.room = 0
    world.gate.kick(world.clock.now)
    assert not second.done()
    world.room = 1
    world.gate.kick(world.clock.now)
    assert second.result() is None


async def test_one_that_was_let_in_and_vanished_gives_its_room_back(world: World) -> None:
    first, second = world.hold("1"), world.hold("2")
    world.room = 1
    world.gate.kick(world.clock.now)
    assert first.done()
    world.clock.now += GOING_S + 0.1
    world.gate.kick(world.clock.now)
    assert second.done()


async def test_who_goes_away_leaves_the_queue(world: World) -> None:
    waiting = world.hold("1")
    assert len(world.gate) == 1
    waiting.cancel()
    await asyncio.sleep(0)
    assert len(world.gate) == 0


async def test_time_and_stopping_refuse_with_their_reasons(world: World) -> None:
    never = world.ask("0", "never")
    assert isinstance(never, Refusal)
    assert (never.status, never.reason, never.retry_after_s) == (429, "queue-full", 7)
    late = world.hold("1")
    world.clock.now += 6
    world.gate.kick(world.clock.now)
    refusal = late.result()
    assert refusal is not None
    assert (refusal.status, refusal.reason, refusal.peer_reason) == (429, "queue-expired", "rejected-ttl-expired")
    stays = world.hold("2")
    world.gate.stop()
    refusal = stays.result()
    assert refusal is not None
    assert (refusal.status, refusal.peer_reason) == (503, "rejected-shutting-down")
    assert isinstance(world.ask("3"), Refusal)


async def test_a_timer_looks_for_room_by_itself(world: World) -> None:
    waiting = world.hold("1")
    world.room = 1
    assert await asyncio.wait_for(waiting, 5) is None
    world.gate.stop()


async def test_nobody_waits_where_there_is_nobody_or_nothing_to_wait_for(world: World) -> None:
    world.room = None
    assert world.ask("1") is None
    world.room = 1
    assert world.ask("2") is None
    world.room = 0
    assert world.ask("3", pool="weights") is None
    waiting = world.hold("4")
    world.room = None  # the last endpoint left: the picker has to say so
    world.gate.kick(world.clock.now)
    assert waiting.result() is None


def test_without_a_limit_there_is_nothing_to_wait_for() -> None:
    with pytest.raises(PolicyError, match="max_concurrency"):
        parse_policy(POLICY.replace("max_concurrency: 1", "max_concurrency: 0"))
