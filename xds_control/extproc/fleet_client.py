"""A processor's side of the Fleet service: keeps the snapshot fresh, sends windows, survives control's restarts."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import grpc

from xds_control import __version__
from xds_control.fleet.snapshot import Snapshot
from xds_control.observe.logs import logger
from xds_control.proto import fleet_pb2 as pb
from xds_control.proto import snapshots

SERVICE = "/xds_control.fleet.v1.Fleet"
OPTIONS = (
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),
    ("grpc.max_send_message_length", 64 * 1024 * 1024),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
)
MAX_BACKOFF_S = 1.0
MAX_UNANSWERED = 16
"""Windows under way before the sender waits; what happens meanwhile stays in the next window."""


@dataclass(frozen=True, slots=True)
class FleetSecurity:
    """How control is reached: in plain text, or by TLS. Files are read for each connection, so they may be renewed.

    ca: authorities to trust. cert, key: own certificate. token: file with the bearer token. server_name: name in the
    server's certificate when it is not the address.
    """

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    token: Path | None = None
    server_name: str | None = None

    def channel(self, address: str) -> grpc.aio.Channel:
        """A channel to control. Raises OSError when a file cannot be read."""
        if self.ca is None:
            return grpc.aio.insecure_channel(address, options=OPTIONS)
        read = [None if path is None else path.read_bytes() for path in (self.ca, self.key, self.cert)]
        options = [*OPTIONS, *([("grpc.ssl_target_name_override", self.server_name)] if self.server_name else [])]
        return grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(*read), options=options)

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Metadata of each call. Raises OSError when the token cannot be read."""
        if self.token is None:
            return ()
        lines = (line.strip() for line in self.token.read_text().splitlines())
        token = next((line for line in lines if line and not line.startswith("#")), "")
        return (("authorization", f"Bearer {token}"),)


class FleetClient:
    """on_snapshot(snapshot, message) is called after each change; make_window() yields what is to be reported,
    or None when there is nothing."""

    def __init__(
        self,
        control: str,
        processor: str,
        ext_proc_address: str,
        on_message: Callable[[Snapshot, pb.WatchResponse], None],
        make_window: Callable[[float], pb.Window | None],
        report_s: float = 0.1,
        security: FleetSecurity | None = None,
    ) -> None:
        self._control = control
        self._security = security or FleetSecurity()
        self._processor = processor
        self._address = ext_proc_address
        self._on_message = on_message
        self._make_window = make_window
        self.report_s = report_s
        self._log = logger("fleet-client")
        self._tasks: list[asyncio.Task[None]] = []
        self.snapshot: Snapshot | None = None
        self.heard_at = 0.0
        self.connected = False
        self.errors = 0

    def start(self) -> None:
        """Begins to watch and report."""
        self._tasks = [
            asyncio.create_task(self._forever("watch", self._watch), name="fleet-watch"),
            asyncio.create_task(self._forever("report", self._report), name="fleet-report"),
        ]

    async def stop(self) -> None:
        """Ends both streams."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _forever(self, name: str, once: Callable[[grpc.aio.Channel], object]) -> None:
        backoff = 0.05
        while True:
            started = time.monotonic()
            try:
                async with self._security.channel(self._control) as channel:
                    await once(channel)  # type: ignore[misc]
            except grpc.aio.AioRpcError as error:
                self.errors += 1
                self._log.warning("control-lost", stream=name, status=error.code().name, detail=error.details())
            except (ValueError, OSError) as error:
                self.errors += 1
                self._log.error("control-spoke-oddly", stream=name, error=str(error))
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is None or task.cancelling():
                    raise
                self.errors += 1  # the call was cancelled, not we
                self._log.warning("control-lost", stream=name, status="CANCELLED")
            except Exception:  # noqa: BLE001 - without its streams a processor would never be heard of again
                self.errors += 1
                self._log.exception("stream-failed", stream=name)
            if name == "watch":
                self.connected = False
            backoff = 0.05 if time.monotonic() - started > 5 else min(backoff * 2, MAX_BACKOFF_S)
            await asyncio.sleep(backoff * random.uniform(0.8, 1.2))

    async def _watch(self, channel: grpc.aio.Channel) -> None:
        call = channel.unary_stream(
            f"{SERVICE}/Watch",
            request_serializer=pb.WatchRequest.SerializeToString,
            response_deserializer=pb.WatchResponse.FromString,
        )
        request = pb.WatchRequest(processor=self._processor, ext_proc_address=self._address, version=__version__)
        held: Snapshot | None = None
        async for message in call(request, metadata=self._security.metadata()):
            now = time.monotonic()
            held = snapshots.apply(held, message, now)
            self.snapshot = held
            self.heard_at = now
            self.connected = True
            self._on_message(held, message)

    def _window(self) -> pb.Window | None:
        """The next window. gRPC swallows what a generator of requests raises, so a fault is told here."""
        try:
            return self._make_window(time.monotonic())
        except Exception:  # noqa: BLE001 - one window is lost, the stream goes on
            self.errors += 1
            self._log.exception("window-failed")
            return None

    async def _report(self, channel: grpc.aio.Channel) -> None:
        call = channel.stream_stream(
            f"{SERVICE}/Report",
            request_serializer=pb.ReportRequest.SerializeToString,
            response_deserializer=pb.ReportResponse.FromString,
        )
        slots = asyncio.Semaphore(MAX_UNANSWERED)

        async def requests() -> AsyncIterator[pb.ReportRequest]:
            sequence = 1
            hello = pb.Hello(source=self._processor, kind="processor", version=__version__)
            await slots.acquire()
            yield pb.ReportRequest(sequence=sequence, hello=hello)
            while True:
                await asyncio.sleep(self.report_s)
                await slots.acquire()
                window = self._window()
                if window is None:
                    slots.release()
                    continue
                sequence += 1
                yield pb.ReportRequest(sequence=sequence, window=window)

        async for _answer in call(requests(), metadata=self._security.metadata()):
            slots.release()
