"""The HTTP side of a process: metrics and health; of control also the page (`web`)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

import msgspec
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

MAX_BODY_BYTES = 16 << 20
IDLE_S: Final = 75.0
"""How long a connection may be without a whole request: also the first one, also one that comes byte by byte."""
MAX_CONNECTIONS: Final = 512
"""Connections to one address at once; for a further one the oldest idle one is closed. Each has a file descriptor that
the process needs for its own work."""
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class HttpEdge:
    """Serves `/metrics`, `/healthz` and `/readyz` on one address, and what else is added to `app`.

    ready: () → (whether traffic can be served, details by name).
    """

    def __init__(
        self,
        metrics: Callable[[], bytes],
        ready: Callable[[], tuple[bool, dict[str, Any]]],
    ) -> None:
        self._metrics = metrics
        self._ready = ready
        self._runner: web.AppRunner | None = None
        self._server: asyncio.Server | None = None
        self._busy: set[Any] = set()
        self.app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[self._note])
        self.app.router.add_get("/metrics", self._get_metrics)
        self.app.router.add_get("/healthz", self._get_healthz)
        self.app.router.add_get("/readyz", self._get_readyz)

    async def start(self, host: str, port: int) -> None:
        """Listens. Raises OSError when the address cannot be used."""
        self._runner = web.AppRunner(self.app, access_log=None, keepalive_timeout=IDLE_S, logger=_faults())
        await self._runner.setup()
        server = self._runner.server
        assert server is not None

        def accept() -> asyncio.Protocol:
            held = [one for one in server.connections if one.transport and not one.transport.is_closing()]
            if len(held) >= MAX_CONNECTIONS:
                idle = next((one for one in held if one not in self._busy), None)
                if idle is None:
                    return _Closed()
                idle.force_close()
            return server()

        self._server = await asyncio.get_running_loop().create_server(
            accept, host, port, backlog=128, reuse_address=True
        )

    async def stop(self) -> None:
        """Stops listening."""
        if self._server is not None:
            self._server.close()
        if self._runner is not None:
            await self._runner.cleanup()

    @web.middleware
    async def _note(self, request: web.Request, handler: Callable[[web.Request], Any]) -> web.StreamResponse:
        """Notes which connections are at work."""
        self._busy.add(request.protocol)
        try:
            answer: web.StreamResponse = await handler(request)
            return answer
        finally:
            self._busy.discard(request.protocol)

    async def _get_metrics(self, _request: web.Request) -> web.Response:
        return web.Response(body=self._metrics(), headers={"content-type": METRICS_TYPE})

    async def _get_healthz(self, _request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def _get_readyz(self, _request: web.Request) -> web.Response:
        ready, detail = self._ready()
        return _json({"ready": ready, **detail}, 200 if ready else 503)


def _faults() -> logging.Logger:
    """Where faults of handlers are told. Nonsense on the wire is answered with 400, and worth no traceback."""
    told = logging.getLogger("xds_control.http")
    told.addFilter(_is_ours)
    return told


def _is_ours(record: logging.LogRecord) -> bool:
    return record.exc_info is None or not isinstance(record.exc_info[1], HttpProcessingError)


class _Closed(asyncio.Protocol):
    """A connection too many."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


def _json(value: Any, status: int) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), status=status, content_type="application/json")
