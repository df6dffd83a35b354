"""The processor process: ext_proc, access logs, a line to control, and a small HTTP side."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import signal
import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import uvloop
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer

from xds_control.admin.http import HttpEdge
from xds_control.errors import ConfigError
from xds_control.extproc.accesslog_service import AccessLogService
from xds_control.extproc.decide import Decider
from xds_control.extproc.edge import ExtProcEdge
from xds_control.extproc.epp import HealthPort
from xds_control.extproc.fleet_client import FleetClient, FleetSecurity
from xds_control.extproc.heap import keep_heap
from xds_control.extproc.kv_receiver import KvReceiver
from xds_control.extproc.kv_receiver import sources as kv_sources
from xds_control.extproc.requests_service import RequestsService
from xds_control.extproc.server import SERVICE
from xds_control.extproc.span_export import SpanCounts, SpanExporter
from xds_control.extproc.state import ProcessorState
from xds_control.extproc.tls import Certificates, ServerTls
from xds_control.extproc.tracing import Tracer
from xds_control.fleet.snapshot import Snapshot
from xds_control.observe.logs import logger
from xds_control.observe.loops import kept
from xds_control.observe.metrics import Sample, page, sample
from xds_control.policy.address import split_address
from xds_control.policy.tracing import TracingPolicy
from xds_control.proto import fleet_pb2 as pb

REPORT_STOP_S = 1.0


@dataclass(frozen=True, slots=True)
class Listening:
    """Where a processor listens.

    listen: ext_proc, access logs and health. http: metrics and health pages. health: gRPC health alone. private: the
    same as `listen`, in plain text and for this processor alone. tls: of `listen`. shared: other processors may listen
    on `listen` and `health` too.
    """

    listen: str
    http: str | None = None
    health: str | None = None
    private: str | None = None
    tls: ServerTls | None = None
    shared: bool = False


class Processor:
    """Owns the edges of one processor process."""

    def __init__(
        self,
        control: str,
        where: Listening,
        identity: str,
        advertise: str,
        security: FleetSecurity | None = None,
    ) -> None:
        self.identity = identity
        self._where = where
        self._certificates = None if where.tls is None else Certificates(where.tls)
        # so ids of decisions do not come again after a restart: nobody decides a million requests a second
        first_id = int(time.time()) << 20
        self.state = ProcessorState(identity, time.monotonic(), time.monotonic, first_id=first_id)
        self.client = FleetClient(control, identity, advertise, self._on_message, self._window, security=security)
        self.access_log: AccessLogService | None = None
        self.health = HealthServicer()
        self._edge: ExtProcEdge | None = None
        self._http: HttpEdge | None = None
        self._health_port = HealthPort(lambda: self.ready()[0])
        self._log = logger("processor")
        self._ready = asyncio.Event()
        self._lag = 0.0
        self._kv: KvReceiver | None = None
        self._kv_failed = False
        self._spans: SpanExporter | None = None
        self._tracing: TracingPolicy | None = None
        self._span_counts = SpanCounts()
        self._ending: set[asyncio.Task[None]] = set()

    async def run(self, stop: asyncio.Event) -> None:
        """Serves until `stop` is set, then stops gracefully."""
        where = self._where
        if where.http is not None:
            self._http = HttpEdge(self.metrics, self.ready)
            await self._http.start(*split_address(where.http))
        if where.health is not None:
            await self._health_port.start(where.health, shared=where.shared)
        self.client.start()
        beside = [asyncio.create_task(self._measure_lag())]
        if self._certificates is not None:
            follow = kept("certificates", self._certificates.follow, self._log)
            beside.append(asyncio.create_task(follow))
        try:
            # Without a policy there is nothing to decide by: until it is here, Envoy finds nobody and fails open.
            waiting = asyncio.create_task(self._ready.wait())
            stopping = asyncio.create_task(stop.wait())
            await asyncio.wait({waiting, stopping}, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            if not stop.is_set():
                await self._serve()
                gc.collect()
                gc.freeze()
                await stopping
        finally:
            for task in beside:
                task.cancel()
            await self._stop()

    async def _serve(self) -> None:
        assert self.state.log is not None
        assert self.state.policy is not None
        edge = ExtProcEdge(
            self._decider,
            self.state.policy.ext_proc,
            shared=self._where.shared,
            wait=self.state.wait,
            observer_factory=self.state.observer,
            tracer=self._tracer,
        )
        self.access_log = AccessLogService(self.state.log, self._on_taken)
        registrar: Any = edge  # takes services as a grpc.aio.Server does
        self.access_log.add_to(registrar)
        registrar.add_generic_rpc_handlers((RequestsService(self.state).handler(),))
        health_pb2_grpc.add_HealthServicer_to_server(self.health, registrar)
        for name in ("", "liveness", "readiness", SERVICE):
            await self.health.set(name, health_pb2.HealthCheckResponse.SERVING)
        await edge.start(self._where.listen, None if self._certificates is None else self._certificates.context)
        if self._where.private is not None:
            await edge.start(self._where.private, own=True)
        self._edge = edge
        await self._health_port.update()
        self._log.info("processor-serves", address=self._where.listen)

    async def _stop(self) -> None:
        await self.health.enter_graceful_shutdown()
        if self.state.gate is not None:
            self.state.gate.stop()
        await self._health_port.leave()
        await self.client.stop()
        if self._kv is not None:
            await self._kv.stop()
        if self._edge is not None:
            await self._edge.stop(REPORT_STOP_S)
        await self._health_port.stop()
        self._trace_by(None)
        await asyncio.gather(*self._ending)
        if self._http is not None:
            await self._http.stop()

    def ready(self) -> tuple[bool, dict[str, Any]]:
        """Whether requests are decided here."""
        snapshot = self.state.snapshot
        return self._edge is not None, {
            "control": "connected" if self.client.connected else "lost",
            "snapshot": 0 if snapshot is None else snapshot.version,
            "policy": self.state.policy_version,
            "problem": self.state.problem,
        }

    def metrics(self) -> bytes:
        """The page of /metrics."""
        return page(self._samples)

    def _samples(self) -> Iterable[Sample]:
        me = self.identity
        usage = resource.getrusage(resource.RUSAGE_SELF)
        if self._edge is not None:
            yield sample("processor_streams", self._edge.counters.streams, me)
            yield sample("processor_requests", self._edge.counters.requests, me)
            for code, failed in self._edge.counters.by_code.items():
                yield sample("processor_errors", failed, me, code)
        for pool, passed in self.state.margins.passed_over.items():
            yield sample("processor_picks_passed_over", passed, me, pool)
        for pool, quantile, margin in self.state.margins.quantiles():
            yield sample("processor_pick_margin_seconds", margin, me, pool, f"{quantile:g}")
        yield sample("processor_cpu_seconds", usage.ru_utime + usage.ru_stime, me)
        yield sample("processor_access_log_entries", self.state.entries, me)
        if self.state.gate is not None:
            yield sample("processor_queued", len(self.state.gate), me)
        if self.state.picker is not None:
            for pool, address, count in self.state.picker.in_flight():
                yield sample("processor_in_flight", count, me, pool, address)
            for pool, address, count in self.state.picker.kv_blocks():
                yield sample("processor_kv_blocks", count, me, pool, address)
        yield sample("processor_rss_bytes", _rss(), me)
        yield sample("processor_spans_sent", self._span_counts.sent, me)
        yield sample("processor_spans_lost", self._span_counts.lost, me)
        yield sample("processor_snapshot_age_seconds", time.monotonic() - self.client.heard_at, me)

    def _decider(self) -> Decider:
        assert self.state.decider is not None  # the edge starts when there is one
        return self.state.decider

    def _tracer(self) -> Tracer | None:
        return None if self._spans is None else self._spans.tracer

    def _trace_by(self, policy: TracingPolicy | None) -> None:
        """Traces as another policy says; what the exporter of the one before still holds is sent."""
        if policy == self._tracing:
            return
        self._tracing = policy
        old, self._spans = self._spans, None
        if policy is not None:
            try:
                self._spans = SpanExporter(policy, self.identity, self._span_counts)
                self._spans.start()
            except ConfigError as error:
                self._log.error("not-traced", problem=str(error))
        if old is not None:
            task = asyncio.create_task(old.stop(REPORT_STOP_S))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    def _on_message(self, snapshot: Snapshot, message: pb.WatchResponse) -> None:
        before = self.state.problem
        self.state.on_message(snapshot, message, time.monotonic())
        if self.state.problem and self.state.problem != before:
            self._log.error("policy-not-usable", problem=self.state.problem)
        if self.state.policy is not None:
            self.client.report_s = self.state.policy.processors.report_s
            self._trace_by(self.state.policy.tracing)
        if self.state.ready:
            self._ready.set()
            self._follow_kv_events(snapshot)

    def _follow_kv_events(self, snapshot: Snapshot) -> None:
        """Listens to engines that publish what their caches hold, where policy says so."""
        policy, picker = self.state.policy, self.state.picker
        if policy is None or picker is None:
            return
        wanted = kv_sources(snapshot, policy.picker.prefix)
        if self._kv is None:
            if not wanted or self._kv_failed:
                return
            try:
                self._kv = KvReceiver(picker.kv_events, picker.kv_lost)
            except ConfigError as error:
                self._kv_failed = True
                self._log.error("kv-events-not-received", error=str(error))
                return
        self._kv.follow(wanted)

    def _on_taken(self, taken: Any) -> None:
        self.state.on_taken(taken, time.monotonic())

    def _window(self, now: float) -> pb.Window | None:
        if self.state.picker is not None:
            self.state.picker.own_gap = time.monotonic() - time.time()
        window = self.state.window(now)
        usage = resource.getrusage(resource.RUSAGE_SELF)
        load = window.load
        if self._edge is not None:
            load.streams = self._edge.counters.streams
            load.requests = self._edge.counters.requests
        load.cpu_seconds = usage.ru_utime + usage.ru_stime
        load.access_log_entries = self.state.entries
        load.loop_lag_s = self._lag
        load.rss_bytes = _rss()
        return window

    async def _measure_lag(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            before = loop.time()
            await asyncio.sleep(0.1)
            self._lag = max(loop.time() - before - 0.1, 0.0)


def _rss() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def run_processor(
    control: str,
    where: Listening,
    identity: str | None = None,
    advertise: str | None = None,
    security: FleetSecurity | None = None,
) -> int:
    """Runs a processor until SIGTERM or SIGINT; the exit code."""
    name = identity or f"{socket.gethostname()}-{os.getpid()}"
    # Requests make little cyclic garbage; the youngest generation is looked at less often.
    gc.set_threshold(50_000, 20, 50)
    keep_heap()

    async def main() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        await Processor(control, where, name, advertise or where.private or where.listen, security).run(stop)

    try:
        uvloop.run(main())
    except (OSError, ConfigError) as error:
        logger("processor").error("cannot-serve", error=str(error))
        return 1
    return 0
