"""Answers come through untouched, and what is reported about them is true."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.envoy.harness import Product, eventually, free_ports
from tests.envoy.traffic import CHAT, FAST_SCRAPE, body
from xds_control.demo import llama
from xds_control.demo.model import ModelConfig

Start = Callable[..., Awaitable[Product]]


@pytest.fixture
async def one(start_product: Start, make_engine: Any) -> tuple[Product, Any]:
    engine = await make_engine(name="a", record=100, timing=ModelConfig(prefill_tps=2000.0, decode_s=0.01))
    product = await start_product(
        {
            "pools": [
                {"name": "chat", "models": ["demo"], "engine": "vllm", "endpoints": [{"address": engine.address}]}
            ],
            "signals": FAST_SCRAPE,
        }
    )
    return product, engine


@pytest.mark.parametrize("stream", [False, True])
async def test_answers_are_the_same_bytes_through_envoy(
    one: tuple[Product, Any], client: aiohttp.ClientSession, stream: bool
) -> None:
    product, engine = one
    request = body("tell me", max_tokens=30, stream=stream, seed=7, ignore_eos=True)
    if stream:
        request["stream_options"] = {"include_usage": True}

    async def fetch(url: str) -> tuple[int, str, bytes]:
        async with client.post(url + CHAT, json=request) as answer:
            return answer.status, answer.headers["content-type"], await answer.read()

    direct = await fetch(f"http://{engine.address}")
    through = await fetch(product.gateway)
    assert through[:2] == direct[:2]
    assert _without_ids(through[2]) == _without_ids(direct[2])
    assert len(through[2]) == len(direct[2])
    if stream:
        assert through[2].endswith(b"data: [DONE]\n\n")


async def test_streamed_time_to_first_token_agrees_with_the_engine(
    one: tuple[Product, Any], client: aiohttp.ClientSession
) -> None:
    product, engine = one
    for number in range(8):
        request = body(f"{number} " + "word " * 600, max_tokens=8, stream=True, ignore_eos=True)
        async with client.post(product.gateway + CHAT, json=request) as answer:
            await answer.read()

    async def reported() -> bool:
        return int((await product.endpoint(engine.address))["requests"]) >= 8

    await eventually(reported, what="the access log arrived")
    endpoint = await product.endpoint(engine.address)
    own = sorted(request.ttft_s for request in engine.requests if request.ttft_s is not None)
    assert len(own) >= 8
    middle = (own[len(own) // 2 - 1] + own[len(own) // 2]) / 2
    assert abs(endpoint["ttft_p50_s"] - middle) <= 0.020, (endpoint["ttft_p50_s"], own)


async def test_usage_in_the_report_is_the_sum_that_clients_saw(
    one: tuple[Product, Any], client: aiohttp.ClientSession
) -> None:
    product, _engine = one
    seen = {"prompt_tokens": 0, "completion_tokens": 0, "cached_tokens": 0}
    system = "You are a helpful assistant. " * 40
    for number in range(10):
        request = body(f"question {number}", max_tokens=5, stream=number % 2 == 0)
        request["messages"].insert(0, {"role": "system", "content": system})
        if request["stream"]:
            request["stream_options"] = {"include_usage": True}
        async with client.post(product.gateway + CHAT, json=request) as answer:
            usage = _usage(await answer.read(), request["stream"])
        seen["prompt_tokens"] += usage["prompt_tokens"]
        seen["completion_tokens"] += usage["completion_tokens"]
        seen["cached_tokens"] += (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    assert seen["cached_tokens"] > 0, "the shared system prompt is cached"

    async def equal() -> bool:
        totals = (await product.state())["pools"][0]["totals"]
        return all(totals.get(name, 0) == value for name, value in seen.items())

    await eventually(equal, 5, f"the report says {seen}")


async def test_two_llama_cpp_servers_report_what_their_clients_saw(
    start_product: Start, client: aiohttp.ClientSession, llama_servers: list[str]
) -> None:
    product = await start_product(
        {
            "pools": [
                {
                    "name": "llama",
                    "models": ["tiny"],
                    "engine": "llamacpp",
                    "endpoints": [{"address": address} for address in llama_servers],
                }
            ],
            "signals": FAST_SCRAPE,
        }
    )
    seen = {"prompt_tokens": 0, "completion_tokens": 0, "cached_tokens": 0}
    for number in range(12):
        request = body(f"Count {number % 3} times to ten, please.", model="tiny", max_tokens=6, stream=number % 2 == 0)
        if request["stream"]:
            request["stream_options"] = {"include_usage": True}
        async with client.post(product.gateway + CHAT, json=request) as answer:
            data = await answer.read()
            assert answer.status == 200, data
            usage = _usage(data, request["stream"])
        seen["prompt_tokens"] += usage["prompt_tokens"]
        seen["completion_tokens"] += usage["completion_tokens"]
        seen["cached_tokens"] += (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)

    async def equal() -> bool:
        totals = (await product.state())["pools"][0]["totals"]
        return all(totals.get(name, 0) == value for name, value in seen.items())

    await eventually(equal, 5, f"the report says {seen}")
    state = await product.state()
    assert {e["state"] for e in state["pools"][0]["endpoints"]} == {"ready"}
    assert all("running" in e["signals"] for e in state["pools"][0]["endpoints"])


@pytest.fixture
async def llama_servers(tmp_path: Path) -> AsyncIterator[list[str]]:
    """Addresses of two real llama.cpp servers on a tiny random model."""
    missing = llama.available()
    if missing:
        pytest.skip(missing)
    model = tmp_path / "tiny.gguf"
    llama.write_model(model)
    async with contextlib.AsyncExitStack() as stack:
        addresses = []
        for port in free_ports(2):
            server = llama.LlamaServer(model, port, tmp_path / f"llama-{port}.log", name="tiny")
            addresses.append((await stack.enter_async_context(server)).address)
        yield addresses


def _usage(data: bytes, stream: bool) -> dict[str, Any]:
    if not stream:
        found: dict[str, Any] = json.loads(data)["usage"]
        return found
    for line in reversed(data.decode().splitlines()):
        if line.startswith("data: {"):
            event = json.loads(line[6:])
            if event.get("usage"):
                return dict(event["usage"])
    raise AssertionError(f"no usage in {data[-500:]!r}")


def _without_ids(data: bytes) -> bytes:
    """The answer without what differs for each request by its nature: its id and its time."""
    import re

    data = re.sub(rb'"id":\s?"[^"]*"', b'"id":""', data)
    return re.sub(rb'"created":\s?\d+', b'"created":0', data)
