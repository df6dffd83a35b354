"""Chats and completions of the demo engine: what a request asks of the model, and its answer, whole or streamed."""

from __future__ import annotations

import asyncio
import json
import time
import zlib
from typing import Final

from aiohttp import web

from xds_control.demo import disagg, openai
from xds_control.demo.engine_config import ServedRequest
from xds_control.demo.engine_state import EngineState
from xds_control.demo.kvcache import token_count
from xds_control.demo.model import Sequence
from xds_control.demo.openai import JSON, ApiError, bad_request
from xds_control.demo.prefill import Prefiller

MAX_BODY_BYTES: Final = 64 << 20


class Generation:
    """Answers the requests that generate."""

    def __init__(self, state: EngineState) -> None:
        self._state, self._config = state, state.config
        self._prefiller = Prefiller(self._config.transfer_s_per_token)
        self._ids = 0

    async def stop(self) -> None:
        """Closes the connections to other engines."""
        await self._prefiller.stop()

    async def answer(self, request: web.BaseRequest, *, chat: bool) -> web.StreamResponse:
        """The answer to a chat or a completion. Raises ApiError."""
        body = await request.read()
        record: ServedRequest | None = None
        if self._config.record:
            record = ServedRequest(request.path_qs, {k.lower(): v for k, v in request.headers.items()}, body)
            self._state.requests.append(record)
        self._state.under_way += 1
        sequence: Sequence | None = None
        try:
            asked = openai.parse(_decoded(body, request.headers.get("Content-Encoding", "")), chat)
            if self._state.happens(self._state.faults.fail_rate):
                status = self._state.faults.fail_status
                raise ApiError(status, "InternalServerError", "The demo engine was told to fail.")
            remote = disagg.asked_for(request.headers) if self._config.decodes else None
            moved = remote is not None and await self._prefiller.prefill(request.path_qs, body, remote)
            self._state.received += moved
            wanted = self._sequence(asked, chat, moved)
            waiter = self._state.submit(wanted)
            sequence = wanted
            if asked.stream:
                response = await self._stream(request, asked, sequence, waiter, chat)
            else:
                response = await self._whole(request, asked, sequence, waiter, chat)
            self._state.http_by_status[request.path, "2xx"] += 1
            if record is not None:
                record.status = 200
            return response
        except ApiError as error:
            if record is not None:
                record.status = error.http_status
            raise
        finally:
            self._state.under_way -= 1
            if sequence is not None:
                self._state.leave(sequence, record)

    def _sequence(self, asked: openai.Request, chat: bool, moved: bool) -> Sequence:
        """What the request asks of the model. moved: its prompt's KV is here already. Raises ApiError."""
        config = self._config
        name = asked.model or config.model
        if name not in self._state.served_names:
            raise ApiError(404, "NotFoundError", f"The model `{name}` does not exist.", "model")
        prompt = openai.render_chat(asked) if chat else openai.render_prompt(asked.prompt)
        tokens = token_count(len(prompt))
        room = self._state.max_model_len - tokens
        limit = asked.max_completion_tokens if asked.max_completion_tokens is not None else asked.max_tokens
        if room < 1 or (limit is not None and limit > room):
            raise bad_request(
                f"This model's maximum context length is {self._state.max_model_len} tokens. However, you requested "
                f"{tokens + (limit or 1)} tokens ({tokens} in the messages, {limit or 1} in the completion). "
                "Please reduce the length of the messages or completion.",
                "max_tokens",
            )
        digest = openai.request_digest(prompt, config.seed if asked.seed is None else asked.seed)
        allowed = limit if limit is not None else (room if chat else min(16, room))
        wanted = allowed
        if not asked.ignore_eos:
            wanted = max(
                asked.min_tokens or 1, openai.answer_length(digest, config.answer_tokens, config.answer_spread)
            )
        length = min(allowed, wanted)
        return Sequence(
            prompt=prompt,
            prompt_tokens=tokens,
            output=openai.answer_text(digest, length),
            output_tokens=length,
            finish_reason="length" if length == allowed else "stop",
            streaming=bool(asked.stream),
            salt=_salt(name if name in config.loras else "", asked.cache_salt or ""),
            lora=name if name in config.loras else "",
            cache_salted=bool(asked.cache_salt),
            remote_tokens=tokens if moved else 0,
        )

    def _new_id(self, chat: bool) -> str:
        self._ids += 1
        return f"{'chatcmpl' if chat else 'cmpl'}-{self._config.seed:08x}{self._state.port:04x}{self._ids:012x}"

    async def _whole(
        self, request: web.BaseRequest, asked: openai.Request, sequence: Sequence, waiter: asyncio.Event, chat: bool
    ) -> web.StreamResponse:
        while not sequence.done:
            waiter.clear()
            await waiter.wait()
        if sequence.done == "abort":
            raise ApiError(500, "InternalServerError", "The engine was restarted.")
        if self._state.happens(self._state.faults.cut_rate):
            _close(request)
        params = None
        if (asked.kv_transfer_params or {}).get("do_remote_decode") is True:
            params = disagg.transfer_params(self._config.name, self._state.host, self._state.port, len(sequence.keys))
        if disagg.for_others(asked, request.headers, self._state.address):
            self._state.prefilled += 1
        body = openai.full_answer(
            chat,
            self._new_id(chat),
            int(time.time()),
            asked.model or self._config.model,
            sequence.output.decode(),
            sequence.done,
            openai.usage(sequence.prompt_tokens, sequence.generated, sequence.cached_tokens),
            params,
        )
        headers = {"server": "uvicorn", "x-demo-engine": self._config.name}
        headers["x-demo-prompt-tokens"] = str(sequence.prompt_tokens)
        orca = self._orca(request.headers.get("endpoint-load-metrics-format", ""))
        if orca:
            headers["endpoint-load-metrics"] = orca
        return web.Response(body=body, content_type=JSON, headers=headers)

    async def _stream(
        self, request: web.BaseRequest, asked: openai.Request, sequence: Sequence, waiter: asyncio.Event, chat: bool
    ) -> web.StreamResponse:
        headers = {"content-type": "text/event-stream; charset=utf-8", "x-demo-engine": self._config.name}
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        shapes = openai.StreamShapes(chat, self._new_id(chat), int(time.time()), asked.model or self._config.model)
        interval = max(1, self._config.stream_interval)
        cut_at = sequence.output_tokens // 2 if self._state.happens(self._state.faults.cut_rate) else None
        sent = 0
        pending = shapes.role()
        if self._config.early_role_chunk and pending:
            await response.write(pending)
            pending = b""
        while True:
            ready = sequence.generated
            if ready - sent >= interval or sent == 0 < ready or sequence.done:
                if ready > sent:
                    pending += shapes.text(sequence.output[sent * 4 : ready * 4])
                    sent = ready
                if sequence.done:
                    break
                await response.write(pending)
                pending = b""
                if cut_at is not None and sent >= cut_at:
                    _close(request)
            if sequence.generated == ready and not sequence.done:
                waiter.clear()
                await waiter.wait()
        if sequence.done == "abort":
            _close(request)
            return response
        pending += shapes.finish(sequence.done)
        if asked.include_usage:
            figures = openai.usage(sequence.prompt_tokens, sequence.generated, sequence.cached_tokens)
            pending += shapes.usage(figures)
        await response.write(pending + openai.DONE)
        await response.write_eof()
        return response

    def _orca(self, wanted: str) -> str:
        """vLLM's load report, only where the client asks for one and only on answers that are not streamed."""
        usage, waiting = self._state.model.cache.usage, float(len(self._state.model.waiting))
        match wanted.upper():
            case "TEXT":
                return f"TEXT named_metrics.kv_cache_usage_perc={usage}, named_metrics.num_requests_waiting={waiting}"
            case "JSON":
                named = {"kv_cache_usage_perc": usage, "num_requests_waiting": waiting}
                return f"JSON {json.dumps({'named_metrics': named})}"
            case _:
                return ""


def _salt(lora: str, cache_salt: str) -> int:
    return openai.request_digest(f"{lora}\0{cache_salt}".encode(), 0) if lora or cache_salt else 0


def _close(request: web.BaseRequest) -> None:
    """Cut the connection under the answer."""
    if request.transport is not None:
        request.transport.abort()


def _decoded(body: bytes, encoding: str) -> bytes:
    """The body without its content encoding. Raises ApiError 400 or 415."""
    match encoding.strip().lower():
        case "" | "identity":
            return body
        case "gzip" | "deflate" as known:
            inflater = zlib.decompressobj(31 if known == "gzip" else 15)
            try:
                text = inflater.decompress(body, MAX_BODY_BYTES)
            except zlib.error as error:
                raise bad_request(f"The request body could not be inflated: {error}") from error
            if not inflater.eof:
                raise bad_request("The request body is cut off or too large once inflated.")
            return text
        case other:
            raise ApiError(415, "UnsupportedMediaType", f"Content-Encoding {other} is not served.")
