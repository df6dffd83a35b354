"""Performs what the lifecycle asks for: probes and warm-up prompts, one at a time for each endpoint."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

import aiohttp

from xds_control.admin.calibrate import CalibrationError, Target, calibrate
from xds_control.admin.core import ControlCore
from xds_control.fleet.life import Action
from xds_control.observe.logs import logger

PROBE_PATHS = ("/health", "/v1/models", "/")
MAX_ANSWER_BYTES = 1 << 20


class ActionRunner:
    """Runs actions as tasks and reports their outcome to the core."""

    def __init__(self, core: ControlCore) -> None:
        self._core = core
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._session: aiohttp.ClientSession | None = None
        self._log = logger("actions")

    def run(self, actions: Iterable[Action]) -> None:
        """Begins the actions; one for an endpoint that is still busy with the last is left for the next time."""
        for action in actions:
            busy = self._tasks.get(action.address)
            if busy is not None and not busy.done():
                continue
            self._tasks[action.address] = asyncio.create_task(self._perform(action), name=f"action-{action.address}")

    async def stop(self) -> None:
        """Ends everything that runs."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        if self._session is not None:
            await self._session.close()

    async def _perform(self, action: Action) -> None:
        if self._session is None:
            self._session = aiohttp.ClientSession(auto_decompress=False)
        started = time.monotonic()
        try:
            async with asyncio.timeout(action.timeout_s):
                if action.kind == "calibrate":
                    await self._calibrate(self._session, action)
                    return
                if action.kind == "warmup":
                    ok, detail = await self._warm_up(self._session, action)
                else:
                    ok, detail = await self._probe(self._session, action)
        except TimeoutError:
            ok, detail = False, f"no answer in {action.timeout_s:g} s"
        except (aiohttp.ClientError, OSError) as error:
            ok, detail = False, str(error) or type(error).__name__
        now = time.monotonic()
        if action.kind == "warmup":
            self._core.on_warmup(action.address, ok, now - started, now, detail)
        elif action.kind == "probe":
            self._core.on_probe(action.address, ok, now, detail)
        else:
            self._core.on_calibrated(action.address, ok, now, detail)

    async def _calibrate(self, session: aiohttp.ClientSession, action: Action) -> None:
        policy = self._core.policy.capacity.calibrate
        target = Target(self._core.base_url(action.address), self._core.model_of(action.address))
        try:
            report = await calibrate(target, policy, session=session)
        except CalibrationError as error:
            self._core.on_calibrated(action.address, False, time.monotonic(), str(error))
            return
        now = time.monotonic()
        rates = report.rates(now, policy)
        self._log.info(
            "calibrated", endpoint=action.address, prefill_tps=report.prefill_tps, decode_tps=report.decode_tps
        )
        self._core.on_calibrated(
            action.address, rates is not None, now, f"{report.failed} requests failed", rates, report.batch
        )

    async def _probe(self, session: aiohttp.ClientSession, action: Action) -> tuple[bool, str]:
        """Any answer below 500 shows that somebody serves there; 503 from /health says "not yet"."""
        base = self._core.base_url(action.address)
        detail = ""
        for path in PROBE_PATHS:
            async with session.get(f"{base}{path}", allow_redirects=False) as answer:
                if answer.status < 400:
                    return True, ""
                detail = f"{path} answered {answer.status}"
                if answer.status >= 500:
                    return False, detail
        return False, detail

    async def _warm_up(self, session: aiohttp.ClientSession, action: Action) -> tuple[bool, str]:
        body = {
            "model": self._core.model_of(action.address),
            "messages": [{"role": "user", "content": action.prompt}],
            "max_tokens": action.max_tokens,
            "temperature": 0,
        }
        url = f"{self._core.base_url(action.address)}/v1/chat/completions"
        async with session.post(url, json=body) as answer:
            await answer.content.read(MAX_ANSWER_BYTES)
            if answer.status == 200:
                return True, ""
            return False, f"answered {answer.status}"
