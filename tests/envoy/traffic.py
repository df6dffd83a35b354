"""Small pieces of traffic for the tests."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp

CHAT = "/v1/chat/completions"

FAST_WEIGHTS: dict[str, Any] = {
    "profile": "custom",
    "curves": [{"signal": "kv_usage", "good": 0.4, "bad": 1.0, "floor": 0.05}],
    "waterfill": {"enabled": False},
    "fairness": {"enabled": False},
    "half_life": {"worsen_s": 0.1, "recover_s": 0.1},
    "slow_start": {"window_s": 0},
    "stabilise": {"push_interval_s": 0.2, "max_step": 20, "max_ratio": 100},
}
"""Weights that follow the KV cache at once, and nothing else: for tests that time them."""

FAST_SCRAPE: dict[str, Any] = {"scrape": {"min_interval_s": 0.1, "max_interval_s": 0.2}}


def body(text: str = "hi", *, model: str = "demo", max_tokens: int = 2, **extra: Any) -> dict[str, Any]:
    """A chat request."""
    return {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": max_tokens, **extra}


async def served_by(session: aiohttp.ClientSession, url: str, count: int, *, concurrency: int = 8) -> Counter[str]:
    """Sends `count` requests; how many each engine (by `x-demo-engine`) answered. Statuses other than 200 are counted
    as `status-...`."""
    answered: Counter[str] = Counter()
    limit = asyncio.Semaphore(concurrency)

    async def one(number: int) -> None:
        async with limit, session.post(url + CHAT, json=body(f"question {number}")) as answer:
            await answer.read()
            key = answer.headers.get("x-demo-engine", "?") if answer.status == 200 else f"status-{answer.status}"
            answered[key] += 1

    await asyncio.gather(*(one(number) for number in range(count)))
    return answered


@dataclass
class Load:
    """Requests at a steady rate in the background, until `stop`."""

    session: aiohttp.ClientSession
    url: str
    rate: float = 50.0
    make_body: Callable[[int], dict[str, Any]] = lambda number: body(f"question {number}")
    statuses: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    headers_seen: int = 0
    _task: asyncio.Task[None] | None = None
    _requests: set[asyncio.Task[None]] = field(default_factory=set)

    async def __aenter__(self) -> Load:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        """Stops sending and waits for the answers."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        await asyncio.gather(*self._requests)

    @property
    def sent(self) -> int:
        return sum(self.statuses.values()) + len(self.failures)

    async def _run(self) -> None:
        number = 0
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            task = asyncio.create_task(self._one(number))
            self._requests.add(task)
            task.add_done_callback(self._requests.discard)
            number += 1
            due += 1.0 / self.rate
            await asyncio.sleep(max(due - loop.time(), 0.0))

    async def _one(self, number: int) -> None:
        try:
            async with self.session.post(self.url + CHAT, json=self.make_body(number)) as answer:
                text = await answer.text()
                self.statuses[str(answer.status)] += 1
                if answer.status != 200:
                    self.failures.append(f"{answer.status}: {text[:200]}")
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self.failures.append(repr(error))
