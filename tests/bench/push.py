"""How long until the last of many subscribers has an update: `python -m tests.bench.push [--seconds N]`.

The subscribers run in a process of their own. Each round moves some weights, puts the changed assignments into the
cache and waits until every subscriber has them. The last line is one JSON object:

ms_to_last: from before the snapshot is built to the receipt by the last subscriber, median of all rounds (delta).
serialisations: resources turned into bytes per round; bodies: response bodies made per round, for all subscribers.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import multiprocessing
import multiprocessing.connection
import os
import statistics
import time
from typing import Any

import grpc
import psutil
import structlog
from envoy.config.endpoint.v3 import endpoint_pb2
from envoy.service.discovery.v3 import discovery_pb2

from xds_control.xds import EDS, SnapshotCache, XdsPolicy, XdsServer

ADS = "/envoy.service.discovery.v3.AggregatedDiscoveryService/"


def assignment(name: str, pool: int, weights: list[int]) -> Any:
    """A pool's endpoints with their weights."""
    made = endpoint_pb2.ClusterLoadAssignment(cluster_name=name)
    locality = made.endpoints.add()
    for index, weight in enumerate(weights):
        endpoint = locality.lb_endpoints.add()
        address = endpoint.endpoint.address.socket_address
        address.address = f"10.{pool % 250}.{index // 250}.{1 + index % 250}"
        address.port_value = 8000
        endpoint.load_balancing_weight.value = weight
    return made


class Subscribers:
    """What runs in the other process: so many streams, each on its own connection."""

    def __init__(self, port: int, names: list[str], pipe: multiprocessing.connection.Connection) -> None:
        self._port = port
        self._names = names
        self._pipe = pipe
        self._channels: list[grpc.aio.Channel] = []
        self._received = 0
        self._bytes = 0
        self._last = 0.0
        self._wanted = 0
        self._done = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            command, *arguments = await loop.run_in_executor(None, self._pipe.recv)
            if command == "open":
                await self._open(*arguments)
            elif command == "expect":
                self._received = self._bytes = 0
                self._wanted = arguments[0]
                self._done.clear()
                self._pipe.send("ready")
                await asyncio.wait_for(self._done.wait(), 60)
                self._pipe.send((self._last, self._bytes))
            elif command == "close":
                for channel in self._channels:
                    await channel.close()
                for task in self._tasks:
                    task.cancel()
                self._channels, self._tasks = [], []
                self._pipe.send("closed")
            else:
                return

    async def _open(self, count: int, delta: bool) -> None:
        self._wanted = count
        self._received = 0
        self._done.clear()
        for number in range(count):
            channel = grpc.aio.insecure_channel(
                f"127.0.0.1:{self._port}",
                options=[("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)],
            )
            self._channels.append(channel)
            self._tasks.append(asyncio.create_task(self._subscribe(channel, number, delta)))
        await asyncio.wait_for(self._done.wait(), 60)
        self._pipe.send("open")

    async def _subscribe(self, channel: grpc.aio.Channel, number: int, delta: bool) -> None:
        method = ADS + ("DeltaAggregatedResources" if delta else "StreamAggregatedResources")
        call: Any = channel.stream_stream(method, request_serializer=lambda m: m.SerializeToString())()
        request = discovery_pb2.DeltaDiscoveryRequest if delta else discovery_pb2.DiscoveryRequest
        response = discovery_pb2.DeltaDiscoveryResponse if delta else discovery_pb2.DiscoveryResponse
        first = request(type_url=EDS.type_url)
        first.node.id = f"bench-{number}"
        (first.resource_names_subscribe if delta else first.resource_names).extend(self._names)
        await call.write(first)
        while True:
            raw = await call.read()
            self._last = time.monotonic()
            self._bytes += len(raw)
            self._received += 1
            if self._received == self._wanted:
                self._done.set()
            message = response.FromString(raw)
            ack = request(type_url=EDS.type_url, response_nonce=message.nonce)
            if not delta:
                ack.version_info = message.version_info
                ack.resource_names.extend(self._names)
            await call.write(ack)


def subscribers_main(port: int, names: list[str], pipe: multiprocessing.connection.Connection) -> None:
    asyncio.run(Subscribers(port, names, pipe).run())


class Bench:
    """The control process."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.cache = SnapshotCache()
        self.server = XdsServer(self.cache, XdsPolicy())
        size = options.endpoints // options.pools
        self.names = [f"pool-{p}" for p in range(options.pools)]
        self.weights = [[100 + (p + e) % 50 for e in range(size)] for p in range(options.pools)]
        self.turn = 0

    def put(self, pools: list[int]) -> None:
        self.cache.update(
            "", {EDS.type_url: {self.names[p]: assignment(self.names[p], p, self.weights[p]) for p in pools}}
        )

    def move(self) -> list[int]:
        """Moves some weights, spread over the pools; returns the pools that changed."""
        changed = set()
        for index in range(self.options.moved):
            pool = index % len(self.names)
            place = (self.turn + index // len(self.names)) % len(self.weights[pool])
            self.weights[pool][place] = 100 + (self.weights[pool][place] + 7) % 50
            changed.add(pool)
        self.turn += 1
        return sorted(changed)

    async def run(self) -> dict[str, Any]:
        self.put(list(range(len(self.names))))
        port = await self.server.start("127.0.0.1:0")
        context = multiprocessing.get_context("spawn")
        mine, theirs = context.Pipe()
        process = context.Process(target=subscribers_main, args=(port, self.names, theirs), daemon=True)
        process.start()
        self.pipe = mine
        try:
            result: dict[str, Any] = {}
            for delta in (True, False):
                found = await self._kind(delta)
                result.update(found if delta else {f"sotw_{k}": v for k, v in found.items()})
            result |= {
                "ms_to_last": result.pop("p50_ms"),
                "subscribers": self.options.subscribers,
                "endpoints": self.options.endpoints,
                "pools": self.options.pools,
                "moved": self.options.moved,
            }
            return result
        finally:
            mine.send(("end",))
            process.join(10)
            await self.server.stop(0)

    async def _ask(self, *command: Any) -> Any:
        self.pipe.send(command)
        return await self._answer()

    async def _answer(self) -> Any:
        return await asyncio.get_running_loop().run_in_executor(None, self.pipe.recv)

    async def _kind(self, delta: bool) -> dict[str, Any]:
        own = psutil.Process()
        before = own.memory_info().rss
        await self._ask("open", self.options.subscribers, delta)
        await asyncio.sleep(0.5)
        memory = own.memory_info().rss - before
        times: list[float] = []
        cpu: list[float] = []
        sent: list[int] = []
        serialised, bodies = self.cache.stats.serialisations, self.server.encoder.bodies
        end = time.monotonic() + self.options.seconds / 2
        while time.monotonic() < end or len(times) < 3:
            await self._ask("expect", self.options.subscribers)
            changed = self.move()
            began, used = time.monotonic(), time.process_time()
            self.put(changed)
            last, received = await self._answer()
            times.append((last - began) * 1000)
            cpu.append((time.process_time() - used) * 1000)
            sent.append(received)
            await asyncio.sleep(0.05)
        rounds = len(times)
        await self._ask("close")
        times.sort()
        return {
            "p50_ms": round(statistics.median(times), 2),
            "p90_ms": round(times[int(len(times) * 0.9)], 2),
            "server_cpu_ms": round(statistics.median(cpu), 2),
            "bytes_sent": int(statistics.median(sent)),
            "serialisations": (self.cache.stats.serialisations - serialised) / rounds,
            "bodies": (self.server.encoder.bodies - bodies) / rounds,
            "memory_per_idle_subscriber_kb": round(memory / 1024 / self.options.subscribers, 1),
            "rounds": rounds,
        }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.push", description=__doc__)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--subscribers", type=int, default=100)
    parser.add_argument("--endpoints", type=int, default=1000)
    parser.add_argument("--pools", type=int, default=10)
    parser.add_argument("--moved", type=int, default=10, help="weights moved per round")
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    print(json.dumps(asyncio.run(Bench(options).run())))


if __name__ == "__main__":
    main()
