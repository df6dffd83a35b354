"""Sends spans to a collector by OTLP over HTTP, from the loop that serves requests: it never waits for one."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections import deque
from dataclasses import dataclass
from typing import Final

import aiohttp

from xds_control import __version__
from xds_control.errors import ConfigError
from xds_control.extproc import otlp
from xds_control.extproc.tracing import Tracer
from xds_control.observe.logs import logger
from xds_control.observe.loops import kept
from xds_control.policy.tracing import TracingPolicy

BATCH: Final = 256
TRIES: Final = 5
MAX_PAUSE_S: Final = 10.0
MAX_ANSWER: Final = 65_536
"""Bytes of a collector's answer that are read."""
_AGAIN: Final = frozenset({429, 502, 503, 504})
"""Answers after which OTLP lets a sender try again."""


@dataclass(slots=True)
class SpanCounts:
    """Spans that were taken by the collector, and that were lost."""

    sent: int = 0
    lost: int = 0


class SpanExporter:
    """A bounded queue of spans and the task that empties it. processor: `service.instance.id` of what it sends.

    counts: counted on, where exporters follow one another. Start it inside a running loop. Raises ConfigError when
    `tracing.ca_file` cannot be used.
    """

    def __init__(self, policy: TracingPolicy, processor: str, counts: SpanCounts | None = None) -> None:
        self.counts = counts or SpanCounts()
        self.tracer = Tracer(policy, self.add)
        self._policy = policy
        self._sender = otlp.resource(
            {
                "service.name": policy.service_name,
                "service.version": __version__,
                "service.instance.id": processor,
            }
        )
        self._queue: deque[bytes] = deque()
        self._tls = _context(policy)
        self._task: asyncio.Task[None] | None = None
        self._failing = False
        self._log = logger("tracing")

    def start(self) -> None:
        """Begins to send."""
        self._task = asyncio.create_task(kept("span-export", self._run, self._log), name="span-export")

    def add(self, span: bytes) -> None:
        """One more; lost, and counted, when the queue is full."""
        if len(self._queue) >= self._policy.max_queue:
            self.counts.lost += 1
        else:
            self._queue.append(span)

    async def stop(self, grace_s: float) -> None:
        """Sends what is left, for `grace_s` seconds at most."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._queue:
            with contextlib.suppress(TimeoutError):  # what is left is counted below
                async with self._session() as session, asyncio.timeout(grace_s):
                    while self._queue:
                        await self._send(session, self._take(), tries=1)
        self.counts.lost += len(self._queue)
        self._queue.clear()

    def _session(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            auto_decompress=False,  # nothing is read of an answer but its status
            headers={**self._policy.headers, "content-type": "application/x-protobuf"},
            timeout=aiohttp.ClientTimeout(total=self._policy.timeout_s),
        )

    async def _run(self) -> None:
        async with self._session() as session:
            while True:
                await asyncio.sleep(self._policy.flush_s)
                while self._queue:
                    await self._send(session, self._take(), TRIES)

    def _take(self) -> list[bytes]:
        return [self._queue.popleft() for _ in range(min(BATCH, len(self._queue)))]

    async def _send(self, session: aiohttp.ClientSession, spans: list[bytes], tries: int) -> None:
        """One batch. A collector that is away loses it after some tries."""
        body = otlp.request(self._sender, "xds-control", __version__, spans)
        pause = self._policy.flush_s
        problem = ""
        try:
            for number in range(tries):
                if number:
                    await asyncio.sleep(min(pause, MAX_PAUSE_S))
                    pause *= 2.0
                again, problem = await self._post(session, body)
                if not problem:
                    self.counts.sent += len(spans)
                    break
                if not again:
                    break
            self._tell(problem)
        except asyncio.CancelledError:
            self._queue.extendleft(reversed(spans))  # `stop` tries once more
            raise
        if problem:
            self.counts.lost += len(spans)

    async def _post(self, session: aiohttp.ClientSession, body: bytes) -> tuple[bool, str]:
        """(whether to try again, what went wrong or "")."""
        try:
            async with session.post(self._policy.endpoint, data=body, ssl=self._tls, allow_redirects=False) as answer:
                await self._skip(answer)
                if answer.status < 300:
                    return False, ""
                return answer.status in _AGAIN, f"answered {answer.status}"
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            return True, type(error).__name__
        except ValueError as error:  # a host that is no name, say
            return False, type(error).__name__

    @staticmethod
    async def _skip(answer: aiohttp.ClientResponse) -> None:
        """Reads a short answer, so that its connection can be used again; cuts a long one off."""
        size = 0
        async for piece in answer.content.iter_any():
            size += len(piece)
            if size > MAX_ANSWER:
                answer.close()
                return

    def _tell(self, problem: str) -> None:
        if bool(problem) == self._failing:
            return
        self._failing = bool(problem)
        host, port, _tls = self._policy.target()  # the rest of the URL may hold a key
        if problem:
            self._log.warning("spans-not-taken", collector=f"{host}:{port}", problem=problem)
        else:
            self._log.info("spans-taken-again", collector=f"{host}:{port}", lost=self.counts.lost)


def _context(policy: TracingPolicy) -> ssl.SSLContext | bool:
    if not policy.target()[2]:
        return True
    try:
        return ssl.create_default_context(cafile=policy.ca_file)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"tracing.ca_file {policy.ca_file} cannot be used: {error}") from error
