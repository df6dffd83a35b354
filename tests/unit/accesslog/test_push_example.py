"""The example in docs/push-signals.md is run as it is printed, against control's own Fleet service."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc

from tests.shared import REPOSITORY
from xds_control.admin.fleet_service import FleetService, serve
from xds_control.admin.hub import Hub
from xds_control.proto import fleet_pb2
from xds_control.signals.catalogue import unknown_names

PAGE = (REPOSITORY / "docs" / "push-signals.md").read_text()


def example() -> str:
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 1
    return str(blocks[0])


class Heard:
    def __init__(self) -> None:
        self.requests: list[fleet_pb2.ReportRequest] = []
        self.kinds: set[tuple[str, str]] = set()
        self.news = asyncio.Event()

    def __call__(self, kind: str, source: str, request: fleet_pb2.ReportRequest) -> None:
        self.requests.append(request)
        self.kinds.add((kind, source))
        self.news.set()

    async def more(self, count: int) -> None:
        wanted = len(self.requests) + count
        async with asyncio.timeout(30):
            while len(self.requests) < wanted:
                self.news.clear()
                await self.news.wait()


@asynccontextmanager
async def control(address: str, heard: Heard) -> AsyncIterator[grpc.aio.Server]:
    service = FleetService(Hub(), 0.1, heard, lambda: None)
    server, stop = await serve(address, service.handler())
    try:
        yield server
    finally:
        await stop()


def test_it_is_as_short_as_promised() -> None:
    lines = [line for line in example().splitlines() if line.strip()]
    assert len(lines) <= 20


def test_it_names_signals_of_the_catalogue() -> None:
    named = re.search(r"return \{(.*?)\}", example())
    assert named is not None
    assert unknown_names(re.findall(r'"(\w+)"', named[1])) == []
    listed = re.search(r"`values` are signals of the catalogue.*?and so on", PAGE, re.DOTALL)
    assert listed is not None
    assert unknown_names(set(re.findall(r"`(\w+)`", listed[0])) - {"values"}) == []


async def test_it_reports_and_comes_back(unused_tcp_port: int) -> None:
    address = f"127.0.0.1:{unused_tcp_port}"
    script = example().replace("127.0.0.1:18001", address)
    assert address in script
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", script), cwd=REPOSITORY, stdout=asyncio.subprocess.PIPE
    )
    heard = Heard()
    try:
        async with control(address, heard):
            await heard.more(3)
        async with control(address, heard):
            await heard.more(2)
    finally:
        process.kill()
        await process.wait()
    assert heard.kinds == {("engine", "engine-10.0.0.11:8000")}
    sequences = [request.sequence for request in heard.requests]
    assert sequences[:3] == [1, 2, 3]
    assert sequences.count(1) == 2
    first = heard.requests[0].signals[0]
    assert first.endpoint == "10.0.0.11:8000"
    assert dict(first.values) == {"running": 12, "waiting": 3, "kv_usage": 0.41}
    assert first.at_unix_s > 1.6e9
