"""The demo engine's paths besides generation: health, metrics, models, tokenizing, sleep and what it is told to do."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
from aiohttp import web

from xds_control.demo import openai
from xds_control.demo.engine_state import EngineState
from xds_control.demo.metrics import CONTENT_TYPE
from xds_control.demo.openai import JSON, bad_request

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class EnginePages:
    """`gets` and `posts`: handlers by path."""

    def __init__(self, state: EngineState) -> None:
        self._state = state
        self.gets: dict[str, Handler] = {
            "/health": self._health,
            "/ping": self._health,
            "/metrics": self._metrics,
            "/v1/models": self._models,
            "/version": self._version,
            "/load": self._load,
            "/is_sleeping": self._is_sleeping,
            "/demo/control": self._control,
            "/demo/requests": self._recorded,
            "/demo/split": self._split,
        }
        self.posts: dict[str, Handler] = {
            "/tokenize": self._tokenize,
            "/sleep": self._sleep,
            "/wake_up": self._wake_up,
            "/reset_prefix_cache": self._reset_prefix_cache,
            "/ping": self._health,
            "/demo/control": self._control,
        }

    async def _health(self, request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(status=self._state.faults.health_status)

    async def _metrics(self, request: web.BaseRequest) -> web.StreamResponse:
        if self._state.faults.metrics_status != 200:
            return web.Response(status=self._state.faults.metrics_status)
        self._state.pump()
        return web.Response(body=self._state.metrics_text().encode(), headers={"content-type": CONTENT_TYPE})

    async def _models(self, request: web.BaseRequest) -> web.StreamResponse:
        cards = []
        for name in self._state.served_names:
            parent = None if name == self._state.config.model else self._state.config.model
            cards.append(
                {
                    "id": name,
                    "object": "model",
                    "created": int(self._state.started_at),
                    "owned_by": "vllm",
                    "root": name,
                    "parent": parent,
                    "max_model_len": self._state.max_model_len if parent is None else None,
                    "permission": [],
                }
            )
        return _json({"object": "list", "data": cards})

    async def _version(self, request: web.BaseRequest) -> web.StreamResponse:
        return _json({"version": "0.11.2"})

    async def _load(self, request: web.BaseRequest) -> web.StreamResponse:
        return _json({"server_load": self._state.under_way})

    async def _tokenize(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await request.read()
        asked = openai.parse(body, b'"messages"' in body)
        count = openai.count_tokens(asked)
        return _json({"count": count, "max_model_len": self._state.max_model_len, "tokens": list(range(count))})

    async def _is_sleeping(self, request: web.BaseRequest) -> web.StreamResponse:
        return _json({"is_sleeping": self._state.faults.sleep > 0})

    async def _sleep(self, request: web.BaseRequest) -> web.StreamResponse:
        level = request.query.get("level", "1")
        if level not in {"1", "2"}:
            raise bad_request("level must be 1 or 2", "level")
        self._state.set_faults(sleep=int(level))
        return web.Response()

    async def _wake_up(self, request: web.BaseRequest) -> web.StreamResponse:
        self._state.set_faults(sleep=0)
        return web.Response()

    async def _reset_prefix_cache(self, request: web.BaseRequest) -> web.StreamResponse:
        self._state.set_faults(reset_prefix_cache=True)
        return web.Response()

    async def _split(self, request: web.BaseRequest) -> web.StreamResponse:
        return web.json_response({"prefilled": self._state.prefilled, "received": self._state.received})

    async def _control(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.method == "POST":
            try:
                self._state.apply(await request.read())
            except msgspec.DecodeError as error:
                raise bad_request(f"/demo/control: {error}") from error
        return web.Response(body=msgspec.json.encode(self._state.faults), content_type=JSON)

    async def _recorded(self, request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(body=msgspec.json.encode(list(self._state.requests)), content_type=JSON)


def _json(value: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type=JSON)
