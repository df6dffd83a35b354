"""A real llama.cpp server, scraped while it works."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
import pytest

from xds_control.demo import llama
from xds_control.demo.processes import free_ports
from xds_control.fleet.endpoint import Endpoint
from xds_control.fleet.readings import ModelInfo
from xds_control.policy.signals import ScrapePolicy
from xds_control.signals.reader import Observations
from xds_control.signals.scraper import Scraper
from xds_control.signals.store import SignalStore


@pytest.mark.skipif(bool(llama.available()), reason=llama.available() or "llama.cpp is here")
async def test_a_real_server_is_recognised_and_its_load_is_seen(tmp_path: Path) -> None:
    model = tmp_path / "demo.gguf"
    llama.write_model(model)
    store = SignalStore()
    infos: list[ModelInfo] = []
    highest: dict[str, float] = {}

    def take(endpoint: Endpoint, seen: Observations) -> None:
        store.put_all(endpoint.address, seen.values, seen.at, seen.source)
        for name, value in seen.values.items():
            highest[name] = max(value, highest.get(name, value))
        if seen.info is not None:
            infos.append(seen.info)

    async with llama.LlamaServer(model, free_ports(1)[0], tmp_path / "llama.log", slots=2) as server:
        scraper = Scraper(ScrapePolicy(min_interval_s=0.1, max_interval_s=0.1), take, seed=1)
        scraper.set_targets([Endpoint(server.address, "p", engine="auto", metrics_url=f"{server.url}/metrics")])

        async def ask(session: aiohttp.ClientSession, number: int) -> None:
            body = {"prompt": f"{number} " + "word " * 100, "max_tokens": 400, "ignore_eos": True}
            async with session.post("/v1/completions", json=body) as answer:
                assert answer.status == 200
                await answer.read()

        try:
            connector = aiohttp.TCPConnector(force_close=True)
            async with aiohttp.ClientSession(server.url, connector=connector) as session, asyncio.timeout(90):
                await ask(session, 0)
                while not (highest.get("running", 0) == 2 and highest.get("waiting", 0) >= 1 and "tpot" in highest):
                    await asyncio.gather(*(ask(session, number) for number in range(6)))
                while store.readings(server.address, asyncio.get_running_loop().time())["running"].value:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
        finally:
            await scraper.stop()
    stats_engine = {
        reading.source for reading in store.readings(server.address, asyncio.get_running_loop().time()).values()
    }
    assert stats_engine == {"llamacpp"}
    assert highest["kv_usage"] == 1.0, "both slots were busy"
    assert highest["max_running"] == 2
    assert highest["decode_tps"] > 0
    assert highest["prefill_tps"] > 0
    assert 0 < highest["tpot"] < 1
    assert infos[-1].models == ("demo",)
    assert infos[-1].max_model_len == llama.CONTEXT
