"""The product's own Envoy configuration in each body mode: rules, model routes, rewrite, bodies of several sizes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import pytest

from tests.envoy.harness import Product, eventually
from xds_control.demo.engine import DemoEngine
from xds_control.demo.model import ModelConfig

Start = Callable[..., Awaitable[Product]]
CHAT = "/v1/chat/completions"


def chat(model: str, size: int = 10) -> dict[str, Any]:
    """A chat with a prompt of `size` characters; the model comes last."""
    return {"messages": [{"role": "user", "content": "word " * (size // 5)}], "max_tokens": 1, "model": model}


@pytest.mark.parametrize("mode", ["buffered", "streamed", "full_duplex"])
async def test_requests_find_their_pool_in_every_body_mode(
    mode: str,
    start_product: Start,
    make_engine: Callable[..., Awaitable[DemoEngine]],
    client: aiohttp.ClientSession,
) -> None:
    timing = ModelConfig(prefill_tps=1e7, kv_blocks=100_000, max_batched_tokens=1_000_000)
    small = await make_engine(model="small", name="small", max_model_len=10_000_000, timing=timing)
    large = await make_engine(model="large", name="large", max_model_len=10_000_000, timing=timing)
    product = await start_product(
        {
            "pools": [
                {"name": "small", "models": ["small"], "endpoints": [{"address": small.address}]},
                {"name": "large", "models": ["large"], "endpoints": [{"address": large.address}]},
            ],
            "routing": {
                "unknown_model": 404,
                "rules": [
                    {"name": "team", "when": "headers['x-team'] == 'research'", "pool": "large"},
                    {"name": "closed", "when": "headers['x-closed'] == '1'", "reject": {"status": 403}},
                ],
                "models": [{"model": "gpt-4", "to": [{"pool": "large", "model": "large"}]}],
            },
            "ext_proc": {"body_mode": mode},
        }
    )

    async def ask(model: str, size: int = 10, headers: dict[str, str] | None = None) -> tuple[int, str | None]:
        async with client.post(product.gateway + CHAT, json=chat(model, size), headers=headers) as answer:
            await answer.read()
            return answer.status, answer.headers.get("x-demo-engine")

    for model in ("small", "large"):
        for size in (10, 100_000, 1_000_000):
            assert await ask(model, size) == (200, model), (model, size)
    assert (await ask("small", headers={"x-team": "research"}))[1] in ("large", None)
    assert await ask("small", headers={"x-closed": "1"}) == (403, None)
    assert await ask("nobody") == (404, None)
    if mode != "streamed":  # where the body cannot be replaced
        assert await ask("gpt-4") == (200, "large")
    async with client.get(product.gateway + "/v1/models") as answer:
        assert answer.status in (200, 404)
    prefix = "http.gateway.ext_proc"
    assert await product.envoy_stat(f"{prefix}.streams_failed") == 0
    assert await product.envoy_stat(f"{prefix}.failure_mode_allowed") == 0
    assert await product.envoy_stat(f"{prefix}.spurious_msgs_received") == 0
    assert await product.envoy_stat(f"{prefix}.rejected_header_mutations") == 0


async def test_mirrored_requests_arrive_twice_and_are_answered_once(
    start_product: Start, make_engine: Callable[..., Awaitable[DemoEngine]], client: aiohttp.ClientSession
) -> None:
    live = await make_engine(model="m", name="live", record=50)
    shadow = await make_engine(model="m", name="shadow", record=50)
    other = await make_engine(model="other", name="other", record=50)
    product = await start_product(
        {
            "pools": [
                {"name": "live", "endpoints": [{"address": live.address}]},
                {"name": "shadow", "endpoints": [{"address": shadow.address}]},
                {"name": "other", "models": ["other"], "endpoints": [{"address": other.address}]},
            ],
            "routing": {"models": [{"model": "m", "to": [{"pool": "live"}], "mirror": {"pool": "shadow"}}]},
        }
    )
    for model, engine in (("m", "live"), ("other", "other")):
        async with client.post(product.gateway + CHAT, json=chat(model)) as answer:
            await answer.read()
            assert (answer.status, answer.headers["x-demo-engine"]) == (200, engine)
    await eventually(lambda: sum(one.path == CHAT for one in shadow.requests) == 1, 10, "the copy arrives")
    copies = [one for one in shadow.requests if one.path == CHAT]
    assert copies[0].body == next(one.body for one in live.requests if one.path == CHAT)
