"""Admission on a real Envoy: requests wait for room and not longer than their class may, the important ones first."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import pytest

from tests.envoy.harness import Product, eventually, http_get
from tests.envoy.traffic import CHAT, FAST_SCRAPE, body
from xds_control.demo.engine import DemoEngine
from xds_control.demo.model import ModelConfig

Start = Callable[..., Awaitable[Product]]
TIMING = ModelConfig(decode_s=0.02, decode_growth_s=0.0)
TOKENS = 50  # a second


def policy(engine: DemoEngine, **more: Any) -> dict[str, Any]:
    classes = [
        {"name": "high", "priority": 80, "max_queue_s": 20.0},
        {"name": "medium", "priority": 50, "max_queue_s": 20.0},
        {"name": "brief", "priority": 40, "max_queue_s": 0.4},
        {"name": "never", "priority": 30, "max_queue_s": 0.0},
    ]
    pool = {"name": "chat", "models": ["demo"], "engine": "vllm", "endpoints": [{"address": engine.address}]}
    return {
        "pools": [pool],
        "signals": FAST_SCRAPE,
        "classes": {"default": "medium", "items": classes},
        "inspect": {"class_sources": ["x-class"]},
        "admission": {"enabled": True},
        "picker": {"limits": {"max_concurrency": 2}},
        **more,
    }


async def ask(
    client: aiohttp.ClientSession, product: Product, text: str, service_class: str = "", tokens: int = TOKENS
) -> tuple[int, dict[str, str]]:
    request = body(text, max_tokens=tokens, ignore_eos=True)
    headers = {"x-class": service_class} if service_class else {}
    async with client.post(product.gateway + CHAT, json=request, headers=headers) as answer:
        await answer.read()
        return answer.status, {name.lower(): value for name, value in answer.headers.items()}


async def queued(product: Product) -> int:
    """How many wait in the only processor."""
    _, page = await http_get(f"http://{product.policy['processors']['http']}/metrics")
    lines = [line for line in page.splitlines() if line.startswith("xds_control_processor_queued{")]
    return int(float(lines[0].rpartition(" ")[2])) if lines else 0


def waits(product: Product, count: int) -> Callable[[], Awaitable[bool]]:
    async def found() -> bool:
        return await queued(product) == count

    return found


@pytest.mark.parametrize("mode", ["buffered", "streamed", "full_duplex"])
async def test_they_wait_for_room_and_the_important_go_first(
    mode: str, start_product: Start, make_engine: Any, client: aiohttp.ClientSession
) -> None:
    engine = await make_engine(name="e", timing=TIMING, record=50)
    product = await start_product(policy(engine, ext_proc={"body_mode": mode}))
    most = 0
    order: list[str] = []

    async def watch() -> None:
        nonlocal most
        while True:
            most = max(most, len(engine.model.running) + len(engine.model.waiting))
            await asyncio.sleep(0.01)

    async def one(text: str, service_class: str = "", tokens: int = TOKENS) -> int:
        status, _ = await ask(client, product, text, service_class, tokens)
        order.append(text)
        return status

    watching = asyncio.create_task(watch())
    # They run for as long as a slow machine may take to have the others in the queue.
    first = [asyncio.create_task(one(f"first {n}", tokens=4 * TOKENS)) for n in range(2)]
    await eventually(lambda: len(engine.model.running) == 2, 3, "two run")
    medium = [asyncio.create_task(one(f"medium {n}")) for n in range(3)]
    await eventually(waits(product, 3), 3, "three wait")
    high = [asyncio.create_task(one(f"high {n}", "high")) for n in range(2)]
    await eventually(waits(product, 5), 3, "five wait")
    # Longer than Envoy waits for an answer by itself (message_timeout_s, 0.5 s): nothing goes past the queue.
    statuses = await asyncio.gather(*first, *medium, *high)
    watching.cancel()
    assert statuses == [200] * 7
    assert {text.split()[0] for text in order[2:4]} == {"high"}, order
    # One that is longer on its way between pick and engine than allowed for may be missed by a scrape.
    assert most <= 3, f"{most} at once"
    assert await queued(product) == 0
    seen = [request.headers["x-gateway-destination-endpoint"] for request in engine.requests]
    assert seen == [engine.address] * 7, "every one was picked for, none went on by itself"


async def test_who_may_not_wait_or_waited_long_enough_is_refused_and_who_leaves_is_gone(
    start_product: Start, make_engine: Any, client: aiohttp.ClientSession
) -> None:
    engine = await make_engine(name="e", timing=TIMING, record=50)
    product = await start_product(policy(engine))
    busy = [asyncio.create_task(ask(client, product, f"busy {n}", tokens=200)) for n in range(2)]
    await eventually(lambda: len(engine.model.running) == 2, 3, "two run")

    status, headers = await ask(client, product, "at once", "never")
    assert (status, headers["x-xds-control-reason"], headers["retry-after"]) == (429, "queue-full", "1")
    assert headers["x-llm-d-request-dropped-reason"] == "rejected-saturated"
    status, headers = await ask(client, product, "for a moment", "brief")
    assert (status, headers["x-xds-control-reason"]) == (429, "queue-expired")
    assert headers["x-llm-d-request-dropped-reason"] == "rejected-ttl-expired"

    leaving = asyncio.create_task(ask(client, product, "leaves"))
    await eventually(waits(product, 1), 3, "one waits")
    leaving.cancel()
    await eventually(waits(product, 0), 3, "nobody waits")
    assert [status for status, _ in await asyncio.gather(*busy)] == [200, 200]
    assert len(engine.requests) == 2
