"""Many demo engines in one process that are disturbed at random: `python -m tests.unit.signals.soak_engines N SECONDS`.

Prints their addresses, one a line, then an empty line; disturbs them until a line comes on standard input; then heals
all, prints "healed" and serves on until standard input ends. Some requests run on them all the time.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys

import aiohttp
import uvloop

from xds_control.demo.engine import DemoEngine, EngineConfig

FAULTS: tuple[dict[str, object], ...] = (
    {"metrics_status": 500},
    {"metrics_status": 404},
    {"hang": "http"},
    {"hang": "engine"},
    {"restart": True},
    {"slow": 4.0},
    {"kv_fill": 0.9},
    {"sleep": 1},
    {"heal": True},
    {"heal": True},
)


async def disturb(engines: list[DemoEngine], rng: random.Random) -> None:
    while True:
        engine = rng.choice(engines)
        if rng.random() < 0.2:
            port = engine.port
            await engine.stop()
            await asyncio.sleep(rng.uniform(0.0, 0.5))
            await engine.start(port)
        else:
            engine.set_faults(**rng.choice(FAULTS))
        await asyncio.sleep(rng.uniform(0.5, 1.5) * 4 / len(engines))


async def ask(engines: list[DemoEngine], rng: random.Random) -> None:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=1.0)) as session:
        while True:
            engine = rng.choice(engines)
            body = {"model": "demo", "prompt": "x" * rng.randrange(1, 2000), "max_tokens": 20}
            with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError):
                async with session.post(f"{engine.url}/v1/completions", json=body) as answer:
                    await answer.read()
            await asyncio.sleep(0.02)


async def main(count: int) -> None:
    rng = random.Random(7)
    engines = [DemoEngine(EngineConfig(seed=index)) for index in range(count)]
    for engine in engines:
        await engine.start()
    print("\n".join(engine.address for engine in engines), end="\n\n", flush=True)
    tasks = [asyncio.create_task(disturb(engines, rng)), *(asyncio.create_task(ask(engines, rng)) for _ in range(4))]
    await asyncio.to_thread(sys.stdin.readline)
    tasks[0].cancel()
    await asyncio.gather(tasks[0], return_exceptions=True)
    for engine in engines:
        if engine._listening is None:
            await engine.start(engine.port)
        engine.set_faults(heal=True)
    print("healed", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    for task in tasks:
        task.cancel()
    for engine in engines:
        await engine.stop()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))
