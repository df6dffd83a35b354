"""Runs the standard load of a calibration against one endpoint over HTTP."""

from __future__ import annotations

import asyncio
import json
import random
import time
from dataclasses import dataclass, replace
from typing import Any

import aiohttp

from xds_control.errors import XdsControlError
from xds_control.policy.capacity import Calibration
from xds_control.weights.calibrate import Report, Result, Step, analyse, plan, prompt

MAX_LINE_BYTES = 1 << 20


class CalibrationError(XdsControlError):
    """The endpoint could not be measured. The message says why."""

    code = "calibration-failed"
    grpc_status = "UNAVAILABLE"
    http_status = 502


@dataclass(frozen=True, slots=True)
class Target:
    """base_url: `http://host:port` of an OpenAI-compatible server. model: name to ask for.

    headers: sent with each request, for servers that want a key. chat: whether to use the chat API; `calibrate`
    finds that out by itself.
    """

    base_url: str
    model: str
    headers: tuple[tuple[str, str], ...] = ()
    chat: bool = False


async def calibrate(target: Target, policy: Calibration, *, session: aiohttp.ClientSession | None = None) -> Report:
    """Runs the load within the policy's time and says what it showed; an unfinished load is judged by what there is.

    Raises CalibrationError when nothing could be measured.
    """
    steps = plan(policy)
    run = random.getrandbits(32)
    results: list[Result] = []
    own = session is None
    client = session or aiohttp.ClientSession()
    try:
        async with asyncio.timeout(policy.timeout_s):
            if not target.chat and await _has_no_completions(client, target):
                target = replace(target, chat=True)
            for index, step in enumerate(steps):
                await _run(client, target, index, step, run, results)
    except TimeoutError:
        if not results:
            raise CalibrationError(f"{target.base_url}: no answer in {policy.timeout_s:g} s") from None
    finally:
        if own:
            await client.close()
    report = analyse(steps, results)
    if report.prefill_tps is None and report.decode_tps is None:
        why = (
            ", ".join(f"{reason} ({count} times)" for reason, count in sorted(report.errors.items()))
            or "no request ended"
        )
        raise CalibrationError(f"{target.base_url}: {why}")
    return report


async def models_of(base_url: str, session: aiohttp.ClientSession, headers: dict[str, str]) -> list[str]:
    """Names of the models that a server lists. Raises CalibrationError when it does not."""
    try:
        async with session.get(f"{base_url}/v1/models", headers=headers) as answer:
            if answer.status != 200:
                raise CalibrationError(f"{base_url}/v1/models answered {answer.status}")
            body = json.loads(await answer.read())
            return [str(entry["id"]) for entry in body["data"]]
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise CalibrationError(f"{base_url}: {error or type(error).__name__}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise CalibrationError(f"{base_url}/v1/models is not in OpenAI form") from error


async def _run(
    client: aiohttp.ClientSession, target: Target, index: int, step: Step, run: int, results: list[Result]
) -> None:
    async def stream(worker: int) -> None:
        for round_ in range(step.rounds):
            text = prompt(index, worker * step.rounds + round_, step.prompt_tokens, run)
            results.append(await _ask(client, target, index, step, text))

    await asyncio.gather(*(stream(worker) for worker in range(step.concurrency)))


async def _has_no_completions(client: aiohttp.ClientSession, target: Target) -> bool:
    result = await _ask(client, target, 0, Step("decode", 1, 1, 4, 1), "hello")
    return result.error in ("HTTP 404", "HTTP 405", "HTTP 501")


async def _ask(client: aiohttp.ClientSession, target: Target, index: int, step: Step, text: str) -> Result:
    body: dict[str, Any] = {
        "model": target.model,
        "max_tokens": step.output_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if target.chat:
        path, body["messages"] = "/v1/chat/completions", [{"role": "user", "content": text}]
    else:
        path, body["prompt"] = "/v1/completions", text
    started = time.monotonic()
    first: float | None = None
    last = started
    usage: dict[str, object] = {}
    pieces = 0
    error = ""
    try:
        async with client.post(f"{target.base_url}{path}", json=body, headers=dict(target.headers)) as answer:
            if answer.status != 200:
                await answer.read()
                return Result(index, started, None, time.monotonic(), None, None, f"HTTP {answer.status}")
            async for line in answer.content:
                data = line.strip()
                if not data.startswith(b"data:") or data == b"data: [DONE]":
                    continue
                event = json.loads(data[5:])
                if event.get("usage"):
                    usage = event["usage"]
                if any(_text(choice) for choice in event.get("choices") or ()):
                    last = time.monotonic()
                    first = first or last
                    pieces += 1
    except (aiohttp.ClientError, OSError) as problem:
        error = type(problem).__name__
    except (ValueError, AttributeError, TypeError):
        error = "not an OpenAI stream"
    return Result(
        index,
        started,
        first,
        max(last, started),
        _count(usage, "prompt_tokens"),
        _count(usage, "completion_tokens") or pieces,
        error,
    )


def _text(choice: dict[str, Any]) -> bool:
    """Whether a choice of a streamed event carries part of the answer, reasoning included."""
    delta = choice.get("delta") or {}
    return bool(choice.get("text") or delta.get("content") or delta.get("reasoning_content"))


def _count(usage: dict[str, object], name: str) -> int | None:
    value = usage.get(name)
    return value if isinstance(value, int) and value > 0 else None
