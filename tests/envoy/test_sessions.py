"""Sessions on a real Envoy: consistent hashing without picks, and opaque tokens with them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import aiohttp
import grpc
import pytest

from tests.envoy.harness import Product, eventually, http_get
from tests.envoy.traffic import CHAT, FAST_SCRAPE, FAST_WEIGHTS, body
from xds_control.demo.engine import DemoEngine
from xds_control.proto import admin_pb2, admin_pb2_grpc

Start = Callable[..., Awaitable[Product]]
SESSIONS = 24
TOKEN = "x-session-token"


def pool_of(engines: Sequence[DemoEngine], **more: Any) -> dict[str, Any]:
    """A pool of these engines."""
    endpoints = [{"address": engine.address} for engine in engines]
    return {"name": "chat", "models": ["demo"], "engine": "vllm", "endpoints": endpoints, **more}


async def home(client: aiohttp.ClientSession, product: Product, session: str, text: str = "hi") -> str:
    """Which engine answers a session."""
    async with client.post(product.gateway + CHAT, json=body(text), headers={"x-session-id": session}) as answer:
        assert answer.status == 200, await answer.text()
        return answer.headers["x-demo-engine"]


async def eds_weights(product: Product, pool: str) -> dict[str, int]:
    _, text = await http_get(f"http://127.0.0.1:{product.ports['envoy_admin']}/clusters")
    rows = [line.split("::") for line in text.splitlines() if line.startswith(f"{pool}::") and "::weight::" in line]
    return {row[1]: int(row[3]) for row in rows}


@pytest.mark.parametrize("lb", ["maglev", "ring_hash"])
async def test_a_session_keeps_its_home_whatever_the_load_does(
    lb: str, start_product: Start, make_engine: Any, client: aiohttp.ClientSession
) -> None:
    engines = [await make_engine(name=f"e{n}") for n in range(4)]
    endpoints = [{"address": engine.address} for engine in engines]
    endpoints[0]["capacity"] = 2.0
    pool = {"name": "chat", "models": ["demo"], "engine": "vllm", "picks": False, "lb": lb, "endpoints": endpoints}
    pool["hash_balance_factor"] = 0  # the request before may still count as active for a moment, and would be a bound
    product = await start_product({"pools": [pool], "signals": FAST_SCRAPE, "weights": FAST_WEIGHTS})
    before = {f"s{n}": await home(client, product, f"s{n}") for n in range(SESSIONS)}
    assert len(set(before.values())) >= 3, before
    weights = await eds_weights(product, "chat")
    assert weights[engines[0].address] == 2 * weights[engines[1].address]

    # A cache that fills moves the computed weight at once; the one that Envoy hashes by keeps still.
    computed = (await product.endpoint(engines[1].address))["weight"]
    engines[1].set_faults(kv_fill=0.85)

    async def moved() -> bool:
        return bool((await product.endpoint(engines[1].address))["weight"] < 0.8 * computed)

    await eventually(moved, 10, "the computed weight follows the load")
    assert await eds_weights(product, "chat") == weights
    for session, engine in before.items():
        assert await home(client, product, session, "once more") == engine

    # One that goes takes its own sessions along and next to nobody else's.
    gone = before["s0"]
    product.policy["pools"][0]["endpoints"] = [
        one for one, engine in zip(endpoints, engines, strict=True) if engine.config.name != gone
    ]
    product.write_policy()

    async def left() -> bool:
        return len(await eds_weights(product, "chat")) == 3

    await eventually(left, 15, "three endpoints in Envoy")
    after = {session: await home(client, product, session) for session in before}
    stayed = [session for session, engine in before.items() if engine != gone]
    kept = sum(after[session] == before[session] for session in stayed)
    assert kept >= 0.8 * len(stayed), Counter(after.values())
    assert gone not in after.values()


async def test_one_hot_session_spills_over_its_bound(
    start_product: Start, make_engine: Any, client: aiohttp.ClientSession
) -> None:
    engines = [await make_engine(name=f"e{n}") for n in range(3)]
    pool = pool_of(engines, picks=False, lb="maglev", hash_balance_factor=130)
    product = await start_product({"pools": [pool], "signals": FAST_SCRAPE})

    async def one(number: int) -> str:
        request = body(f"{number}", max_tokens=60, ignore_eos=True)
        async with client.post(product.gateway + CHAT, json=request, headers={"x-session-id": "hot"}) as answer:
            assert answer.status == 200
            return answer.headers["x-demo-engine"]

    served = Counter(await asyncio.gather(*(one(number) for number in range(30))))
    assert len(served) >= 2, served
    assert max(served.values()) <= 20, served


async def test_a_token_pins_a_session_to_its_endpoint_and_is_opaque(
    start_product: Start, make_engine: Any, client: aiohttp.ClientSession
) -> None:
    engines = [await make_engine(name=f"e{n}") for n in range(3)]
    profile = {"session": {"token_header": TOKEN}, "filters": ["session-affinity"]}
    product = await start_product(
        {"pools": [pool_of(engines)], "signals": FAST_SCRAPE, "picker": {"profiles": {"default": profile}}}
    )

    async def ask(number: int, token: str = "") -> tuple[str, str]:
        headers = {TOKEN: token} if token else {}
        request = body(f"unique {number} " + "y" * 300)
        async with client.post(product.gateway + CHAT, json=request, headers=headers) as answer:
            assert answer.status == 200
            return answer.headers["x-demo-engine"], answer.headers[TOKEN]

    first, token = await ask(0)
    address = {engine.config.name: engine.address for engine in engines}[first]
    assert address not in token
    assert {(await ask(number, token))[0] for number in range(1, 12)} == {first}
    assert len({(await ask(number))[0] for number in range(20, 32)}) == 3
    # Nonsense is no token: the request is picked as any other.
    assert (await ask(40, "bm9uc2Vuc2U="))[0] in {"e0", "e1", "e2"}
    # Without a processor there is none to hand out, and no header either.
    product.kill("processor-0")
    async with client.post(product.gateway + CHAT, json=body("alone")) as answer:
        assert answer.status == 200
        assert TOKEN not in answer.headers


async def test_picked_sessions_survive_a_processor_and_move_when_their_endpoint_drains(
    start_product: Start, make_engine: Any, client: aiohttp.ClientSession
) -> None:
    """No table is kept: whoever picks finds the same home."""
    engines = [await make_engine(name=f"e{n}") for n in range(4)]
    sticky = {"session": {"mode": "prefer"}}
    product = await start_product(
        {
            "pools": [pool_of(engines)],
            "signals": FAST_SCRAPE,
            "processors": {"count": 2},
            "picker": {"profiles": {"default": sticky}},
        }
    )
    before = {f"s{n}": await home(client, product, f"s{n}", f"hello {n}") for n in range(16)}
    assert len(set(before.values())) >= 3, before
    for session, engine in before.items():
        assert await home(client, product, session, "whatever else") == engine
    product.kill("processor-0")
    # Until Envoy has noticed, some requests go on without a pick. Its successor has learned nothing from it.
    await asyncio.sleep(1.0)
    await eventually(product.ready, 20, "the processor is back")
    for session, engine in before.items():
        assert await home(client, product, session, "after the death") == engine

    leaving = before["s0"]
    address = {engine.config.name: engine.address for engine in engines}[leaving]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{product.ports['admin']}") as channel:
        stub: Any = admin_pb2_grpc.AdminStub(channel)  # type: ignore[no-untyped-call]
        await stub.Drain(admin_pb2.DrainRequest(endpoint=address))

    async def drains() -> bool:
        return str((await product.endpoint(address))["state"]) == "draining"

    await eventually(drains, 5, "the endpoint drains")
    await asyncio.sleep(0.5)  # the processors hear of it
    after = {session: await home(client, product, session, "moved") for session in before}
    assert leaving not in after.values()
    assert all(after[session] == engine for session, engine in before.items() if engine != leaving)
