"""Policies pushed into a running product on a real Envoy: no request notices."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import yaml

from tests.envoy.harness import Product, eventually
from tests.envoy.traffic import CHAT, FAST_SCRAPE, Load, body
from xds_control.demo.model import ModelConfig
from xds_control.proto import admin_pb2 as pb
from xds_control.proto import admin_pb2_grpc

Start = Callable[..., Awaitable[Product]]
PUSHES = 200


def policy(*addresses: str) -> dict[str, Any]:
    return {
        "pools": [
            {
                "name": "chat",
                "models": ["demo"],
                "engine": "vllm",
                "endpoints": [{"address": address} for address in addresses],
            }
        ],
        "signals": FAST_SCRAPE,
        "lifecycle": {"warm_up": {"prompts": []}, "draining": {"settle_s": 0.5}},
    }


def variant(product: Product, number: int, third: str) -> dict[str, Any]:
    """The product's policy with something else in every ring: endpoints, pools, rules, weights, listener, routes."""
    made: dict[str, Any] = json.loads(json.dumps(product.policy))
    pool = made["pools"][0]
    pool["endpoints"][0]["capacity"] = 1 + number % 3
    if number % 4 == 1:
        pool["endpoints"].append({"address": third})
    if number % 4 == 2:
        made["pools"].append({"name": f"extra-{number % 8}", "engine": "vllm", "endpoints": [{"address": third}]})
        made["routing"] = {
            "default_pool": "chat",
            "rules": [{"name": "some", "when": "request.prompt_tokens > 1", "pool": [f"extra-{number % 8}", "chat"]}],
        }
    if number % 4 == 3:
        made["routing"] = {"rules": [{"name": f"rule-{number}", "when": "true", "class": "low"}]}
        made["weights"] = {"stabilise": {"push_interval_s": 0.2 + 0.1 * (number % 7)}}
    if number % 10 == 5:
        made["envoy"]["stream_idle_timeout_s"] = 100 + number
    return made


def files(made: dict[str, Any]) -> list[pb.PolicyFile]:
    return [pb.PolicyFile(name="pushed.yaml", text=yaml.safe_dump(made, sort_keys=False))]


async def test_two_hundred_pushes_under_load_fail_no_request(
    start_product: Start, make_engine: Any, client: aiohttp.ClientSession
) -> None:
    engines = [await make_engine(name=name) for name in "abc"]
    product = await start_product(policy(*(engine.address for engine in engines[:2])))
    async with grpc.aio.insecure_channel(f"127.0.0.1:{product.ports['admin']}") as channel:
        admin = admin_pb2_grpc.AdminStub(channel)  # type: ignore[no-untyped-call]
        async with Load(client, product.gateway, rate=30.0) as load:
            await eventually(lambda: load.sent >= 10, 60, "the load runs")
            for number in range(PUSHES):
                made = variant(product, number, engines[2].address)
                answer = await admin.PushPolicy(pb.PushPolicyRequest(files=files(made), force=True), timeout=30)
                assert answer.accepted, answer
            sent = load.sent
            await eventually(lambda: load.sent > sent + 10, 60, "requests after the last push")
        assert load.failures == []
        assert set(load.statuses) == {"200"}
        history = await admin.ListPolicies(pb.ListPoliciesRequest(limit=1000), timeout=30)
        assert len(history.policies) == PUSHES + 1
        processors = await admin.ListProcessors(pb.ListProcessorsRequest(), timeout=30)
        newest = history.policies[0].version
        assert [one.policy_version for one in processors.processors] == [newest]
        clients = await admin.ListClients(pb.ListClientsRequest(), timeout=30)
        assert sum(kind.nacks for one in clients.clients for kind in one.types) == 0


def command(product: Product, *words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "xds_control", *words]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)


async def test_from_the_command_line_and_by_file_and_across_a_crash(
    start_product: Start, make_engine: Any, client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    engines = [await make_engine(name=name) for name in "abc"]
    product = await start_product(policy(*(engine.address for engine in engines[:2])))
    server = ["--server", f"127.0.0.1:{product.ports['admin']}"]

    async def run(*words: str) -> subprocess.CompletedProcess[str]:
        return await asyncio.to_thread(command, product, *words)

    # by the command line: looked at, pushed, looked up
    path = tmp_path / "new.yaml"
    made = json.loads(json.dumps(product.policy))
    made["pools"][0]["endpoints"].append({"address": engines[2].address})
    path.write_text(yaml.safe_dump(made))
    shown = await run("policy", "diff", str(path), *server)
    assert shown.returncode == 0, shown.stderr
    assert engines[2].address in shown.stdout
    pushed = await run("policy", "push", str(path), "--reason", "a third", *server)
    assert pushed.returncode == 0, pushed.stderr
    assert "is in force" in pushed.stdout

    async def served_by_third() -> bool:
        return any(one["address"] == engines[2].address for one in (await product.state())["pools"][0]["endpoints"])

    await eventually(served_by_third, 30, "the third endpoint")
    third_version = (await product.state())["policy_version"]

    # a drain and the push survive SIGKILL of control
    drained = await run("drain", engines[0].address, "--reason", "driver", *server)
    assert drained.returncode == 0, drained.stderr
    pid = product.kill("control")
    await eventually(lambda: product.pid("control") != pid, 60, "control is started again")

    async def drains() -> bool:
        state = await product.state()
        entry = await product.endpoint(engines[0].address)
        return bool(state["policy_version"] == third_version and entry["state"] == "draining" and entry["weight"] == 0)

    await eventually(drains, 60, "the drain and the policy are back")

    # a bad file keeps the policy and shouts; a good one is taken
    good = product.path.read_text()
    product.path.write_text(good + "nonsense: 1\n")

    async def shouts() -> bool:
        return "nonsense" in (await product.get("/readyz"))[1]

    await eventually(shouts, 30, "the bad file is told")
    assert "xds_control_policy_rejected_total 1" in (await product.get("/metrics"))[1]
    assert (await product.state())["policy_version"] == third_version
    async with client.post(product.gateway + "/v1/chat/completions", json={"model": "demo", "messages": []}) as answer:
        assert answer.status < 500
    product.path.write_text(good.replace("settle_s: 0.5", "settle_s: 0.6"))

    async def taken() -> bool:
        detail = json.loads((await product.get("/readyz"))[1])
        return "problem" not in detail and detail["policy"] != third_version

    await eventually(taken, 30, "the good file is in force")
    back = await run("policy", "rollback", third_version, *server)
    assert back.returncode == 0, back.stderr
    listed = await run("policy", "history", "--output", "json", *server)
    assert [one["source"] for one in json.loads(listed.stdout)["policies"]] == ["rollback", "file", "push", "start"]


async def test_answers_that_stream_outlive_pushes_of_everything(
    start_product: Start, make_engine: Any, client: aiohttp.ClientSession
) -> None:
    slow = ModelConfig(decode_s=0.1)
    engine, other = await make_engine(name="a", timing=slow), await make_engine(name="b", timing=slow)
    product = await start_product(policy(engine.address))
    asked = body("tell me more", max_tokens=80, stream=True)
    async with (
        grpc.aio.insecure_channel(f"127.0.0.1:{product.ports['admin']}") as channel,
        client.post(product.gateway + CHAT, json=asked) as answer,
    ):
        assert answer.status == 200
        await answer.content.readany()
        admin = admin_pb2_grpc.AdminStub(channel)  # type: ignore[no-untyped-call]
        # another listener, other routes, another cluster configuration, and the endpoint itself leaves
        made = json.loads(json.dumps(product.policy))
        made["envoy"] |= {"body_limit_bytes": 1 << 20, "max_requests": 5000, "stream_idle_timeout_s": 60}
        made["pools"][0]["endpoints"] = [{"address": other.address}]
        pushed = await admin.PushPolicy(pb.PushPolicyRequest(files=files(made), force=True), timeout=30)
        assert pushed.accepted
        made["pools"][0]["name"] = "renamed"
        made["ext_proc"] = {"request_headers": ["x-team"]}
        pushed = await admin.PushPolicy(pb.PushPolicyRequest(files=files(made), force=True), timeout=30)
        assert pushed.accepted
        text = (await answer.content.read()).decode()
    assert "data: [DONE]" in text
    async with client.post(product.gateway + CHAT, json=body("and now")) as after:
        assert after.status == 200
        assert after.headers["x-demo-engine"] == "b"
