"""The control process: owns the edges, feeds the core, publishes what it decides."""

from __future__ import annotations

import asyncio
import secrets
import signal
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import grpc
import msgspec
import uvloop

from xds_control.admin.actions import ActionRunner
from xds_control.admin.core import ControlCore
from xds_control.admin.fleet_service import FleetService
from xds_control.admin.fleet_service import serve as serve_fleet
from xds_control.admin.http import HttpEdge
from xds_control.admin.hub import Hub
from xds_control.admin.samples import control_samples
from xds_control.admin.state_view import state_view
from xds_control.discovery.dns import Resolver
from xds_control.discovery.targets import endpoints, names_to_resolve
from xds_control.errors import ConfigError, PolicyError
from xds_control.fleet.endpoint import Endpoint
from xds_control.inspect import TokenEstimator
from xds_control.observe.logs import logger
from xds_control.observe.metrics import Sample, page
from xds_control.policy.address import split_address
from xds_control.policy.load import encode_policy, policy_version
from xds_control.policy.schema import Policy
from xds_control.proto import fleet_pb2 as pb
from xds_control.routing.forwarded import forwarded_headers
from xds_control.signals.engines import default_path
from xds_control.signals.reader import Observations
from xds_control.signals.scraper import Scraper
from xds_control.xds import InvalidResource, SnapshotCache, XdsServer
from xds_control.xds.resources.world import WorldBuilder

GROUP = ""
ESTIMATES_S = 2.0


class Control:
    """One control process. `policy` has been checked; `forwarded_headers` raises PolicyError for bad rules."""

    def __init__(self, policy: Policy, epoch: str | None = None) -> None:
        self.policy = policy
        self.version = policy_version(policy)
        self.core = ControlCore(policy, self.version, epoch or secrets.token_hex(6))
        self.hub = Hub()
        self.cache = SnapshotCache()
        self.xds = XdsServer(self.cache, policy.xds)
        self.world = WorldBuilder()
        self.world.use_policy(policy, forwarded_headers(policy))
        self.fleet = FleetService(self.hub, policy.control.peers_s, self._on_report, self._publish_world)
        self.resolver = Resolver(self._on_names)
        self.scraper: Scraper | None = None
        self.actions: ActionRunner | None = None
        self.tick_s = 0.0
        self.ticks = 0
        self.policy_rejected = 0
        self.problem = ""
        self._held_back = ""
        self._estimators: dict[str, bytes] = {}
        self._log = logger("control")
        self._stoppers: list[Any] = []

    async def run(self, stop: asyncio.Event) -> None:
        """Serves until `stop` is set. Raises ConfigError or OSError when a port cannot be used."""
        policy = self.policy
        self.hub.publish_policy(self.version, encode_policy(policy))
        self.scraper = Scraper(
            policy.signals.scrape,
            self._on_observations,
            on_failure=self._on_failure,
            slo_targets=self.core.slo_targets,
            engines=policy.signals.engines,
        )
        self.actions = ActionRunner(self.core)
        await self._discover_first()
        self._tick()
        _server, stop_fleet = await serve_fleet(policy.control.fleet, self.fleet.handler())
        self._stoppers.append(stop_fleet)
        self._publish_world()
        await self.xds.start(policy.control.xds)
        http = HttpEdge(self.metrics, self.ready, lambda: state_view(self.core, time.monotonic()))
        await http.start(*split_address(policy.control.http))
        loops = [asyncio.create_task(self._ticks()), asyncio.create_task(self._share_estimates())]
        self._log.info("control-serves", policy=self.version, epoch=self.core.epoch)
        try:
            await stop.wait()
        finally:
            for task in loops:
                task.cancel()
            await asyncio.gather(*loops, return_exceptions=True)
            await self.actions.stop()
            await self.scraper.stop()
            await self.resolver.stop()
            await self.xds.stop(1.0)
            for stopper in self._stoppers:
                await stopper()
            await http.stop()

    def ready(self) -> tuple[bool, dict[str, Any]]:
        """Whether Envoys and processors can be served."""
        snapshot = self.core.snapshot
        detail: dict[str, Any] = {
            "policy": self.version,
            "snapshot": 0 if snapshot is None else snapshot.version,
            "processors": len(self.hub.watchers),
            "xds_clients": len(self.xds.clients()),
        }
        if self.problem or self._held_back:
            detail["problem"] = self.problem or self._held_back
        return snapshot is not None and self.cache.group(GROUP) is not None, detail

    def metrics(self) -> bytes:
        """The page of /metrics."""
        return page(self._samples)

    def _samples(self) -> Iterable[Sample]:
        return control_samples(self, time.monotonic())

    # Discovery.

    async def _discover_first(self) -> None:
        names = names_to_resolve(self.policy.pools)
        self.resolver.watch(names)
        if names:
            await self.resolver.resolve()
        self._on_names()

    def _on_names(self) -> None:
        found = endpoints(self.policy.pools, self.resolver.addresses, default_path)
        self.core.set_endpoints(found, time.monotonic())
        if self.scraper is not None:
            self.scraper.set_targets(found)

    # What is seen.

    def _on_observations(self, endpoint: Endpoint, seen: Observations) -> None:
        self.core.on_observations(endpoint, seen, time.monotonic())

    def _on_failure(self, endpoint: Endpoint, reason: str, detail: str) -> None:
        self.core.on_scrape_failure(endpoint, reason, detail, time.monotonic())

    def _on_report(self, kind: str, source: str, request: pb.ReportRequest) -> None:
        now = time.monotonic()
        if request.HasField("window"):
            self.core.on_window(request.window, now)
            self.hub.report(source, request.window, now)
            if request.window.tokens:
                self._estimators[source] = request.window.tokens
        for signals in request.signals:
            self.core.on_signals(signals, now, time.time())
        if request.HasField("gpus"):
            self.core.on_gpus(request.gpus, now)

    # Ticks.

    async def _ticks(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            started = loop.time()
            try:
                self._tick()
            except Exception as error:  # noqa: BLE001 - a fault in one tick must not end control: the last snapshot stays
                self.problem = f"tick failed: {error}"
                self._log.exception("tick-failed")
            await asyncio.sleep(max(self.policy.control.tick_s - (loop.time() - started), 0.005))

    def _tick(self) -> None:
        started = time.perf_counter()
        now = time.monotonic()
        tick = self.core.tick(now)
        self.hub.expire(now)
        self.hub.publish(tick.snapshot)
        for event in tick.events:
            self._log.info(
                "endpoint-state",
                endpoint=event.address,
                before=event.from_state.value,
                after=event.to_state.value,
                reason=event.reason,
            )
        if tick.events and self.scraper is not None:
            # those that are leaving are scraped to their end: draining waits for their last request
            self.scraper.set_targets(self.core.members())
        if tick.changed:
            self._publish_world()
        if self.actions is not None and tick.actions:
            self.actions.run(tick.actions)
        self.ticks += 1
        self.tick_s = time.perf_counter() - started

    def _publish_world(self) -> None:
        snapshot = self.core.snapshot
        if snapshot is None:
            return
        try:
            change = self.cache.set(GROUP, self.world.world(snapshot, self.hub.addresses()), strict=False)
        except InvalidResource as error:
            self._held_back = str(error)
            self._log.error("resource-refused", error=str(error))
            return
        problems = "; ".join(str(one) for one in change.invalid)
        if problems != self._held_back:
            self._held_back = problems
            if problems:
                self._log.error("resources-held-back", problems=[str(one) for one in change.invalid])

    async def _share_estimates(self) -> None:
        """Merges what the processors learned about token counts and gives it back to them."""
        while True:
            await asyncio.sleep(ESTIMATES_S)
            if not self._estimators:
                continue
            for source in [known for known in self._estimators if known not in self.hub.reporters]:
                del self._estimators[source]
            merged = TokenEstimator(self.policy.inspect.tokens)
            for source, state in self._estimators.items():
                try:
                    merged.merge(msgspec.json.decode(state, type=dict), source)
                except msgspec.DecodeError as error:
                    self._log.warning("estimates-refused", source=source, error=str(error))
            for source in self.hub.reporters:
                self.hub.publish_estimates(source, msgspec.json.encode(merged.export(without=source)))


def run_control(policy: Policy, _path: Path, _run_dir: Path | None) -> int:
    """Runs control until SIGTERM or SIGINT; the exit code."""
    log = logger("control")

    async def main() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        await Control(policy).run(stop)

    try:
        uvloop.run(main())
    except PolicyError as error:
        for problem in error.problems:
            log.error("policy-invalid", place=str(problem.place), message=problem.message)
        return 2
    except (ConfigError, OSError, grpc.aio.UsageError) as error:
        log.error("cannot-serve", error=str(error))
        return 1
    return 0
