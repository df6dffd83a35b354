"""The agent against a real Fleet server and a stub driver."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import grpc
import pytest

from tests.unit.agent.conftest import GIB, Machine
from xds_control.agent.client import MAX_UNANSWERED, Agent
from xds_control.proto import fleet_pb2 as pb
from xds_control.signals.gpu import GpuFleet
from xds_control.signals.gpu_wire import take_report

SERVICE = "xds_control.fleet.v1.Fleet"


class Control:
    """The taking side of Fleet.Report. While `answering` is cleared no message is answered."""

    def __init__(self) -> None:
        self.messages: list[pb.ReportRequest] = []
        self.streams = 0
        self.answering = asyncio.Event()
        self.answering.set()
        self.port = 0
        self._server: grpc.aio.Server | None = None

    async def report(
        self, requests: AsyncIterator[pb.ReportRequest], context: grpc.aio.ServicerContext[object, object]
    ) -> AsyncIterator[pb.ReportResponse]:
        self.streams += 1
        async for request in requests:
            self.messages.append(request)
            await self.answering.wait()
            yield pb.ReportResponse(sequence=request.sequence)

    async def start(self) -> None:
        server = grpc.aio.server()
        handler = grpc.stream_stream_rpc_method_handler(
            self.report,
            request_deserializer=pb.ReportRequest.FromString,
            response_serializer=pb.ReportResponse.SerializeToString,
        )
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"Report": handler}),))
        self.port = server.add_insecure_port(f"127.0.0.1:{self.port}")
        await server.start()
        self._server = server

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop(0)
            self._server = None

    def fleet(self) -> GpuFleet:
        """What control knows after all messages."""
        fleet = GpuFleet()
        for at, message in enumerate(self.messages):
            take_report(fleet, message.gpus, "someone", float(at))
        return fleet


@pytest.fixture
async def control() -> AsyncIterator[Control]:
    one = Control()
    await one.start()
    yield one
    one.answering.set()
    await one.stop()


async def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - what is waited for is in another thread or server
            await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def running(agent: Agent) -> AsyncIterator[Agent]:
    task = asyncio.create_task(agent.run())
    try:
        yield agent
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def agent_for(control: Control, heartbeat_s: float = 1.0) -> Agent:
    return Agent(f"127.0.0.1:{control.port}", "node-7", interval_s=0.05, reopen_s=0.05, heartbeat_s=heartbeat_s)


async def test_changes_are_streamed_and_an_xid_is_told(machine: Machine, control: Control) -> None:
    machine.gpu(0)
    machine.gpu(1)
    async with running(agent_for(control, heartbeat_s=100.0)):
        await until(lambda: bool(control.messages))
        first = control.messages[0]
        assert (first.hello.source, first.hello.kind) == ("agent/node-7", "agent")
        assert (first.gpus.node, first.gpus.full, first.gpus.driver) == ("node-7", True, "stub")
        assert [gpu.uuid for gpu in first.gpus.gpus] == ["GPU-00000000", "GPU-00000001"]
        machine.set(gpu1__mem_used=10 * GIB)
        await until(lambda: any(gpu.mem_used_bytes == 10 * GIB for m in control.messages for gpu in m.gpus.gpus))
        machine.xid(0, 48)
        await until(lambda: any(gpu.xid_count == 1 for m in control.messages for gpu in m.gpus.gpus))
        later = [m for m in control.messages if not m.gpus.full]
        assert all(len(m.gpus.gpus) < 2 or m.gpus.gpus[0].xid_count for m in later), "only what changed is sent"
        assert not later[0].HasField("hello")


async def test_a_slow_control_gets_the_newest_states_and_no_queue(machine: Machine, control: Control) -> None:
    machine.gpu(0)
    control.answering.clear()
    async with running(agent_for(control)) as agent:
        await until(lambda: bool(control.messages))
        for step in range(60):
            machine.set(gpu0__mem_used=step * GIB)
            await asyncio.sleep(0.02)
        assert agent.stats.sent <= MAX_UNANSWERED
        control.answering.set()
        await until(lambda: control.fleet().states()[0].mem_used_bytes == 59 * GIB)


async def test_control_restarts_and_knows_everything_again(machine: Machine, control: Control) -> None:
    machine.gpu(0)
    machine.gpu(1)
    async with running(agent_for(control)) as agent:
        await until(lambda: bool(control.messages))
        await control.stop()
        control.messages.clear()
        await control.start()
        await until(lambda: bool(control.messages))
        assert control.messages[0].gpus.full
        assert len(control.messages[0].gpus.gpus) == 2
        assert agent.stats.reconnects >= 1


async def test_a_driver_reload_is_survived(machine: Machine, control: Control) -> None:
    machine.gpu(0)
    async with running(agent_for(control)) as agent:
        await until(lambda: bool(control.messages))
        machine.set(driver=18)
        await until(lambda: bool(agent.stats.error))
        await until(lambda: control.fleet().states()[0].temp_c is None)
        assert "version mismatch" in control.fleet().states()[0].error
        machine.set(driver=None, version="600.0")
        await until(lambda: control.fleet().states()[0].temp_c == 61.0)
        assert agent.stats.driver == "600.0"
        assert agent.stats.driver_losses == 1


async def test_without_any_driver_the_agent_stays_alive(machine: Machine, control: Control) -> None:
    machine.set(driver=9)
    async with running(agent_for(control, heartbeat_s=0.1)) as agent:
        await until(lambda: len(control.messages) >= 2)
        assert control.fleet().states() == []
        assert agent.stats.error
