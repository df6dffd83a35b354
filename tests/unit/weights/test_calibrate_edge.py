"""Calibration over HTTP, against demo engines whose speed is set."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web
from click.testing import CliRunner

from tests.envoy.harness import free_ports
from xds_control.admin.calibrate import CalibrationError, Target, calibrate
from xds_control.cli.calibrate import command
from xds_control.demo.engine import DemoEngine, EngineConfig
from xds_control.demo.model import ModelConfig
from xds_control.policy.capacity import Calibration

LOAD = Calibration(
    prompt_tokens=512, output_tokens=24, prefill_requests=3, concurrency=(1, 4), rounds=1, timeout_s=60.0
)


def timing(slow: float) -> ModelConfig:
    return ModelConfig(
        prefill_tps=20_000.0 / slow,
        decode_s=0.004 * slow,
        decode_growth_s=0.0002 * slow,
        kv_blocks=2000,
        max_batched_tokens=4096,
    )


@pytest.fixture
async def engines() -> AsyncIterator[tuple[DemoEngine, DemoEngine]]:
    one = DemoEngine(EngineConfig(timing=timing(1.0), name="fast"))
    two = DemoEngine(EngineConfig(timing=timing(2.5), name="slow"))
    await one.start()
    await two.start()
    yield one, two
    await one.stop()
    await two.stop()


async def test_speeds_are_measured_and_compared(engines: tuple[DemoEngine, DemoEngine]) -> None:
    reports = [await calibrate(Target(e.url, "demo"), LOAD) for e in engines]
    rates = [report.rates(0.0, LOAD) for report in reports]
    assert all(report.ok and report.failed == 0 for report in reports)
    capacities = [r.capacity for r in rates if r is not None and r.capacity is not None]
    # Set to 2.5; wide limits, because the engines share a busy machine with their test.
    assert 1.5 < capacities[0] / capacities[1] < 4.0
    levels = reports[0].levels
    assert [level.concurrency for level in levels] == [1, 4]
    assert levels[1].tokens_per_s > 1.5 * levels[0].tokens_per_s


async def test_no_run_profits_from_what_the_one_before_left_in_the_cache(
    engines: tuple[DemoEngine, DemoEngine],
) -> None:
    for _ in range(2):
        await calibrate(Target(engines[0].url, "demo"), LOAD)
    async with aiohttp.ClientSession() as session, session.get(f"{engines[0].url}/metrics") as page:
        found = re.findall(r"^vllm:prefix_cache_(\w+)_total\S* (\S+)$", await page.text(), re.MULTILINE)
    counts = {name: float(value) for name, value in found}
    assert counts["queries"] > 0
    assert counts["hits"] == 0


async def test_the_command_prints_a_table_and_json(engines: tuple[DemoEngine, DemoEngine]) -> None:
    arguments = [e.url for e in engines]
    shown = await asyncio.to_thread(
        CliRunner().invoke, command, [*arguments, "--concurrency", "1,2", "--timeout-s", "60", "--output", "json"]
    )
    assert shown.exit_code == 0, shown.output
    rows = json.loads(shown.output)
    assert [row["model"] for row in rows] == ["demo", "demo"]
    assert rows[0]["capacity"] == 1.0
    assert rows[1]["capacity"] < 0.8
    assert [level["concurrency"] for level in rows[0]["levels"]] == [1, 2]
    table = await asyncio.to_thread(CliRunner().invoke, command, [engines[0].url, "--concurrency", "1"])
    assert table.exit_code == 0, table.output
    head, row = table.output.strip().splitlines()
    assert head.split()[:3] == ["server", "model", "capacity"]
    assert re.match(rf"{re.escape(engines[0].url)}\s+demo\s+1\.00\s+\d+", row)


async def test_servers_that_cannot_be_measured() -> None:
    (port,) = free_ports(1)
    with pytest.raises(CalibrationError, match="ClientConnectorError"):
        await calibrate(Target(f"http://127.0.0.1:{port}", "m"), LOAD)
    shown = await asyncio.to_thread(CliRunner().invoke, command, [f"127.0.0.1:{port}"])
    assert shown.exit_code == 3
    bad = await asyncio.to_thread(CliRunner().invoke, command, ["127.0.0.1:1", "--concurrency", "4,1"])
    assert bad.exit_code == 2


async def test_a_server_with_only_the_chat_api() -> None:
    seen: list[str] = []

    async def chat(request: web.Request) -> web.StreamResponse:
        seen.append(request.path)
        body = await request.json()
        answer = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await answer.prepare(request)
        for _ in range(body["max_tokens"]):
            await asyncio.sleep(0.002)
            await answer.write(b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n')
        await answer.write(b"data: [DONE]\n\n")
        return answer

    app = web.Application()
    app.router.add_post("/v1/chat/completions", chat)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        host, port = runner.addresses[0][:2]
        async with aiohttp.ClientSession() as session:
            report = await calibrate(Target(f"http://{host}:{port}", "m"), LOAD, session=session)
    finally:
        await runner.cleanup()
    assert report.ok
    assert report.decode_tps is not None
    assert set(seen) == {"/v1/chat/completions"}
