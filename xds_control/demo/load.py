"""An open-loop load generator of chat traffic: one asyncio task a request, figures per request.

    summary = await Load("http://127.0.0.1:10000", TrafficConfig(rate=20)).run(seconds=10)

Alone: `python -m xds_control.demo.load --url http://127.0.0.1:10000 --rate 20 --seconds 10`.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp
import msgspec

from xds_control.demo.traffic import Arrival, Session, TrafficConfig, arrivals

MAX_IDLE_SESSIONS: Final = 1000
MAX_SESSION_MESSAGES: Final = 20


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _PromptDetails | None = None


class _Text(msgspec.Struct):
    content: str | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Text | None = None
    message: _Text | None = None


class _Body(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Body).decode


@dataclass(slots=True)
class Outcome:
    """One finished request. Times in seconds; at: after the start of the load. error: "" when all went well,
    else `http-<status>`, `broken` (connection), `timeout`, `no-done` (stream without its end) or `bad-body`.

    engine: who answered, from `x-demo-engine`. ttft_s: to the first text; None when not streamed. tpot_s: None below
    two tokens or when not streamed.
    """

    index: int
    at: float
    model: str
    session: str
    turn: int
    stream: bool
    status: int = 0
    error: str = ""
    ttft_s: float | None = None
    tpot_s: float | None = None
    total_s: float = 0.0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    engine: str = ""


@dataclass(slots=True)
class Summary:
    """All requests of a load. Quantiles in seconds over answered requests (TTFT, TPOT: streamed ones), or None.

    skipped: arrivals that were not sent because `max_in_flight` requests were open.
    """

    seconds: float = 0.0
    sent: int = 0
    answered: int = 0
    skipped: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    ttft_p50_s: float | None = None
    ttft_p90_s: float | None = None
    ttft_p99_s: float | None = None
    tpot_p50_s: float | None = None
    total_p50_s: float | None = None
    by_engine: dict[str, int] = field(default_factory=dict)

    @property
    def failed(self) -> int:
        return sum(self.errors.values())


class Load:
    """Sends one traffic mix to one address. Remembers at most `keep` outcomes; counters cover all."""

    def __init__(
        self,
        url: str,
        traffic: TrafficConfig | None = None,
        *,
        max_in_flight: int = 512,
        timeout_s: float = 60.0,
        keep: int = 100_000,
        headers: dict[str, str] | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        self.traffic = traffic or TrafficConfig()
        self.outcomes: deque[Outcome] = deque(maxlen=keep)
        self.summary = Summary()
        self._max_in_flight = max_in_flight
        self._timeout_s = timeout_s
        self._headers = headers or {}
        self._idle: deque[Session] = deque(maxlen=MAX_IDLE_SESSIONS)
        self._open: set[asyncio.Task[None]] = set()
        self._errors: Counter[str] = Counter()
        self._by_engine: Counter[str] = Counter()
        self._sessions = 0
        self._started = 0.0

    @property
    def in_flight(self) -> int:
        return len(self._open)

    async def run(self, seconds: float | None = None, count: int | None = None) -> Summary:
        """Send for `seconds`, or `count` requests, whichever comes first; then wait for the open ones.

        Cancelled, it drops the open requests and still leaves `summary` filled in by `figures`.
        """
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=self._timeout_s)
        self._started = time.monotonic()
        async with aiohttp.ClientSession(connector=connector, timeout=timeout, headers=self._headers) as client:
            try:
                for arrival in arrivals(self.traffic):
                    if (seconds is not None and arrival.at >= seconds) or (
                        count is not None and arrival.index >= count
                    ):
                        break
                    await asyncio.sleep(max(0.0, self._started + arrival.at - time.monotonic()))
                    if len(self._open) >= self._max_in_flight:
                        self.summary.skipped += 1
                        continue
                    task = asyncio.create_task(self._request(client, arrival))
                    self._open.add(task)
                    task.add_done_callback(self._open.discard)
                await asyncio.gather(*self._open)
            finally:
                for task in self._open:
                    task.cancel()
                await asyncio.gather(*self._open, return_exceptions=True)
        return self.figures()

    def figures(self) -> Summary:
        """The summary as of now; quantiles over the outcomes that are kept."""
        summary = self.summary
        summary.seconds = time.monotonic() - self._started
        summary.errors = dict(self._errors)
        summary.by_engine = dict(self._by_engine)
        good = [one for one in self.outcomes if not one.error]
        ttft = sorted(one.ttft_s for one in good if one.ttft_s is not None)
        summary.ttft_p50_s, summary.ttft_p90_s, summary.ttft_p99_s = (quantile(ttft, q) for q in (0.5, 0.9, 0.99))
        summary.tpot_p50_s = quantile(sorted(one.tpot_s for one in good if one.tpot_s is not None), 0.5)
        summary.total_p50_s = quantile(sorted(one.total_s for one in good), 0.5)
        return summary

    def _session_for(self, arrival: Arrival) -> Session:
        if arrival.goes_on and self._idle:
            return self._idle.popleft()
        self._sessions += 1
        name = f"s{self.traffic.seed}-{self._sessions}"
        return Session(name, arrival.model, [{"role": "system", "content": arrival.system}])

    async def _request(self, client: aiohttp.ClientSession, arrival: Arrival) -> None:
        session = self._session_for(arrival)
        messages = [*session.messages, {"role": "user", "content": arrival.text}]
        body: dict[str, Any] = {"model": session.model, "messages": messages, "max_tokens": arrival.max_tokens}
        if arrival.stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        if self.traffic.exact_answers:
            body["ignore_eos"] = True
        headers = {"content-type": "application/json"}
        if self.traffic.session_header:
            headers[self.traffic.session_header] = session.name
        outcome = Outcome(arrival.index, arrival.at, session.model, session.name, len(messages) // 2, arrival.stream)
        self.summary.sent += 1
        begin = time.monotonic()
        answer = ""
        try:
            async with client.post(
                f"{self.url}/v1/chat/completions", data=msgspec.json.encode(body), headers=headers
            ) as response:
                outcome.status = response.status
                outcome.engine = response.headers.get("x-demo-engine", "")
                if response.status != 200:
                    outcome.error = f"http-{response.status}"
                    await response.read()
                elif arrival.stream:
                    answer = await self._read_stream(response, outcome, begin)
                else:
                    answer = self._read_whole(await response.read(), outcome)
        except TimeoutError:
            outcome.error = "timeout"
        except aiohttp.ClientError:
            outcome.error = "broken"
        except msgspec.DecodeError:
            outcome.error = "bad-body"
        outcome.total_s = time.monotonic() - begin
        self._count(outcome)
        if not outcome.error and len(messages) < MAX_SESSION_MESSAGES:
            session.messages = [*messages, {"role": "assistant", "content": answer}]
            self._idle.append(session)

    async def _read_stream(self, response: aiohttp.ClientResponse, outcome: Outcome, begin: float) -> str:
        texts: list[str] = []
        rest = b""
        last = begin
        done = False
        async for piece in response.content.iter_any():
            lines = (rest + piece).split(b"\n")
            rest = lines.pop()
            for line in lines:
                if not line.startswith(b"data:"):
                    continue
                data = line[5:].strip()
                if data == b"[DONE]":
                    done = True
                    continue
                event = _decode(data)
                if event.error is not None:
                    outcome.error = "bad-body"
                _take_usage(event, outcome)
                text = _delta_text(event)
                if text:
                    last = time.monotonic()
                    if not texts:
                        outcome.ttft_s = last - begin
                    texts.append(text)
        if not done:
            outcome.error = outcome.error or "no-done"
        if outcome.ttft_s is not None and outcome.completion_tokens > 1:
            outcome.tpot_s = (last - begin - outcome.ttft_s) / (outcome.completion_tokens - 1)
        return "".join(texts)

    def _read_whole(self, raw: bytes, outcome: Outcome) -> str:
        body = _decode(raw)
        _take_usage(body, outcome)
        if not body.choices or body.choices[0].message is None:
            outcome.error = "bad-body"
            return ""
        return body.choices[0].message.content or ""

    def _count(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        summary = self.summary
        if outcome.error:
            self._errors[outcome.error] += 1
            return
        summary.answered += 1
        summary.prompt_tokens += outcome.prompt_tokens
        summary.completion_tokens += outcome.completion_tokens
        summary.cached_tokens += outcome.cached_tokens
        self._by_engine[outcome.engine] += 1


def _take_usage(body: _Body, outcome: Outcome) -> None:
    usage = body.usage
    if usage is None:
        return
    outcome.prompt_tokens = usage.prompt_tokens
    outcome.completion_tokens = usage.completion_tokens
    details = usage.prompt_tokens_details
    outcome.cached_tokens = (details.cached_tokens or 0) if details is not None else 0


def _delta_text(event: _Body) -> str:
    if not event.choices or event.choices[0].delta is None:
        return ""
    delta = event.choices[0].delta
    return delta.content or delta.reasoning_content or ""


def quantile(ascending: list[float], q: float) -> float | None:
    """The nearest-rank quantile of sorted values; None without any."""
    if not ascending:
        return None
    return ascending[min(len(ascending) - 1, int(q * len(ascending)))]


if __name__ == "__main__":
    from xds_control.demo.load_main import main

    sys.exit(main())
