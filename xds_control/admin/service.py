"""The Admin service: the gRPC edge over a `Backend`."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from enum import IntEnum
from typing import Any, Final, NoReturn, TypeVar

import grpc

from xds_control.admin import views
from xds_control.admin.backend import Backend, BadRequest
from xds_control.admin.keys import CODE_KEY, USER_KEY
from xds_control.admin.queries import EndpointMaker, Queries, Watch
from xds_control.errors import XdsControlError
from xds_control.fleet.override import Order, Override
from xds_control.observe.logs import logger
from xds_control.proto import admin_pb2 as pb
from xds_control.proto import admin_pb2_grpc

SERVICE: Final = "xds_control.admin.v1.Admin"

MAX_TTL_S: Final = 365 * 86_400.0
MAX_TEXT: Final = 1000
WATCH_MIN_S: Final = 0.05
WATCH_DEFAULT_S: Final = 0.2


class Role(IntEnum):
    """What a caller may do; a higher role includes the lower ones."""

    VIEW = 1
    OPERATE = 2
    ADMIN = 3


_OPERATE = frozenset({"Drain", "Undrain", "Pin", "Eject", "Clear"})
_ADMIN = frozenset({"PushPolicy", "RollbackPolicy", "SetShadow", "ClearShadow", "SetLogLevel"})
ROLES: Final[Mapping[str, Role]] = {
    f"/{SERVICE}/{method.name}": Role.ADMIN
    if method.name in _ADMIN
    else (Role.OPERATE if method.name in _OPERATE else Role.VIEW)
    for method in pb.DESCRIPTOR.services_by_name["Admin"].methods
}
"""Full method name → the role that it needs."""

Context = grpc.aio.ServicerContext
T = TypeVar("T")


def claimed_user(context: Context[Any, Any]) -> str:
    """Who the caller says it is, with where it calls from: nothing more is known without authentication."""
    for key, value in context.invocation_metadata() or ():
        if key == USER_KEY and isinstance(value, str) and value.isprintable():
            return value[:128]
    return str(context.peer())[:128]


class AdminService(admin_pb2_grpc.AdminServicer):
    """Serves a backend. identify: who a caller is, for events and the audit."""

    def __init__(
        self,
        backend: Backend,
        identify: Callable[[Context[Any, Any]], str] = claimed_user,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._backend = backend
        self._queries = Queries(backend)
        self._identify = identify
        self._clock = clock
        self._wall = wall
        self._log = logger("admin")
        self.errors: Counter[str] = Counter()
        """Calls that ended with an error, by our stable code."""

    # Looking.

    async def GetStatus(self, request: pb.GetStatusRequest, context: Context[Any, Any]) -> pb.GetStatusResponse:
        return await self._answer(context, lambda: self._queries.status(self._clock()))

    async def ListPools(self, request: pb.ListPoolsRequest, context: Context[Any, Any]) -> pb.ListPoolsResponse:
        return await self._answer(context, lambda: self._queries.pools(request, self._clock()))

    async def ListEndpoints(
        self, request: pb.ListEndpointsRequest, context: Context[Any, Any]
    ) -> pb.ListEndpointsResponse:
        return await self._answer(context, lambda: self._queries.endpoints(request, self._clock()))

    async def ListEvents(self, request: pb.ListEventsRequest, context: Context[Any, Any]) -> pb.ListEventsResponse:
        return await self._answer(context, lambda: self._queries.events(request, self._clock(), self._wall()))

    async def ListSnapshots(
        self, request: pb.ListSnapshotsRequest, context: Context[Any, Any]
    ) -> pb.ListSnapshotsResponse:
        return await self._answer(context, lambda: self._queries.snapshots(request, self._clock(), self._wall()))

    async def CompareSnapshots(
        self, request: pb.CompareSnapshotsRequest, context: Context[Any, Any]
    ) -> pb.CompareSnapshotsResponse:
        return await self._answer(context, lambda: self._queries.compare(request))

    async def Watch(self, request: pb.WatchRequest, context: Context[Any, Any]) -> AsyncIterator[pb.WatchResponse]:
        watch = Watch(self._backend, request)
        interval = request.interval_s if math.isfinite(request.interval_s) else WATCH_DEFAULT_S
        interval = max(WATCH_MIN_S, interval or WATCH_DEFAULT_S)
        while True:
            message = await self._answer(context, lambda: watch.next(self._clock(), self._wall()))
            if message is not None:
                yield message
            await asyncio.sleep(interval)

    async def ExplainRequest(
        self, request: pb.ExplainRequestRequest, context: Context[Any, Any]
    ) -> pb.ExplainRequestResponse:
        async def explain() -> pb.ExplainRequestResponse:
            if not request.request_id and not request.request.path:
                raise BadRequest("give the id of a recorded request, or a request with a path")
            return await self._backend.explain(request)

        return await self._answer(context, explain)

    async def ListRequests(
        self, request: pb.ListRequestsRequest, context: Context[Any, Any]
    ) -> pb.ListRequestsResponse:
        return await self._answer(context, lambda: self._queries.requests(request))

    async def ListClients(self, request: pb.ListClientsRequest, context: Context[Any, Any]) -> pb.ListClientsResponse:
        return await self._answer(context, self._queries.clients)

    async def ListProcessors(
        self, request: pb.ListProcessorsRequest, context: Context[Any, Any]
    ) -> pb.ListProcessorsResponse:
        return await self._answer(context, lambda: self._queries.processors(self._clock()))

    async def ListAudit(self, request: pb.ListAuditRequest, context: Context[Any, Any]) -> pb.ListAuditResponse:
        return await self._answer(context, lambda: self._queries.audit(request))

    async def GetPolicy(self, request: pb.GetPolicyRequest, context: Context[Any, Any]) -> pb.GetPolicyResponse:
        return await self._answer(context, lambda: self._backend.get_policy(request))

    async def ListPolicies(
        self, request: pb.ListPoliciesRequest, context: Context[Any, Any]
    ) -> pb.ListPoliciesResponse:
        return await self._answer(context, lambda: self._backend.list_policies(request))

    async def ValidatePolicy(
        self, request: pb.ValidatePolicyRequest, context: Context[Any, Any]
    ) -> pb.ValidatePolicyResponse:
        return await self._answer(context, lambda: self._backend.validate_policy(request))

    async def DiffPolicy(self, request: pb.DiffPolicyRequest, context: Context[Any, Any]) -> pb.DiffPolicyResponse:
        return await self._answer(context, lambda: self._backend.diff_policy(request))

    async def GetShadow(self, request: pb.GetShadowRequest, context: Context[Any, Any]) -> pb.GetShadowResponse:
        return await self._answer(context, lambda: self._backend.get_shadow(request))

    async def GetLogLevel(self, request: pb.GetLogLevelRequest, context: Context[Any, Any]) -> pb.GetLogLevelResponse:
        return await self._answer(context, lambda: pb.GetLogLevelResponse(level=self._backend.status().log_level))

    # Operating.

    async def Drain(self, request: pb.DrainRequest, context: Context[Any, Any]) -> pb.OverrideResponse:
        return await self._order(context, "drain", request)

    async def Pin(self, request: pb.PinRequest, context: Context[Any, Any]) -> pb.OverrideResponse:
        return await self._order(context, "pin", request)

    async def Eject(self, request: pb.EjectRequest, context: Context[Any, Any]) -> pb.OverrideResponse:
        return await self._order(context, "eject", request)

    async def Undrain(self, request: pb.UndrainRequest, context: Context[Any, Any]) -> pb.OverrideResponse:
        return await self._release(context, request, only="drain")

    async def Clear(self, request: pb.ClearRequest, context: Context[Any, Any]) -> pb.OverrideResponse:
        return await self._release(context, request)

    # Changing.

    async def PushPolicy(self, request: pb.PushPolicyRequest, context: Context[Any, Any]) -> pb.PushPolicyResponse:
        who = self._identify(context)
        return await self._answer(context, lambda: self._backend.push_policy(request, who))

    async def RollbackPolicy(
        self, request: pb.RollbackPolicyRequest, context: Context[Any, Any]
    ) -> pb.PushPolicyResponse:
        who = self._identify(context)
        return await self._answer(context, lambda: self._backend.rollback_policy(request, who))

    async def SetShadow(self, request: pb.SetShadowRequest, context: Context[Any, Any]) -> pb.GetShadowResponse:
        who = self._identify(context)
        return await self._answer(context, lambda: self._backend.set_shadow(request, who))

    async def ClearShadow(self, request: pb.ClearShadowRequest, context: Context[Any, Any]) -> pb.GetShadowResponse:
        who = self._identify(context)
        return await self._answer(context, lambda: self._backend.clear_shadow(request, who))

    async def SetLogLevel(self, request: pb.SetLogLevelRequest, context: Context[Any, Any]) -> pb.GetLogLevelResponse:
        who = self._identify(context)

        async def change() -> pb.GetLogLevelResponse:
            if request.level not in ("debug", "info", "warning", "error"):
                raise BadRequest(f"log level {request.level!r} is none of debug, info, warning, error")
            await self._backend.set_log_level(request.level, _ttl(request), who)
            return pb.GetLogLevelResponse(level=self._backend.status().log_level)

        return await self._answer(context, change)

    # Inside.

    async def _answer(self, context: Context[Any, Any], make: Callable[[], T | Awaitable[T]]) -> T:
        """What `make` gives; its errors become gRPC ones with our code."""
        try:
            made = make()
            return await made if isinstance(made, Awaitable) else made
        except XdsControlError as error:
            self.errors[error.code] += 1
            await _abort(context, error)
        except Exception as error:  # noqa: BLE001 - a fault in one call must say so and leave the others alone
            self._log.exception("admin-call-failed", peer=context.peer())
            self.errors["internal"] += 1
            context.set_trailing_metadata(((CODE_KEY, "internal"),))
            await context.abort(grpc.StatusCode.INTERNAL, f"{type(error).__name__}: see control's log")

    async def _order(self, context: Context[Any, Any], kind: Order, request: Any) -> pb.OverrideResponse:
        who = self._identify(context)

        async def act() -> pb.OverrideResponse:
            now = self._clock()
            ttl = _ttl(request)
            order = Override(
                kind=kind,
                weight=request.weight if kind == "pin" else None,
                until=None if ttl is None else now + ttl,
                reason=_reason(request.reason),
                by=who,
            )
            return await self._put(request.endpoint, order, who, order.reason)

        return await self._answer(context, act)

    async def _release(self, context: Context[Any, Any], request: Any, only: str = "") -> pb.OverrideResponse:
        who = self._identify(context)

        async def act() -> pb.OverrideResponse:
            return await self._put(request.endpoint, None, who, _reason(request.reason), only)

        return await self._answer(context, act)

    async def _put(
        self, endpoint: str, order: Override | None, who: str, reason: str, only: str = ""
    ) -> pb.OverrideResponse:
        snapshot = self._queries.fleet()
        if not endpoint:
            raise BadRequest("no endpoint is named")
        pool, one = views.find_endpoint(snapshot, endpoint)
        address = one.endpoint.address
        now = self._clock()
        life = self._backend.life(address)
        before = life.override if life is not None else None
        if order is None and (before is None or only not in ("", before.kind)):
            found = "no order" if before is None else f"the order {before.kind}"
            raise NothingToClear(
                f"{address} is under {found}, so there is {'no ' + only if only else 'nothing'} to clear"
            )
        await self._backend.override(address, order, who, reason)
        share = views.weight_shares(snapshot.pools[pool])[address]
        maker = EndpointMaker(self._backend, now, False, False, False, False)
        return pb.OverrideResponse(
            endpoint=maker.make(pool, one, share),
            before=None if before is None else views.override_message(before, now),
            override=None if order is None else views.override_message(order, now),
        )


class NothingToClear(XdsControlError):
    """The endpoint is under no order, or under another one."""

    code = "no-order"
    grpc_status = "FAILED_PRECONDITION"
    http_status = 409


def _ttl(request: Any) -> float | None:
    if not request.HasField("ttl_s"):
        return None
    ttl: float = request.ttl_s
    if not 0 < ttl <= MAX_TTL_S:
        raise BadRequest(f"ttl_s {ttl:g} is not between 0 and {MAX_TTL_S:.0f}")
    return ttl


def _reason(text: str) -> str:
    if len(text) > MAX_TEXT:
        raise BadRequest(f"the reason is longer than {MAX_TEXT} characters")
    return text


async def _abort(context: Context[Any, Any], error: XdsControlError) -> NoReturn:
    context.set_trailing_metadata(((CODE_KEY, error.code),))
    status = getattr(grpc.StatusCode, error.grpc_status, grpc.StatusCode.INTERNAL)
    await context.abort(status, str(error) or error.code)
