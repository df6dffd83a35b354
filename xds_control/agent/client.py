"""The agent's edge: a thread that reads the GPUs, and a stream to control that survives everything on its way."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from xds_control import __version__
from xds_control.agent.changes import Changes
from xds_control.agent.nvml import DriverUnavailable, NvmlReader
from xds_control.observe.logs import logger
from xds_control.proto import fleet_pb2 as pb
from xds_control.signals.gpu import GpuState
from xds_control.signals.gpu_wire import report

REPORT = "/xds_control.fleet.v1.Fleet/Report"
OPTIONS = (
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 5_000),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
)
MAX_UNANSWERED = 8
MAX_BACKOFF_S = 5.0
REOPEN_S = 2.0


@dataclass(slots=True)
class AgentStats:
    """What the agent did. error: why the driver cannot be read now, "" when it can."""

    reads: int = 0
    sent: int = 0
    sent_gpus: int = 0
    answered: int = 0
    reconnects: int = 0
    driver_losses: int = 0
    error: str = ""
    driver: str = ""
    gpus: dict[str, GpuState] = field(default_factory=dict)


class Agent:
    """control: address of the fleet service. node: name under which the GPUs are reported. interval_s: between reads.

    reopen_s: pause before a driver that went away is tried again. credentials: TLS towards control, none when absent.
    token_file: file with the bearer token of the fleet port, read for each connection.
    """

    def __init__(
        self,
        control: str,
        node: str,
        *,
        interval_s: float = 0.2,
        reader: NvmlReader | None = None,
        credentials: grpc.ChannelCredentials | None = None,
        token_file: Path | None = None,
        reopen_s: float = REOPEN_S,
        heartbeat_s: float = 1.0,
    ) -> None:
        self._control = control
        self._node = node
        self._interval = interval_s
        self._reader = reader or NvmlReader()
        self._credentials = credentials
        self._token_file = token_file
        self._reopen = reopen_s
        self._changes = Changes(heartbeat_s)
        self._stopping = threading.Event()
        self._news = asyncio.Event()
        self._log = logger("agent")
        self.stats = AgentStats()

    async def run(self) -> None:
        """Reads and reports until cancelled."""
        loop = asyncio.get_running_loop()
        thread = threading.Thread(target=self._read_forever, args=(loop,), name="nvml", daemon=True)
        thread.start()
        try:
            await self._report_forever()
        finally:
            self._stopping.set()
            # The thread is at most one interval or one driver call away from its end.
            await asyncio.to_thread(thread.join, 5.0)

    def _read_forever(self, loop: asyncio.AbstractEventLoop) -> None:
        reader = self._reader
        while not self._stopping.is_set():
            try:
                reader.open()
                began = time.monotonic()
                states = reader.read()
            except DriverUnavailable as error:
                if not _post(loop, self._driver_lost, str(error)):
                    break
                reader.close()
                self._stopping.wait(self._reopen)
                continue
            if not _post(loop, self._observed, states, reader.driver):
                break
            left = self._interval - (time.monotonic() - began)
            reader.wait(max(left, self._interval / 4))
        reader.close()

    def _observed(self, states: list[GpuState], driver: str) -> None:
        stats = self.stats
        stats.reads += 1
        if stats.error:
            self._log.info("gpu-driver-back", driver=driver, gpus=len(states))
        stats.error, stats.driver = "", driver
        stats.gpus = {state.uuid: state for state in states}
        self._changes.observe(states)
        self._news.set()

    def _driver_lost(self, error: str) -> None:
        if not self.stats.error:
            self.stats.driver_losses += 1
            self._log.warning("gpu-driver-unavailable", error=error)
        self.stats.error = error
        self._changes.unreadable(error)
        self._news.set()

    async def _report_forever(self) -> None:
        backoff = 0.05
        while True:
            began = time.monotonic()
            try:
                async with self._channel() as channel:
                    await self._report(channel)
                self._log.warning("control-ended-the-stream")
            except grpc.aio.AioRpcError as error:
                self._log.warning("control-lost", status=error.code().name, detail=error.details())
            self.stats.reconnects += 1
            backoff = 0.05 if time.monotonic() - began > 5 else min(backoff * 2, MAX_BACKOFF_S)
            await asyncio.sleep(backoff * random.uniform(0.8, 1.2))

    def _channel(self) -> grpc.aio.Channel:
        if self._credentials is not None:
            return grpc.aio.secure_channel(self._control, self._credentials, options=OPTIONS)
        return grpc.aio.insecure_channel(self._control, options=OPTIONS)

    def _metadata(self) -> tuple[tuple[str, str], ...]:
        if self._token_file is None:
            return ()
        try:
            text = self._token_file.read_text()
        except OSError as error:
            # control refuses the call and says so; the file may be there the next time
            self._log.warning("token-file-unreadable", path=str(self._token_file), error=error.strerror)
            return ()
        lines = (line.strip() for line in text.splitlines())
        token = next((line for line in lines if line and not line.startswith("#")), "")
        return (("authorization", f"Bearer {token}"),)

    async def _report(self, channel: grpc.aio.Channel) -> None:
        call = channel.stream_stream(
            REPORT,
            request_serializer=pb.ReportRequest.SerializeToString,
            response_deserializer=pb.ReportResponse.FromString,
        )
        slots = asyncio.Semaphore(MAX_UNANSWERED)
        self._changes.connected()
        sent = answered = 0

        async def requests() -> AsyncIterator[pb.ReportRequest]:
            nonlocal sent
            hello = pb.Hello(source=f"agent/{self._node}", kind="agent", version=__version__)
            while True:
                # While control is slow to answer nothing is taken: the newest states wait, older ones are forgotten.
                await slots.acquire()
                batch = self._changes.take(time.monotonic()) if self.stats.reads or self.stats.error else None
                if batch is None:
                    slots.release()
                    await self._wait()
                    continue
                sent += 1
                self.stats.sent += 1
                self.stats.sent_gpus += len(batch.changed)
                gpus = report(self._node, self.stats.driver, batch.changed, batch.gone, batch.full)
                yield pb.ReportRequest(sequence=sent, hello=hello if sent == 1 else None, gpus=gpus)

        async for answer in call(requests(), metadata=self._metadata()):
            # An answer may stand for several messages.
            for _ in range(min(int(answer.sequence), sent) - answered):
                slots.release()
            answered = max(answered, min(int(answer.sequence), sent))
            self.stats.answered = answered

    async def _wait(self) -> None:
        self._news.clear()
        try:
            async with asyncio.timeout(self._interval):
                await self._news.wait()
        except TimeoutError:
            return


def _post(loop: asyncio.AbstractEventLoop, call: object, *args: object) -> bool:
    """Runs something in the loop; False when the loop is closed already."""
    try:
        loop.call_soon_threadsafe(call, *args)  # type: ignore[arg-type]
    except RuntimeError:
        return False
    return True
