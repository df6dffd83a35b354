from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import grpc
import pytest

from tests.unit.admin.backend import FakeBackend
from xds_control.admin.server import serve_admin
from xds_control.admin.service import AdminService
from xds_control.proto import admin_pb2_grpc

WALL = 1_700_000_000.0


@dataclass
class Served:
    """A backend behind a real server. `stub` calls it."""

    backend: FakeBackend
    address: str
    stub: Any
    service: AdminService


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    backend = FakeBackend()
    backend.settle()
    service = AdminService(backend, clock=lambda: backend.now, wall=lambda: WALL + backend.now)
    port, stop = await serve_admin("127.0.0.1:0", service)
    address = f"127.0.0.1:{port}"
    async with grpc.aio.insecure_channel(address) as channel:
        yield Served(backend, address, admin_pb2_grpc.AdminStub(channel), service)  # type: ignore[no-untyped-call]
    await stop()
