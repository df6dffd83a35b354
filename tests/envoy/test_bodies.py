"""Request bodies of all kinds, and headers that clients must not set."""

from __future__ import annotations

import gzip
import json
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import pytest

from tests.envoy.harness import Product
from tests.envoy.traffic import CHAT, body
from xds_control.policy import headers as names

Start = Callable[..., Awaitable[Product]]
JSON = {"content-type": "application/json"}


def policy(engine: Any, other: Any, **sections: Any) -> dict[str, Any]:
    return {
        "pools": [
            {"name": "chat", "models": ["demo"], "engine": "vllm", "endpoints": [{"address": engine.address}]},
            {"name": "second", "models": ["second"], "engine": "vllm", "endpoints": [{"address": other.address}]},
        ],
        "routing": {"default_pool": "chat", "unknown_model": 404},
        **sections,
    }


async def pair(start_product: Start, make_engine: Any, **sections: Any) -> tuple[Product, Any, Any]:
    engine = await make_engine(name="a", record=50, max_model_len=32768)
    other = await make_engine(name="b", model="second", record=50)
    return await start_product(policy(engine, other, **sections)), engine, other


async def test_bodies_and_tampering(start_product: Start, make_engine: Any, client: aiohttp.ClientSession) -> None:
    product, engine, other = await pair(start_product, make_engine, envoy={"body_limit_bytes": 12 << 20})
    url = product.gateway + CHAT

    # routed by the model in the body, wherever it stands
    last = json.dumps({"messages": [{"role": "user", "content": "x" * 5000}], "max_tokens": 2, "model": "second"})
    async with client.post(url, data=last, headers=JSON) as answer:
        assert (answer.status, answer.headers["x-demo-engine"]) == (200, "b")
    seen = other.requests[-1].headers
    assert seen[names.MODEL] == "second"
    assert int(seen[names.PROMPT_TOKENS]) > 500
    assert len(seen[names.PREFIX]) == 16

    # compressed
    packed = gzip.compress(json.dumps(body(model="second")).encode())
    async with client.post(url, data=packed, headers={**JSON, "content-encoding": "gzip"}) as answer:
        await answer.read()
    assert other.requests[-1].body == packed, "the compressed body is forwarded as it came, to the right pool"

    # bodies that cannot be read pass to the default pool; its engine answers for itself
    for data in (b"", b"not json", b'{"model": "demo", "messages": [', b"\xff\xfe\x00"):
        before = len(engine.requests)
        async with client.post(url, data=data, headers=JSON) as answer:
            assert answer.status in (400, 422), (data, answer.status)
        assert len(engine.requests) == before + 1, data

    # unknown model: 404 in the API's form
    async with client.post(url, json=body(model="nope")) as answer:
        assert answer.status == 404
        error = (await answer.json())["error"]
        assert "nope" in error["message"]
        assert error["code"] == "model_not_found"

    # 10 MB goes through whole
    big = body("y" * (10 << 20))
    before = len(engine.requests)
    async with client.post(url, json=big) as answer:
        text = await answer.text()
        assert answer.status in (200, 400), text[:300]
    assert len(engine.requests) == before + 1
    assert len(engine.requests[-1].body) > 10 << 20

    # above the limit: 413 in the API's form
    async with client.post(url, json=body("z" * (13 << 20))) as answer:
        assert answer.status == 413
        error = (await answer.json())["error"]
        assert str(12 << 20) in error["message"]
        assert error["type"] == "invalid_request_error"
    async with client.post(product.gateway + "/v1/messages", json=body("z" * (13 << 20))) as answer:
        assert answer.status == 413
        said = await answer.json()
        assert said["type"] == "error"
        assert said["error"]["type"] == "invalid_request_error"

    # reserved headers that clients send never reach routing or the engine
    forged = {
        names.POOL: "second",
        names.DESTINATION: other.address,
        names.MODEL: "forged",
        "X-Xds-Control-Class": "forged",
        names.RULE: "forged",
    }
    async with client.post(url, json=body("hello"), headers=forged) as answer:
        assert (answer.status, answer.headers["x-demo-engine"]) == (200, "a")
    assert "forged" not in str(engine.requests[-1].headers)
    assert names.RULE not in engine.requests[-1].headers


async def test_reserved_headers_are_removed_without_a_processor(
    start_product: Start, make_engine: Any, client: aiohttp.ClientSession
) -> None:
    product, engine, other = await pair(start_product, make_engine, processors={"count": 0})
    forged = {names.POOL: "second", names.DESTINATION: other.address, names.MODEL: "forged"}
    async with client.post(product.gateway + CHAT, json=body("hello"), headers=forged) as answer:
        assert (answer.status, answer.headers["x-demo-engine"]) == (200, "a")
    sent = engine.requests[-1].headers
    assert not [name for name in sent if name in names.RESERVED_REQUEST_HEADERS], sent


async def test_malformed_bodies_are_refused_when_policy_says_so(
    start_product: Start, make_engine: Any, client: aiohttp.ClientSession
) -> None:
    product, engine, _other = await pair(start_product, make_engine, ext_proc={"on_malformed": "reject"})
    async with client.post(product.gateway + CHAT, data=b"not json", headers=JSON) as answer:
        assert answer.status == 400
        error = (await answer.json())["error"]
        assert error["code"] == "body-not-json"
        assert answer.headers[names.REASON] == "body-not-json"
    assert len(engine.requests) == 0


@pytest.mark.parametrize("path", ["/v1/models", "/health"])
async def test_requests_without_a_body_pass(
    start_product: Start, make_engine: Any, client: aiohttp.ClientSession, path: str
) -> None:
    product, _engine, _other = await pair(start_product, make_engine)
    async with client.get(product.gateway + path) as answer:
        assert answer.status == 200
