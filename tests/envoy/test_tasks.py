"""docs/tasks.md is followed word by word on a running product: what a fresh reader would do does what is said there."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import shutil
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import yaml

from tests.envoy.harness import Product, eventually
from tests.envoy.traffic import FAST_SCRAPE, served_by
from tests.shared import REPOSITORY

Start = Callable[..., Awaitable[Product]]
TEXT = (REPOSITORY / "docs" / "tasks.md").read_text()
SECTIONS = {part.splitlines()[0]: part for part in TEXT.split("\n## ")[1:]}


def commands(title: str) -> list[str]:
    """The command lines of a section, in order."""
    return re.findall(r"^\$ (.+)$", SECTIONS[title], re.MULTILINE)


class Reader:
    """Types what the page says, in the folder of the product's policy. words: what stands for what on this machine."""

    def __init__(self, product: Product, words: dict[str, str]) -> None:
        self._folder = product.folder
        self._words = words
        self._environment = {
            **os.environ,
            "PYTHONPATH": str(REPOSITORY),
            "XDS_CONTROL_ADMIN": f"127.0.0.1:{product.ports['admin']}",
        }

    async def type(self, line: str, code: int = 0) -> str:
        """Runs one line; what it printed."""
        for word, meant in self._words.items():
            line = line.replace(word, meant)
        words = shlex.split(line)
        if words[0] == "cp":
            shutil.copy(self._folder / words[1], self._folder / words[2])
            return ""
        assert words[0] == "xds-control", line
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "xds_control", *words[1:]),
            cwd=self._folder,
            env=self._environment,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        out, _ = await asyncio.wait_for(process.communicate(), 90)
        assert process.returncode == code, f"{line}\n{out.decode()}"
        return out.decode()

    async def all(self, lines: list[str]) -> dict[str, str]:
        """Runs lines; line → what it printed."""
        return {line: await self.type(line) for line in lines}


async def test_a_fresh_reader_gets_through_all_four(
    start_product: Start, make_engine: Any, client: aiohttp.ClientSession
) -> None:
    engines = [await make_engine(name=name) for name in "abc"]
    product = await start_product(
        {
            "pools": [
                {
                    "name": "chat",
                    "models": ["demo"],
                    "engine": "vllm",
                    "endpoints": [{"address": one.address, "name": one.config.name} for one in engines[:2]],
                }
            ],
            "ext_proc": {"emit_decision": True},
            "signals": FAST_SCRAPE,
            "lifecycle": {"warm_up": {"prompts": []}, "draining": {"settle_s": 0.5}},
        }
    )
    newcomer = engines[2].address
    reader = Reader(product, {"10.0.0.13:8000": newcomer})

    # Add an endpoint.
    copy, *rest = commands("Add an endpoint")
    assert copy.startswith("cp ")
    await reader.type(copy)
    (snippet,) = re.findall(r"```yaml\n(.*?)```", SECTIONS["Add an endpoint"], re.DOTALL)
    path = product.folder / "next.yaml"
    policy = yaml.safe_load(path.read_text())
    policy["pools"][0]["endpoints"] += yaml.safe_load(snippet.replace("10.0.0.13:8000", newcomer))
    path.write_text(yaml.safe_dump(policy, sort_keys=False))
    said = await reader.all(rest)
    assert newcomer in said["xds-control policy diff next.yaml"]
    assert "discovered" in said["xds-control events --endpoint gamma"]

    async def serves() -> bool:
        return (await product.endpoint(newcomer))["state"] == "ready" and "c" in set(
            await served_by(client, product.gateway, 10)
        )

    await eventually(serves, 40, "the new endpoint takes traffic")
    assert "gamma" in await reader.type("xds-control weights --pool chat")

    # Drain one.
    drain, show, audit, undrain = commands("Drain one")
    assert "is drained" in await reader.type(drain)
    assert set(await served_by(client, product.gateway, 20)) <= {"a", "b"}
    assert "drained" in await reader.type(show)
    assert "new driver" in await reader.type(audit)
    await reader.type(undrain)
    await eventually(serves, 40, "the drained endpoint is back")

    # Find why a request went where it went.
    body = {"model": "demo", "messages": [{"role": "user", "content": "why there"}], "max_tokens": 2}
    async with client.post(f"{product.gateway}/v1/chat/completions", json=body) as answer:
        identifier = answer.headers["x-xds-control-decision"]
        await answer.read()
    reader = Reader(product, {"ID": identifier})
    explain, *others = commands("Find why a request went where it went")
    told = await reader.type(explain)
    assert identifier in told
    assert any(f"{one.address} by " in told.splitlines()[0] for one in engines), told
    assert "Candidates" in told or "CANDIDATES" in told.upper()
    tried = (await reader.all(others))[others[-1]]
    assert any(one.address in tried for one in engines)

    # Roll back a bad policy: one that sends everything away.
    history, rollback, shown, events = commands("Roll back a bad policy")
    policy["routing"] = {
        "rules": [{"name": "oops", "when": "true", "reject": {"status": 403, "reason": "oops", "message": "No."}}]
    }
    path.write_text(yaml.safe_dump(policy, sort_keys=False))
    await reader.type('xds-control policy push next.yaml --reason "a bad day"')

    async def status() -> int:
        async with client.post(f"{product.gateway}/v1/chat/completions", json=body) as answer:
            await answer.read()
            return answer.status

    async def answers(wanted: int) -> bool:
        return await status() == wanted

    await eventually(lambda: answers(403), 15, "the bad policy is in force")
    assert "a bad day" in await reader.type(history)
    await reader.type(rollback)
    await eventually(lambda: answers(200), 15, "the policy before it is in force again")
    assert "oops" not in await reader.type(shown)
    assert "errors since the push" in await reader.type(events)

    # A policy that is wrong never gets that far.
    path.write_text("version: xds-control/v1\npools: [{name: chat, modles: [demo]}]\n")
    wrong = await reader.type("xds-control policy push next.yaml", code=2)
    assert "next.yaml:2:" in wrong
    assert "did you mean `models`?" in wrong
    assert await status() == 200


async def test_watching_and_following(start_product: Start, make_engine: Any) -> None:
    """`weights --watch` and `events --follow` on a running product, cut off by Ctrl-C."""
    engines = [await make_engine(name=name) for name in "ab"]
    product = await start_product(
        {
            "pools": [
                {"name": "chat", "engine": "vllm", "endpoints": [{"address": one.address} for one in engines]},
            ],
            "signals": FAST_SCRAPE,
            "lifecycle": {"warm_up": {"prompts": []}},
        }
    )
    environment = {**os.environ, "XDS_CONTROL_ADMIN": f"127.0.0.1:{product.ports['admin']}"}

    async def begin(*words: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "xds_control", *words),
            cwd=REPOSITORY,
            env=environment,
            stdout=asyncio.subprocess.PIPE,
        )

    watching = await begin("weights", "--watch")
    following = await begin("events", "--follow", "--kind", "override")

    async def read(process: asyncio.subprocess.Process, words: str) -> str:
        assert process.stdout is not None
        async with asyncio.timeout(40):
            async for line in process.stdout:
                if words in line.decode():
                    return line.decode()
        raise AssertionError(f"it ended without {words!r}")

    try:
        await read(watching, engines[1].address)
        order = await begin("pin", engines[1].address, "77", "--reason", "canary")
        assert await order.wait() == 0
        assert engines[1].address in await read(following, "canary")
        assert "→ 77" in await read(watching, "→ 77")
    finally:
        for process in (watching, following):
            process.send_signal(2)
            assert await asyncio.wait_for(process.wait(), 20) == 0
