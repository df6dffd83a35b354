"""The HTTP side of a process against clients that do not behave."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from xds_control.admin import http
from xds_control.admin.http import HttpEdge

GET = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"


@pytest.fixture
async def port(monkeypatch: pytest.MonkeyPatch, unused_tcp_port: int) -> AsyncIterator[int]:
    monkeypatch.setattr(http, "MAX_CONNECTIONS", 20)
    monkeypatch.setattr(http, "IDLE_S", 0.3)
    edge = HttpEdge(lambda: b"", lambda: (True, {}))
    await edge.start("127.0.0.1", unused_tcp_port)
    yield unused_tcp_port
    await edge.stop()


async def test_silent_connections_keep_nobody_out_and_are_closed(port: int) -> None:
    held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]
    for _reader, writer in held[:10]:
        writer.write(GET[:20])  # half a request, and no more
    for number in range(5):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(GET)
        assert (await reader.readline()).split()[1] == b"200"
        assert await held[number][0].read() == b""  # the oldest made room
        writer.close()
    for slow, writer in held:
        assert await slow.read() == b""  # nobody waits for them for ever
        writer.close()


async def test_connections_at_work_are_not_closed_for_others(
    monkeypatch: pytest.MonkeyPatch, unused_tcp_port: int
) -> None:
    monkeypatch.setattr(http, "MAX_CONNECTIONS", 3)
    let, entered = asyncio.Event(), asyncio.Semaphore(0)
    edge = HttpEdge(lambda: b"", lambda: (True, {}))

    async def slow(_: web.Request) -> web.Response:
        entered.release()
        await let.wait()
        return web.Response()

    edge.app.router.add_get("/slow", slow)
    await edge.start("127.0.0.1", unused_tcp_port)
    try:
        held = [await asyncio.open_connection("127.0.0.1", unused_tcp_port) for _ in range(3)]
        for _reader, writer in held:
            writer.write(GET.replace(b"healthz", b"slow"))
            await entered.acquire()
        reader, one_more = await asyncio.open_connection("127.0.0.1", unused_tcp_port)
        assert await reader.read() == b""
        let.set()
        for reader, writer in held:
            assert (await reader.readline()).split()[1] == b"200"
            writer.close()
        one_more.close()
    finally:
        await edge.stop()


async def test_a_request_that_comes_byte_by_byte_is_not_waited_for(port: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    ended = asyncio.create_task(reader.read())
    sent = 0
    while not ended.done() and sent < 200:
        writer.write(b"GET /" + b"x" * 1000 if not sent else b"x")
        sent += 1
        await asyncio.sleep(0.02)
    assert ended.done()
    writer.close()


@pytest.mark.parametrize(
    "nonsense", [b"\x16\x03\x01\r\n\r\n", b"GET /" + b"x" * 20_000, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"]
)
async def test_nonsense_is_answered_and_not_logged(
    port: int, nonsense: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(nonsense)
    assert (await reader.readline()).split()[1] == b"400"
    writer.close()
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
