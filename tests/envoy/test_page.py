"""The page of a running product, drawn by a real browser where there is one."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.envoy.harness import Product, http_get
from tests.envoy.test_explain import send
from tests.envoy.traffic import FAST_SCRAPE

Start = Callable[..., Awaitable[Product]]
BROWSER = shutil.which("chromium") or shutil.which("google-chrome")


async def drawn(url: str, profile: Path) -> str:
    """The document as the browser has it a while after it loaded."""
    assert BROWSER is not None
    argv = [BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}"]
    argv += ["--virtual-time-budget=4000", "--dump-dom", url]
    process = await asyncio.create_subprocess_exec(
        *argv, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    out, _ = await asyncio.wait_for(process.communicate(), 90)
    return out.decode()


async def test_page(start_product: Start, make_engine: Any, client: aiohttp.ClientSession, tmp_path: Path) -> None:
    engines = [await make_engine(name=name) for name in "ab"]
    addresses = [engine.address for engine in engines]
    product = await start_product(
        {
            "pools": [
                {
                    "name": "chat",
                    "models": ["demo"],
                    "engine": "vllm",
                    "endpoints": [{"address": one} for one in addresses],
                }
            ],
            "signals": FAST_SCRAPE,
            "ext_proc": {"emit_decision": True},
            "processors": {"requests": {"sample_share": 1.0}},
        }
    )
    for number in range(8):
        status, decision, _ = await send(client, product, x_session_id=str(number))
        assert status == 200
    base = f"http://127.0.0.1:{product.ports['http']}"
    status, text = await http_get(f"{base}/api/v1/endpoints?explain=true")
    found = json.loads(text)
    assert status == 200
    assert sorted(one["address"] for one in found["endpoints"]) == sorted(addresses)
    status, text = await http_get(f"{base}/api/v1/explain?request_id={decision}")
    assert status == 200, text
    assert json.loads(text)["explanation"]["decision"]["pool"] == "chat"
    if BROWSER is None:
        pytest.skip("no browser here to draw the page with; its data is right")
    fleet = await drawn(f"{base}/", tmp_path / "browser")
    assert all(address in fleet for address in addresses)
    assert ">ready<" in fleet
    assert 'role="alert"></div>' in fleet, "the page shows a problem"
    opened = await drawn(f"{base}/#fleet/{addresses[0]}", tmp_path / "browser")
    assert "Why the weight is" in opened
    assert ">kv_usage<" in opened
    assert "null" not in opened
    assert "undefined" not in opened
    unknown = await drawn(f"{base}/#fleet/10.9.9.9:1", tmp_path / "browser")
    assert "there is no endpoint" in unknown
    requests = await drawn(f"{base}/#requests", tmp_path / "browser")
    assert decision in requests
    explained = await drawn(f"{base}/#requests/{decision}", tmp_path / "browser")
    assert f"Request {decision}" in explained
    assert "expected TTFT" in explained
    assert "null" not in explained
    peers = await drawn(f"{base}/#peers", tmp_path / "browser")
    assert "processor-0" in peers
    assert "in step" in peers
