"""Whether what processors believe to be in flight drifts from what the engines really run, with processors dying.

    python -m tests.bench.drift [--seconds 600] [--rate 40] [--kill-every 60]

Four processors, eight demo engines, a real Envoy, a steady load of requests that take one to three seconds; every
`--kill-every` seconds one processor is killed with SIGKILL and started again by `serve`. About ten times a second each
processor's belief (`xds_control_processor_in_flight` on its /metrics) is held against the engine's own running plus
waiting requests at that moment.

Two distances are allowed: what nobody can know yet, which are the requests that came to or left the endpoint within
the last `KNOWN_S` seconds (access logs, reports, peers and scrapes each take their interval), and one more for a
request on its way between pick and engine. A sample beyond that is a violation. It must not grow either: `first` and
`last` are the mean signed distances of the first and last fifth of the run, and at the end, without load, every belief
must come back to 0.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from tests.envoy.harness import Product
from xds_control.demo.engine import DemoEngine, EngineConfig
from xds_control.demo.model import ModelConfig, Sequence

PROCESSORS = 4
ENGINES = 8
KNOWN_S = 0.75
SAMPLE_S = 0.1
CHAT = "/v1/chat/completions"
TIMING = ModelConfig(prefill_tps=8000.0, decode_s=0.02, decode_growth_s=0.0005, kv_blocks=4000, max_seqs=32)
_LINE = re.compile(r'^xds_control_processor_in_flight\{endpoint="([^"]+)",.*\} (\S+)$', re.MULTILINE)


@dataclass
class Watched:
    """An engine's own count, its history, and how often anything came or left."""

    engine: DemoEngine
    moves: deque[float] = field(default_factory=deque)
    counts: deque[tuple[float, int]] = field(default_factory=deque)

    def hook(self) -> None:
        """Notes arrivals and departures from now on."""
        submit, leave = self.engine.model.submit, self.engine.state.leave

        def submitted(now: float, sequence: Sequence) -> None:
            submit(now, sequence)
            self.note()

        def left(*arguments: Any) -> None:
            leave(*arguments)
            self.note()

        self.engine.model.submit = submitted  # type: ignore[method-assign]
        self.engine.state.leave = left  # type: ignore[method-assign]

    def note(self) -> None:
        """Something came or left."""
        now = time.monotonic()
        self.moves.append(now)
        self.counts.append((now, self.now()))

    def now(self) -> int:
        """Running and waiting."""
        return len(self.engine.model.running) + len(self.engine.model.waiting)

    def recent(self, since: float) -> int:
        """How many came or left since then."""
        while self.moves and self.moves[0] < since - 5.0:
            self.moves.popleft()
        return sum(at >= since for at in self.moves)


@dataclass
class Drift:
    """What was seen."""

    samples: int = 0
    violations: int = 0
    worst: float = 0.0
    beyond: float = 0.0
    total: float = 0.0
    signed: list[tuple[float, float]] = field(default_factory=list)
    in_flight: int = 0
    allowed: int = 0
    examples: list[str] = field(default_factory=list)
    settled: bool = False
    killed: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)

    def add(self, at: float, who: str, believed: float, low: int, high: int, allowed: int) -> None:
        """One belief held against the engine's counts before and after it was asked for."""
        off = believed - high if believed > high else min(believed - low, 0.0)
        self.samples += 1
        self.total += abs(off)
        self.worst = max(self.worst, abs(off))
        self.in_flight += high
        self.allowed += allowed
        self.signed.append((at, off))
        if abs(off) > allowed:
            self.violations += 1
            self.beyond = max(self.beyond, abs(off) - allowed)
            if len(self.examples) < 20:
                self.examples.append(f"{at:.1f}s {who} believed {believed:g} of {low}..{high}, allowed {allowed}")

    def mean(self, low: float, high: float) -> float:
        """Mean signed distance of the samples between two shares of the run."""
        begin, end = self.signed[0][0], self.signed[-1][0]
        part = [off for at, off in self.signed if low <= (at - begin) / max(end - begin, 1e-9) <= high]
        return sum(part) / max(len(part), 1)

    def row(self) -> dict[str, Any]:
        """The figures."""
        return {
            "samples": self.samples,
            "mean_in_flight": round(self.in_flight / max(self.samples, 1), 2),
            "mean_allowed": round(self.allowed / max(self.samples, 1), 2),
            "mean_abs": round(self.total / max(self.samples, 1), 3),
            "max_abs": round(self.worst, 2),
            "violations": self.violations,
            "violation_share": round(self.violations / max(self.samples, 1), 6),
            "beyond_allowed": round(self.beyond, 2),
            "first": round(self.mean(0.0, 0.2), 3),
            "last": round(self.mean(0.8, 1.0), 3),
            "settled": self.settled,
            "killed": self.killed,
            "requests": sum(self.outcomes.values()),
            "failed": sum(count for kind, count in self.outcomes.items() if kind != "200"),
        }


def policy(engines: list[DemoEngine]) -> dict[str, Any]:
    """Four processors; everything else is the default, scrapes at most half a second apart."""
    pool = {"name": "chat", "models": ["demo"], "engine": "vllm"}
    return {
        "pools": [pool | {"endpoints": [{"address": engine.address} for engine in engines]}],
        "signals": {"scrape": {"min_interval_s": 0.2, "max_interval_s": 0.5}},
        "processors": {"count": PROCESSORS},
        "envoy": {"concurrency": 2},
    }


async def load(client: aiohttp.ClientSession, url: str, rate: float, seed: int, outcomes: Counter[str]) -> None:
    """Poisson arrivals until cancelled."""
    rng = random.Random(seed)
    running: set[asyncio.Task[None]] = set()

    async def one(number: int) -> None:
        body = {
            "model": "demo",
            "messages": [{"role": "user", "content": f"{number} " + "word " * rng.randrange(20, 400)}],
            "max_tokens": rng.randrange(30, 120),
            "ignore_eos": True,
            "stream": number % 2 == 0,
        }
        try:
            async with client.post(url + CHAT, json=body) as answer:
                await answer.read()
                outcomes[str(answer.status)] += 1
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            outcomes[type(error).__name__] += 1

    number = 0
    try:
        while True:
            await asyncio.sleep(rng.expovariate(rate))
            task = asyncio.create_task(one(number))
            running.add(task)
            task.add_done_callback(running.discard)
            number += 1
    finally:
        await asyncio.gather(*running)


async def ask(client: aiohttp.ClientSession, url: str) -> dict[str, float] | None:
    """What one processor believes; None while it is away."""
    try:
        async with client.get(f"{url}/readyz") as answer:
            if answer.status != 200:
                return None
        async with client.get(f"{url}/metrics") as answer:
            return {address: float(value) for address, value in _LINE.findall(await answer.text())}
    except (aiohttp.ClientError, TimeoutError, OSError):
        return None


async def watch(
    client: aiohttp.ClientSession, urls: list[str], watched: dict[str, Watched], drift: Drift, started: float
) -> None:
    """One round of samples."""
    for index, url in enumerate(urls):
        before = time.monotonic()
        believed = await ask(client, url)
        after = time.monotonic()
        if believed is None or len(believed) < len(watched):
            continue  # it is being started, or has no snapshot yet
        for address, one in watched.items():
            now = one.now()
            past = [count for at, count in one.counts if at >= before]
            earlier = [count for at, count in one.counts if at < before][-1:]
            seen = [now, *past, *earlier]
            while one.counts and one.counts[0][0] < before - 10.0:
                one.counts.popleft()
            allowed = one.recent(after - KNOWN_S - (after - before)) + 1
            drift.add(after - started, f"p{index} {address}", believed[address], min(seen), max(seen), allowed)


async def run(
    seconds: float, rate: float, kill_every: float, seed: int, tell: Callable[[str], None] = print, rest_s: float = 3.0
) -> Drift:
    """The whole of it; see the module's text."""
    engines = [DemoEngine(EngineConfig(name=f"e{n}", timing=TIMING, seed=n)) for n in range(ENGINES)]
    for engine in engines:
        await engine.start()
    drift = Drift()
    try:
        with tempfile.TemporaryDirectory() as folder:
            async with Product(policy(engines), Path(folder)) as product:
                await _run(product, engines, drift, seconds, rate, kill_every, seed, tell, rest_s)
    finally:
        await asyncio.gather(*(engine.stop() for engine in engines))
    return drift


async def _run(
    product: Product,
    engines: list[DemoEngine],
    drift: Drift,
    seconds: float,
    rate: float,
    kill_every: float,
    seed: int,
    tell: Callable[[str], None],
    rest_s: float,
) -> None:
    watched = {engine.address: Watched(engine) for engine in engines}
    for one in watched.values():
        one.hook()
    host, _, port = product.policy["processors"]["http"].rpartition(":")
    urls = [f"http://{host}:{int(port) + index}" for index in range(PROCESSORS)]
    timeout = aiohttp.ClientTimeout(total=60)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as client:
        loading = asyncio.create_task(load(client, product.gateway, rate, seed, drift.outcomes))
        await asyncio.sleep(3.0)
        started = time.monotonic()
        kill_at = started + kill_every
        told = started
        while (now := time.monotonic()) < started + seconds:
            if now >= kill_at:
                product.kill(f"processor-{drift.killed % PROCESSORS}")
                drift.killed += 1
                kill_at += kill_every
            await watch(client, urls, watched, drift, started)
            if now - told > 30.0:
                told = now
                tell(f"{now - started:.0f}s {json.dumps(drift.row())}")
            await asyncio.sleep(SAMPLE_S)
        loading.cancel()
        await asyncio.gather(loading, return_exceptions=True)
        await asyncio.sleep(rest_s)
        beliefs = [await ask(client, url) for url in urls]
        drift.settled = all(
            believed is not None and set(believed) == set(watched) and not any(believed.values())
            for believed in beliefs
        ) and not any(one.now() for one in watched.values())


def main() -> None:
    parser = argparse.ArgumentParser(description="Drift of believed in-flight counts, with processors killed.")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--rate", type=float, default=40.0)
    parser.add_argument("--kill-every", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    drift = asyncio.run(run(options.seconds, options.rate, options.kill_every, options.seed))
    for example in drift.examples:
        print(example)
    print(json.dumps(drift.row()))


if __name__ == "__main__":
    main()
