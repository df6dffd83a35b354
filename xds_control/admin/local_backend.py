"""The admin backend of this very process: everything that `Backend` asks, read from the running control."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from xds_control import __version__
from xds_control.admin import request_calls
from xds_control.admin.backend import AdminEvent, BadRequest, ProcessorFacts, StatusFacts
from xds_control.admin.keys import LOG_LEVELS
from xds_control.fleet.history import History
from xds_control.fleet.life import LifeView
from xds_control.fleet.override import Override
from xds_control.fleet.snapshot import Snapshot
from xds_control.observe.logs import set_level
from xds_control.policy.store import AuditRecord
from xds_control.proto import admin_pb2 as pb
from xds_control.signals.stats import Stats
from xds_control.signals.store import RawSignal
from xds_control.weights.inputs import PoolWeights
from xds_control.xds.clients import ClientStatus

if TYPE_CHECKING:
    from xds_control.admin.control import Control

AUDIT_DEFAULT = 100
AUDIT_MOST = 10_000


class LocalBackend:
    """See `Backend` for what each call does and raises."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._level: str = control.policy.log.level
        self._level_ends: asyncio.TimerHandle | None = None

    # Looking.

    def status(self) -> StatusFacts:
        control = self._control
        ready, _detail = control.ready()
        return StatusFacts(
            version=__version__,
            started_at=control.started_at,
            policy_version=control.version,
            ticks=control.ticks,
            tick_s=control.tick_s,
            agents=sum(1 for kind in control.fleet.sources.values() if kind == "agent"),
            ready=ready,
            problems=tuple(control.problems()),
            shadow_version=control.shadow.version,
            log_level=self._level,
        )

    def snapshot(self) -> Snapshot | None:
        return self._control.core.snapshot

    def weights(self) -> Mapping[str, PoolWeights]:
        return self._control.core.weights

    def life(self, address: str) -> LifeView | None:
        return self._control.core.lifecycle.view(address)

    def raw_signals(self, address: str, now: float) -> Sequence[RawSignal]:
        return self._control.core.store.raw(address, now)

    def stats(self, address: str, now: float, *, long: bool) -> Stats | None:
        return self._control.core.outcomes.stats(address, now, long=long)

    def pool_stats(self, pool: str, now: float, *, long: bool) -> Stats | None:
        return self._control.core.outcomes.pool_stats(pool, now, long=long)

    def events(self, after: int, limit: int) -> Sequence[AdminEvent]:
        return self._control.events.since(after, limit)

    def history(self) -> History:
        return self._control.history

    def xds_clients(self) -> Sequence[ClientStatus]:
        return self._control.xds.clients()

    def processors(self) -> Sequence[ProcessorFacts]:
        found: list[ProcessorFacts] = []
        hub = self._control.hub
        for watcher in hub.watchers.values():
            reporter = hub.reporters.get(watcher.processor)
            waiting = 0 if reporter is None else sum(one.requests for one in reporter.outstanding.values())
            found.append(
                ProcessorFacts(
                    name=watcher.processor,
                    address=watcher.ext_proc_address,
                    version=watcher.version,
                    since=watcher.since,
                    last_report=None if reporter is None else reporter.last_at,
                    snapshot_version=0 if watcher.sent is None else watcher.sent.version,
                    policy_version=watcher.sent_policy,
                    load=None if reporter is None else reporter.load,
                    outstanding=waiting,
                )
            )
        return sorted(found, key=lambda one: one.name)

    # Orders.

    async def override(self, address: str, order: Override | None, who: str, reason: str) -> None:
        control = self._control
        now, wall = time.monotonic(), time.time()
        before = control.orders.put(address, order, who, reason, now, wall)
        endpoint = control.core.endpoint(address)
        control.events.add(
            now,
            "override",
            pool="" if endpoint is None else endpoint.pool,
            endpoint=address,
            before=before,
            after="" if order is None else order.kind,
            reason=reason,
            by=who,
        )

    async def audit(self, request: pb.ListAuditRequest) -> pb.ListAuditResponse:
        limit = min(request.limit or AUDIT_DEFAULT, AUDIT_MOST)
        return pb.ListAuditResponse(
            entries=[
                pb.AuditEntry(
                    at_unix_s=one.at,
                    by=one.by,
                    action=one.action,
                    target=one.target,
                    detail=one.detail,
                    reason=one.reason,
                )
                for one in self._control.store.audit(limit, request.endpoint)
            ]
        )

    # Requests.

    async def explain(self, request: pb.ExplainRequestRequest) -> pb.ExplainRequestResponse:
        if request.shadow and not self._control.shadow.version:
            raise BadRequest("there is no shadow policy; set one with `xds-control policy shadow set`")
        return await request_calls.explain(self.processors(), request, self._control.hub.secret)

    async def requests(self, request: pb.ListRequestsRequest) -> pb.ListRequestsResponse:
        return await request_calls.list_requests(self.processors(), request, self._control.hub.secret)

    # Policy.

    async def get_policy(self, request: pb.GetPolicyRequest) -> pb.GetPolicyResponse:
        return self._control.policies.get(request.version)

    async def list_policies(self, request: pb.ListPoliciesRequest) -> pb.ListPoliciesResponse:
        return self._control.policies.versions(request.limit)

    async def validate_policy(self, request: pb.ValidatePolicyRequest) -> pb.ValidatePolicyResponse:
        return await self._control.policies.validate(request.files)

    async def diff_policy(self, request: pb.DiffPolicyRequest) -> pb.DiffPolicyResponse:
        return await self._control.policies.diff(request.files)

    async def push_policy(self, request: pb.PushPolicyRequest, who: str) -> pb.PushPolicyResponse:
        return await self._control.policies.push(request, who)

    async def rollback_policy(self, request: pb.RollbackPolicyRequest, who: str) -> pb.PushPolicyResponse:
        return await self._control.policies.rollback(request, who)

    async def get_shadow(self, request: pb.GetShadowRequest) -> pb.GetShadowResponse:
        return self._control.shadow.get()

    async def set_shadow(self, request: pb.SetShadowRequest, who: str) -> pb.GetShadowResponse:
        return await self._control.shadow.set(request, who)

    async def clear_shadow(self, request: pb.ClearShadowRequest, who: str) -> pb.GetShadowResponse:
        return self._control.shadow.clear(request, who)

    # Logs.

    async def set_log_level(self, level: str, ttl_s: float | None, who: str) -> None:
        if level not in LOG_LEVELS:
            raise BadRequest(f"log level {level!r} is none of {', '.join(LOG_LEVELS)}")
        detail = "" if ttl_s is None else f"for {ttl_s:g} s"
        self._control.store.add_audit(AuditRecord(time.time(), who, "log-level", level, detail))
        if self._level_ends is not None:
            self._level_ends.cancel()
            self._level_ends = None
        self._use_level(level)
        if ttl_s is not None:
            loop = asyncio.get_running_loop()
            self._level_ends = loop.call_later(ttl_s, self.use_policy_level)

    def use_policy_level(self) -> None:
        """Back to the log level of the policy in force."""
        self._level_ends = None
        self._use_level(self._control.policy.log.level)

    def _use_level(self, level: str) -> None:
        self._level = level
        set_level(level)
