"""What users see when one of our processes is killed: nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import pytest

from tests.envoy.harness import Product, eventually
from tests.envoy.traffic import CHAT, FAST_SCRAPE, Load, body

Start = Callable[..., Awaitable[Product]]


@pytest.fixture
async def pair(start_product: Start, make_engine: Any) -> tuple[Product, Any, Any]:
    a, b = await make_engine(name="a", record=2000), await make_engine(name="b", record=2000)
    product = await start_product(
        {
            "pools": [
                {
                    "name": "chat",
                    "models": ["demo"],
                    "engine": "vllm",
                    "endpoints": [{"address": a.address}, {"address": b.address}],
                }
            ],
            "signals": FAST_SCRAPE,
        }
    )
    return product, a, b


def seen_headers(*engines: Any) -> list[dict[str, str]]:
    return [request.headers for engine in engines for request in engine.requests]


async def has_headers(product: Product, client: aiohttp.ClientSession, engine: Any, other: Any) -> bool:
    """Whether a new request reaches an engine with the processor's headers."""
    before = len(engine.requests), len(other.requests)
    async with client.post(product.gateway + CHAT, json=body("marker")) as answer:
        assert answer.status == 200
    newest = [*list(engine.requests)[before[0] :], *list(other.requests)[before[1] :]]
    return any(request.headers.get("x-xds-control-model") == "demo" for request in newest)


async def test_a_killed_processor_costs_no_request_and_comes_back(
    pair: tuple[Product, Any, Any], client: aiohttp.ClientSession
) -> None:
    product, a, b = pair

    async def with_headers() -> bool:
        return await has_headers(product, client, a, b)

    await eventually(with_headers, what="headers of the processor")
    async with Load(client, product.gateway, rate=50) as load:
        await asyncio.sleep(1.0)
        pid = product.kill("processor-0")
        await asyncio.sleep(0.3)
        assert load.statuses["200"] > 0
        await eventually(lambda: product.pid("processor-0") != pid, what="the processor was started again")
        await eventually(with_headers, 15, "headers returned")
        await asyncio.sleep(0.5)
    assert not load.failures, load.failures[:3]
    assert load.sent > 50
    without = sum("x-xds-control-model" not in headers for headers in seen_headers(a, b))
    assert 0 < without < load.sent, "some requests went on by the weights while it was away"


async def test_a_killed_control_costs_no_request_and_envoy_syncs_again(
    pair: tuple[Product, Any, Any], client: aiohttp.ClientSession
) -> None:
    product, _a, _b = pair
    async with Load(client, product.gateway, rate=50) as load:
        await asyncio.sleep(1.0)
        pid = product.kill("control")
        await eventually(lambda: product.pid("control") != pid, what="control was started again")

        async def ready() -> bool:
            status, text = await product.get("/readyz")
            return status == 200 and '"xds_clients":0' not in text and '"processors":0' not in text

        await eventually(ready, 20, "control is ready, Envoy and the processor are back")
        await asyncio.sleep(1.0)
        state = await product.state()
        assert {e["state"] for pool in state["pools"] for e in pool["endpoints"]} == {"ready"}
    assert not load.failures, load.failures[:3]
    assert await product.envoy_stat("cluster.chat.upstream_cx_none_healthy") == 0
    assert await product.envoy_stat("cluster.chat.membership_total") == 2
    for kind in ("cluster_manager.cds", "listener_manager.lds", "cluster.chat"):
        assert await product.envoy_stat(f"{kind}.update_rejected") == 0, kind


async def test_a_killed_engine_costs_a_retry_not_an_error(
    start_product: Start, make_engine: Any, client: aiohttp.ClientSession
) -> None:
    a, b = await make_engine(name="a"), await make_engine(name="b")
    product = await start_product(
        {
            "pools": [
                {
                    "name": "chat",
                    "models": ["demo"],
                    "engine": "vllm",
                    "endpoints": [{"address": a.address}, {"address": b.address}],
                }
            ],
            "signals": FAST_SCRAPE,
        }
    )
    async with Load(client, product.gateway, rate=50) as load:
        await asyncio.sleep(1.0)
        await a.stop()

        async def out() -> bool:
            endpoint = await product.endpoint(a.address)
            return endpoint["state"] in ("suspect", "ejected", "probing")

        await eventually(out, 10, "the dead engine is out")
        await asyncio.sleep(1.0)
    assert not load.failures, load.failures[:3]


async def test_sigterm_stops_everything_and_leaves_nothing(
    start_product: Start, make_engine: Any, client: aiohttp.ClientSession
) -> None:
    import psutil

    engine = await make_engine(name="a")
    product = await start_product(
        {"pools": [{"name": "chat", "models": ["demo"], "engine": "vllm", "endpoints": [{"address": engine.address}]}]}
    )
    pids = [product.pid(name) for name in ("control", "processor-0", "envoy")]
    # a request that is under way is allowed to end
    slow = asyncio.create_task(_long_answer(client, product.gateway))
    await asyncio.sleep(0.3)
    assert await product.stop() == 0
    assert await slow == 200
    assert [pid for pid in pids if psutil.pid_exists(pid)] == []


async def _long_answer(client: aiohttp.ClientSession, url: str) -> int:
    async with client.post(url + CHAT, json=body("long", max_tokens=80, ignore_eos=True)) as answer:
        await answer.read()
        return answer.status
