"""Why a request went where it went, asked of a running product: by id, by what was notable, and before it is sent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from click.testing import CliRunner

from tests.envoy.harness import Product, eventually, http_get
from tests.envoy.test_admin_commands import Cli
from tests.envoy.traffic import FAST_SCRAPE
from xds_control.cli.main import main

Start = Callable[..., Awaitable[Product]]
SECRET = "a word that nobody may keep"


def body(tenant: str = "", words: int = 40) -> dict[str, Any]:
    return {
        "model": "demo",
        "messages": [{"role": "user", "content": f"{SECRET} {tenant} " * words}],
        "max_tokens": 4,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def send(client: aiohttp.ClientSession, product: Product, **headers: str) -> tuple[int, str, str]:
    """(status, decision id, who served) of one request."""
    url = f"{product.gateway}/v1/chat/completions"
    async with client.post(url, json=body(), headers={k.replace("_", "-"): v for k, v in headers.items()}) as answer:
        await answer.read()
        return answer.status, answer.headers.get("x-xds-control-decision", ""), answer.headers.get("x-served-by", "")


async def test_requests_are_explained(
    start_product: Start, make_engine: Any, client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    engines = [await make_engine(name=name) for name in "ab"]
    addresses = [engine.address for engine in engines]
    policy: dict[str, Any] = {
        "pools": [
            {
                "name": "chat",
                "models": ["demo"],
                "engine": "vllm",
                "endpoints": [{"address": one} for one in addresses],
            }
        ],
        "classes": {
            "default": "medium",
            "items": [{"name": "medium", "priority": 50}, {"name": "strict", "priority": 80, "ttft_s": 1e-6}],
        },
        "routing": {
            "rules": [
                {
                    "name": "no-batch",
                    "when": "headers['x-batch'] == '1'",
                    "reject": {"status": 403, "reason": "no-batch", "message": "No."},
                },
                {"name": "hurried", "when": "headers['x-hurry'] == '1'", "class": "strict"},
            ]
        },
        "ext_proc": {"emit_decision": True},
        "picker": {"record_share": 0.0},
        "signals": FAST_SCRAPE,
        "lifecycle": {"warm_up": {"prompts": []}},
        "processors": {"count": 2},
    }
    product = await start_product(policy)
    cli = Cli(product)

    # A dry run agrees with what happens, and changes nothing.
    tried = tmp_path / "body.json"
    tried.write_text(json.dumps(body()))
    before = (await cli.json("explain", "--body", str(tried)))["explanation"]
    assert before["dry_run"]
    assert len(before["candidates"]) == 2
    assert SECRET not in json.dumps(before)
    refused = (await cli.json("explain", "--body", str(tried), "--header", "x-batch: 1"))["explanation"]
    assert (refused["decision"]["rule"], refused["decision"]["status"]) == ("no-batch", 403)

    status, identifier, _ = await send(client, product)
    assert status == 200
    assert identifier, "the answer carries the id"
    status, rejected, _ = await send(client, product, x_batch="1")
    assert (status, bool(rejected)) == (403, True)
    _, slow, _ = await send(client, product, x_hurry="1")

    # Requests are found by their ids, whichever processor decided and whichever heard of their end.
    async def ended() -> bool:
        return bool((await cli.json("explain", identifier))["explanation"]["outcome"])

    await eventually(ended, 10, "the outcome is joined")
    found = (await cli.json("explain", identifier))["explanation"]
    assert found["decision"]["pool"] == before["decision"]["pool"] == "chat"
    assert found["outcome"]["endpoint"] == found["decision"]["destinations"][0]
    assert found["outcome"]["prompt_tokens"] > 0
    assert {one["endpoint"] for one in found["candidates"]} == set(addresses)
    assert (await cli.json("explain", rejected))["explanation"]["decision"]["status"] == 403
    assert SECRET not in json.dumps(found)

    async def listed(kind: str, wanted: str) -> bool:
        return wanted in [one["id"] for one in await cli.json("requests", f"--{kind}")]

    await eventually(lambda: listed("rejected", rejected), 10, "the refusal is listed")
    await eventually(lambda: listed("slow", slow), 10, "the slow one is listed")
    assert not await listed("slow", identifier)

    # A dead endpoint: what was picked for it ends elsewhere, or fails.
    gone = found["decision"]["destinations"][0]
    await engines[addresses.index(gone)].stop()
    ids = {(await send(client, product))[1] for _ in range(6)}

    async def moved() -> bool:
        kinds = await asyncio.gather(cli.json("requests", "--fell-back"), cli.json("requests", "--failed"))
        return any(one["id"] in ids for kind in kinds for one in kind)

    await eventually(moved, 15, "what left its pick is listed")

    # The same in the processors' metrics: how clear picks were, and how many were passed over.
    host, _, port = product.policy["processors"]["http"].rpartition(":")

    async def counted() -> bool:
        pages = [(await http_get(f"http://{host}:{int(port) + i}/metrics"))[1] for i in range(2)]
        lines = [line for page in pages for line in page.splitlines() if not line.startswith("#")]
        margins = [line for line in lines if line.startswith("xds_control_processor_pick_margin_seconds{")]
        passed = [line for line in lines if line.startswith("xds_control_processor_picks_passed_over_total{")]
        return bool(margins) and all('pool="chat"' in line for line in margins + passed)

    await eventually(counted, 10, "margins are exported")


async def test_a_shadow_policy_is_shown_and_never_applied(
    start_product: Start, make_engine: Any, client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    engines = [await make_engine(name=name) for name in "ab"]
    first, second = (engine.address for engine in engines)
    spare = await make_engine("another", name="c")
    product = await start_product(
        {
            "pools": [
                {
                    "name": "chat",
                    "models": ["demo"],
                    "engine": "vllm",
                    "endpoints": [{"address": first}, {"address": second}],
                },
                {"name": "other", "models": ["another"], "engine": "vllm", "endpoints": [{"address": spare.address}]},
            ],
            "signals": FAST_SCRAPE,
            "lifecycle": {"warm_up": {"prompts": []}},
        }
    )
    cli = Cli(product)
    other = yaml.safe_load(product.path.read_text())
    other["routing"] = {"rules": [{"name": "all", "when": "true", "pool": "other"}]}
    other["pools"][0]["endpoints"] = [{"address": first, "capacity": 1.0}, {"address": second, "capacity": 3.0}]
    path = tmp_path / "shadow.yaml"
    path.write_text(yaml.safe_dump(other))

    async def shadow(*words: str) -> Any:
        environment = {"XDS_CONTROL_ADMIN": f"127.0.0.1:{product.ports['admin']}", "XDS_CONTROL_TOKEN": ""}
        words = ("policy", "shadow", *words, "--output", "json")
        result = await asyncio.to_thread(CliRunner().invoke, main, list(words), env=environment)
        assert result.exit_code == 0, result.output
        return json.loads(result.output)

    made = await shadow("set", str(path), "--reason", "trial")
    assert made["info"]["source"] == "shadow"
    chat = {one["endpoint"]: one for one in made["weights"] if one["pool"] == "chat"}
    assert chat[second]["share"] > 2 * chat[first]["share"]
    assert chat[second]["share_before"] < 2 * chat[first]["share_before"]

    # Some hundred requests: a few of them are decided by both.
    for _ in range(120):
        assert (await send(client, product))[0] == 200

    async def compared() -> bool:
        now = await shadow("show")
        return int(now.get("requests", 0)) > 0

    await eventually(compared, 10, "both policies decided some requests")
    shown = await shadow("show")
    assert int(shown.get("same_pool", 0)) == 0
    assert not spare.requests
    both = await cli.json("explain", "--data", json.dumps(body()), "--shadow")
    assert both["explanation"]["decision"]["pool"] == "chat"
    assert both["shadow"]["decision"]["pool"] == "other"
    assert (await cli.json("status"))["shadow_version"] == made["info"]["version"]

    # A killed control comes back with it, and the processors go on trying it.
    product.kill("control")

    async def is_back() -> bool:
        environment = {"XDS_CONTROL_ADMIN": f"127.0.0.1:{product.ports['admin']}", "XDS_CONTROL_TOKEN": ""}
        words = ["policy", "shadow", "show", "--output", "json"]
        result = await asyncio.to_thread(CliRunner().invoke, main, words, env=environment)
        if result.exit_code != 0:
            return False
        now = json.loads(result.output)
        assert now["info"] == made["info"]
        await send(client, product)
        return int(now.get("requests", 0)) > 0

    await eventually(is_back, 40, "the shadow policy survives control")
    assert not (await shadow("clear")).get("info")
    assert not (await cli.json("status")).get("shadow_version")


async def test_without_a_decision_there_is_no_id(
    start_product: Start, make_engine: Any, client: aiohttp.ClientSession
) -> None:
    engine = await make_engine(name="a")
    product = await start_product(
        {
            "pools": [
                {"name": "chat", "models": ["demo"], "engine": "vllm", "endpoints": [{"address": engine.address}]}
            ],
            "ext_proc": {"emit_decision": True},
            "signals": FAST_SCRAPE,
            "lifecycle": {"warm_up": {"prompts": []}},
            "processors": {"count": 0},
        }
    )
    async with client.post(f"{product.gateway}/v1/chat/completions", json=body()) as answer:
        await answer.read()
        assert answer.status == 200
        assert "x-xds-control-decision" not in answer.headers
