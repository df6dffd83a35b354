"""The control process: owns the edges, feeds the core, publishes what it decides."""

from __future__ import annotations

import asyncio
import gc
import os
import secrets
import signal
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import grpc
import uvloop

from xds_control.admin.actions import ActionRunner
from xds_control.admin.auth import AdminGate, check_admin, check_fleet, credentials, fleet_guards
from xds_control.admin.checks import CHECKS
from xds_control.admin.core import ControlCore
from xds_control.admin.estimates import Estimates
from xds_control.admin.events import EventLog
from xds_control.admin.exporters import Exporters
from xds_control.admin.extras import Extras
from xds_control.admin.first_policy import first_policy, mark_of
from xds_control.admin.fleet_service import FleetService
from xds_control.admin.fleet_service import serve as serve_fleet
from xds_control.admin.http import HttpEdge
from xds_control.admin.hub import Hub
from xds_control.admin.load_rows import load_rows
from xds_control.admin.local_backend import LocalBackend
from xds_control.admin.orders import Orders
from xds_control.admin.policies import Policies
from xds_control.admin.policy_file import PolicyFile
from xds_control.admin.samples import control_samples
from xds_control.admin.server import serve_admin
from xds_control.admin.service import AdminService
from xds_control.admin.shadow import Shadow
from xds_control.admin.state_view import state_view
from xds_control.admin.switching import Switching
from xds_control.admin.views import unserved
from xds_control.admin.web import WebApi
from xds_control.discovery.dns import Resolver
from xds_control.discovery.targets import endpoints, names_to_resolve
from xds_control.errors import ConfigError, PolicyError
from xds_control.fleet.endpoint import Endpoint
from xds_control.fleet.history import History
from xds_control.observe.logs import logger
from xds_control.observe.loops import kept
from xds_control.observe.metrics import Sample, page
from xds_control.policy.address import split_address
from xds_control.policy.load import Files, Loaded, encode_policy, load_files, read_files
from xds_control.policy.schema import Policy
from xds_control.policy.store import PolicyRecord, Store, StoreError
from xds_control.policy.store.sqlite import open_store
from xds_control.proto import admin_pb2 as pb_admin
from xds_control.proto import fleet_pb2 as pb
from xds_control.routing.forwarded import forwarded_headers
from xds_control.signals.engines import default_path
from xds_control.signals.reader import Observations
from xds_control.signals.scraper import Scraper
from xds_control.xds import InvalidResource, SnapshotCache, XdsServer
from xds_control.xds.clients import ClientStatus
from xds_control.xds.lrs import LoadReport
from xds_control.xds.resources.world import WorldBuilder
from xds_control.xds.stream import Nack

GROUP = ""
ESTIMATES_S = 2.0


class Control:
    """One control process. loaded: the checked policy file. store: what outlives the process. path: of the file, to be
    watched."""

    def __init__(self, loaded: Loaded, store: Store, path: Path | None = None, epoch: str | None = None) -> None:
        self.store = store
        mark = mark_of(loaded.files)
        loaded, record = first_policy(store, loaded, time.time())
        self.policy = policy = loaded.policy
        self.version = loaded.version
        self.started_at = time.monotonic()
        self.events = EventLog()
        self.history = History(policy.control.history)
        self.core = ControlCore(policy, self.version, epoch or secrets.token_hex(6))
        self.hub = Hub(secret=secrets.token_hex(24))
        self.cache = SnapshotCache()
        self.xds = XdsServer(self.cache, policy.xds, on_nack=self._on_nack, on_load=self._on_load)
        self.world = WorldBuilder()
        self.world.use_policy(policy, forwarded_headers(policy))
        self.fleet = FleetService(self.hub, policy.control.peers_s, self._on_report, self.publish_world)
        self.resolver = Resolver(self.on_names)
        self.extras = Extras()
        self.policies = Policies(
            Switching(self), store, loaded, record, on_change=self._on_policy, on_refused=self._on_policy_refused
        )
        self.backend = LocalBackend(self)
        self.shadow = Shadow(self)
        self.policy_file = None if path is None else PolicyFile(path, mark, self._push_file)
        self.orders = Orders(self.core, store)
        self.exporters = Exporters(self.core)
        self.scraper: Scraper | None = None
        self.actions: ActionRunner | None = None
        self.tick_s = 0.0
        self.ticks = 0
        self.policy_rejected = 0
        self.policy_switches: Counter[str] = Counter()
        self.gate: AdminGate | None = None
        self.admin: AdminService | None = None
        self.strangers = 0
        self.problem = ""
        self._held_back = ""
        self._log = logger("control")
        self._estimates = Estimates(self._log)
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
        self.orders.restore(time.monotonic(), time.time())
        await self._discover_first()
        self.exporters.use_policy(policy.signals)
        self.tick()
        self.shadow.restore()
        await self._serve_fleet()
        self.publish_world()
        await self.xds.start(policy.control.xds)
        self.gate = AdminGate(policy.control.admin_security)
        http = HttpEdge(self.metrics, self.ready)
        web = WebApi(self.backend, self.gate, policy.control.http, lambda: state_view(self.core, time.monotonic()))
        web.add_to(http.app)
        await http.start(*split_address(policy.control.http))
        await self._serve_admin()
        running = {"ticks": self._ticks, "estimates": self._share_estimates}
        if self.policy_file is not None and policy.control.watch:
            running["policy-file"] = self.policy_file.run
        loops = [asyncio.create_task(kept(name, loop, self._log)) for name, loop in running.items()]
        self._log.info("control-serves", policy=self.version, epoch=self.core.epoch)
        try:
            await stop.wait()
        finally:
            for task in loops:
                task.cancel()
            await asyncio.gather(*loops, return_exceptions=True)
            await self.actions.stop()
            await self.scraper.stop()
            await self.exporters.stop()
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
        problems = self.problems()
        if problems:
            detail["problem"] = "; ".join(problems)
        return snapshot is not None and self.cache.group(GROUP) is not None, detail

    def problems(self) -> list[str]:
        """What is wrong now, one sentence each."""
        file = self.policy_file.problem if self.policy_file is not None else ""
        return [one for one in (self.problem, self._held_back, file, *unserved(self.core.snapshot)) if one]

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
        self.on_names()

    def on_names(self) -> None:
        """Endpoints, or their addresses, may be others now."""
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
            if request.window.HasField("shadow"):
                self.shadow.on_window(request.window.shadow)
            if request.window.tokens:
                self._estimates.take(source, request.window.tokens)
        for signals in request.signals:
            self.core.on_signals(signals, now, time.time())
        if request.HasField("gpus"):
            self.core.on_gpus(request.gpus, source, now)

    def _on_load(self, rows: list[LoadReport]) -> None:
        self.core.on_load_reports(load_rows(rows), time.monotonic())

    def _on_nack(self, client: ClientStatus, nack: Nack) -> None:
        reason = f"{nack.type.short}: {nack.message}"
        self.events.add(time.monotonic(), "xds", after="nack", reason=reason[:1000], by=client.node_id)

    # Policy.

    async def _push_file(self, files: Files, mark: str) -> str:
        request = pb_admin.PushPolicyRequest(
            files=[pb_admin.PolicyFile(name=name, text=text) for name, text in files],
            force=self.policy.control.watch_force,
        )
        answer = await self.policies.push(request, f"file {files[0][0]}", "file", mark)
        if answer.accepted:
            return ""
        if answer.problems:
            first = answer.problems[0]
            place = ":".join(str(part) for part in (first.file, first.line, first.column) if part)
            more = f" (and {len(answer.problems) - 1} more)" if len(answer.problems) > 1 else ""
            return f"{place}: {first.path}: {first.message}{more}"
        return f"{answer.diff.why_force}; push it with `xds-control policy push --force`"

    def _on_policy(self, before: str, record: PolicyRecord) -> None:
        self.policy_switches[record.source] += 1
        self.events.add(
            time.monotonic(), "policy", before=before, after=record.version, reason=record.reason, by=record.by
        )
        self._log.info("policy-in-force", before=before, version=record.version, by=record.by, source=record.source)
        if self.policy_file is not None:
            self.policy_file.settled(record.files)

    def _on_policy_refused(self, who: str, why: str) -> None:
        self.policy_rejected += 1
        self.events.add(
            time.monotonic(), "policy", before=self.version, after=self.version, reason=f"refused: {why}", by=who
        )
        self._log.error("policy-refused", by=who, problem=why, in_force=self.version)

    async def _serve_fleet(self) -> None:
        security = self.policy.control.fleet_security
        check_fleet(self.policy.control.fleet, security)
        guards = fleet_guards(security, self._on_stranger)
        _server, stop = await serve_fleet(
            self.policy.control.fleet, self.fleet.handler(), credentials=credentials(security.tls), interceptors=guards
        )
        self._stoppers.append(stop)

    async def _serve_admin(self) -> None:
        address, security = self.policy.control.admin, self.policy.control.admin_security
        check_admin(address, security)
        assert self.gate is not None
        service = self.admin = AdminService(self.backend, self.gate.who)
        _port, stop = await serve_admin(address, service, credentials(security.tls), [self.gate])
        self._stoppers.append(stop)
        if address.startswith("unix:"):
            os.chmod(address.removeprefix("unix:"), 0o600)

    def _on_stranger(self) -> None:
        self.strangers += 1

    # Ticks.

    async def _ticks(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            started = loop.time()
            self.try_tick()
            await asyncio.sleep(max(self.policy.control.tick_s - (loop.time() - started), 0.005))

    def try_tick(self) -> None:
        """A tick whose faults are told and do not end control: the last snapshot stays."""
        try:
            self.tick()
            self.problem = ""
        except Exception as error:  # noqa: BLE001 - see above
            self.problem = f"tick failed: {error}"
            self._log.exception("tick-failed")

    def tick(self) -> None:
        """Decides everything anew and publishes what changed."""
        started = time.perf_counter()
        now = time.monotonic()
        tick = self.core.tick(now)
        self.hub.expire(now)
        self.hub.publish(tick.snapshot)
        self.shadow.tick(now)
        for event in tick.events:
            self._log.info(
                "endpoint-state",
                endpoint=event.address,
                before=event.from_state.value,
                after=event.to_state.value,
                reason=event.reason,
            )
            endpoint = self.core.endpoint(event.address)
            self.events.add(
                event.at,
                "state",
                pool="" if endpoint is None else endpoint.pool,
                endpoint=event.address,
                before=event.from_state.value,
                after=event.to_state.value,
                reason=event.reason,
            )
        self.history.record(tick.snapshot)
        self.orders.drop_lapsed(time.time())
        if tick.events and self.scraper is not None:
            # those that are leaving are scraped to their end: draining waits for their last request
            self.scraper.set_targets(self.core.members())
        if tick.changed or self.extras.due(now):
            self.publish_world()
        if self.actions is not None and tick.actions:
            self.actions.run(tick.actions)
        self.ticks += 1
        self.tick_s = time.perf_counter() - started

    def publish_world(self) -> None:
        """Gives the xDS server what the newest snapshot and the processors make of the policy."""
        snapshot = self.core.snapshot
        if snapshot is None:
            return
        try:
            world = self.extras.added_to(self.world.world(snapshot, self.hub.addresses()), time.monotonic())
            change = self.cache.set(GROUP, world, strict=False)
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
            shared = self._estimates.shared(tuple(self.hub.reporters), self.policy.inspect.tokens)
            for source, state in shared.items():
                self.hub.publish_estimates(source, state)


def run_control(_policy: Policy, path: Path, run_dir: Path | None) -> int:
    """Runs control until SIGTERM or SIGINT; the exit code."""
    log = logger("control")
    # A tick makes thousands of objects that live until the next one: full collections in the middle of it cost most.
    gc.set_threshold(50_000, 20, 50)

    async def main() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        loaded = load_files(read_files(path), CHECKS)
        store = open_store(loaded.policy.control.store, run_dir)
        try:
            await Control(loaded, store, path).run(stop)
        finally:
            store.close()

    try:
        uvloop.run(main())
    except PolicyError as error:
        for problem in error.problems:
            log.error("policy-invalid", place=str(problem.place), message=problem.message)
        return 2
    except (ConfigError, StoreError, OSError, grpc.aio.UsageError) as error:
        log.error("cannot-serve", error=str(error))
        return 2 if isinstance(error, ConfigError) else 1  # a port or a store may be free later
    return 0
