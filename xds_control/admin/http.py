"""Control's HTTP side: metrics, health, and the state as JSON."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from aiohttp import web

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class HttpEdge:
    """Serves `/metrics`, `/healthz`, `/readyz` and `/api/v1/state` on one address.

    ready: () → (whether traffic can be served, details by name). state: () → plain values for JSON.
    """

    def __init__(
        self,
        metrics: Callable[[], bytes],
        ready: Callable[[], tuple[bool, dict[str, Any]]],
        state: Callable[[], Any] | None = None,
    ) -> None:
        self._metrics = metrics
        self._ready = ready
        self._state = state
        self._runner: web.AppRunner | None = None
        self.app = web.Application()
        self.app.router.add_get("/metrics", self._get_metrics)
        self.app.router.add_get("/healthz", self._get_healthz)
        self.app.router.add_get("/readyz", self._get_readyz)
        if state is not None:
            self.app.router.add_get("/api/v1/state", self._get_state)

    async def start(self, host: str, port: int) -> None:
        """Listens. Raises OSError when the address cannot be used."""
        self._runner = web.AppRunner(self.app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, host, port, reuse_address=True).start()

    async def stop(self) -> None:
        """Stops listening."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _get_metrics(self, _request: web.Request) -> web.Response:
        return web.Response(body=self._metrics(), headers={"content-type": METRICS_TYPE})

    async def _get_healthz(self, _request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def _get_readyz(self, _request: web.Request) -> web.Response:
        ready, detail = self._ready()
        return _json({"ready": ready, **detail}, 200 if ready else 503)

    async def _get_state(self, _request: web.Request) -> web.Response:
        assert self._state is not None
        return _json(self._state(), 200)


def _json(value: Any, status: int) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), status=status, content_type="application/json")
