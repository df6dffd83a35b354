"""Serves the Admin service, with health and reflection, on one address."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer
from grpc_reflection.v1alpha import reflection

from xds_control.admin.service import SERVICE, AdminService
from xds_control.errors import ConfigError
from xds_control.observe.readable import ReadableMessages
from xds_control.proto import admin_pb2_grpc

MAX_MESSAGE: Final = 64 * 1024 * 1024
OPTIONS: Final = (
    ("grpc.max_receive_message_length", MAX_MESSAGE),
    ("grpc.max_send_message_length", MAX_MESSAGE),
    ("grpc.so_reuseport", 0),
)
STOP_S: Final = 1.0
MAX_CALLS: Final = 128
"""Calls at once, watches too; each may hold a message. A further one is refused."""


async def serve_admin(
    address: str,
    service: AdminService,
    credentials: grpc.ServerCredentials | None = None,
    interceptors: Sequence[Any] = (),
) -> tuple[int, Callable[[], Awaitable[None]]]:
    """Starts to serve on `host:port` or `unix:/path`; (the port, a function that stops it gracefully).

    credentials: TLS; None serves in the clear, which only loopback and Unix sockets should. interceptors: who may call
    what. Raises ConfigError when the address cannot be listened on.
    """
    server = grpc.aio.server(
        options=list(OPTIONS),
        interceptors=[*interceptors, ReadableMessages("admin")],
        maximum_concurrent_rpcs=MAX_CALLS,
    )
    admin_pb2_grpc.add_AdminServicer_to_server(service, server)  # type: ignore[no-untyped-call]
    status = HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(status, server)
    for name in ("", SERVICE):
        await status.set(name, health_pb2.HealthCheckResponse.SERVING)
    reflection.enable_server_reflection((SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
    try:
        if credentials is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, credentials)
    except RuntimeError as error:
        raise ConfigError(f"admin cannot listen on {address}: {error}") from error
    if port == 0 and not address.startswith("unix:"):
        raise ConfigError(f"admin cannot listen on {address}: is the port in use?")
    await server.start()

    async def stop() -> None:
        await status.enter_graceful_shutdown()
        await server.stop(STOP_S)

    return port, stop
