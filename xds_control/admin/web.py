"""The page, and the JSON that it is made of: what the admin service's looking calls answer. Changes nothing."""

from __future__ import annotations

import asyncio
import base64
import binascii
import importlib.resources
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec
from aiohttp import web
from google.protobuf import json_format
from google.protobuf.message import Message

from xds_control.admin.auth import AdminGate, Refused
from xds_control.admin.backend import Backend, BadRequest
from xds_control.admin.plain import plain
from xds_control.admin.queries import Queries
from xds_control.errors import XdsControlError
from xds_control.observe.logs import logger
from xds_control.policy.address import split_address
from xds_control.proto import admin_pb2 as pb
from xds_control.xds.security import is_local

API: Final = "/api/v1/"
MAX_TRIES: Final = 4
"""Requests that are tried at once: each body is in memory several times."""
SHARED_S: Final = 0.5
"""How old the list of endpoints may be that somebody else asked for."""
BODY_S: Final = 30.0
"""How long the body of a try may take to arrive."""
_FILES: Final = {"/": ("index.html", "text/html"), "/page.js": ("page.js", "text/javascript")} | {
    "/page.css": ("page.css", "text/css")
}
_HEADERS: Final = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}
_OWN_NAMES: Final = frozenset(("localhost", "127.0.0.1", "::1"))

Call = tuple[type[Message], Callable[[Any], Any | Awaitable[Any]]]


class WebApi:
    """Adds the page and its calls to an application.

    Who may look: with tokens in `control.admin_security`, who sends one of them; without, everybody who reaches a
    loopback address under its own name (a web site that has its name resolve to it must not read along). On any other
    address there is nothing to see until tokens are set.
    """

    def __init__(
        self,
        backend: Backend,
        gate: AdminGate,
        address: str,
        state: Callable[[], Any],
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._backend = backend
        self._gate = gate
        self._local = is_local(address)
        self._names = _OWN_NAMES | {split_address(address)[0].strip("[]")}
        self._state = state
        self._log = logger("web")
        self._tries = 0
        self._clock = clock
        self._shared: dict[bytes, Any] = {}
        self._shared_at = 0.0
        queries = Queries(backend)
        self._calls: dict[str, Call] = {
            "status": (pb.GetStatusRequest, lambda _: queries.status(clock())),
            "pools": (pb.ListPoolsRequest, lambda asked: queries.pools(asked, clock())),
            "endpoints": (pb.ListEndpointsRequest, lambda asked: queries.endpoints(asked, clock())),
            "events": (pb.ListEventsRequest, lambda asked: queries.events(asked, clock(), wall())),
            "snapshots": (pb.ListSnapshotsRequest, lambda asked: queries.snapshots(asked, clock(), wall())),
            "processors": (pb.ListProcessorsRequest, lambda _: queries.processors(clock())),
            "clients": (pb.ListClientsRequest, lambda _: queries.clients()),
            "requests": (pb.ListRequestsRequest, queries.requests),
            "explain": (pb.ExplainRequestRequest, backend.explain),
            "shadow": (pb.GetShadowRequest, backend.get_shadow),
            "policies": (pb.ListPoliciesRequest, backend.list_policies),
        }

    def add_to(self, app: web.Application) -> None:
        """Registers the routes."""
        for path, (name, kind) in _FILES.items():
            app.router.add_get(path, _file(name, kind))
        app.router.add_get(API + "state", self._guarded(self._get_state))
        app.router.add_get(API + "{call}", self._guarded(self._get))
        app.router.add_post(API + "explain", self._guarded(self._try))

    def _guarded(self, handler: Callable[[web.Request], Awaitable[Any]]) -> Callable[[web.Request], Any]:
        """The handler behind the check; errors become JSON with our code."""

        async def answer(request: web.Request) -> web.Response:
            try:
                self._check(request)
                return _json(await handler(request), 200)
            except web.HTTPException:
                raise
            except XdsControlError as error:
                return _json({"code": error.code, "message": str(error) or error.code}, error.http_status)
            except Exception as error:  # noqa: BLE001 - a fault in one call must say so and leave the others alone
                self._log.exception("web-call-failed", path=request.path)
                return _json({"code": "internal", "message": f"{type(error).__name__}: see control's log"}, 500)

        return answer

    def _check(self, request: web.Request) -> None:
        if not self._gate.is_open:
            self._gate.check_token(request.headers.get("authorization", ""), request.remote or "")
        elif not self._local:
            raise Closed(
                "control.http can be reached from elsewhere, so the page and its data need a token: "
                "set control.admin_security.tokens, or let control.http listen on 127.0.0.1"
            )
        elif request.headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
            raise Closed("another web site asks")
        elif _name(request.headers.get("host", "")) not in self._names:
            raise Closed("this is served under its own name only: localhost or 127.0.0.1")

    async def _get_state(self, _request: web.Request) -> Any:
        return self._state()

    async def _get(self, request: web.Request) -> Any:
        name = request.match_info["call"]
        call = self._calls.get(name)
        if call is None:
            raise NoCall(f"there is no {API}{name}; there are state, {', '.join(self._calls)}")
        kind, make = call
        asked = _asked(kind, request)
        if name != "endpoints":
            made = make(asked)
            return plain(await made if isinstance(made, Awaitable) else made)
        # With a thousand endpoints the answer takes a large part of a tick to make: all who look share it.
        now, key = self._clock(), asked.SerializeToString(deterministic=True)
        if not self._shared_at <= now < self._shared_at + SHARED_S:
            self._shared.clear()
            self._shared_at = now
        if key not in self._shared:
            self._shared[key] = plain(make(asked))
        return self._shared[key]

    async def _try(self, request: web.Request) -> Any:
        """Explains a request given as {"method", "path", "headers", "body" or "body_base64", "shadow"}."""
        if self._tries >= MAX_TRIES:
            raise Busy(f"{MAX_TRIES} requests are being tried; try again in a moment")
        self._tries += 1
        try:
            return await self._tried(request)
        finally:
            self._tries -= 1

    async def _tried(self, request: web.Request) -> Any:
        try:
            async with asyncio.timeout(BODY_S):
                data = await request.read()
        except TimeoutError:
            raise BadRequest(f"the request to try did not arrive within {BODY_S:g} s") from None
        try:
            given = msgspec.json.decode(data, type=Try)
            body = base64.b64decode(given.body_base64, validate=True) if given.body_base64 else given.body.encode()
        except (msgspec.MsgspecError, binascii.Error, UnicodeEncodeError, RecursionError) as error:
            raise BadRequest(f"not a request to try: {error}") from error
        http = pb.HttpRequest(method=given.method, path=given.path, headers=given.headers, body=body)
        if not given.path:
            raise BadRequest("the request to try has no path")
        return plain(await self._backend.explain(pb.ExplainRequestRequest(request=http, shadow=given.shadow)))


class Try(msgspec.Struct, forbid_unknown_fields=True):
    """A request to try."""

    path: str
    method: str = ""
    headers: dict[str, str] = {}
    body: str = ""
    body_base64: str = ""
    shadow: bool = False


class Closed(Refused):
    """The page is not for whoever comes this way."""

    code = "page-closed"
    grpc_status = "PERMISSION_DENIED"
    http_status = 403


class Busy(XdsControlError):
    """As much is being tried as may be at once."""

    code = "busy"
    grpc_status = "RESOURCE_EXHAUSTED"
    http_status = 429


class NoCall(XdsControlError):
    """There is nothing at this path."""

    code = "not-found"
    grpc_status = "NOT_FOUND"
    http_status = 404


def _asked(kind: type[Message], request: web.Request) -> Message:
    """The request message that a query string describes. Raises BadRequest."""
    values: dict[str, Any] = {}
    for name in dict.fromkeys(request.query):
        field = kind.DESCRIPTOR.fields_by_name.get(name)
        if field is None or field.message_type is not None:
            known = ", ".join(one.name for one in kind.DESCRIPTOR.fields if one.message_type is None)
            raise BadRequest(f"there is no parameter {name!r}; parameters are {known or 'none'}")
        given: list[Any] = request.query.getall(name)
        if field.type == field.TYPE_BOOL:
            given = [{"true": True, "1": True, "false": False, "0": False}.get(one, one) for one in given]
        values[name] = given if hasattr(getattr(kind(), name), "extend") else given[-1]
    try:
        return json_format.ParseDict(values, kind())
    except json_format.ParseError as error:
        raise BadRequest(str(error)) from error


def _name(host: str) -> str:
    """The name in a Host header, without its port."""
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isdigit() else host).strip("[]").lower()


def _file(name: str, kind: str) -> Callable[[web.Request], Awaitable[web.Response]]:
    text = importlib.resources.files(__package__).joinpath("static", name).read_text("utf-8")

    async def get(_request: web.Request) -> web.Response:
        return web.Response(text=text, content_type=kind, charset="utf-8", headers=_HEADERS)

    return get


def _json(value: Any, status: int) -> web.Response:
    return web.Response(
        body=msgspec.json.encode(value), status=status, content_type="application/json", headers=_HEADERS
    )
