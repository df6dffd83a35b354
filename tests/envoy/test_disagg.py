"""Prefill and decode on different engines, on a real Envoy: who reads which prompt, in each connector's form."""

from __future__ import annotations

import json
import random
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import pytest

from tests.envoy.harness import Product
from tests.envoy.traffic import CHAT, FAST_SCRAPE
from xds_control.demo.engine import DemoEngine
from xds_control.demo.model import ModelConfig

Start = Callable[..., Awaitable[Product]]
WORDS = [f"w{number:03x}" for number in range(4096)]
TIMING = ModelConfig(prefill_tps=8000.0)


def text(seed: int, words: int) -> str:
    return " ".join(random.Random(seed).choices(WORDS, k=words))


class Fleet:
    """Two engines that prefill, two that decode, the product before them."""

    def __init__(self, prefill: list[DemoEngine], decode: list[DemoEngine], product: Product) -> None:
        self.prefill = prefill
        self.decode = decode
        self.product = product

    @property
    def counts(self) -> tuple[int, int, int]:
        """(prompts read for others, prompts taken over, requests that decode engines answered)."""
        return (
            sum(engine.prefilled for engine in self.prefill),
            sum(engine.received for engine in self.decode),
            sum(len(engine.requests) for engine in self.decode),
        )


async def fleet(start_product: Start, make_engine: Any, connector: str) -> Fleet:
    prefill = [await make_engine(name=f"p{n}", timing=TIMING, record=50) for n in range(2)]
    decode = [await make_engine(name=f"d{n}", timing=TIMING, record=50, decodes=True) for n in range(2)]
    endpoints = [{"address": engine.address, "role": "prefill"} for engine in prefill]
    endpoints += [{"address": engine.address, "role": "decode"} for engine in decode]
    pool = {"name": "chat", "models": ["demo"], "engine": "vllm", "endpoints": endpoints}
    split = {"connector": connector, "uncached_tokens": 512}
    picker = {"profiles": {"default": {"disagg": split}}}
    product = await start_product({"pools": [pool], "signals": FAST_SCRAPE, "picker": picker})
    found = Fleet(prefill, decode, product)
    for engine in (*prefill, *decode):
        engine.requests.clear()  # warm-up prompts of the life cycle
    return found


async def ask(client: aiohttp.ClientSession, found: Fleet, messages: list[dict[str, str]], **more: Any) -> Any:
    body = {"model": "demo", "messages": messages, "max_tokens": 8, "ignore_eos": True, **more}
    async with client.post(found.product.gateway + CHAT, json=body) as answer:
        assert answer.status == 200, await answer.text()
        assert answer.headers["x-demo-engine"].startswith("d"), "decode engines answer"
        return await answer.text() if more.get("stream") else await answer.json()


@pytest.mark.parametrize("connector", ["llm-d", "vllm", "sglang"])
async def test_long_uncached_prompts_are_read_elsewhere_short_and_cached_ones_are_not(
    connector: str, start_product: Start, make_engine: Any, client: aiohttp.ClientSession
) -> None:
    found = await fleet(start_product, make_engine, connector)
    talk = [{"role": "user", "content": text(1, 1500)}]

    answer = await ask(client, found, talk)
    assert answer["usage"]["completion_tokens"] == 8
    assert found.counts == (1, 1, 1)
    (decoding,) = [engine for engine in found.decode if engine.requests]
    (reading,) = [engine for engine in found.prefill if engine.requests]
    decoded, read = decoding.requests[-1], reading.requests[-1]
    assert decoded.headers["x-gateway-destination-endpoint"].split(",")[0] == decoding.address
    assert decoded.headers["x-prefiller-host-port"] == reading.address
    sent = json.loads(read.body)
    assert (sent["max_tokens"], sent["stream"], read.prompt_tokens) == (1, False, decoded.prompt_tokens)
    if connector == "llm-d":
        assert sent["kv_transfer_params"]["do_remote_decode"] is True
    elif connector == "vllm":
        assert f"___prefill_addr_{reading.address}___decode_addr_{decoding.address}_" in read.headers["x-request-id"]
        assert read.headers["x-request-id"] == decoded.headers["x-request-id"]
    else:
        assert (sent["bootstrap_host"], sent["bootstrap_port"]) == ("127.0.0.1", 8998)
        assert sent["bootstrap_room"] == int(decoded.headers["x-sglang-bootstrap-room"])
    # The decode engine did not compute the prompt: its own time to first token is far below the prefill's.
    assert decoded.ttft_s is not None
    assert read.ttft_s is not None
    assert decoded.ttft_s < read.ttft_s / 2

    # The next turn is cached where it was decoded, but for its new part.
    talk += [{"role": "assistant", "content": answer["choices"][0]["message"]["content"]}]
    talk += [{"role": "user", "content": text(2, 30)}]
    turn = await ask(client, found, talk)
    assert turn["usage"]["prompt_tokens_details"]["cached_tokens"] > 1500
    assert found.counts == (1, 1, 2)
    assert "x-prefiller-host-port" not in decoding.requests[-1].headers

    for seed in range(6):
        await ask(client, found, [{"role": "user", "content": text(10 + seed, 50)}])
    assert found.counts == (1, 1, 8)

    for seed in range(4):
        streamed = await ask(client, found, [{"role": "user", "content": text(20 + seed, 1500)}], stream=True)
        assert streamed.endswith("data: [DONE]\n\n")
    assert found.counts == (5, 5, 12)
    assert all(engine.prefilled for engine in found.prefill), "both of them are used"


async def test_an_address_to_prefill_at_that_a_client_names_is_not_asked(
    start_product: Start, make_engine: Any, client: aiohttp.ClientSession
) -> None:
    found = await fleet(start_product, make_engine, "llm-d")
    stranger = await make_engine(name="stranger", record=5)
    forged = {
        "x-prefiller-host-port": stranger.address,
        "x-sglang-bootstrap-room": "1",
        "x-request-id": f"___prefill_addr_{stranger.address}___decode_addr_{found.decode[0].address}_1",
    }
    body = {"model": "demo", "messages": [{"role": "user", "content": "short"}], "max_tokens": 2}
    async with client.post(found.product.gateway + CHAT, json=body, headers=forged) as answer:
        assert answer.status == 200
    assert not stranger.requests
    assert found.counts == (0, 0, 1)


async def test_prefill_engines_get_nothing_that_was_not_picked_for_them(
    start_product: Start, make_engine: Any, client: aiohttp.ClientSession
) -> None:
    """Without a processor Envoy's own balancing decides: among those that decode, whatever the weights are."""
    found = await fleet(start_product, make_engine, "llm-d")
    body = {"model": "demo", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
    found.product.kill("processor-0")
    for _ in range(40):
        async with client.post(found.product.gateway + CHAT, json=body) as answer:
            assert answer.status == 200
            assert answer.headers["x-demo-engine"].startswith("d")
    assert found.counts[0] == 0
