"""A backend over the real core of control, with a clock that tests move."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tests.unit.accesslog.entries import DECIDED, USED, entry
from xds_control.admin.backend import AdminEvent, NotOffered, ProcessorFacts, StatusFacts, Unknown
from xds_control.admin.core import ControlCore
from xds_control.admin.request_views import explanation_message
from xds_control.discovery.targets import endpoints
from xds_control.extproc.decision import Decision
from xds_control.fleet.history import History
from xds_control.fleet.life import LifeView
from xds_control.fleet.override import Override
from xds_control.fleet.snapshot import Snapshot, State
from xds_control.inspect.facts import RequestFacts
from xds_control.policy.load import parse_policy
from xds_control.proto import admin_pb2 as pb
from xds_control.proto import fleet_pb2
from xds_control.signals.accesslog import AccessLog
from xds_control.signals.engines import default_path
from xds_control.signals.stats import Stats
from xds_control.signals.store import RawSignal
from xds_control.weights.inputs import PoolWeights
from xds_control.xds.clients import ClientStatus, TypeStatus

POLICY = """
version: xds-control/v1
pools:
- name: chat
  models: [llama]
  endpoints:
  - {address: "10.0.0.1:8000", name: alpha}
  - {address: "10.0.0.2:8000", name: beta, capacity: 2}
- name: code
  endpoints:
  - {address: "10.0.0.3:8000", name: alpha}
"""
A, B, C = "10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000"


@dataclass
class FakeBackend:
    """Two pools of demo endpoints. `tick` moves time; `orders` and `pushed` record what was asked."""

    now: float = 1000.0
    orders: list[tuple[str, Override | None, str, str]] = field(default_factory=list)
    pushed: list[tuple[pb.PushPolicyRequest, str]] = field(default_factory=list)
    log_level: str = "info"
    broken: bool = False
    kept: list[AdminEvent] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.core = ControlCore(parse_policy(POLICY), "policy-1", "epoch-1")
        self._history = History()
        self.core.set_endpoints(endpoints(self.core.policy.pools, {}, default_path), self.now)

    def tick(self, seconds: float = 0.2) -> None:
        """Moves time on and decides anew."""
        self.now += seconds
        tick = self.core.tick(self.now)
        self._history.record(tick.snapshot)
        for event in tick.events:
            self.add_event("state", event.address, event.from_state.value, event.to_state.value, event.reason)
        for action in tick.actions:
            if action.kind == "warmup":
                self.core.on_warmup(action.address, True, 0.1, self.now)
            else:
                self.core.on_probe(action.address, True, self.now)

    def settle(self) -> None:
        """Until every endpoint is ready and ramped up."""
        for step in [1.0] * 10 + [10.0] * 20:
            self.tick(step)
            for address in (A, B, C):
                self.load(address, running=0, waiting=0, kv_usage=0.0)
        assert all(view.state is State.READY for view in self.core.lifecycle.views())

    def add_event(self, kind: str, address: str = "", before: str = "", after: str = "", reason: str = "") -> None:
        """Something happened now."""
        pool = next((e.pool for e in self.core.endpoints if e.address == address), "")
        self.kept.append(AdminEvent(len(self.kept) + 1, self.now, kind, pool, address, before, after, reason))

    def load(self, address: str, **signals: float) -> None:
        """The engine at an address says something, and answers one request."""
        self.core.on_signals(fleet_pb2.Signals(endpoint=address, values=signals), self.now, 0.0)

    def serve(self, address: str, requests: int, pool: str = "chat") -> None:
        """Requests end at an address."""
        classes = self.core.policy.classes
        log = AccessLog(classes.by_name(), classes.default, self.now)
        made = entry(endpoint=address, cluster=pool, metadata={**DECIDED, **USED, "pool": pool})
        log.take([made] * requests)
        self.core.on_window(log.drain(self.now + 0.1), self.now)

    def status(self) -> StatusFacts:
        if self.broken:
            raise RuntimeError("secret inside")
        return StatusFacts(
            version="0.1.0",
            started_at=900.0,
            policy_version="policy-1",
            ticks=7,
            tick_s=0.004,
            agents=1,
            ready=self.core.snapshot is not None,
            log_level=self.log_level,
        )

    def snapshot(self) -> Snapshot | None:
        return self.core.snapshot

    def weights(self) -> Mapping[str, PoolWeights]:
        return self.core.weights

    def life(self, address: str) -> LifeView | None:
        return self.core.lifecycle.view(address)

    def raw_signals(self, address: str, now: float) -> Sequence[RawSignal]:
        return self.core.store.raw(address, now)

    def stats(self, address: str, now: float, *, long: bool) -> Stats | None:
        return self.core.outcomes.stats(address, now, long=long)

    def pool_stats(self, pool: str, now: float, *, long: bool) -> Stats | None:
        return self.core.outcomes.pool_stats(pool, now, long=long)

    def events(self, after: int, limit: int) -> Sequence[AdminEvent]:
        found = [event for event in self.kept if event.sequence > after]
        return found[max(0, len(found) - limit) :]

    def history(self) -> History:
        return self._history

    def xds_clients(self) -> Sequence[ClientStatus]:
        kinds = [
            TypeStatus("CDS", "type/cds", True, (), 2, "v1", "v1", False, (), "", 0.0, 1, 1, 0),
            TypeStatus("EDS", "type/eds", False, ("chat",), 1, "v2", "v1", True, ("chat",), "bad weight", 3.0, 2, 1, 1),
        ]
        envoy = ClientStatus(
            "1", "ipv4:127.0.0.1:5", "envoy-1", "edge", "", "envoy", "delta", "ADS", 60.0, 0.0, False, tuple(kinds)
        )
        return [envoy]

    def processors(self) -> Sequence[ProcessorFacts]:
        load = fleet_pb2.ProcessorLoad(streams=3, requests=100, cpu_seconds=1.5, rss_bytes=80 << 20)
        return [
            ProcessorFacts("node/1", "127.0.0.1:18011", "0.1.0", 990.0, None, 0, ""),
            ProcessorFacts("node/0", "127.0.0.1:18010", "0.1.0", 950.0, self.now - 0.1, 1, "policy-1", load, 4),
        ]

    async def override(self, address: str, order: Override | None, who: str, reason: str) -> None:
        self.orders.append((address, order, who, reason))
        self.core.override(address, order, self.now)

    async def explain(self, request: pb.ExplainRequestRequest) -> pb.ExplainRequestResponse:
        if request.request_id and request.request_id != "known":
            raise Unknown(f"no request {request.request_id!r} is kept")
        facts = RequestFacts(api="openai.chat", path=request.request.path, model="llama", prompt_tokens=120)
        decision = Decision(
            "known", facts, pool="chat", rule="default", reason="weights", headers={"x-api-key": "s3cr3t"}
        )
        return pb.ExplainRequestResponse(explanation=explanation_message(decision, 1.7e9, dry_run=True))

    async def requests(self, request: pb.ListRequestsRequest) -> pb.ListRequestsResponse:
        answer = await self.explain(pb.ExplainRequestRequest(request_id="known"))
        return pb.ListRequestsResponse(requests=[answer.explanation], unreachable=["node/1"])

    async def audit(self, request: pb.ListAuditRequest) -> pb.ListAuditResponse:
        return pb.ListAuditResponse(
            entries=[
                pb.AuditEntry(by=who, action=order.kind if order else "clear", target=address, reason=reason)
                for address, order, who, reason in reversed(self.orders)
            ]
        )

    async def get_policy(self, request: pb.GetPolicyRequest) -> pb.GetPolicyResponse:
        if request.version not in ("", "policy-1"):
            raise Unknown(f"there is no policy version {request.version!r}")
        return pb.GetPolicyResponse(info=pb.PolicyVersion(version="policy-1", active=True))

    async def list_policies(self, request: pb.ListPoliciesRequest) -> pb.ListPoliciesResponse:
        return pb.ListPoliciesResponse(policies=[pb.PolicyVersion(version="policy-1", active=True)])

    async def validate_policy(self, request: pb.ValidatePolicyRequest) -> pb.ValidatePolicyResponse:
        return pb.ValidatePolicyResponse(ok=True)

    async def diff_policy(self, request: pb.DiffPolicyRequest) -> pb.DiffPolicyResponse:
        return pb.DiffPolicyResponse()

    async def push_policy(self, request: pb.PushPolicyRequest, who: str) -> pb.PushPolicyResponse:
        self.pushed.append((request, who))
        return pb.PushPolicyResponse(accepted=True)

    async def rollback_policy(self, request: pb.RollbackPolicyRequest, who: str) -> pb.PushPolicyResponse:
        raise NotOffered("no store is kept")

    async def get_shadow(self, request: pb.GetShadowRequest) -> pb.GetShadowResponse:
        return pb.GetShadowResponse()

    async def set_shadow(self, request: pb.SetShadowRequest, who: str) -> pb.GetShadowResponse:
        return pb.GetShadowResponse(info=pb.PolicyVersion(by=who))

    async def clear_shadow(self, request: pb.ClearShadowRequest, who: str) -> pb.GetShadowResponse:
        return pb.GetShadowResponse()

    async def set_log_level(self, level: str, ttl_s: float | None, who: str) -> None:
        self.log_level = level
