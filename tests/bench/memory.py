"""Resident memory of control at 1000 endpoints, and of a processor whose prefix index is full.

    python -m tests.bench.memory [--seconds N] [--endpoints N] [--index-bytes N]

Control is the real process of `serve`, scraping endpoints that each answer a 20 KB vLLM page, with one processor that
watches; its memory is read for N seconds after all are ready. The processor is everything that decides (policy,
inspector, picker, recorder), in a process of its own, set up as the product's: it decides prompts of which no two are
alike until its index is at its budget, and as many again by halves, so that what is evicted counts too. Keys of the
last line, all in MB (1e6 bytes): control_mb, control_peak_mb, processor_mb, processor_empty_mb, index_budget_mb,
index_estimated_mb, processor_over_budget_mb (which is to be 150 at most).
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import multiprocessing
import random
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec

from tests.bench.scrape import serve
from tests.envoy.harness import Product, eventually
from xds_control.extproc.heap import keep_heap
from xds_control.extproc.request import RequestView
from xds_control.extproc.state import ProcessorState
from xds_control.fleet.endpoint import Endpoint
from xds_control.fleet.readings import ModelInfo, Reading
from xds_control.fleet.snapshot import EndpointSnapshot, PoolSnapshot, Snapshot, State
from xds_control.policy.schema import Policy
from xds_control.proto import fleet_pb2 as pb
from xds_control.signals.accesslog import Taken
from xds_control.signals.finished import Finished

MODEL = "llama-3.1-8b"
POOL = "chat"
PAGE_BYTES = 20_000
PROMPT_WORDS = 700
RATE = 500.0
"""Requests a second by the processor's clock, which does not run with ours."""


def memory_mb(pid: int | str, name: str = "VmRSS") -> float:
    """Resident memory of a process, or with VmHWM its highest, in 1e6 bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise RuntimeError(f"/proc/{pid}/status has no {name}")


def addresses(count: int, port: int) -> list[str]:
    """Loopback addresses, all of which reach the same listener."""
    return [f"127.7.{1 + number // 250}.{1 + number % 250}:{port}" for number in range(count)]


async def control(count: int, seconds: float) -> dict[str, float]:
    """A running control with so many endpoints."""
    ours, theirs = multiprocessing.Pipe()
    engines = multiprocessing.Process(target=serve, args=(PAGE_BYTES, theirs), daemon=True)
    engines.start()
    port = ours.recv()
    pool = {
        "name": POOL,
        "models": [MODEL],
        "engine": "vllm",
        "endpoints": [{"address": address} for address in addresses(count, port)],
    }
    try:
        with tempfile.TemporaryDirectory() as folder:
            async with Product({"pools": [pool]}, Path(folder), with_envoy=False) as product:

                async def all_ready() -> bool:
                    rows = (await product.state())["pools"][0]["endpoints"]
                    return len(rows) == count and all(row["state"] == "ready" for row in rows)

                await eventually(all_ready, 120.0, f"{count} endpoints are ready")
                await asyncio.sleep(seconds)
                pid = product.pid("control")
                return {"control_mb": memory_mb(pid), "control_peak_mb": memory_mb(pid, "VmHWM")}
    finally:
        ours.close()
        engines.terminate()
        engines.join()


def snapshot(rows: list[str], version: int, now: float, rng: random.Random) -> Snapshot:
    """The pool under some load, seen just now."""
    info = ModelInfo(models=(MODEL,), max_model_len=200_000, block_size=16, num_blocks=60_000)

    def one(address: str) -> EndpointSnapshot:
        values = {"running": float(rng.randrange(16)), "waiting": 0.0, "kv_usage": rng.uniform(0.1, 0.6)}
        readings = {name: Reading(value, now, "bench") for name, value in values.items()}
        return EndpointSnapshot(Endpoint(address, POOL), State.READY, 100, 0, True, 1.0, readings, info)

    pool = PoolSnapshot(POOL, (MODEL,), tuple(one(address) for address in sorted(rows)))
    return Snapshot("bench", version, now, {POOL: pool}, "1")


def ended(state: ProcessorState, decision_id: str, endpoint: str, now: float) -> None:
    """The access log tells that a request ended well."""
    finished = Finished(
        id=decision_id,
        pool=POOL,
        endpoint=endpoint,
        model=MODEL,
        service_class="",
        tenant="",
        api="chat",
        processor="bench",
        pick=endpoint,
        kind="ok",
        ok=True,
        streamed=False,
        status=200,
        attempts=1,
        prompt_bytes=4000,
        prompt_tokens_est=1000,
        output_tokens_est=100,
        matched_tokens=0,
        prompt_tokens=1000,
        completion_tokens=100,
        cached_tokens=0,
        ttft_s=None,
        decode_s=None,
        e2e_s=1.0,
        queue_s=0.0,
    )
    state.on_taken(Taken([finished], []), now)


def processor(count: int, budget: int, pipe: Connection) -> None:
    """Fills the index and tells what that took."""
    gc.set_threshold(50_000, 20, 50)
    keep_heap()
    rng = random.Random(7)
    rows = addresses(count, 8000)
    document = {
        "version": "xds-control/v1",
        "pools": [{"name": POOL, "models": [MODEL], "endpoints": [{"address": address} for address in rows]}],
        "picker": {"prefix": {"budget_bytes": budget}},
    }
    policy = msgspec.json.encode(msgspec.convert(document, Policy))
    now, version = time.monotonic(), 1
    state = ProcessorState("bench", now)
    message = pb.WatchResponse(full=True, version=1, policy=pb.Policy(version="1", json=policy))
    state.on_message(snapshot(rows, version, now, rng), message, now)
    decider, picker = state.decider, state.picker
    assert decider is not None, state.problem
    assert picker is not None
    gc.collect()
    gc.freeze()
    empty = memory_mb("self")
    decided, full_at, known = 0, 0, 0
    while not full_at or decided < full_at * 3 // 2:
        now += 1.0 / RATE
        body = {"model": MODEL, "messages": [{"role": "user", "content": words(rng, PROMPT_WORDS)}]}
        headers = {":path": "/v1/chat/completions", ":method": "POST", "content-type": "application/json"}
        decision = decider.decide(RequestView(headers, msgspec.json.encode(body)), now)
        ended(state, decision.id, decision.destinations[0], now)
        decided += 1
        if decided % int(RATE) == 0:  # each second, as control sends news of load and the processor reports
            version += 1
            news = pb.WatchResponse(version=version, pools=[pb.Pool(name=POOL)])
            state.on_message(snapshot(rows, version, now, rng), news, now)
            window = state.window(now)
            grown, known = window.load.prefix_index_bytes > known, window.load.prefix_index_bytes
            if not full_at and (known > budget * 0.98 or not grown):
                full_at = decided
    pipe.send(
        {
            "processor_mb": memory_mb("self"),
            "processor_empty_mb": empty,
            "index_budget_mb": budget / 1e6,
            "index_estimated_mb": known / 1e6,
            "decided": decided,
        }
    )


def words(rng: random.Random, count: int) -> str:
    """A prompt that no other begins like."""
    return " ".join(f"{rng.getrandbits(20):x}" for _ in range(count))


def main() -> None:
    """Runs the benchmark and prints one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long control runs once all are ready")
    parser.add_argument("--endpoints", type=int, default=1000)
    parser.add_argument("--index-bytes", type=int, default=256 << 20, help="budget of the processor's prefix index")
    options = parser.parse_args()
    found = asyncio.run(control(options.endpoints, options.seconds))
    print(found, flush=True)
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    child = multiprocessing.get_context("spawn").Process(
        target=processor, args=(options.endpoints, options.index_bytes, theirs), daemon=True
    )
    child.start()
    theirs.close()
    found |= ours.recv()
    child.join()
    found["processor_over_budget_mb"] = found["processor_mb"] - found["index_budget_mb"]
    print(json.dumps({name: round(value, 1) for name, value in found.items()} | {"endpoints": options.endpoints}))


if __name__ == "__main__":
    main()
