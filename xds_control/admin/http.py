"""The HTTP side of a process: metrics and health; of control also the page (`web`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from aiohttp import web

MAX_BODY_BYTES = 16 << 20
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
        self.app = web.Application(client_max_size=MAX_BODY_BYTES)
        self.app.router.add_get("/metrics", self._get_metrics)
        self.app.router.add_get("/healthz", self._get_healthz)
        self.app.router.add_get("/readyz", self._get_readyz)

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


def _json(value: Any, status: int) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), status=status, content_type="application/json")
