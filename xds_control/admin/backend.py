"""What the admin service asks of the control process. Plain values in, plain values out; no gRPC."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from xds_control.errors import XdsControlError
from xds_control.fleet.history import History
from xds_control.fleet.life import LifeView
from xds_control.fleet.override import Override
from xds_control.fleet.snapshot import Snapshot
from xds_control.proto import admin_pb2 as pb
from xds_control.proto import fleet_pb2
from xds_control.signals.stats import Stats
from xds_control.signals.store import RawSignal
from xds_control.weights.inputs import PoolWeights
from xds_control.xds.clients import ClientStatus


class UnknownEndpoint(XdsControlError):
    """There is no such endpoint, or the name fits several."""

    code = "endpoint-unknown"
    grpc_status = "NOT_FOUND"
    http_status = 404


class Unknown(XdsControlError):
    """There is no such pool, snapshot, request or policy version."""

    code = "not-found"
    grpc_status = "NOT_FOUND"
    http_status = 404


class BadRequest(XdsControlError):
    """An admin call asks for something that makes no sense."""

    code = "bad-request"
    grpc_status = "INVALID_ARGUMENT"
    http_status = 400


class NotReady(XdsControlError):
    """Control has no snapshot yet."""

    code = "not-ready"
    grpc_status = "UNAVAILABLE"
    http_status = 503


class NotOffered(XdsControlError):
    """This control process does not offer the call, for example because it keeps no store."""

    code = "not-offered"
    grpc_status = "UNIMPLEMENTED"
    http_status = 501


@dataclass(frozen=True, slots=True)
class StatusFacts:
    """How control itself is. started_at: monotonic seconds. problems: what is wrong now, one sentence each."""

    version: str
    started_at: float
    policy_version: str
    ticks: int
    tick_s: float
    agents: int
    ready: bool
    problems: tuple[str, ...] = ()
    shadow_version: str = ""
    log_level: str = "info"


@dataclass(frozen=True, slots=True)
class ProcessorFacts:
    """One processor. since, last_report: monotonic seconds, last_report None before the first.

    snapshot_version, policy_version: the newest that it was sent. outstanding: its picks that have not ended.
    """

    name: str
    address: str
    version: str
    since: float
    last_report: float | None
    snapshot_version: int
    policy_version: str
    load: fleet_pb2.ProcessorLoad | None = None
    outstanding: int = 0


@dataclass(frozen=True, slots=True)
class AdminEvent:
    """Something that happened. sequence counts up by one from 1; at: monotonic seconds. See `Event` in admin.proto."""

    sequence: int
    at: float
    kind: str
    pool: str = ""
    endpoint: str = ""
    before: str = ""
    after: str = ""
    reason: str = ""
    by: str = ""


class Backend(Protocol):
    """Implemented by the control process. Everything is called in its event loop; what is not `async` must be quick.

    Errors are `XdsControlError`s: their code and gRPC status reach the caller. `who` is the authenticated caller, or
    what the caller calls itself where nothing is authenticated. Monotonic times are those of the process.
    """

    def status(self) -> StatusFacts:
        """How control itself is."""
        ...

    def snapshot(self) -> Snapshot | None:
        """The newest snapshot; None before the first tick."""
        ...

    def weights(self) -> Mapping[str, PoolWeights]:
        """Pool → the weights of the newest tick, with explanations."""
        ...

    def life(self, address: str) -> LifeView | None:
        """An endpoint's life; None when there is none."""
        ...

    def raw_signals(self, address: str, now: float) -> Sequence[RawSignal]:
        """Everything that every source said about an endpoint."""
        ...

    def stats(self, address: str, now: float, *, long: bool) -> Stats | None:
        """An endpoint's traffic over the last 10 s (60 s when `long`); None when there never was any."""
        ...

    def pool_stats(self, pool: str, now: float, *, long: bool) -> Stats | None:
        """A pool's traffic; None when there never was any."""
        ...

    def events(self, after: int, limit: int) -> Sequence[AdminEvent]:
        """Events with a sequence above `after`, oldest first; of these the newest `limit`."""
        ...

    def history(self) -> History:
        """The kept snapshots."""
        ...

    def xds_clients(self) -> Sequence[ClientStatus]:
        """The connected xDS clients."""
        ...

    def processors(self) -> Sequence[ProcessorFacts]:
        """The processors that watch the fleet."""
        ...

    async def override(self, address: str, order: Override | None, who: str, reason: str) -> None:
        """Puts an operator's order into force, None takes the present one back; recorded before it returns."""
        ...

    async def explain(self, request: pb.ExplainRequestRequest) -> pb.ExplainRequestResponse:
        """A recorded request, or a dry run of a new one. Raises Unknown for an id that is not kept."""
        ...

    async def requests(self, request: pb.ListRequestsRequest) -> pb.ListRequestsResponse:
        """Recent requests that the processors kept."""
        ...

    async def audit(self, request: pb.ListAuditRequest) -> pb.ListAuditResponse:
        """Who did what and why, newest first."""
        ...

    async def get_policy(self, request: pb.GetPolicyRequest) -> pb.GetPolicyResponse:
        """The policy in force or an earlier one. Raises Unknown."""
        ...

    async def list_policies(self, request: pb.ListPoliciesRequest) -> pb.ListPoliciesResponse:
        """Versions, newest first."""
        ...

    async def validate_policy(self, request: pb.ValidatePolicyRequest) -> pb.ValidatePolicyResponse:
        """Everything that is wrong with a policy."""
        ...

    async def diff_policy(self, request: pb.DiffPolicyRequest) -> pb.DiffPolicyResponse:
        """What a policy would change, tried on the live fleet."""
        ...

    async def push_policy(self, request: pb.PushPolicyRequest, who: str) -> pb.PushPolicyResponse:
        """Puts a policy into force between two ticks, or says why not."""
        ...

    async def rollback_policy(self, request: pb.RollbackPolicyRequest, who: str) -> pb.PushPolicyResponse:
        """Puts an earlier policy into force again."""
        ...

    async def get_shadow(self, request: pb.GetShadowRequest) -> pb.GetShadowResponse:
        """What the shadow policy would do."""
        ...

    async def set_shadow(self, request: pb.SetShadowRequest, who: str) -> pb.GetShadowResponse:
        """Computes a second policy beside the live one from now on."""
        ...

    async def clear_shadow(self, request: pb.ClearShadowRequest, who: str) -> pb.GetShadowResponse:
        """Ends the shadow policy."""
        ...

    async def set_log_level(self, level: str, ttl_s: float | None, who: str) -> None:
        """Sets control's log level, back to the policy's after `ttl_s`."""
        ...
