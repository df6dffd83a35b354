"""Runs the product as a user would: `xds-control serve --with-envoy` in a process of its own, and asks it things."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import yaml

PORT_NAMES = ("gateway", "envoy_admin", "xds", "fleet", "admin", "http")
_given: set[int] = set()


def free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago, all different."""
    return sorted(free_port_block(1) for _ in range(count))


def free_port_block(count: int) -> int:
    """The first of `count` consecutive free ports.

    They lie below the range from which the kernel takes ports for outgoing connections: one of those may be
    gone before it is listened on. None is given twice: what it is for may not listen yet.
    """
    for _ in range(500):
        start = random.randrange(10_000, 32_000 - count)
        if not _given.isdisjoint(range(start, start + count)):
            continue
        with contextlib.ExitStack() as stack:
            try:
                for port in range(start, start + count):
                    one = stack.enter_context(socket.socket())
                    one.bind(("127.0.0.1", port))
            except OSError:
                continue
            _given.update(range(start, start + count))
            return start
    raise RuntimeError("no block of free ports")


async def eventually(
    check: Callable[[], Awaitable[bool]] | Callable[[], bool], timeout_s: float = 15.0, what: str = ""
) -> None:
    """Waits until `check` is true; AssertionError after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    last: BaseException | None = None
    while time.monotonic() < deadline:
        try:
            result = check()
            if asyncio.iscoroutine(result):
                result = await result
            if result:
                return
        except (aiohttp.ClientError, OSError, KeyError, AssertionError) as error:
            last = error
        await asyncio.sleep(0.05)
    raise AssertionError(f"not within {timeout_s} s: {what or check}" + (f" (last: {last!r})" if last else ""))


class Product:
    """A running `serve`. policy: the user's part; listeners are filled in with free ports."""

    def __init__(self, policy: dict[str, Any], folder: Path, *, with_envoy: bool = True) -> None:
        self.folder = folder
        processors = policy.get("processors", {}).get("count", 1)
        names = dict(zip(PORT_NAMES, free_ports(len(PORT_NAMES)), strict=True))
        block = free_port_block(2 * max(processors, 1))
        self.ports = names
        self.policy = {
            "version": "xds-control/v1",
            **policy,
            "envoy": {
                "listen": f"127.0.0.1:{names['gateway']}",
                "admin": f"127.0.0.1:{names['envoy_admin']}",
                **policy.get("envoy", {}),
            },
            "control": {
                **{key: f"127.0.0.1:{names[key]}" for key in ("xds", "fleet", "admin", "http")},
                **policy.get("control", {}),
            },
            "processors": {
                "listen": f"127.0.0.1:{block}",
                "http": f"127.0.0.1:{block + max(processors, 1)}",
                **policy.get("processors", {}),
            },
        }
        self.path = folder / "policy.yaml"
        self.log = folder / "serve.log"
        self.run_dir = folder / "run"
        self._with_envoy = with_envoy
        self._process: asyncio.subprocess.Process | None = None

    @property
    def gateway(self) -> str:
        return f"http://127.0.0.1:{self.ports['gateway']}"

    async def __aenter__(self) -> Product:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        self.write_policy()
        argv = [
            sys.executable,
            "-m",
            "xds_control",
            "serve",
            "--policy",
            str(self.path),
            "--run-dir",
            str(self.run_dir),
        ]
        if self._with_envoy:
            argv.append("--with-envoy")
        with self.log.open("ab") as output:
            self._process = await asyncio.create_subprocess_exec(
                *argv, stdout=output, stderr=output, stdin=asyncio.subprocess.DEVNULL, start_new_session=True
            )
        try:
            await eventually(self.ready, 40, "the product is ready")
        except BaseException:  # noqa: BLE001 - stopped whatever it was, and told with the log
            await self.stop()
            raise AssertionError(f"not ready; its log:\n{self.log.read_text()[-6000:]}") from None

    def write_policy(self) -> None:
        self.path.write_text(yaml.safe_dump(self.policy, sort_keys=False))

    async def ready(self) -> bool:
        assert self._process is not None
        if self._process.returncode is not None:
            raise AssertionError(f"serve ended with {self._process.returncode}:\n{self.log.read_text()[-4000:]}")
        if (await self.get("/readyz"))[0] != 200:
            return False
        if not self._with_envoy:
            return True
        status, text = await http_get(f"http://127.0.0.1:{self.ports['envoy_admin']}/ready")
        if status != 200 or "LIVE" not in text:
            return False
        names = ",".join(pool["name"] for pool in self.policy["pools"])
        clusters = (await http_get(f"http://127.0.0.1:{self.ports['envoy_admin']}/clusters"))[1]
        listening = (await http_get(f"http://127.0.0.1:{self.ports['envoy_admin']}/listeners"))[1]
        have_hosts = all(
            f"{pool['name']}::127.0.0.1" in clusters or not pool.get("endpoints") for pool in self.policy["pools"]
        )
        count = self.policy["processors"].get("count", 1)
        processors = clusters.count("::health_flags::") and sum(
            line.startswith("xds-control-processors::127.0.0.1") and line.endswith("::health_flags::healthy")
            for line in clusters.splitlines()
        )
        return bool(names) and have_hosts and str(self.ports["gateway"]) in listening and processors >= count

    async def stop(self) -> int:
        """Stops everything gracefully; kills what is left. The exit code of `serve`."""
        process = self._process
        if process is None:
            return 0
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
            try:
                await asyncio.wait_for(process.wait(), 30)
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        return process.returncode or 0

    def pid(self, name: str) -> int:
        """Process id of `control`, `processor-0`, `envoy`."""
        return int((self.run_dir / f"{name}.pid").read_text())

    def kill(self, name: str) -> int:
        """SIGKILLs a child; its pid."""
        pid = self.pid(name)
        os.kill(pid, signal.SIGKILL)
        return pid

    async def get(self, path: str) -> tuple[int, str]:
        return await http_get(f"http://127.0.0.1:{self.ports['http']}{path}")

    async def state(self) -> dict[str, Any]:
        """`/api/v1/state` of control."""
        import json

        status, text = await self.get("/api/v1/state")
        assert status == 200, text
        result: dict[str, Any] = json.loads(text)
        return result

    async def endpoint(self, address: str) -> dict[str, Any]:
        """One endpoint's entry in the state."""
        for pool in (await self.state())["pools"]:
            for endpoint in pool["endpoints"]:
                if endpoint["address"] == address:
                    found: dict[str, Any] = endpoint
                    return found
        raise KeyError(address)

    async def envoy_stat(self, name: str) -> int:
        """The sum of Envoy's counters and gauges of exactly this name."""
        _status, text = await http_get(f"http://127.0.0.1:{self.ports['envoy_admin']}/stats?filter=^{name}$")
        return sum(int(line.rpartition(": ")[2]) for line in text.splitlines() if ": " in line)


async def http_get(url: str) -> tuple[int, str]:
    """(status, text) of a GET, with a short deadline."""
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session, session.get(url) as answer:
        return answer.status, await answer.text()
