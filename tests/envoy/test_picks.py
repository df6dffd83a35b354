"""Ring 3 on a real Envoy: picks are obeyed, prefixes stick, processors share, failures cost retries and not errors."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import pytest

from tests.envoy.harness import Product, eventually, free_ports, http_get
from tests.envoy.traffic import CHAT, FAST_SCRAPE, Load, body
from xds_control.demo.model import ModelConfig

Start = Callable[..., Awaitable[Product]]
WORDS = [f"w{number:03x}" for number in range(4096)]


def text(rng: random.Random, words: int) -> str:
    return " ".join(rng.choices(WORDS, k=words))


def policy(addresses: list[str], **more: Any) -> dict[str, Any]:
    pool = {"name": "chat", "models": ["demo"], "engine": "vllm", "endpoints": [{"address": a} for a in addresses]}
    return {"pools": [pool], "signals": FAST_SCRAPE, **more}


async def ask(client: aiohttp.ClientSession, product: Product, messages: list[dict[str, str]]) -> dict[str, Any]:
    """One whole answer, with the engine that gave it."""
    request = {"model": "demo", "messages": messages, "max_tokens": 4, "ignore_eos": True}
    async with client.post(product.gateway + CHAT, json=request) as answer:
        assert answer.status == 200, await answer.text()
        found: dict[str, Any] = await answer.json()
        found["engine"] = answer.headers["x-demo-engine"]
        return found


def cached_share(usage: dict[str, Any]) -> float:
    details = usage.get("prompt_tokens_details") or {}
    return float(details.get("cached_tokens") or 0) / float(usage["prompt_tokens"])


async def test_picks_are_obeyed_and_told_to_the_engine(
    start_product: Start, make_engine: Any, client: aiohttp.ClientSession
) -> None:
    engines = [await make_engine(name=f"e{i}", record=100) for i in range(3)]
    product = await start_product(policy([engine.address for engine in engines]))
    rng = random.Random(1)
    served: Counter[str] = Counter()
    for _ in range(60):
        served[(await ask(client, product, [{"role": "user", "content": text(rng, 60)}]))["engine"]] += 1
    seen = [(engine, request) for engine in engines for request in engine.requests]
    assert len(seen) == 60
    for engine, request in seen:
        named = request.headers["x-gateway-destination-endpoint"].split(",")
        assert named[0] == engine.address
        assert len(named) == 3
        assert len(set(named)) == 3
    # One at a time, all different: no endpoint is anybody's favourite.
    assert max(served.values()) <= 26
    assert min(served.values()) >= 14


async def test_a_conversation_stays_with_its_cache_over_four_processors(
    start_product: Start, make_engine: Any, client: aiohttp.ClientSession
) -> None:
    timing = ModelConfig(prefill_tps=4000.0)
    engines = [await make_engine(name=f"e{i}", timing=timing, record=400) for i in range(4)]
    product = await start_product(policy([engine.address for engine in engines], processors={"count": 4}))
    rng = random.Random(2)
    talks: list[list[dict[str, str]]] = [[{"role": "user", "content": text(rng, 400)}] for _ in range(16)]
    homes = [""] * len(talks)
    for turn in range(4):
        shares = []
        for number, talk in enumerate(talks):
            answer = await ask(client, product, talk)
            if turn:
                shares.append(cached_share(answer["usage"]))
                talk_moved = homes[number] != answer["engine"]
                assert not talk_moved, f"turn {turn} of talk {number} went elsewhere"
            homes[number] = answer["engine"]
            talk.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})
            talk.append({"role": "user", "content": text(rng, 30)})
        await asyncio.sleep(0.3)  # the processors tell each other every 100 ms
        if shares:
            assert sum(shares) / len(shares) > 0.75
    assert len(set(homes)) == 4
    processors = {
        request.headers.get("x-xds-control-prefix", "") != "" for engine in engines for request in engine.requests
    }
    assert processors == {True}


async def test_a_dead_pick_costs_one_retry_and_is_left_alone(
    start_product: Start, make_engine: Any, client: aiohttp.ClientSession
) -> None:
    a, b = await make_engine(name="a"), await make_engine(name="b")
    # Scrapes are slow, so that for some seconds nobody but the picker can know.
    signals = {"scrape": {"min_interval_s": 5.0, "max_interval_s": 5.0}}
    product = await start_product({**policy([a.address, b.address]), "signals": signals})
    for _ in range(4):
        await ask(client, product, [{"role": "user", "content": "before"}])
    await a.stop()
    async with Load(client, product.gateway, rate=40) as load:
        await asyncio.sleep(2.5)
    assert not load.failures, load.failures[:3]
    retries = await product.envoy_stat("cluster.chat.upstream_rq_retry")
    assert 1 <= retries <= 40, f"{retries} retries for {load.sent} requests"


async def _engine(port: int, name: str) -> asyncio.subprocess.Process:
    argv = (sys.executable, "-m", "xds_control.demo.engine", "--port", str(port), "--name", name, "--model", "demo")
    return await asyncio.create_subprocess_exec(
        *argv, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
    )


@pytest.mark.slow
async def test_engine_processor_and_control_are_killed_under_load(
    start_product: Start, client: aiohttp.ClientSession
) -> None:
    """SIGKILL of each at 50 requests a second: whatever had no response byte yet is answered by somebody else."""
    ports = free_ports(3)
    engines = [await _engine(port, f"e{i}") for i, port in enumerate(ports)]
    try:
        for port in ports:

            async def up(port: int = port) -> bool:
                return (await http_get(f"http://127.0.0.1:{port}/health"))[0] == 200

            await eventually(up, 15, f"engine on {port}")
        product = await start_product(
            policy([f"127.0.0.1:{port}" for port in ports], processors={"count": 2}, ext_proc={"emit_decision": True})
        )
        async with Load(
            client, product.gateway, rate=50, make_body=lambda n: body(f"question {n}", max_tokens=6)
        ) as load:
            await asyncio.sleep(1.5)
            product.kill("processor-0")
            await asyncio.sleep(2.0)
            product.kill("control")
            await asyncio.sleep(2.0)
            os.kill(engines[0].pid, signal.SIGKILL)
            await asyncio.sleep(3.0)
        # Not streamed: no response byte is sent before the answer is whole, so everything can be retried.
        assert not load.failures, f"{len(load.failures)} of {load.sent}: {load.failures[:3]}"
        assert load.sent > 300
    finally:
        for engine in engines:
            if engine.returncode is None:
                engine.kill()
            await engine.wait()


async def test_streams_that_break_in_the_middle_are_counted_not_hidden(
    start_product: Start, make_engine: Any, client: aiohttp.ClientSession
) -> None:
    """Once bytes went out nothing can be retried: the client sees the break, and the endpoint's count says so."""
    ports = free_ports(2)
    engines = [await _engine(port, f"e{i}") for i, port in enumerate(ports)]
    try:
        for port in ports:

            async def up(port: int = port) -> bool:
                return (await http_get(f"http://127.0.0.1:{port}/health"))[0] == 200

            await eventually(up, 15, f"engine on {port}")
        product = await start_product(policy([f"127.0.0.1:{port}" for port in ports]))
        broken = whole = 0

        async def stream(number: int) -> bool:
            request = body(f"tell {number}", max_tokens=200, stream=True, ignore_eos=True)
            try:
                async with client.post(product.gateway + CHAT, json=request) as answer:
                    text_of = await answer.text()
                    return "[DONE]" in text_of
            except (aiohttp.ClientError, OSError):
                return False

        running = [asyncio.create_task(stream(number)) for number in range(12)]
        await asyncio.sleep(1.2)
        os.kill(engines[0].pid, signal.SIGKILL)
        for done in await asyncio.gather(*running):
            whole += done
            broken += not done
        assert whole >= 4
        assert broken >= 1

        async def counted() -> bool:
            _, page = await product.get("/metrics")
            lines = [line for line in page.splitlines() if line.startswith("xds_control_requests")]
            bad = [line for line in lines if 'outcome="reset"' in line]
            return sum(float(line.rpartition(" ")[2]) for line in bad) >= broken

        await eventually(counted, 5, "broken streams in control's metrics")
    finally:
        for engine in engines:
            if engine.returncode is None:
                engine.kill()
            await engine.wait()


async def test_a_destination_header_of_the_client_decides_nothing(
    start_product: Start, make_engine: Any, client: aiohttp.ClientSession
) -> None:
    a, b = await make_engine(name="a"), await make_engine(name="b")
    product = await start_product(policy([a.address, b.address]))
    served: Counter[str] = Counter()
    for number in range(30):
        headers = {"x-gateway-destination-endpoint": a.address}
        request = body(f"unique {number} " + "x" * 400)
        async with client.post(product.gateway + CHAT, json=request, headers=headers) as answer:
            assert answer.status == 200
            served[answer.headers["x-demo-engine"]] += 1
    assert served["b"] >= 8, "a client's own destination header decides nothing"
