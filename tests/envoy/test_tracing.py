"""Traces: Envoy begins one, the span of our decision is a child in it, and both reach a collector by OTLP."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from tests.envoy.harness import Product, eventually, free_ports
from tests.envoy.traffic import FAST_SCRAPE
from tests.otlp import Span, spans_of

Start = Callable[..., Awaitable[Product]]
SECRET_PROMPT = "a word that nobody may keep"
KEY = "a key that stays out of sight"
TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"


class Collector:
    """Takes OTLP over HTTP and decodes it."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.keys: set[str] = set()
        self.port = free_ports(1)[0]

    async def take(self, request: web.Request) -> web.Response:
        self.keys.add(request.headers.get("x-key", ""))
        assert request.content_type == "application/x-protobuf"
        self.spans += spans_of(await request.read())
        return web.Response(content_type="application/x-protobuf")

    def of(self, service: str, trace: str = "") -> list[Span]:
        return [one for one in self.spans if one.service == service and trace in ("", one.trace_id)]


@pytest.fixture
async def collector() -> AsyncIterator[Collector]:
    found = Collector()
    app = web.Application()
    app.router.add_post("/v1/traces", found.take)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", found.port).start()
    yield found
    await runner.cleanup()


@pytest.fixture
async def policy(make_engine: Any, collector: Collector, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """One engine, every request traced, and the collector's key in the environment."""
    monkeypatch.setenv("TRACE_KEY", KEY)
    engine = await make_engine()
    pool = {"name": "chat", "models": ["demo"], "engine": "vllm", "endpoints": [{"address": engine.address}]}
    return {
        "pools": [pool],
        "routing": {"rules": [{"name": "everything", "when": "true", "class": "high"}]},
        "ext_proc": {"emit_decision": True},
        "tracing": {
            "endpoint": f"http://127.0.0.1:{collector.port}/v1/traces",
            "headers": {"x-key": "${env:TRACE_KEY}"},
            "sample_share": 1.0,
            "flush_s": 0.1,
        },
        "signals": FAST_SCRAPE,
        "lifecycle": {"warm_up": {"prompts": []}},
    }


async def send(client: aiohttp.ClientSession, product: Product, **headers: str) -> str:
    """The decision's id."""
    body = {"model": "demo", "messages": [{"role": "user", "content": SECRET_PROMPT}], "max_tokens": 2}
    async with client.post(f"{product.gateway}/v1/chat/completions", json=body, headers=headers) as answer:
        assert answer.status == 200, await answer.text()
        return answer.headers["x-xds-control-decision"]


@pytest.mark.parametrize("transport", ["native", "grpc"])
async def test_the_decision_is_a_child_in_envoys_trace(
    transport: str,
    start_product: Start,
    policy: dict[str, Any],
    client: aiohttp.ClientSession,
    collector: Collector,
) -> None:
    policy["ext_proc"]["transport"] = transport
    product = await start_product(policy)
    identifier = await send(client, product)
    await eventually(lambda: bool(collector.of("xds-control") and collector.of("envoy")), 15, "spans arrive")

    (ours,) = collector.of("xds-control")
    assert ours.name == "xds-control decide"
    assert ours.attributes["xds_control.decision.id"] == identifier
    assert ours.attributes["xds_control.pool"] == "chat"
    assert ours.attributes["xds_control.rule"] == "everything"
    assert ours.attributes["xds_control.pick"] == policy["pools"][0]["endpoints"][0]["address"]
    assert ours.attributes["xds_control.reason"] == "picked"
    assert ours.attributes["xds_control.pick.reason"]
    assert ours.attributes["xds_control.prompt_tokens_estimate"] > 0
    assert 0 < ours.end_ns - ours.start_ns < 60e9

    def ancestors() -> list[Span]:
        by_id = {one.span_id: one for one in collector.of("envoy", ours.trace_id)}
        found: list[Span] = []
        at = by_id.get(ours.parent_id)
        while at is not None:
            found.append(at)
            at = by_id.get(at.parent_id)
        return found

    await eventually(lambda: bool(ancestors()) and not ancestors()[-1].parent_id, 15, "Envoy's root span is above ours")
    assert collector.keys == {KEY}
    everything = json.dumps([vars(one) for one in collector.spans])
    assert SECRET_PROMPT not in everything
    assert KEY not in everything
    assert KEY not in product.log.read_text()


async def test_a_parents_flag_decides_and_a_push_switches_tracing(
    start_product: Start,
    policy: dict[str, Any],
    client: aiohttp.ClientSession,
    collector: Collector,
) -> None:
    policy["tracing"]["sample_share"] = 0.0
    product = await start_product(policy)
    for _ in range(20):
        await send(client, product)
    quiet = await send(client, product, traceparent=f"00-{TRACE[::-1]}-{PARENT}-00")
    loud = await send(client, product, traceparent=f"00-{TRACE}-{PARENT}-01")
    await eventually(lambda: bool(collector.of("xds-control", TRACE)), 15, "the sampled one arrives")
    await eventually(lambda: any(one.parent_id == PARENT for one in collector.of("envoy", TRACE)), 15, "Envoy's too")
    ids = [one.attributes["xds_control.decision.id"] for one in collector.of("xds-control")]
    assert ids == [loud]
    assert quiet not in ids

    # Off by a push, without a restart.
    processor = f"http://{product.policy['processors']['http']}"

    async def version() -> str:
        async with client.get(f"{processor}/readyz") as answer:
            return str((await answer.json())["policy"])

    before = await version()
    product.policy.pop("tracing")
    product.write_policy()

    async def switched() -> bool:
        return await version() != before

    await eventually(switched, 30, "the processor has the policy without tracing")
    await send(client, product, traceparent=f"00-{TRACE}-{PARENT}-01")

    # On again: the span of the next request comes, and none of the one before.
    product.policy["tracing"] = policy["tracing"]
    product.write_policy()
    await eventually(lambda: _is(version, before), 30, "the processor traces again")
    last = await send(client, product, traceparent=f"00-{TRACE}-{PARENT}-01")
    await eventually(lambda: len(collector.of("xds-control")) > 1, 15, "the last one arrives")
    ids = [one.attributes["xds_control.decision.id"] for one in collector.of("xds-control")]
    assert ids == [loud, last]


async def _is(ask: Callable[[], Awaitable[str]], wanted: str) -> bool:
    return await ask() == wanted
