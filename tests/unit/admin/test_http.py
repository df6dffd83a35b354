"""The HTTP side of a process against clients that do not behave."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest

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


async def test_connections_are_bounded_and_idle_ones_closed(port: int) -> None:
    held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]
    for _reader, writer in held[:10]:
        writer.write(GET[:20])  # half a request, and no more
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    assert await reader.read() == b""
    writer.close()
    for slow, _writer in held:
        assert await slow.read() == b""  # nobody waits for them
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(GET)
    assert (await reader.readline()).split()[1] == b"200"
    for _reader, one in (*held, (reader, writer)):
        one.close()


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
