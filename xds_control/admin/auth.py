"""Who may call control's own ports: TLS, bearer tokens with roles, client certificates, a limit on wrong guesses."""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from typing import Any, Final

import grpc

from xds_control.admin.service import ROLES, Context, Role, claimed_user
from xds_control.errors import ConfigError, XdsControlError
from xds_control.observe.logs import logger
from xds_control.policy.security import AdminSecurity, FleetSecurity, TlsFiles
from xds_control.xds.security import TokenCheck, TokenFile, is_local, server_credentials

OPEN: Final = ("/grpc.health.v1.Health/",)
"""Services that say nothing but whether they live."""

MAX_PEERS: Final = 10_000
WINDOW_S: Final = 60.0
LOG_EVERY_S: Final = 1.0
_ROLES: Final = {"view": Role.VIEW, "operate": Role.OPERATE, "admin": Role.ADMIN}


class Refused(XdsControlError):
    """The caller has no valid token."""

    code = "unauthenticated"
    grpc_status = "UNAUTHENTICATED"
    http_status = 401


class TooManyGuesses(Refused):
    """Too many wrong tokens came from one address within a minute."""

    code = "too-many-guesses"
    grpc_status = "RESOURCE_EXHAUSTED"
    http_status = 429


def check_admin(address: str, policy: AdminSecurity) -> None:
    """Raises ConfigError for an admin port that others can reach and anybody may use, saying what to do."""
    if is_local(address):
        return
    if policy.tls is None or not (policy.tokens or policy.tls.client_ca_file):
        raise ConfigError(
            f"the admin port {address} can be reached from elsewhere: set control.admin_security.tls, and with it "
            "tokens or tls.client_ca_file (mTLS); or listen on 127.0.0.1 or unix:/path. "
            "`xds-control certs init` makes certificates to try it with"
        )


def check_fleet(address: str, policy: FleetSecurity) -> None:
    """Raises ConfigError for a fleet port that others can reach and anybody may use, saying what to do."""
    if is_local(address) or policy.insecure:
        return
    if policy.tls is None or not (policy.token_file or policy.tls.client_ca_file):
        raise ConfigError(
            f"the fleet port {address} can be reached from elsewhere: set control.fleet_security.tls, and with it "
            "token_file or tls.client_ca_file (mTLS); or listen on 127.0.0.1; or set insecure: true where the network "
            "itself is trusted. `xds-control certs init` makes certificates to try it with"
        )


def credentials(tls: TlsFiles | None) -> grpc.ServerCredentials | None:
    """Credentials that follow their files; None for plain text. Raises ConfigError when they cannot be read."""
    if tls is None:
        return None
    return server_credentials(tls)


def fleet_guards(policy: FleetSecurity, refused: Callable[[], None]) -> list[Any]:
    """Interceptors of the fleet port. Raises ConfigError when the token file cannot be read."""
    return [TokenCheck(TokenFile(policy.token_file), refused)] if policy.token_file else []


class Guesses:
    """Wrong tokens of each address within the last minute; the addresses heard of longest ago are forgotten."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._failures: OrderedDict[str, deque[float]] = OrderedDict()

    def wrong(self, address: str, now: float) -> None:
        """A token was wrong."""
        times = self._failures.setdefault(address, deque(maxlen=self._limit))
        times.append(now)
        self._failures.move_to_end(address)
        while len(self._failures) > MAX_PEERS:
            self._failures.popitem(last=False)

    def too_many(self, address: str, now: float) -> bool:
        """Whether an address is not to be heard for now."""
        times = self._failures.get(address)
        return times is not None and len(times) == self._limit and now - times[0] < WINDOW_S


class AdminGate(grpc.aio.ServerInterceptor):  # type: ignore[misc,unused-ignore]
    """Lets a call through when its caller has the role that the method needs. Without tokens and client certificates
    everybody who reaches the port is an administrator.

    Raises ConfigError when a token file cannot be read.
    """

    def __init__(self, policy: AdminSecurity, clock: Callable[[], float] = time.monotonic) -> None:
        self._tokens = [(one.name, _ROLES[one.role], TokenFile(one.file)) for one in policy.tokens]
        self._certificates = policy.tls is not None and policy.tls.client_ca_file is not None
        self._certificate_role = _ROLES[policy.certificate_role]
        self._guesses = Guesses(policy.max_failures_per_minute)
        self._clock = clock
        self._log = logger("admin")
        self.refused = 0
        self._told_at = -LOG_EVERY_S
        self._untold = 0

    def who(self, context: Context[Any, Any]) -> str:
        """Name of the caller, for events and the audit."""
        name, _role = self._caller(context)
        return name or claimed_user(context)

    @property
    def is_open(self) -> bool:
        """Whether nobody has to say who they are."""
        return not self._tokens and not self._certificates

    def check_token(self, authorization: str, address: str) -> None:
        """Lets the holder of a bearer token look, outside of gRPC. Raises Refused."""
        now = self._clock()
        if self._guesses.too_many(address, now):
            self.refused += 1
            raise TooManyGuesses("too many wrong tokens; wait a minute")
        if self._by_token(authorization)[1] is None:
            self.refused += 1
            if authorization:
                self._guesses.wrong(address, now)
            self._tell(now, peer=address, method="http", reason="no valid token")
            raise Refused("a valid bearer token is required")

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any) -> Any:
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None or method.startswith(OPEN):
            return handler
        return _guarded(handler, lambda context: self._check(method, context))

    async def _check(self, method: str, context: Context[Any, Any]) -> None:
        if self.is_open:
            return
        now, address = self._clock(), _address(context)
        if self._guesses.too_many(address, now):
            self.refused += 1
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many wrong tokens; wait a minute")
        name, role = self._caller(context)
        needed = ROLES.get(method, Role.VIEW)
        if role is None:
            self.refused += 1
            if _authorization(context):
                self._guesses.wrong(address, now)
            self._tell(now, peer=address, method=method, reason="no valid token")
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "a valid bearer token is required")
        elif role < needed:
            self.refused += 1
            self._tell(now, peer=address, method=method, by=name, reason=f"needs {needed.name}")
            text = f"{method.rpartition('/')[2]} needs the role {needed.name.lower()}, {name} has {role.name.lower()}"
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, text)

    def _tell(self, now: float, **what: str) -> None:
        """Logs a refusal, unless another one was logged within the last second: anybody may cause them."""
        if now - self._told_at < LOG_EVERY_S:
            self._untold += 1
            return
        self._log.warning("admin-refused", **what, not_logged=self._untold)
        self._told_at, self._untold = now, 0

    def _caller(self, context: Context[Any, Any]) -> tuple[str, Role | None]:
        """(name, role), by the token or else by the client certificate."""
        authorization = _authorization(context)
        found = self._by_token(authorization)
        if found[1] is None and self._certificates and not authorization:
            common = next(iter(context.auth_context().get("x509_common_name") or ()), b"")
            found = (f"certificate {common.decode('utf-8', 'replace')}"[:128], self._certificate_role)
        return found

    def _by_token(self, authorization: str) -> tuple[str, Role | None]:
        """(name, role). Every token is compared, so that the time tells nothing of which one was close."""
        found: tuple[str, Role | None] = ("", None)
        for name, role, tokens in self._tokens:
            if tokens.accepts(authorization):
                found = (name, role)
        return found


def _authorization(context: Context[Any, Any]) -> str:
    for key, value in context.invocation_metadata() or ():
        if key == "authorization" and isinstance(value, str):
            return value
    return ""


def _address(context: Context[Any, Any]) -> str:
    """The caller's address without its port."""
    peer = str(context.peer())
    return peer.rpartition(":")[0] if peer.startswith("ipv") else peer


def _guarded(handler: Any, check: Callable[[Any], Awaitable[None]]) -> Any:
    """The handler behind a check that sees the call's context."""
    kinds = {"request_deserializer": handler.request_deserializer, "response_serializer": handler.response_serializer}
    if not handler.response_streaming:
        inner = handler.stream_unary if handler.request_streaming else handler.unary_unary

        async def one(request: Any, context: Any) -> Any:
            await check(context)
            return await inner(request, context)

        if handler.request_streaming:
            return grpc.stream_unary_rpc_method_handler(one, **kinds)
        return grpc.unary_unary_rpc_method_handler(one, **kinds)
    stream = handler.stream_stream if handler.request_streaming else handler.unary_stream

    async def many(request: Any, context: Any) -> Any:
        await check(context)
        async for answer in stream(request, context):
            yield answer

    if handler.request_streaming:
        return grpc.stream_stream_rpc_method_handler(many, **kinds)
    return grpc.unary_stream_rpc_method_handler(many, **kinds)
