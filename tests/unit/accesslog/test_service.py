from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from envoy.service.accesslog.v3 import als_pb2

from tests.unit.accesslog.entries import DECIDED, USED, entry
from xds_control.extproc.accesslog_service import BREATH, AccessLogService
from xds_control.policy.classes import ClassesPolicy
from xds_control.signals.accesslog import AccessLog, Taken

METHOD = "/envoy.service.accesslog.v3.AccessLogService/StreamAccessLogs"


class Running:
    def __init__(self) -> None:
        classes = ClassesPolicy()
        self.log = AccessLog(classes.by_name(), classes.default, now=0.0)
        self.taken: list[Taken] = []
        self.fail = False
        self.arrived = asyncio.Event()
        self.service = AccessLogService(self.log, self.listen)
        self.port = 0

    def listen(self, taken: Taken) -> None:
        self.taken.append(taken)
        self.arrived.set()
        if self.fail:
            raise RuntimeError("listener")

    async def wait_for(self, entries: int) -> None:
        async with asyncio.timeout(10):
            while self.log.entries < entries:
                self.arrived.clear()
                await self.arrived.wait()

    @property
    def finished(self) -> int:
        return sum(len(one.finished) for one in self.taken)


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    made = Running()
    server = grpc.aio.server()
    made.service.add_to(server)
    made.port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield made
    await server.stop(None)


async def send(port: int, *messages: bytes) -> Any:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        call: Any = channel.stream_unary(METHOD, response_deserializer=als_pb2.StreamAccessLogsResponse.FromString)
        return await call(iter(messages))


def message(count: int, *, first: bool = False) -> bytes:
    made = als_pb2.StreamAccessLogsMessage()
    if first:
        made.identifier.node.id = "envoy-1"
        made.identifier.log_name = "xds-control"
    made.http_logs.log_entry.extend([entry(metadata={**DECIDED, **USED})] * count)
    return bytes(made.SerializeToString())


async def test_entries_arrive(running: Running) -> None:
    await send(running.port, message(3, first=True), message(BREATH * 2 + 1))
    assert running.finished == running.log.entries == BREATH * 2 + 4
    assert running.service.streams() == []


async def test_the_sender_is_known_while_its_stream_is_open(running: Running) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{running.port}") as channel:
        call: Any = channel.stream_unary(METHOD)()
        await call.write(message(2, first=True))
        await call.write(message(1))
        await running.wait_for(3)
        sender = running.service.streams()[0]
        assert (sender.node, sender.log_name, sender.messages, sender.entries) == ("envoy-1", "xds-control", 2, 3)
        await call.done_writing()
        await call


async def test_what_does_not_parse_costs_a_counter(running: Running) -> None:
    tcp = als_pb2.StreamAccessLogsMessage()
    tcp.tcp_logs.log_entry.add()
    await send(running.port, b"\xff\xff", tcp.SerializeToString(), b"", message(1))
    assert running.finished == 1
    assert dict(running.service.trouble) == {"unparsable": 1, "tcp": 1}


async def test_a_failing_listener_stops_nothing(running: Running) -> None:
    running.fail = True
    await send(running.port, message(1), message(1))
    assert running.log.entries == 2
    assert running.service.trouble["listener"] == 2
    assert running.log.drain(1.0).outcomes[0].requests == 2


async def test_a_stream_that_breaks_off_is_forgotten(running: Running) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{running.port}") as channel:
        call: Any = channel.stream_unary(METHOD)()
        await call.write(message(1, first=True))
        await running.wait_for(1)
        call.cancel()
    await send(running.port, message(1))
    assert running.log.entries == 2
    assert running.service.streams() == []
