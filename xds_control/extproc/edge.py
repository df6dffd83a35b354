"""The port that Envoy calls: ext_proc, and beside it whatever else is registered, on the server that policy names."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import grpc

from xds_control.errors import ConfigError
from xds_control.extproc.decide import Decider
from xds_control.extproc.http2.bridge import Bridge
from xds_control.extproc.http2.connection import Limits
from xds_control.extproc.http2.server import Http2Server
from xds_control.extproc.native import NativeExternalProcessor
from xds_control.extproc.server import Counters, ExternalProcessorService, Waiter, server_options
from xds_control.extproc.tracing import Tracer
from xds_control.policy.extproc import ExtProcPolicy


class ExtProcEdge:
    """Serves ext_proc and the services added to it. Make it inside a running loop; add services; then `start`.

    decider: gives the decider of the next request, so that a new policy takes effect at once. tracer: gives the tracer,
    None while tracing is off. shared: other processes may listen on the same address; the kernel spreads the
    connections.
    The methods `add_...` are those of a grpc.aio.Server, so that generated code can register services here.
    """

    def __init__(
        self,
        decider: Callable[[], Decider],
        policy: ExtProcPolicy,
        *,
        shared: bool = False,
        wait: Waiter | None = None,
        observer_factory: Callable[..., Any] | None = None,
        clock: Callable[[], float] = time.monotonic,
        tracer: Callable[[], Tracer | None] | None = None,
    ) -> None:
        self._shared = shared
        self._native: Http2Server | None = None
        self._grpc: grpc.aio.Server | None = None
        self.address = ""
        if policy.transport == "native":
            limits = Limits(
                max_message=policy.message_limit,
                max_streams=policy.max_streams,
                max_held=max(policy.max_buffered_bytes, policy.message_limit),
                stream_window=min(policy.message_limit + 64, (1 << 31) - 1),
            )
            self._native = Http2Server(limits)
            native = NativeExternalProcessor(
                decider, wait=wait, observer_factory=observer_factory, clock=clock, tracer=tracer
            )
            native.add_to(self._native)
            self.counters: Counters = native.counters
            self._services: Any = Bridge(self._native)
        else:
            self._grpc = grpc.aio.server(options=server_options(policy.message_limit, policy.max_streams, shared))
            service = ExternalProcessorService(
                decider, wait=wait, observer_factory=observer_factory, clock=clock, tracer=tracer
            )
            self._grpc.add_generic_rpc_handlers((service,))
            self.counters = service.counters
            self._services = self._grpc

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """As of grpc.aio.Server."""
        self._services.add_generic_rpc_handlers(tuple(handlers))

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        """As of grpc.aio.Server."""
        self._services.add_registered_method_handlers(service, dict(handlers))

    async def start(self, address: str, tls: ssl.SSLContext | None = None, *, own: bool = False) -> str:
        """Listens on `host:port`, `[ipv6]:port` or `unix:/path`; returns the bound address. The native transport may
        listen on several.

        own: nobody else may listen there, though `shared`.

        tls: for the native transport; grpcio takes credentials of its own kind. Raises OSError when the address
        cannot be had, ConfigError when TLS is asked of the grpc transport.
        """
        if self._native is not None:
            self.address = await self._native.listen(address, tls=tls, reuse_port=self._shared and not own)
            return self.address
        assert self._grpc is not None
        if tls is not None:
            raise ConfigError("ext_proc.transport grpc does not take TLS here; use native")
        try:
            port = self._grpc.add_insecure_port(address)
        except RuntimeError as error:
            raise OSError(f"{address} cannot be listened on: {error}") from error
        await self._grpc.start()
        self.address = address if address.startswith("unix:") else f"{address.rpartition(':')[0]}:{port}"
        return self.address

    async def stop(self, grace_s: float) -> None:
        """Takes no new requests, lets open ones end for `grace_s` seconds, then cuts them."""
        if self._native is not None:
            await self._native.stop(grace_s)
        if self._grpc is not None:
            await self._grpc.stop(grace_s)
            await asyncio.sleep(0)
