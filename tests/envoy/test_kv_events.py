"""The exact prefix index on a real Envoy: engines publish what their caches hold, picks follow that and no belief."""

from __future__ import annotations

import random
import re
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import grpc
import pytest

from tests.envoy.harness import Product, eventually, free_ports, http_get
from tests.envoy.traffic import FAST_SCRAPE
from xds_control.demo.engine import DemoEngine
from xds_control.demo.model import ModelConfig
from xds_control.proto import admin_pb2, admin_pb2_grpc

pytest.importorskip("zmq", reason="pyzmq is not installed (extra `kv-events`)")

Start = Callable[..., Awaitable[Product]]
PATH = "/v1/completions"
_BLOCKS = re.compile(r'^xds_control_processor_kv_blocks\{endpoint="([^"]+)",.*\} (\S+)$', re.MULTILINE)
TOKENS = 640
TIMING = ModelConfig(prefill_tps=4000.0, kv_blocks=120)


def prompt(seed: int, tokens: int = TOKENS) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(1, 50_000) for _ in range(tokens)]


class World:
    """Two engines that publish, the product, and what its picker believes."""

    def __init__(self, product: Product, engines: dict[str, DemoEngine], client: aiohttp.ClientSession) -> None:
        self.product = product
        self.engines = engines
        self.client = client

    async def ask(self, tokens: list[int], engine: str = "") -> tuple[str, int, int]:
        """(who answered, tokens that were cached there, tokens that the picker believed cached there). engine: asked
        behind the picker's back."""
        url = self.engines[engine].url if engine else self.product.gateway
        request = {"model": "demo", "prompt": tokens, "max_tokens": 2, "ignore_eos": True}
        async with self.client.post(url + PATH, json=request) as answer:
            assert answer.status == 200, await answer.text()
            usage = (await answer.json())["usage"]
            identifier = answer.headers.get("x-xds-control-decision", "")
            name = answer.headers["x-demo-engine"]
        cached = (usage["prompt_tokens_details"] or {}).get("cached_tokens", 0)
        return name, cached, 0 if engine else await self._believed(identifier)

    async def _believed(self, identifier: str) -> int:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{self.product.ports['admin']}") as channel:
            stub: Any = admin_pb2_grpc.AdminStub(channel)  # type: ignore[no-untyped-call]
            answer = await stub.ExplainRequest(admin_pb2.ExplainRequestRequest(request_id=identifier))
        found: int = answer.explanation.decision.matched_tokens
        return found

    async def in_step(self) -> None:
        """Waits until the processor knows as many blocks of each engine as it holds."""
        wanted = {e.address: float(e.model.cache.cached_blocks) for e in self.engines.values()}
        http = self.product.policy["processors"]["http"]

        async def same() -> bool:
            _, page = await http_get(f"http://{http}/metrics")
            found = {address: float(value) for address, value in _BLOCKS.findall(page)}
            return all(found.get(address, 0.0) == blocks for address, blocks in wanted.items())

        await eventually(same, 10, f"the blocks {wanted} are known")


async def world(start_product: Start, make_engine: Any, client: aiohttp.ClientSession, exact: str = "auto") -> World:
    engines: dict[str, DemoEngine] = {}
    endpoints = []
    for name in ("a", "b"):
        events, replay = free_ports(2)
        engine = await make_engine(name=name, timing=TIMING, kv_events_port=events, kv_replay_port=replay)
        engines[name] = engine
        labels = {"kv-events-port": str(events), "kv-replay-port": str(replay)}
        endpoints.append({"address": engine.address, "labels": labels})
    pool = {"name": "chat", "models": ["demo"], "engine": "vllm", "endpoints": endpoints}
    policy = {
        "pools": [pool],
        "signals": FAST_SCRAPE,
        "picker": {"prefix": {"exact": exact}},
        "ext_proc": {"emit_decision": True},
        "processors": {"requests": {"sample_share": 1.0}},
    }
    return World(await start_product(policy), engines, client)


async def test_picks_follow_what_engines_publish(
    start_product: Start, make_engine: Any, client: aiohttp.ClientSession
) -> None:
    found = await world(start_product, make_engine, client)
    tokens = prompt(1)
    home, cached, believed = await found.ask(tokens)
    assert (cached, believed) == (0, 0)
    other = "b" if home == "a" else "a"
    await found.in_step()
    assert await found.ask([*tokens, 7, 8, 9]) == (home, TOKENS, TOKENS)

    # The cache is emptied and the other one warmed, both behind the picker's back: it goes where the blocks are.
    found.engines[home].set_faults(reset_prefix_cache=True)
    await found.ask(tokens, other)
    await found.in_step()
    assert await found.ask([*tokens, 4, 5, 6]) == (other, TOKENS, TOKENS)

    # Other prompts push it out of the small cache: nobody is believed to hold it any more.
    for seed in range(10, 14):
        await found.ask(prompt(seed), other)
    await found.in_step()
    _, cached, believed = await found.ask([*tokens, 1, 2, 3])
    assert (cached, believed) == (0, 0)

    # A processor that is killed asks for what was published before it came back.
    newest = prompt(20)
    await found.ask(newest, other)
    found.product.kill("processor-0")
    await found.in_step()
    assert await found.ask([*newest, 1]) == (other, TOKENS, TOKENS)


async def test_without_events_the_belief_outlives_the_cache(
    start_product: Start, make_engine: Any, client: aiohttp.ClientSession
) -> None:
    """What the exact index is for: the approximate one cannot know that a cache was emptied."""
    found = await world(start_product, make_engine, client, exact="off")
    tokens = prompt(2)
    home, _, _ = await found.ask(tokens)
    found.engines[home].set_faults(reset_prefix_cache=True)
    again, cached, believed = await found.ask([*tokens, 1, 2])
    assert (again, cached) == (home, 0)
    assert believed > TOKENS // 2
