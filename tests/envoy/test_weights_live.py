"""Ring 1 on a real Envoy: weights become shares, and follow what is measured."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp

from tests.envoy.harness import Product, eventually
from tests.envoy.traffic import FAST_SCRAPE, FAST_WEIGHTS, Load, served_by

Start = Callable[..., Awaitable[Product]]


def policy(endpoints: list[dict[str, Any]], **pool: Any) -> dict[str, Any]:
    return {
        "pools": [
            {"name": "chat", "models": ["demo"], "engine": "vllm", "picks": False, "lb": "round_robin", **pool}
            | {"endpoints": endpoints}
        ],
        "weights": FAST_WEIGHTS,
        "signals": FAST_SCRAPE,
        "capacity": {"learn": {"enabled": False}},
    }


async def test_weights_of_three_to_one_give_such_shares(
    start_product: Start, make_engine: Any, client: aiohttp.ClientSession
) -> None:
    a, b = await make_engine(name="a"), await make_engine(name="b")
    product = await start_product(
        policy([{"address": a.address, "capacity": 3}, {"address": b.address, "capacity": 1}])
    )

    async def settled() -> bool:
        weights = [(await product.endpoint(x.address))["weight"] for x in (a, b)]
        return bool(abs(weights[0] / weights[1] - 3.0) < 0.05)

    await eventually(settled, what="weights 3:1")
    answered = await served_by(client, product.gateway, 400)
    assert set(answered) == {"a", "b"}, answered
    assert 70 <= 100 * answered["a"] / 400 <= 80, answered


async def test_a_full_kv_cache_loses_weight_within_a_second_and_gets_it_back(
    start_product: Start, make_engine: Any, client: aiohttp.ClientSession
) -> None:
    a, b = await make_engine(name="a"), await make_engine(name="b")
    product = await start_product(policy([{"address": a.address}, {"address": b.address}]))

    async def weight(engine: Any) -> int:
        return int((await product.endpoint(engine.address))["weight"])

    async def equal() -> bool:
        return await weight(a) == await weight(b) > 0

    await eventually(equal, what="equal weights of an idle pool")
    updates = await product.envoy_stat("cluster.chat.update_success")
    async with Load(client, product.gateway, rate=40) as load:
        await asyncio.sleep(0.5)
        connections = await product.envoy_stat("cluster.chat.upstream_cx_total")
        async with client.post(f"http://{a.address}/demo/control", json={"kv_fill": 0.95}) as answer:
            assert answer.status == 200
        changed = time.monotonic()

        async def told() -> bool:
            return await product.envoy_stat("cluster.chat.update_success") > updates and (
                await weight(a) < 0.5 * await weight(b)
            )

        await eventually(told, 5, "the full engine lost weight, and Envoy has it")
        took = time.monotonic() - changed
        assert took < 1.0, f"the change was in force after {took:.2f} s"
        before = await served_by(client, product.gateway, 100)
        assert before["a"] < 35, before
        async with client.post(f"http://{a.address}/demo/control", json={"heal": True}) as answer:
            assert answer.status == 200

        async def recovered() -> bool:
            return await weight(a) >= 0.9 * await weight(b)

        await eventually(recovered, 10, "the engine recovered its weight")
        await asyncio.sleep(0.5)
        after = await served_by(client, product.gateway, 100)
        assert after["a"] >= 35, after
    assert not load.failures, load.failures[:3]
    grown = await product.envoy_stat("cluster.chat.upstream_cx_total") - connections
    # weight changes cost no connection; the pool may open more for the concurrent requests above
    assert grown <= 2 * 8 * 2, f"{grown} new upstream connections"
    assert await product.envoy_stat("cluster.chat.upstream_cx_destroy_local") == 0
    assert await product.envoy_stat("cluster_manager.cluster_modified") == 0
