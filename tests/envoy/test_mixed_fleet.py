"""A fleet of fast and slow engines behind a real Envoy: round robin, least_request and our weights on the same load."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest

from tests.envoy.harness import Product
from tests.envoy.traffic import CHAT, body
from xds_control.demo.engine import DemoEngine
from xds_control.demo.model import ModelConfig

Start = Callable[..., Awaitable[Product]]

ANSWER_TOKENS = 24
PROMPT_WORDS = 150
WARM_S, MEASURE_S = 8.0, 14.0
UTILISATION = 0.8
SEQUENCES = 8


def timing(slow: float) -> ModelConfig:
    """An engine whose every step takes `slow` times as long as the fast one's."""
    return ModelConfig(
        prefill_tps=4_000.0 / slow,
        decode_s=0.020 * slow,
        decode_growth_s=0.001 * slow,
        max_seqs=SEQUENCES,
        kv_blocks=4_000,
    )


def requests_per_s(slow: float, prompt_tokens: float) -> float:
    """What one such engine answers when its batch is full: each prompt holds all sequences up for its prefill."""
    one = timing(slow)
    step = one.decode_s + one.decode_growth_s * (SEQUENCES - 1)
    return SEQUENCES / (ANSWER_TOKENS * step + SEQUENCES * prompt_tokens / one.prefill_tps)


@dataclass
class Measured:
    """What the clients of one variant saw. ttft_s: of answered requests in the measured time."""

    ttft_s: list[float] = field(default_factory=list)
    served: Counter[str] = field(default_factory=Counter)
    failed: int = 0
    weights: dict[str, int] = field(default_factory=dict)
    running: dict[str, float] = field(default_factory=dict)

    def quantile(self, q: float) -> float:
        ranked = sorted(self.ttft_s)
        return ranked[min(len(ranked) - 1, int(q * len(ranked)))]

    def share(self, names: Sequence[str]) -> float:
        return sum(self.served[name] for name in names) / sum(self.served.values())


async def ask(session: aiohttp.ClientSession, url: str, number: int, counts: bool, seen: Measured) -> None:
    """One streamed request."""
    text = f"{number} " + " ".join(f"w{(number * 31 + k) % 997}" for k in range(PROMPT_WORDS))
    request = body(text, max_tokens=ANSWER_TOKENS, stream=True, ignore_eos=True)
    started = time.monotonic()
    try:
        async with session.post(url + CHAT, json=request) as answer:
            first: float | None = None
            async for line in answer.content:
                if first is None and line.startswith(b"data: {") and b'"content":"' in line.replace(b'": "', b'":"'):
                    content = json.loads(line[6:])["choices"][0]["delta"].get("content")
                    first = time.monotonic() if content else None
            if not counts:
                return
            if answer.status != 200 or first is None:
                seen.failed += 1
                return
            seen.ttft_s.append(first - started)
            seen.served[answer.headers["x-demo-engine"]] += 1
    except (aiohttp.ClientError, TimeoutError, OSError):
        seen.failed += counts


async def load(session: aiohttp.ClientSession, product: Product, rate: float, names: dict[str, str]) -> Measured:
    """Poisson arrivals, the same for each variant: some seconds to settle, then the measured ones."""
    rng = random.Random(11)
    loop = asyncio.get_running_loop()
    start = due = loop.time()
    seen = Measured()
    running: list[asyncio.Task[None]] = []
    number = 0
    while due < start + WARM_S + MEASURE_S:
        running.append(asyncio.create_task(ask(session, product.gateway, number, due >= start + WARM_S, seen)))
        number += 1
        due += rng.expovariate(rate)
        await asyncio.sleep(max(0.0, due - loop.time()))
    state = await product.state()
    for pool in state["pools"]:
        for endpoint in pool["endpoints"]:
            seen.weights[names[endpoint["address"]]] = endpoint["weight"]
    await asyncio.gather(*running)
    return seen


def policy(engines: list[DemoEngine], lb: str, ours: bool) -> dict[str, Any]:
    """ours: weights from what is measured; else Envoy's balancing alone on equal weights."""
    weights: dict[str, Any] = {"slow_start": {"window_s": 0}}
    if not ours:
        weights |= {
            "profile": "custom",
            "waterfill": {"enabled": False},
            "curves": [{"signal": "asleep"}],
            "fairness": {"enabled": False},
            "gates": {name: {"enabled": False, "enter": 1, "leave": 1} for name in ("kv", "waiting", "slo_miss")},
        }
    return {
        "pools": [
            {"name": "chat", "models": ["demo"], "engine": "vllm", "picks": False, "lb": lb}
            | {"endpoints": [{"address": e.address} for e in engines]}
        ],
        "weights": weights,
        "signals": {"scrape": {"min_interval_s": 0.2, "max_interval_s": 0.5}},
        "capacity": {"learn": {"enabled": ours, "half_life_s": 10}},
    }


@pytest.mark.slow
@pytest.mark.timeout(280)
@pytest.mark.parametrize("ratio", [2.0, 4.0])
async def test_a_mixed_fleet_settles_and_beats_round_robin_and_least_request(
    ratio: float,
    start_product: Start,
    make_engine: Any,
    client: aiohttp.ClientSession,
    capsys: pytest.CaptureFixture[str],
) -> None:
    kinds = {"fast-1": 1.0, "fast-2": 1.0, "slow-1": ratio, "slow-2": ratio}
    engines = [await make_engine(timing=timing(slow), name=name, stream_interval=6) for name, slow in kinds.items()]
    names = {engine.address: name for engine, name in zip(engines, kinds, strict=True)}
    tokens = 2.0 * PROMPT_WORDS
    rate = UTILISATION * sum(requests_per_s(slow, tokens) for slow in kinds.values())
    results: dict[str, Measured] = {}
    for variant, lb, ours in (
        ("round robin", "round_robin", False),
        ("least_request", "least_request", False),
        ("our weights", "least_request", True),
    ):
        product = await start_product(policy(engines, lb, ours))
        results[variant] = await load(client, product, rate, names)
        await product.stop()
    with capsys.disabled():
        print(f"\n{ratio:g}:1, {rate:.1f} requests/s ({UTILISATION:.0%} of capacity), TTFT in seconds")
        print(f"{'':14} {'p50':>7} {'p90':>7} {'p99':>7} {'fast share':>11} {'failed':>7}  weights")
        for variant, seen in results.items():
            print(
                f"{variant:14} {seen.quantile(0.5):7.3f} {seen.quantile(0.9):7.3f} {seen.quantile(0.99):7.3f} "
                f"{seen.share(['fast-1', 'fast-2']):11.3f} {seen.failed:7d}  {[seen.weights[name] for name in kinds]}"
            )
    own = results["our weights"]
    assert all(seen.failed == 0 for seen in results.values())
    # Shares by speed are what keeps the queues level.
    due = ratio / (ratio + 1.0)
    assert abs(own.share(["fast-1", "fast-2"]) - due) < 0.12
    assert own.quantile(0.9) < results["round robin"].quantile(0.9)
    assert own.quantile(0.9) < results["least_request"].quantile(0.9)
