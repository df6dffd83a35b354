"""Receives engines' KV events over ZMQ (extra `kv-events`): subscribes, asks for what was missed, starts over."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import structlog

from xds_control.errors import ConfigError
from xds_control.fleet.snapshot import Snapshot
from xds_control.policy.picker import PrefixPolicy
from xds_control.routing.kv_events import Batch, KvEventError, Sequencer, Verdict, decode
from xds_control.routing.subset import join_address, split_address

_END = b"\xff" * 8
MAX_MESSAGE_BYTES = 8 << 20
"""Largest message of a publisher; it is disconnected when it sends a larger one."""
MAX_QUEUED = 10_000
"""Messages that wait to be read; what is lost beyond is asked for again."""
LOG_S = 1.0
_log = structlog.get_logger("kv-events")


@dataclass(frozen=True, slots=True)
class KvSource:
    """One publisher. endpoint: the address that its blocks belong to. url: of its PUB socket (`tcp://host:5557`);
    replay_url: of its ROUTER socket, "" when it has none. topic: prefix to subscribe to."""

    endpoint: str
    url: str
    replay_url: str = ""
    topic: str = ""


EVENTS_LABEL = "kv-events-port"
REPLAY_LABEL = "kv-replay-port"
"""Labels of endpoints whose ports are not those of the policy: several engines on one host."""


def sources(snapshot: Snapshot, prefix: PrefixPolicy) -> set[KvSource]:
    """The publishers of all endpoints that are there, by policy and by their labels."""
    if prefix.exact == "off":
        return set()
    found: set[KvSource] = set()
    for pool in snapshot.pools.values():
        for one in pool.endpoints:
            host, _ = split_address(one.endpoint.address)
            port = _port(one.endpoint.labels.get(EVENTS_LABEL), prefix.events_port)
            replay = _port(one.endpoint.labels.get(REPLAY_LABEL), prefix.events_replay_port)
            for rank in range(prefix.events_ranks if port else 0):
                found.add(
                    KvSource(
                        one.endpoint.address,
                        f"tcp://{join_address(host, port + rank)}",
                        f"tcp://{join_address(host, replay + rank)}" if replay else "",
                        prefix.events_topic,
                    )
                )
    return found


def _port(label: str | None, otherwise: int) -> int:
    return int(label) if label is not None and label.isdecimal() and int(label) < 65536 else otherwise


class KvReceiver:
    """on_batch(endpoint, batch) is called in order; on_lost(endpoint) when the past of an endpoint is gone.

    Raises ConfigError where pyzmq is not installed.
    """

    def __init__(
        self,
        on_batch: Callable[[str, Batch], None],
        on_lost: Callable[[str], None],
        *,
        replay_s: float = 5.0,
    ) -> None:
        try:
            import zmq
            import zmq.asyncio
        except ImportError:
            raise ConfigError("KV events need pyzmq: install the extra `kv-events`") from None
        self._zmq: Any = zmq
        self._context: Any = zmq.asyncio.Context()
        self._on_batch = on_batch
        self._on_lost = on_lost
        self._replay_s = replay_s
        self._told_until = 0.0
        self._tasks: dict[KvSource, asyncio.Task[None]] = {}
        self.counts: Counter[str] = Counter()
        """What was received, by kind: batches, replayed, gaps, lost, restarts, bad."""

    def follow(self, sources: set[KvSource]) -> None:
        """Subscribes to exactly these publishers from now on."""
        for source in [one for one in self._tasks if one not in sources]:
            self._tasks.pop(source).cancel()
            self._on_lost(source.endpoint)
        for source in sources - self._tasks.keys():
            self._tasks[source] = asyncio.create_task(self._run(source), name=f"kv-events {source.endpoint}")

    async def stop(self) -> None:
        """Ends all subscriptions."""
        tasks = list(self._tasks.values())
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._context.destroy(linger=0)

    async def _run(self, source: KvSource) -> None:
        while True:
            socket = self._context.socket(self._zmq.SUB)
            try:
                self._set_up(socket)
                socket.setsockopt_string(self._zmq.SUBSCRIBE, source.topic)
                socket.connect(source.url)
                await self._read(source, socket)
            except self._zmq.ZMQError as error:
                self.counts["errors"] += 1
                _log.warning("kv-events-socket", endpoint=source.endpoint, url=source.url, error=str(error))
                self._on_lost(source.endpoint)
            except Exception:  # noqa: BLE001 - see below
                # Whatever an engine may send, its blocks are read on: nobody else would start this task again.
                self.counts["errors"] += 1
                _log.exception("kv-events-failed", endpoint=source.endpoint, url=source.url)
                self._on_lost(source.endpoint)
            finally:
                socket.close()
            await asyncio.sleep(1.0)

    def _set_up(self, socket: Any) -> None:
        socket.setsockopt(self._zmq.RCVHWM, MAX_QUEUED)
        socket.setsockopt(self._zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
        socket.setsockopt(self._zmq.IPV6, 1)
        socket.setsockopt(self._zmq.LINGER, 0)

    async def _next(self, socket: Any) -> list[bytes]:
        """The next message. Others have their turn before it: what is there already comes without a wait."""
        await asyncio.sleep(0)
        frames: list[bytes] = await socket.recv_multipart()
        return frames

    async def _read(self, source: KvSource, socket: Any) -> None:
        order = Sequencer()
        # What was stored before we listened is asked for at once: an idle engine would not tell of it for long.
        begun = await self._replay(source, order, None)
        while True:
            frames = await self._next(socket)
            if len(frames) < 3 or len(frames[-2]) != 8:
                self.counts["bad"] += 1
                continue
            sequence, payload = int.from_bytes(frames[-2], "big"), frames[-1]
            if not begun:
                begun = True
                if sequence > 0:
                    order.skip_to(0)
            verdict = order.see(sequence)
            if verdict is Verdict.MISSED:
                self.counts["gaps"] += 1
                if not await self._replay(source, order, sequence):
                    self.counts["lost"] += 1
                    self._on_lost(source.endpoint)
                    order.skip_to(sequence)
                verdict = order.see(sequence)
            if verdict is Verdict.RESTARTED:
                self.counts["restarts"] += 1
                self._on_lost(source.endpoint)
            if verdict in (Verdict.TAKE, Verdict.RESTARTED):
                self._take(source, payload)

    def _take(self, source: KvSource, payload: bytes) -> None:
        try:
            batch = decode(payload)
        except KvEventError as error:
            self.counts["bad"] += 1
            now = asyncio.get_running_loop().time()
            if now >= self._told_until:  # an engine of another age sends nothing else
                self._told_until = now + LOG_S
                _log.warning("kv-events-payload", endpoint=source.endpoint, error=str(error), bad=self.counts["bad"])
            return
        self.counts["batches"] += 1
        self._on_batch(source.endpoint, batch)

    async def _replay(self, source: KvSource, order: Sequencer, until: int | None) -> bool:
        """Takes the batches from the expected one to `until`, without it; None = all, from the oldest that is kept.

        False when they cannot be had.
        """
        if not source.replay_url:
            return False
        first = order.next or 0
        socket = self._context.socket(self._zmq.DEALER)
        try:
            self._set_up(socket)
            socket.connect(source.replay_url)
            await socket.send_multipart([b"", first.to_bytes(8, "big")])
            async with asyncio.timeout(self._replay_s):
                while True:
                    frames = await self._next(socket)
                    if len(frames) < 2 or frames[-2] == _END:
                        break
                    sequence = int.from_bytes(frames[-2], "big")
                    if until is not None and sequence >= until:
                        break
                    if order.see(sequence) is not Verdict.TAKE:
                        continue
                    self.counts["replayed"] += 1
                    self._take(source, frames[-1])
        except (TimeoutError, self._zmq.ZMQError):
            return False
        finally:
            with contextlib.suppress(self._zmq.ZMQError):
                socket.close()
        return order.next is not None if until is None else order.next == until
