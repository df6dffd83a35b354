"""Every command of the command line against a running product: control, a processor, a real Envoy, demo engines."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
from click.testing import CliRunner, Result

from tests.envoy.harness import Product, eventually, http_get
from tests.envoy.traffic import FAST_SCRAPE, served_by
from xds_control.cli.main import main

Start = Callable[..., Awaitable[Product]]
ONE_AT_A_TIME = threading.Lock()
"""A command that is run in this process has standard output to itself."""


class Cli:
    """Runs commands against a product, in a thread so that the engines of this process go on."""

    def __init__(self, product: Product) -> None:
        self._environment = {"XDS_CONTROL_ADMIN": f"127.0.0.1:{product.ports['admin']}", "XDS_CONTROL_TOKEN": ""}

    async def run(self, *words: str) -> Result:
        def invoke() -> Result:
            with ONE_AT_A_TIME:
                return CliRunner().invoke(main, list(words), env=self._environment, catch_exceptions=False)

        return await asyncio.to_thread(invoke)

    async def text(self, *words: str) -> str:
        result = await self.run(*words)
        assert result.exit_code == 0, result.output
        return result.output

    async def json(self, *words: str) -> Any:
        return json.loads(await self.text(*words, "--output", "json"))


async def ask(client: aiohttp.ClientSession, product: Product, count: int) -> None:
    body = {
        "model": "demo",
        "messages": [{"role": "user", "content": "the same words " * 40}],
        "max_tokens": 4,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    for _ in range(count):
        async with client.post(f"{product.gateway}/v1/chat/completions", json=body) as answer:
            assert answer.status == 200
            await answer.read()


async def test_every_command_on_a_running_product(
    start_product: Start, make_engine: Any, client: aiohttp.ClientSession
) -> None:
    engines = [await make_engine(name=name) for name in "ab"]
    first, second = (engine.address for engine in engines)
    product = await start_product(
        {
            "pools": [
                {
                    "name": "chat",
                    "models": ["demo"],
                    "engine": "vllm",
                    "endpoints": [{"address": first, "name": "alpha"}, {"address": second, "name": "beta"}],
                }
            ],
            "signals": FAST_SCRAPE,
            "lifecycle": {"warm_up": {"prompts": []}, "draining": {"settle_s": 0.5}},
        }
    )
    cli = Cli(product)
    await ask(client, product, 20)

    async def counted() -> bool:
        (pool,) = await cli.json("pools")
        return bool(pool["traffic"] and pool["traffic"]["requests"] >= 20)

    await eventually(counted, 15, "the requests are counted")

    status = await cli.json("status")
    assert (status["ready"], status["pools"], status["endpoints"], status["processors"]) == (True, 1, 2, 1)
    assert "ready" in await cli.text("status")

    (pool,) = await cli.json("pools", "chat")
    assert pool["traffic"]["kv_hit_ratio"] > 0.3
    assert pool["traffic"]["ttft"]["count"] == 20
    assert pool["traffic"]["classes"]["medium"]["ok"] == 20

    found = await cli.json("endpoints")
    assert [(one["address"], one["state"]) for one in found] == sorted(
        (address, "ready") for address in (first, second)
    )
    # the requests share a prefix, so the picker may have sent nearly all of them to either endpoint
    sources = set()
    for name in ("alpha", "beta"):
        shown = await cli.json("endpoints", "show", name, "--signals")
        sources |= {(one["name"], one["source"]) for one in shown["endpoint"]["signals"]}
    assert ("running", "vllm") in sources
    assert any(source == "accesslog" for _, source in sources)
    shown = await cli.json("endpoints", "show", "alpha", "--signals")
    assert "after" in shown["events"][-1]

    explained = await cli.json("weights", "--explain")
    for one in explained:
        product_of = 1.0
        for factor in one["explanation"]["factors"]:
            product_of *= factor["factor"]
        assert abs(product_of - one["explanation"]["raw"]) <= 1e-9 * abs(product_of)
        assert one["explanation"]["weight"] == one["weight"]

    (envoy,) = await cli.json("clients", "--types")
    assert {"CDS", "EDS"} <= {kind["type"] for kind in envoy["types"]}
    assert all(kind["nacks"] == 0 for kind in envoy["types"])
    assert "in step" in await cli.text("clients")

    (processor,) = await cli.json("processors")
    assert processor["requests"] >= 20
    assert processor["access_log_entries"] >= 20

    assert await cli.json("events", "--endpoint", "beta")
    assert await cli.json("history")
    top = await cli.text("top", "--once")
    assert first in top
    assert second in top

    pinned = await cli.json("pin", "beta", "77", "--ttl", "10m", "--reason", "canary")
    assert pinned["override"]["weight"] == 77

    async def pinned_in_envoy() -> bool:
        _, clusters = await http_get(f"http://127.0.0.1:{product.ports['envoy_admin']}/clusters")
        return f"chat::{second}::weight::77" in clusters

    await eventually(pinned_in_envoy, 10, "the pin reaches Envoy")
    await cli.text("clear", "beta")

    drained = await cli.run("drain", "beta", "--wait", "--wait-timeout", "60s", "--reason", "new driver")
    assert drained.exit_code == 0, drained.output
    assert "is drained" in drained.output
    assert set(await served_by(client, product.gateway, 20)) == {"a"}
    (gone,) = await cli.json("endpoints", "list", "--state", "gone")
    assert gone["address"] == second
    await cli.text("undrain", "beta")

    async def back() -> bool:
        return [one["state"] for one in await cli.json("endpoints")] == ["ready", "ready"]

    await eventually(back, 20, "beta serves again")
    assert (await cli.run("eject", "alpha", "-r", "wrong answers")).exit_code == 0
    await cli.text("clear", "alpha")

    audit = await cli.json("audit")
    done = [entry["action"] for entry in reversed(audit) if entry["target"] in (first, second)]
    assert done[:3] == ["pin", "clear", "drain"]
    assert {entry["reason"] for entry in audit} >= {"canary", "new driver", "wrong answers"}
    assert (await cli.json("log-level", "debug"))["level"] == "debug"
    missing = await cli.run("endpoints", "show", "gamma")
    assert missing.exit_code == 2
    await product.stop()
    away = await cli.run("weights")
    assert away.exit_code == 3
    assert "control is not reachable" in away.output
