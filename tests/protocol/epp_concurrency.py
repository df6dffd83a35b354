"""Cases of several streams at once: who is routed, who waits, who leaves (kind `concurrency`), over a gRPC channel."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping
from typing import Any

from tests.protocol import epp_peer as peer
from tests.protocol.epp_peer import Exchange, Failed, Grpc
from tests.protocol.epp_requests import PROSE, Backend
from tests.protocol.epp_world import POOL, Unsupported, World, request_body, request_headers
from xds_control.policy import headers as names

_STEP = re.compile(r"(?:stream )?([A-Z])(?:'s stream)?:?\s+(.*)")
_SECONDS = re.compile(r"([0-9.]+) ?s\b")
_ANSWER = b'{"usage": {"prompt_tokens": 5, "completion_tokens": 3}}'
_DEFAULT = {"pool": [[1, 0, 0.1, []]], "body": {"model": "base-m", "prompt": "x"}}


class _Stream:
    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.sent = False

    @property
    def endpoint(self) -> str:
        """Where it is routed, "" when it was not answered."""
        for reply in self.exchange.replies:
            if reply.WhichOneof("response") == "request_headers":
                return peer.set_headers(reply).get(names.DESTINATION, "").split(",")[0]
        return ""

    @property
    def status(self) -> int:
        """The status that it was refused with, 0 when it was not."""
        for reply in self.exchange.replies:
            if reply.WhichOneof("response") == "immediate_response":
                return int(reply.immediate_response.status.code)
        return 0


class _Run:
    def __init__(self, case: Mapping[str, Any], fixtures: Mapping[str, Any]) -> None:
        self.case = case
        self.fixtures = fixtures
        self.world = World(case, fixtures)
        self.backend = Grpc(self.world)
        self.streams: dict[str, _Stream] = {}
        self.finished: list[str] = []
        self.routed: list[str] = []

    async def step(self, text: str) -> None:
        """One step of the case."""
        found = _STEP.match(text)
        if found is None:
            raise Unsupported(f"step {text!r}")
        name, what = found[1], found[2].lower()
        seconds = float(match[1]) if (match := _SECONDS.search(what)) else None
        stream = self.streams.get(name)
        if stream is None:
            stream = self.streams[name] = _Stream(await self.backend.open())
        if "closed" in what or "cancel" in what:
            await stream.exchange.close()
        elif "response" in what or what.startswith("done"):
            await self._finish(name, stream)
        elif "no reply" in what or "queued" in what or "waits" in what:
            await self._send(stream)
            await asyncio.sleep(seconds or 0.2)
            await self._listen(stream)
            if stream.exchange.replies:
                raise Failed(f"{name} was answered and should wait: {stream.endpoint or stream.status}")
        elif "routed" in what or "in flight" in what:
            await self._send(stream)
            await self._until(lambda: bool(stream.endpoint or stream.status), stream, seconds or 5.0)
            if not stream.endpoint:
                raise Failed(f"{name} was not routed: {stream.status or 'no answer'}")
            self.routed.append(name)
        elif match := re.search(r"\b(4\d\d|5\d\d)\b", what):
            await self._send(stream)
            await self._until(lambda: bool(stream.endpoint or stream.status), stream, seconds or 5.0)
            if stream.status != int(match[1]):
                raise Failed(f"{name} got {stream.status or stream.endpoint or 'no answer'}, wanted {match[1]}")
        else:
            raise Unsupported(f"step {text!r}")

    async def _send(self, stream: _Stream) -> None:
        if stream.sent:
            return
        stream.sent = True
        await stream.exchange.send(peer.request_headers(request_headers(self.case, self.fixtures), False), expect=False)
        (body,) = request_body(self.case, self.fixtures)
        await stream.exchange.send(peer.request_body(body, True), expect=False)

    async def _listen(self, stream: _Stream) -> None:
        await stream.exchange.listen()

    async def _until(self, check: Any, stream: _Stream, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not check() and time.monotonic() < deadline:
            await self._listen(stream)

    async def _finish(self, name: str, stream: _Stream) -> None:
        served = {names.LB_NAMESPACE: {names.DESTINATION_SERVED: stream.endpoint}}
        await stream.exchange.send(peer.response_headers({":status": "200"}, False, served))
        await stream.exchange.send(peer.response_body(_ANSWER, True))
        self.finished.append(name)

    async def check(self) -> None:
        """What the case expects at the end."""
        for name, wanted in self.case["expect"].items():
            if name in PROSE:
                continue
            if name == "b_blocked_until_a_done":
                found: Any = self.routed[-1:] == ["B"] and self.finished[:1] == ["A"]
            elif name == "in_flight_after":
                await self._settled()
                assert self.world.state.picker is not None
                found = int(sum(count for *_, count in self.world.state.picker.in_flight()))
            elif name == "queue_after":
                found = 0 if self.world.state.gate is None else len(self.world.state.gate)
            else:
                raise Unsupported(f"expectation {name}")
            if found != wanted:
                raise Failed(f"{name} is {found}, wanted {wanted}")

    async def _settled(self) -> None:
        """Streams that were closed are noticed a moment later."""
        assert self.world.policy.pools[0].name == POOL
        await asyncio.sleep(0.2)


async def concurrency(case: Mapping[str, Any], fixtures: Mapping[str, Any], backend: Backend) -> None:
    """Kind concurrency."""
    run = _Run({**_DEFAULT, **case}, fixtures)
    await run.backend.start()
    try:
        for text in case["steps"]:
            await run.step(str(text))
        await run.check()
    finally:
        if run.world.state.gate is not None:
            run.world.state.gate.stop()
        for stream in run.streams.values():
            await stream.exchange.close()
        await run.backend.stop()
