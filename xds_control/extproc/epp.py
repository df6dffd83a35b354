"""What a Gateway API data plane expects of an endpoint picker beside ext_proc: health on a port of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer

from xds_control.errors import ConfigError
from xds_control.extproc.server import SERVICE

LIVENESS: Final = "liveness"
READY_NAMES: Final = ("", "readiness", SERVICE)

_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class HealthPort:
    """grpc.health.v1: `liveness` always serves; the empty name, `readiness` and ext_proc's follow `ready`; others are
    unknown. ready is asked at the start and at each `update`."""

    def __init__(self, ready: Callable[[], bool]) -> None:
        self._ready = ready
        self._servicer = HealthServicer()
        self._server: grpc.aio.Server | None = None
        self.address = ""

    async def start(self, address: str, *, shared: bool = False) -> str:
        """Listens on `host:port`; returns the bound address. Raises ConfigError when it cannot be had.

        shared: other processes may listen there too.
        """
        server = grpc.aio.server(options=[("grpc.so_reuseport", int(shared))])
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)
        try:
            port = server.add_insecure_port(address)
        except RuntimeError as error:
            raise ConfigError(f"cannot listen on {address}: {error}") from None
        if port == 0:
            raise ConfigError(f"cannot listen on {address}")
        await self._servicer.set(LIVENESS, _SERVING)
        await self.update()
        await server.start()
        self._server = server
        self.address = f"{address.rpartition(':')[0]}:{port}"
        return self.address

    async def update(self) -> None:
        """Takes over what `ready` says now."""
        status = _SERVING if self._ready() else _NOT_SERVING
        for name in READY_NAMES:
            await self._servicer.set(name, status)

    async def leave(self) -> None:
        """Not ready from now on."""
        await self._servicer.enter_graceful_shutdown()

    async def stop(self) -> None:
        """Not ready at once, then closed."""
        await self.leave()
        if self._server is not None:
            await self._server.stop(0)
