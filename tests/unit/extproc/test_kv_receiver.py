"""KV events over real ZMQ sockets: subscription, replay of a gap, restart, loss."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest

from xds_control.extproc.kv_receiver import KvReceiver, KvSource
from xds_control.routing.kv_events import Batch, Stored

pytest.importorskip("zmq", reason="pyzmq is not installed (extra `kv-events`)")

import zmq
import zmq.asyncio

encode = msgspec.msgpack.Encoder().encode


class Publisher:
    """An engine's publisher: PUB and ROUTER sockets, a bounded memory of batches."""

    def __init__(self, keep: int = 100) -> None:
        self._context: Any = zmq.asyncio.Context()
        self._pub = self._context.socket(zmq.PUB)
        self._router = self._context.socket(zmq.ROUTER)
        self.url = f"tcp://127.0.0.1:{self._pub.bind_to_random_port('tcp://127.0.0.1')}"
        self.replay_url = f"tcp://127.0.0.1:{self._router.bind_to_random_port('tcp://127.0.0.1')}"
        self._kept: list[tuple[int, bytes]] = []
        self._keep = keep
        self._task = asyncio.create_task(self._serve())
        self.sequence = 0

    async def send(self, name: int, lost: bool = False) -> None:
        payload = encode([0.0, [["BlockStored", [name], None, [name], 1, None]]])
        self._kept = [*self._kept, (self.sequence, payload)][-self._keep :]
        if not lost:
            await self._pub.send_multipart([b"kv", self.sequence.to_bytes(8, "big"), payload])
        self.sequence += 1

    def restart(self) -> None:
        self.sequence = 0
        self._kept = []

    async def _serve(self) -> None:
        while True:
            client, _, start = await self._router.recv_multipart()
            for sequence, payload in self._kept:
                if sequence >= int.from_bytes(start, "big"):
                    await self._router.send_multipart([client, b"", b"kv", sequence.to_bytes(8, "big"), payload])
            await self._router.send_multipart([client, b"", b"kv", b"\xff" * 8, b""])

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._context.destroy(linger=0)


class Seen:
    def __init__(self) -> None:
        self.names: list[int] = []
        self.lost = 0

    def batch(self, endpoint: str, batch: Batch) -> None:
        assert endpoint == "e:1"
        for event in batch.events:
            assert isinstance(event, Stored)
            self.names += [int(name) for name in event.names]

    def forget(self, endpoint: str) -> None:
        self.lost += 1
        self.names.clear()


async def until(check: Callable[[], bool]) -> None:
    for _ in range(300):
        if check():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("did not come about within 6 s")


@pytest.fixture
async def publisher() -> AsyncIterator[Publisher]:
    made = Publisher()
    yield made
    await made.stop()


@pytest.fixture
async def receiver() -> AsyncIterator[tuple[KvReceiver, Seen]]:
    seen = Seen()
    made = KvReceiver(seen.batch, seen.forget, replay_s=2.0)
    yield made, seen
    await made.stop()


async def _subscribed(publisher: Publisher, seen: Seen) -> None:
    """PUB drops what is sent before the subscription arrived."""
    for _ in range(200):
        await publisher.send(publisher.sequence)
        await asyncio.sleep(0.02)
        if seen.names:
            return
    raise AssertionError("nothing was received")


async def test_what_was_missed_is_asked_for(publisher: Publisher, receiver: tuple[KvReceiver, Seen]) -> None:
    made, seen = receiver
    made.follow({KvSource("e:1", publisher.url, publisher.replay_url)})
    await _subscribed(publisher, seen)
    await until(lambda: seen.names == list(range(publisher.sequence)))  # from the first batch on
    for name in range(publisher.sequence, publisher.sequence + 3):
        await publisher.send(name, lost=True)
    await publisher.send(publisher.sequence)
    await until(lambda: seen.names == list(range(publisher.sequence)))
    assert made.counts["gaps"] >= 1
    assert made.counts["replayed"] >= 3
    assert seen.lost == 0


async def test_what_cannot_be_had_again_makes_the_past_unknown(
    publisher: Publisher, receiver: tuple[KvReceiver, Seen]
) -> None:
    made, seen = receiver
    made.follow({KvSource("e:1", publisher.url)})
    await publisher.send(0)
    await _subscribed(publisher, seen)
    before = seen.lost
    await publisher.send(1000, lost=True)
    await publisher.send(1001)
    await until(lambda: seen.names == [1001])
    assert seen.lost == before + 1
    assert made.counts["lost"] >= 1


async def test_a_publisher_that_starts_over_begins_anew(
    publisher: Publisher, receiver: tuple[KvReceiver, Seen]
) -> None:
    made, seen = receiver
    made.follow({KvSource("e:1", publisher.url, publisher.replay_url)})
    await _subscribed(publisher, seen)
    await publisher.send(publisher.sequence)
    publisher.restart()
    await publisher.send(500)
    await until(lambda: seen.names == [500])
    assert seen.lost == 1
    assert made.counts["restarts"] == 1


async def test_bad_payloads_are_counted_and_the_next_is_taken(
    publisher: Publisher, receiver: tuple[KvReceiver, Seen]
) -> None:
    made, seen = receiver
    made.follow({KvSource("e:1", publisher.url, publisher.replay_url)})
    await _subscribed(publisher, seen)
    await publisher._pub.send_multipart([b"kv", publisher.sequence.to_bytes(8, "big"), b"\xc1"])
    publisher.sequence += 1
    await publisher.send(77)
    await until(lambda: seen.names[-1:] == [77])
    assert made.counts["bad"] == 1


@pytest.mark.parametrize(
    "event",
    [
        ["BlockStored", [1], None, 5, 1, None],
        ["BlockStored", [1], None, [1], 1, None, None, None, 7],
        ["BlockStored", [1], None, [1], 1, {"a": 1}],
        {"type": "BlockRemoved", "block_hashes": 9},
        [b"x" * 1000, [b"x" * 1000]],
    ],
)
async def test_events_of_wrong_types_do_not_end_the_subscription(
    publisher: Publisher, receiver: tuple[KvReceiver, Seen], event: Any
) -> None:
    made, seen = receiver
    made.follow({KvSource("e:1", publisher.url, publisher.replay_url)})
    await _subscribed(publisher, seen)
    await publisher._pub.send_multipart([b"kv", publisher.sequence.to_bytes(8, "big"), encode([0.0, [event]])])
    publisher.sequence += 1
    await publisher.send(77)
    await until(lambda: seen.names[-1:] == [77])
    assert seen.lost == 0


async def test_a_fault_of_ours_loses_what_was_known_and_reads_on(publisher: Publisher) -> None:
    seen, faults = Seen(), [ValueError("once")]

    def batch(endpoint: str, found: Batch) -> None:
        if seen.names and faults:
            raise faults.pop()
        seen.batch(endpoint, found)

    made = KvReceiver(batch, seen.forget)
    made.follow({KvSource("e:1", publisher.url, publisher.replay_url)})
    try:
        await _subscribed(publisher, seen)
        await publisher.send(publisher.sequence)
        await until(lambda: not faults and seen.names == list(range(publisher.sequence)))
        assert seen.lost == 1
    finally:
        await made.stop()


async def test_others_have_their_turns_while_a_backlog_is_read(publisher: Publisher) -> None:
    seen, turns, at = Seen(), 0, []

    def batch(endpoint: str, found: Batch) -> None:
        seen.batch(endpoint, found)
        at.append(turns)

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    made = KvReceiver(batch, seen.forget)
    made.follow({KvSource("e:1", publisher.url, publisher.replay_url)})
    await _subscribed(publisher, seen)
    payload = encode([0.0, [["BlockStored", [1], None, [1], 1, None]]])
    for number in range(500):
        publisher._pub.send_multipart([b"kv", (publisher.sequence + number).to_bytes(8, "big"), payload])
    time.sleep(0.3)  # noqa: ASYNC251 - all of it is there before the loop goes on
    task = asyncio.create_task(other())
    try:
        await until(lambda: len(seen.names) >= 500)
    finally:
        task.cancel()
        await made.stop()
    assert len(set(at)) >= 400


async def test_a_source_that_is_dropped_is_forgotten(publisher: Publisher, receiver: tuple[KvReceiver, Seen]) -> None:
    made, seen = receiver
    made.follow({KvSource("e:1", publisher.url, publisher.replay_url)})
    await _subscribed(publisher, seen)
    made.follow(set())
    assert seen.lost == 1


async def test_an_idle_publisher_is_asked_for_what_it_sent_before(
    publisher: Publisher, receiver: tuple[KvReceiver, Seen]
) -> None:
    made, seen = receiver
    for name in range(150):  # more than it keeps
        await publisher.send(name)
    made.follow({KvSource("e:1", publisher.url, publisher.replay_url)})
    await until(lambda: seen.names == list(range(50, 150)))
    await publisher.send(150)
    await until(lambda: seen.names == list(range(50, 151)))
    assert seen.lost == 0
