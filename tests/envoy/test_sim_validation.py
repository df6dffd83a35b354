"""The simulator against reality: the same small load on demo engines behind a real Envoy and on simulated ones."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import aiohttp

from tests.envoy.harness import Product, eventually
from tests.envoy.traffic import CHAT
from xds_control.demo.model import ModelConfig
from xds_control.sim.engine import EngineSpec
from xds_control.sim.ours import OurPolicy, Ours
from xds_control.sim.request import Request
from xds_control.sim.router import EnvoyAlone, Router
from xds_control.sim.simulation import FleetSpec, Simulation

# Caches too small for all groups, so that the median lies well among the hits of one policy and the misses of the
# other. Between them it would hang on single random choices: simulated seeds differ by 2 to 9 % here.
ENGINES, GROUPS, COUNT, RATE = 3, 9, 80, 4.0
KV_BLOCKS, SEEDS = 330, range(1, 8)
PREFIX_TOKENS, BLOCK = 1500, 16
TIMING = ModelConfig(
    prefill_tps=3000.0, decode_s=0.02, decode_growth_s=0.001, kv_blocks=KV_BLOCKS, block_size=BLOCK, max_seqs=16
)
SPEC = EngineSpec(
    prefill_s=1 / 3000.0, decode_s=0.02, sequence_s=0.001, kv_tokens=KV_BLOCKS * BLOCK, max_seqs=16,
    max_batched_tokens=TIMING.max_batched_tokens,
)  # fmt: skip


@dataclass(slots=True)
class Planned:
    """One request of the load, and what became of it in reality."""

    at: float
    group: int
    own: int
    output: int
    prompt_tokens: int = 0
    cached: int = 0
    ttft: float = -1.0


def plan(seed: int = 4) -> list[Planned]:
    rng = random.Random(seed)
    at, planned = 0.0, []
    for _ in range(COUNT):
        at += rng.expovariate(RATE)
        planned.append(Planned(at, rng.randrange(GROUPS), rng.randrange(40, 160), rng.randrange(8, 24)))
    return planned


def text(words: str, tokens: int) -> str:
    return (words * (tokens * 4 // len(words) + 1))[: tokens * 4]


async def send(session: aiohttp.ClientSession, url: str, number: int, one: Planned) -> None:
    body = {
        "model": "demo",
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": one.output,
        "min_tokens": one.output,
        "messages": [
            {"role": "system", "content": text(f"group {one.group} rules. ", PREFIX_TOKENS)},
            {"role": "user", "content": text(f"request {number} asks. ", one.own)},
        ],
    }
    started = time.monotonic()
    async with session.post(url + CHAT, json=body) as answer:
        assert answer.status == 200, await answer.text()
        async for line in answer.content:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if one.ttft < 0 and event["choices"] and event["choices"][0]["delta"].get("content"):
                one.ttft = time.monotonic() - started
            if event.get("usage"):
                one.prompt_tokens = event["usage"]["prompt_tokens"]
                one.cached = (event["usage"]["prompt_tokens_details"] or {}).get("cached_tokens", 0)


async def measure(client: aiohttp.ClientSession, url: str) -> list[Planned]:
    planned = plan()
    start = time.monotonic()
    tasks = []
    for number, one in enumerate(planned):
        await asyncio.sleep(max(0.0, start + one.at - time.monotonic()))
        tasks.append(asyncio.create_task(send(client, url, number, one)))
    await asyncio.gather(*tasks)
    return planned


def simulated(planned: list[Planned], router: Router, seed: int) -> tuple[list[float], float]:
    """(TTFTs, hit ratio) of the same requests on simulated engines."""
    fresh = iter(range(1_000_000, 10_000_000))
    heads = [list(range(1 + g * 1000, 1 + g * 1000 + PREFIX_TOKENS // BLOCK)) for g in range(GROUPS)]
    requests = []
    for i, one in enumerate(planned):
        head = heads[one.group]
        keys = [*head, *(next(fresh) for _ in range((one.prompt_tokens - len(head) * BLOCK) // BLOCK))]
        requests.append(Request(i, one.at, one.prompt_tokens, one.output, keys, BLOCK, len(head) * BLOCK))
    run = Simulation(FleetSpec([SPEC] * ENGINES), requests, router, seed).run()
    cached = sum(o.cached for o in run.outcomes) / sum(r.prompt for r in requests)
    return [o.ttft for o in run.outcomes], cached


def policy(endpoints: list[str], picks: bool) -> dict[str, Any]:
    pool = {"name": "chat", "models": ["demo"], "engine": "vllm", "picks": picks, "lb": "least_request"}
    flat = {"profile": "custom", "curves": [{"signal": "kv_usage", "weight": 1.0, "floor": 1.0}]}
    quiet = {"waterfill": {"enabled": False}, "fairness": {"enabled": False}}
    made: dict[str, Any] = {"pools": [{**pool, "endpoints": [{"address": a} for a in endpoints]}]}
    if not picks:
        # Equal weights: Envoy's least_request by itself, the baseline that the simulator has too.
        made["weights"] = {**flat, **quiet}
        made["capacity"] = {"learn": {"enabled": False}}
    return made


async def test_time_to_first_token_is_as_simulated_and_policies_rank_alike(
    start_product: Callable[..., Awaitable[Product]], make_engine: Any, client: aiohttp.ClientSession
) -> None:
    real: dict[str, list[Planned]] = {}
    for name in ("ours", "least_request"):
        engines = [await make_engine(timing=TIMING, name=f"{name}-{i}") for i in range(ENGINES)]
        product = await start_product(policy([e.address for e in engines], picks=name == "ours"))
        await eventually(product.ready, what="the product")
        real[name] = await measure(client, product.gateway)
        await product.stop()
    routers: dict[str, Callable[[], Router]] = {
        "ours": lambda: Ours(OurPolicy()),
        "least_request": lambda: EnvoyAlone("least_request", "least_request"),
    }
    seen = {name: median(one.ttft for one in planned) for name, planned in real.items()}
    told = {}
    for name, planned in real.items():
        assert all(one.ttft > 0 and one.prompt_tokens >= PREFIX_TOKENS for one in planned)
        runs = [simulated(planned, routers[name](), seed) for seed in SEEDS]
        told[name] = median(median(ttfts) for ttfts, _ in runs)
        hits = median(cached for _, cached in runs)
        real_hits = sum(o.cached for o in planned) / sum(o.prompt_tokens for o in planned)
        print(
            f"{name}: TTFT p50 real {seen[name]:.3f} s, simulated {told[name]:.3f} s; hits {real_hits:.2f}, {hits:.2f}"
        )
    for name in real:
        assert abs(told[name] / seen[name] - 1.0) < 0.2, (name, seen, told)
    assert (seen["ours"] < seen["least_request"]) == (told["ours"] < told["least_request"]), (seen, told)
