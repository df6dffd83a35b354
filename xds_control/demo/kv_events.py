"""vLLM's KV events of the demo engine: blocks stored and evicted, published over ZMQ with replay (extra `kv-events`).

`CacheEvents` collects what the cache does; `Publisher` sends it as vLLM's ZmqEventPublisher does: PUB frames of topic,
sequence number (8 bytes, big endian) and a msgpack batch `[time, events, rank]` of tagged arrays, and a ROUTER that
sends batches again from a sequence number on.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from xds_control.demo.kvcache import BYTES_PER_TOKEN
from xds_control.errors import ConfigError

KEPT: Final = 10_000
"""Batches that can be asked for again."""
TOPIC: Final = b"kv-events"
_END: Final = b"\xff" * 8
_encode = msgspec.msgpack.Encoder().encode


def token_ids(data: bytes) -> list[int]:
    """The demo tokenizer: a token is four bytes, and its id is their number."""
    return list(struct.unpack(f"<{len(data) // BYTES_PER_TOKEN}I", data))


class CacheEvents:
    """Events since they were last taken, in order."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._events: list[list[Any]] = []

    def stored(self, keys: Sequence[int], parent: int | None, data: bytes, lora: str, salted: bool) -> None:
        """Blocks `keys` hang one behind the other after `parent`; data: their text."""
        extra = [["cache-salt"]] * len(keys) if salted else None
        event = ["BlockStored", list(keys), parent, token_ids(data), self._block_size, None, "GPU", lora or None, extra]
        self._events.append(event)

    def removed(self, key: int) -> None:
        """A block was evicted."""
        last = self._events[-1] if self._events else None
        if last is not None and last[0] == "BlockRemoved":
            last[1].append(key)
        else:
            self._events.append(["BlockRemoved", [key], "GPU"])

    def cleared(self) -> None:
        """Everything was dropped."""
        self._events.append(["AllBlocksCleared"])

    def take(self) -> list[list[Any]]:
        """What happened since the last call."""
        events, self._events = self._events, []
        return events


class Publisher:
    """Sends batches. Raises ConfigError where pyzmq is not installed or a port is taken."""

    def __init__(self, host: str, port: int, replay_port: int) -> None:
        try:
            import zmq
            import zmq.asyncio
        except ImportError:
            raise ConfigError("KV events need pyzmq: install the extra `kv-events`") from None
        self._context: Any = zmq.asyncio.Context()
        self._pub = self._context.socket(zmq.PUB)
        self._router = self._context.socket(zmq.ROUTER)
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=KEPT)
        self._sequence = 0
        for socket, where in ((self._pub, port), (self._router, replay_port)):
            socket.setsockopt(zmq.LINGER, 0)
            if where:
                try:
                    socket.bind(f"tcp://{host}:{where}")
                except zmq.ZMQError as error:
                    self._context.destroy(linger=0)
                    raise ConfigError(f"KV events cannot be published on {host}:{where}: {error}") from None
        self._outbox: asyncio.Queue[list[bytes]] = asyncio.Queue()
        self._tasks = [asyncio.create_task(self._send()), asyncio.create_task(self._replay())]

    def publish(self, events: list[list[Any]]) -> None:
        """One batch, sent soon."""
        payload = _encode([time.time(), events, 0])
        self._kept.append((self._sequence, payload))
        self._outbox.put_nowait([TOPIC, self._sequence.to_bytes(8, "big"), payload])
        self._sequence += 1

    def restart(self) -> None:
        """The engine begins anew, and so do its numbers."""
        self._sequence = 0
        self._kept.clear()

    async def stop(self) -> None:
        """Closes both sockets."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._context.destroy(linger=0)

    async def _send(self) -> None:
        while True:
            await self._pub.send_multipart(await self._outbox.get())

    async def _replay(self) -> None:
        while True:
            frames = await self._router.recv_multipart()
            if len(frames) != 3 or len(frames[2]) != 8:
                continue
            client, first = frames[0], int.from_bytes(frames[2], "big")
            for sequence, payload in list(self._kept):
                if sequence >= first:
                    await self._router.send_multipart([client, b"", sequence.to_bytes(8, "big"), payload])
            await self._router.send_multipart([client, b"", _END, b""])
