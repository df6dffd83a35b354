"""The processor of the ext_proc benchmark: the real one without control.

One pool of 100 endpoints whose load moves, rings 2 and 3 on, the process set up as the product's.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import gc
import pstats
import random
import signal
import sys
import time

import msgspec
import uvloop

from xds_control.extproc.edge import ExtProcEdge
from xds_control.extproc.heap import keep_heap
from xds_control.extproc.state import ProcessorState
from xds_control.fleet.endpoint import Endpoint
from xds_control.fleet.readings import ModelInfo, Reading
from xds_control.fleet.snapshot import EndpointSnapshot, PoolSnapshot, Snapshot, State
from xds_control.policy.schema import Policy
from xds_control.proto import fleet_pb2 as pb

MODEL = "llama-3.1-8b"
POOL = "pool-a"


def addresses(count: int, port: int) -> list[str]:
    """Loopback addresses of the pool; all of them reach the same listener."""
    return [f"127.0.1.{number + 1}:{port}" for number in range(count)]


def policy_json(count: int, backend: int, transport: str, picks: bool) -> bytes:
    """A policy with one pool."""
    document = {
        "version": "xds-control/v1",
        "pools": [
            {
                "name": POOL,
                "models": [MODEL],
                "picks": picks,
                "endpoints": [{"address": address} for address in addresses(count, backend)],
            }
        ],
        "ext_proc": {"transport": transport},
    }
    return msgspec.json.encode(msgspec.convert(document, Policy))


def snapshot(count: int, backend: int, version: int, rng: random.Random) -> Snapshot:
    """The pool with fresh load."""
    now = time.monotonic()

    def readings() -> dict[str, Reading]:
        values = {
            "running": float(rng.randrange(16)),
            "waiting": float(rng.choice((0, 0, 0, 2))),
            "kv_usage": rng.uniform(0.1, 0.6),
        }
        return {name: Reading(value, now, "bench") for name, value in values.items()}

    info = ModelInfo(models=(MODEL,), max_model_len=200_000, block_size=16, num_blocks=60_000)
    rows = tuple(
        EndpointSnapshot(Endpoint(address, POOL), State.READY, 100, 0, True, 1.0, readings(), info)
        for address in sorted(addresses(count, backend))
    )
    return Snapshot("bench", version, now, {POOL: PoolSnapshot(POOL, (MODEL,), rows)}, "1")


async def serve(options: argparse.Namespace) -> None:
    """Serves until SIGTERM."""
    rng = random.Random(1)
    state = ProcessorState("bench", time.monotonic())
    policy = pb.Policy(
        version="1", json=policy_json(options.endpoints, options.backend, options.transport, options.picks)
    )
    first = pb.WatchResponse(full=True, version=1, policy=policy)
    state.on_message(snapshot(options.endpoints, options.backend, 1, rng), first, time.monotonic())
    assert state.decider is not None, state.problem
    assert state.policy is not None

    def decider() -> object:
        return state.decider

    edge = ExtProcEdge(decider, state.policy.ext_proc)  # type: ignore[arg-type]
    await edge.start(f"127.0.0.1:{options.port}")
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    gc.collect()
    gc.freeze()
    version = 1
    while not stop.is_set():
        # A delta of control, as often as it comes when load moves.
        version += 1
        news = pb.WatchResponse(version=version, pools=[pb.Pool(name=POOL)])
        state.on_message(snapshot(options.endpoints, options.backend, version, rng), news, time.monotonic())
        state.window(time.monotonic())
        try:
            await asyncio.wait_for(stop.wait(), 1.0)
        except TimeoutError:
            continue
    await edge.stop(0.2)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("backend", type=int)
    parser.add_argument("--endpoints", type=int, default=100)
    parser.add_argument("--transport", default="native")
    parser.add_argument("--no-picks", dest="picks", action="store_false")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    gc.set_threshold(50_000, 20, 50)
    keep_heap()
    profiler = cProfile.Profile() if options.profile else None
    if profiler is not None:
        profiler.enable()
    uvloop.run(serve(options))
    if profiler is not None:
        profiler.disable()
        pstats.Stats(profiler, stream=sys.stderr).sort_stats("tottime").print_stats(45)


if __name__ == "__main__":
    main()
