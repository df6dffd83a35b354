"""The edge of the HTTP/2 server: sockets, TLS, graceful stop. One asyncio protocol per connection, no task per RPC."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import ssl
from collections.abc import Callable
from typing import Any, Final

import structlog

from xds_control.extproc.http2.connection import Acceptor, Connection, Limits
from xds_control.extproc.http2.rpc import Handler, Held, Rpc

_log = structlog.get_logger("http2")
_BACKLOG_BYTES = 16 << 20
GREETING_S: Final = 10.0
"""How long a connection may be open without having said that it speaks HTTP/2."""
CLOSING_S: Final = 5.0
"""How long a connection that is closed may take to read what was written."""
_FAIR_BYTES: Final = 1 << 16  # of one read; a smaller one was all there was
KEPT_FILES: Final = 256
"""File descriptors that connections leave to the rest of the process."""
_KEEPALIVE: Final = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 60_000))
"""A peer whose machine is gone is noticed after a minute, though nothing is sent to it."""


class _Protocol(asyncio.Protocol):
    """One connection. Output is written once per read; RPCs that answer later call `wake`."""

    def __init__(self, server: Http2Server) -> None:
        self._server = server
        self._transport: Any = None
        self._woken = False
        self._paused = False
        self._timer: asyncio.TimerHandle | None = None
        self.connection = Connection(server.accept_on(self), server.limits, server.held)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                for name, value in _KEEPALIVE:
                    if hasattr(socket, name):
                        sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        if len(self._server.connections) >= self._server.max_connections:
            self._server.refused += 1
            self._transport.abort()
            return
        self._timer = self._server.loop.call_later(GREETING_S, self._greeted_in_time)
        self._transport.set_write_buffer_limits(high=_BACKLOG_BYTES)
        self._server.connections.add(self)
        self.flush()

    def data_received(self, data: bytes) -> None:
        connection = self.connection
        try:
            connection.receive(data)
        except Exception:
            _log.exception("http2_connection_failed")
            connection.lost()
            self._transport.abort()
            raise
        out = connection.take_output()
        if out:
            self._transport.write(out)
        if connection.finished:
            self._close()
        elif connection.more or (len(data) >= _FAIR_BYTES and not self._paused):
            # The loop would read on as long as there is something, and everybody else would wait.
            self._transport.pause_reading()
            self._server.loop.call_soon(self._read_on)

    def _read_on(self) -> None:
        if self.connection.more:
            self.data_received(b"")  # comes back here when there is still more
        if not (self.connection.more or self._paused or self._transport.is_closing()):
            self._transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        self._server.connections.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        self.connection.lost()
        self._server.closed_one()

    def pause_writing(self) -> None:
        # A peer that does not read gets nothing more to answer until it does.
        self._paused = True
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._paused = False
        if not self.connection.more:
            self._transport.resume_reading()

    def flush(self) -> None:
        """Writes what is due."""
        self._woken = False
        if self._transport is None or self._transport.is_closing():
            return
        out = self.connection.take_output()
        if out:
            self._transport.write(out)
        if self.connection.finished:
            self._close()

    def _greeted_in_time(self) -> None:
        if not self.connection.greeted:
            self._transport.abort()

    def _close(self) -> None:
        """Closes, after what is written has been read; a peer that does not read it is not waited for."""
        self._transport.close()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._server.loop.call_later(CLOSING_S, self._transport.abort)

    def wake(self) -> None:
        """Output was made outside of a read: write it in this turn of the loop, together with what else comes."""
        if not self._woken:
            self._woken = True
            self._server.loop.call_soon(self.flush)

    def abort(self) -> None:
        """Cuts the connection."""
        if self._transport is not None:
            self._transport.abort()


Service = Callable[[Rpc, dict[str, str], Callable[[], None]], Handler]
"""Makes the handler of one RPC. Arguments: the RPC, its metadata, and `wake`, to call after answering out of turn."""


class Http2Server:
    """Listens and serves RPCs by path. Register services first, then `listen`; `stop` drains."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.held = Held(self.limits.max_held)
        self.services: dict[str, Service] = {}
        self.fallback: Callable[[str], Service | None] | None = None
        """Finds the service of a path that was not added."""
        self.connections: set[_Protocol] = set()
        self.max_connections = max(64, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - KEPT_FILES)
        self.refused = 0
        """Connections that were too many."""
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self._servers: list[asyncio.Server] = []
        self._paths: list[str] = []
        self._idle: asyncio.Event | None = None

    def add(self, path: str, service: Service) -> None:
        """Serves the method at `path` ("/package.Service/Method")."""
        self.services[path] = service

    async def listen(
        self, address: str, *, tls: ssl.SSLContext | None = None, reuse_port: bool = False, backlog: int = 1024
    ) -> str:
        """Listens on `host:port`, `[ipv6]:port` or `unix:/path`; port 0 takes a free one. Returns the bound address."""
        if tls is not None:
            tls.set_alpn_protocols(["h2"])
        if address.startswith("unix:"):
            path = address.removeprefix("unix:")
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            server = await self.loop.create_unix_server(lambda: _Protocol(self), path, ssl=tls, backlog=backlog)
            self._servers.append(server)
            self._paths.append(path)
            return address
        host, _, port = address.rpartition(":")
        bare = host.strip("[]")
        server = await self.loop.create_server(
            lambda: _Protocol(self), bare or None, int(port), ssl=tls, reuse_port=reuse_port or None, backlog=backlog
        )
        self._servers.append(server)
        bound = server.sockets[0].getsockname()[1]
        return f"{host}:{bound}"

    def accept_on(self, protocol: _Protocol) -> Acceptor:
        """The acceptor of one connection."""

        def accept(rpc: Rpc, path: str, metadata: dict[str, str]) -> Handler | None:
            service = self.services.get(path)
            if service is None and self.fallback is not None:
                service = self.fallback(path)
            return None if service is None else service(rpc, metadata, protocol.wake)

        return accept

    def closed_one(self) -> None:
        """A connection is gone."""
        if self._idle is not None and not self.connections:
            self._idle.set()

    async def stop(self, grace_s: float) -> None:
        """Accepts nothing new, lets open RPCs end for `grace_s` seconds, then cuts what is left."""
        for server in self._servers:
            server.close()
        self._idle = asyncio.Event()
        for protocol in list(self.connections):
            protocol.connection.drain()
            protocol.flush()
        if self.connections:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace_s):
                    await self._idle.wait()
        for protocol in list(self.connections):
            protocol.abort()
        for path in self._paths:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
