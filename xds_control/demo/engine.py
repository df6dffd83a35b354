"""The demo engine: a server that speaks vLLM's HTTP, streaming and metrics formats over a timing model, without a GPU.

In a test:

    engine = DemoEngine(EngineConfig(model="demo"))
    await engine.start()
    ...  # http://{engine.address}/v1/chat/completions
    await engine.stop()

Alone: `python -m xds_control.demo.engine --port 8101 --model demo`.
Told to misbehave: `curl -d '{"slow": 4}' http://127.0.0.1:8101/demo/control` (see `demo.control`).
"""

from __future__ import annotations

import asyncio
import json
import random
import resource
import sys
import time
import zlib
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

import aiohttp
import msgspec
from aiohttp import web

from xds_control.demo import control, disagg, openai
from xds_control.demo.kv_events import CacheEvents, Publisher
from xds_control.demo.kvcache import token_count
from xds_control.demo.metrics import CONTENT_TYPE, MetricsPage, PageFacts
from xds_control.demo.model import EngineModel, ModelConfig, QueueFullError, Sequence
from xds_control.demo.openai import ApiError, bad_request

JSON: Final = "application/json"
MAX_BODY_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """A demo engine.

    model: the served name. timing: speed and sizes. max_model_len: tokens of prompt and answer, at most what the cache
    holds. answer_tokens, answer_spread: mean and log-sigma of the answer's length where the client does not set
    `ignore_eos`. stream_interval: tokens per streamed chunk. engine_label: vLLM's data-parallel rank. seed: makes
    answers and injected faults repeatable. loras: adapters that may be asked for by name. record: how many last
    requests `requests` keeps. name: comes back in `x-demo-engine`. early_role_chunk: send the role chunk before
    prefill ends, as some servers do. kv_events_port, kv_replay_port: where vLLM's KV events are published and sent
    again (extra `kv-events`); 0 = not. decodes: whether it asks another engine for a prefill where a request says so
    (see `demo.disagg`). transfer_s_per_token: time to move one token's KV here.
    """

    model: str = "demo"
    timing: ModelConfig = field(default_factory=ModelConfig)
    max_model_len: int = 32768
    answer_tokens: float = 120.0
    answer_spread: float = 0.6
    stream_interval: int = 1
    engine_label: str = "0"
    seed: int = 0
    loras: tuple[str, ...] = ()
    record: int = 0
    name: str = ""
    early_role_chunk: bool = False
    kv_events_port: int = 0
    kv_replay_port: int = 0
    decodes: bool = False
    transfer_s_per_token: float = 5e-6


@dataclass(slots=True)
class ServedRequest:
    """One recorded request: as it arrived, and how it ended. Header names are lower-case; times are seconds."""

    path: str
    headers: dict[str, str]
    body: bytes
    status: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    ttft_s: float | None = None
    total_s: float | None = None


class DemoEngine:
    """One engine. `start` and `stop` must run in the same event loop; the rest may be read between requests."""

    def __init__(self, config: EngineConfig | None = None) -> None:
        self.config = config or EngineConfig()
        self.max_model_len = min(
            self.config.max_model_len, self.config.timing.kv_blocks * self.config.timing.block_size - 1
        )
        self.faults = control.Faults()
        self.requests: deque[ServedRequest] = deque(maxlen=self.config.record)
        self.host = ""
        self.port = 0
        self._web: web.Server | None = None
        self._publisher: Publisher | None = None
        self._client: aiohttp.ClientSession | None = None
        self.prefilled = 0
        """Prompts that were read here for another engine."""
        self.received = 0
        """Prompts that another engine read for this one."""
        self._listening: asyncio.Server | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._waiters: dict[Sequence, asyncio.Event] = {}
        self._http_open = asyncio.Event()
        self._http_open.set()
        self._loras: dict[Sequence, str] = {}
        self._ids = 0
        self._served_names = (self.config.model, *self.config.loras)
        self._gets: dict[str, Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]] = {
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
        self._posts: dict[str, Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]] = {
            "/v1/chat/completions": self._chat,
            "/v1/completions": self._completion,
            "/tokenize": self._tokenize,
            "/sleep": self._sleep,
            "/wake_up": self._wake_up,
            "/reset_prefix_cache": self._reset_prefix_cache,
            "/ping": self._health,
            "/demo/control": self._control,
        }
        timing = self.config.timing
        self._page = MetricsPage(
            self.config.model,
            self.config.engine_label,
            {
                "block_size": str(timing.block_size),
                "cache_dtype": "auto",
                "enable_prefix_caching": str(timing.prefix_caching),
                "gpu_memory_utilization": "0.9",
                "num_gpu_blocks": str(timing.kv_blocks),
                "prefix_caching_hash_algo": "sha256",
            },
        )
        self._begin()

    def _begin(self) -> None:
        events = CacheEvents(self.config.timing.block_size) if self.config.kv_events_port else None
        self.model = EngineModel(self.config.timing, events)
        self.started_at = time.time()
        self._random = random.Random(self.config.seed)
        self._lora_seen_at = 0.0
        self._http_by_status: Counter[tuple[str, str]] = Counter()
        self._load_now = 0

    @property
    def address(self) -> str:
        """`host:port` once started."""
        return f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        """`http://host:port` once started."""
        return f"http://{self.address}"

    async def start(self, port: int = 0, host: str = "127.0.0.1") -> None:
        """Listen; port 0 chooses a free one. Raises OSError when the port is taken."""
        loop = asyncio.get_running_loop()
        if self.config.kv_events_port and self._publisher is None:
            self._publisher = Publisher(host, self.config.kv_events_port, self.config.kv_replay_port)
        self._web = web.Server(
            self._handle,
            request_factory=lambda message, payload, protocol, writer, task: web.BaseRequest(
                message, payload, protocol, writer, task, loop, client_max_size=MAX_BODY_BYTES
            ),
            handler_cancellation=True,
            access_log=None,
            auto_decompress=False,
            keepalive_timeout=300.0,
        )
        self._listening = await loop.create_server(self._web, host, port, backlog=1024)
        self.host, self.port = self._listening.sockets[0].getsockname()[:2]

    async def stop(self) -> None:
        """Close the port and every connection, in the middle of an answer too."""
        if self._listening is not None:
            self._listening.close()
            self._listening = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._web is not None:
            await self._web.shutdown(0.01)  # aiohttp takes 0 for "no limit"
            self._web = None
        if self._client is not None:
            await self._client.close()
            self._client = None
        if self._publisher is not None:
            await self._publisher.stop()
            self._publisher = None

    def set_faults(self, **changes: object) -> control.Faults:
        """The same as a POST to /demo/control, for tests in the same process."""
        return self._apply(json.dumps(changes).encode())

    def _apply(self, body: bytes) -> control.Faults:
        faults, command = control.apply(self.faults, body)
        now = time.monotonic()
        self._pump()
        if command.restart:
            for sequence in [*self.model.running, *self.model.waiting]:
                self.model.abort(now, sequence)
            self._pump()
            self._begin()
            if self._publisher is not None:
                self._publisher.restart()
        if command.reset_prefix_cache:
            self.model.cache.reset_prefixes()
            if self.model.events is not None:
                self.model.events.cleared()
        self.faults = faults
        self.model.slow = faults.slow
        self.model.cache.reserve(faults.kv_fill)
        self.model.freeze(now, faults.hang != "off" or faults.sleep > 0)
        self.model.kick(now)
        if faults.hang == "http":
            self._http_open.clear()
        else:
            self._http_open.set()
        self._pump()
        return faults

    def _pump(self) -> None:
        """Bring the model to now, wake who has news, and set the clock for the next thing to happen."""
        now = time.monotonic()
        for sequence in self.model.advance(now):
            waiter = self._waiters.get(sequence)
            if waiter is not None:
                waiter.set()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.model.events is not None and self._publisher is not None:
            events = self.model.events.take()
            if events:
                self._publisher.publish(events)
        wake = self.model.next_wake()
        if wake is not None:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, wake - now), self._pump)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        path = request.path
        known = (self._posts if request.method == "POST" else self._gets).get(path)
        if not path.startswith("/demo/"):
            await self._http_open.wait()
        if known is None:
            elsewhere = path in self._posts or path in self._gets
            error = (
                ApiError(405, "MethodNotAllowed", "Method Not Allowed")
                if elsewhere
                else ApiError(404, "NotFoundError", "Not Found")
            )
            return self._error(error)
        try:
            return await known(request)
        except ApiError as error:
            self._http_by_status[path, f"{error.http_status // 100}xx"] += 1
            return self._error(error)
        except RecursionError:
            self._http_by_status[path, "4xx"] += 1
            return self._error(bad_request("The request body is nested too deeply."))

    def _error(self, error: ApiError) -> web.Response:
        return web.Response(
            status=error.http_status, body=error.body(), content_type=JSON, headers={"x-demo-engine": self.config.name}
        )

    async def _chat(self, request: web.BaseRequest) -> web.StreamResponse:
        return await self._generate(request, chat=True)

    async def _completion(self, request: web.BaseRequest) -> web.StreamResponse:
        return await self._generate(request, chat=False)

    async def _generate(self, request: web.BaseRequest, *, chat: bool) -> web.StreamResponse:
        body = await request.read()
        record: ServedRequest | None = None
        if self.config.record:
            record = ServedRequest(request.path_qs, {k.lower(): v for k, v in request.headers.items()}, body)
            self.requests.append(record)
        self._load_now += 1
        sequence: Sequence | None = None
        try:
            asked = openai.parse(_decoded(body, request.headers.get("Content-Encoding", "")), chat)
            if self.faults.fail_rate and self._random.random() < self.faults.fail_rate:
                raise ApiError(self.faults.fail_status, "InternalServerError", "The demo engine was told to fail.")
            remote = disagg.asked_for(request.headers) if self.config.decodes else None
            moved = remote is not None and await self._prefill_elsewhere(request.path_qs, body, remote)
            sequence, waiter = self._submit(asked, chat, moved)
            if asked.stream:
                response = await self._stream(request, asked, sequence, waiter, chat)
            else:
                response = await self._whole(request, asked, sequence, waiter, chat)
            self._http_by_status[request.path, "2xx"] += 1
            if record is not None:
                record.status = 200
            return response
        except ApiError as error:
            if record is not None:
                record.status = error.http_status
            raise
        finally:
            self._load_now -= 1
            if sequence is not None:
                self._leave(sequence, record)

    async def _prefill_elsewhere(self, path: str, body: bytes, remote: disagg.Remote) -> bool:
        """Has the prompt read by the other engine; whether its KV is here now. Raises ApiError with its error."""
        if self._client is None:
            self._client = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=600.0))
        headers = {"content-type": JSON, **remote.headers}
        try:
            async with self._client.post(
                f"http://{remote.prefiller}{path}", data=disagg.prefill_body(body, remote), headers=headers
            ) as answer:
                text = await answer.read()
                if answer.status != 200:
                    raise ApiError(answer.status, "PrefillError", text.decode("utf-8", "replace")[:500])
                tokens = int(answer.headers.get("x-demo-prompt-tokens", "0"))
        except (aiohttp.ClientError, TimeoutError) as error:
            raise ApiError(502, "PrefillError", f"prefill at {remote.prefiller}: {error}") from error
        if not disagg.moved(remote, text):
            return False
        await asyncio.sleep(self.config.transfer_s_per_token * tokens)
        self.received += 1
        return True

    def _submit(self, asked: openai.Request, chat: bool, moved: bool = False) -> tuple[Sequence, asyncio.Event]:
        config = self.config
        name = asked.model or config.model
        if name not in self._served_names:
            raise ApiError(404, "NotFoundError", f"The model `{name}` does not exist.", "model")
        prompt = openai.render_chat(asked) if chat else openai.render_prompt(asked.prompt)
        tokens = token_count(len(prompt))
        room = self.max_model_len - tokens
        limit = asked.max_completion_tokens if asked.max_completion_tokens is not None else asked.max_tokens
        if room < 1 or (limit is not None and limit > room):
            raise bad_request(
                f"This model's maximum context length is {self.max_model_len} tokens. However, you requested "
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
        sequence = Sequence(
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
        waiter = asyncio.Event()
        self._waiters[sequence] = waiter
        if name in config.loras:
            self._loras[sequence] = name
            self._lora_seen_at = time.time()
        try:
            self.model.submit(time.monotonic(), sequence)
        except QueueFullError:
            self._waiters.pop(sequence, None)
            self._loras.pop(sequence, None)
            raise ApiError(503, "ServiceUnavailableError", "The request queue is full.") from None
        self._pump()
        return sequence, waiter

    def _leave(self, sequence: Sequence, record: ServedRequest | None) -> None:
        """The handler is done with the sequence, or its client is gone."""
        self._waiters.pop(sequence, None)
        self._loras.pop(sequence, None)
        if not sequence.done:
            self.model.abort(time.monotonic(), sequence)
            self._pump()
        if record is not None:
            record.prompt_tokens = sequence.prompt_tokens
            record.completion_tokens = sequence.generated
            record.cached_tokens = sequence.cached_tokens
            if sequence.first_token is not None:
                record.ttft_s = sequence.first_token - sequence.arrived
            if sequence.finished is not None:
                record.total_s = sequence.finished - sequence.arrived

    def _new_id(self, chat: bool) -> str:
        self._ids += 1
        return f"{'chatcmpl' if chat else 'cmpl'}-{self.config.seed:08x}{self.port:04x}{self._ids:012x}"

    async def _whole(
        self, request: web.BaseRequest, asked: openai.Request, sequence: Sequence, waiter: asyncio.Event, chat: bool
    ) -> web.StreamResponse:
        while not sequence.done:
            waiter.clear()
            await waiter.wait()
        if sequence.done == "abort":
            raise ApiError(500, "InternalServerError", "The engine was restarted.")
        if self._cut():
            _close(request)
        params = None
        if (asked.kv_transfer_params or {}).get("do_remote_decode") is True:
            params = disagg.transfer_params(self.config.name, self.host, self.port, len(sequence.keys))
        if disagg.for_others(asked, request.headers, self.address):
            self.prefilled += 1
        body = openai.full_answer(
            chat,
            self._new_id(chat),
            int(time.time()),
            asked.model or self.config.model,
            sequence.output.decode(),
            sequence.done,
            openai.usage(sequence.prompt_tokens, sequence.generated, sequence.cached_tokens),
            params,
        )
        headers = {"server": "uvicorn", "x-demo-engine": self.config.name}
        headers["x-demo-prompt-tokens"] = str(sequence.prompt_tokens)
        orca = self._orca(request.headers.get("endpoint-load-metrics-format", ""))
        if orca:
            headers["endpoint-load-metrics"] = orca
        return web.Response(body=body, content_type=JSON, headers=headers)

    async def _stream(
        self, request: web.BaseRequest, asked: openai.Request, sequence: Sequence, waiter: asyncio.Event, chat: bool
    ) -> web.StreamResponse:
        headers = {"content-type": "text/event-stream; charset=utf-8", "x-demo-engine": self.config.name}
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        shapes = openai.StreamShapes(chat, self._new_id(chat), int(time.time()), asked.model or self.config.model)
        interval = max(1, self.config.stream_interval)
        cut_at = sequence.output_tokens // 2 if self._cut() else None
        sent = 0
        pending = shapes.role()
        if self.config.early_role_chunk and pending:
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

    def _cut(self) -> bool:
        return self.faults.cut_rate > 0 and self._random.random() < self.faults.cut_rate

    def _orca(self, wanted: str) -> str:
        """vLLM's load report, only where the client asks for one and only on answers that are not streamed."""
        usage, waiting = self.model.cache.usage, float(len(self.model.waiting))
        match wanted.upper():
            case "TEXT":
                return f"TEXT named_metrics.kv_cache_usage_perc={usage}, named_metrics.num_requests_waiting={waiting}"
            case "JSON":
                named = {"kv_cache_usage_perc": usage, "num_requests_waiting": waiting}
                return f"JSON {json.dumps({'named_metrics': named})}"
            case _:
                return ""

    async def _health(self, request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(status=self.faults.health_status)

    async def _metrics(self, request: web.BaseRequest) -> web.StreamResponse:
        if self.faults.metrics_status != 200:
            return web.Response(status=self.faults.metrics_status)
        self._pump()
        return web.Response(body=self.metrics_text().encode(), headers={"content-type": CONTENT_TYPE})

    def metrics_text(self) -> str:
        """The /metrics page as of the last step."""
        running = {name for s in self.model.running if (name := self._loras.get(s))}
        waiting = {name for s in self.model.waiting if (name := self._loras.get(s))}
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return self._page.render(
            self.model,
            PageFacts(
                started_at=self.started_at,
                cpu_seconds=usage.ru_utime + usage.ru_stime,
                resident_bytes=usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024),
                sleep_level=self.faults.sleep,
                loras_running=tuple(sorted(running)),
                loras_waiting=tuple(sorted(waiting)),
                loras_max=len(self.config.loras),
                lora_seen_at=self._lora_seen_at,
                http_by_status=dict(self._http_by_status),
            ),
        )

    async def _models(self, request: web.BaseRequest) -> web.StreamResponse:
        cards = []
        for name in self._served_names:
            parent = None if name == self.config.model else self.config.model
            cards.append(
                {
                    "id": name,
                    "object": "model",
                    "created": int(self.started_at),
                    "owned_by": "vllm",
                    "root": name,
                    "parent": parent,
                    "max_model_len": self.max_model_len if parent is None else None,
                    "permission": [],
                }
            )
        return _json({"object": "list", "data": cards})

    async def _version(self, request: web.BaseRequest) -> web.StreamResponse:
        return _json({"version": "0.11.2"})

    async def _load(self, request: web.BaseRequest) -> web.StreamResponse:
        return _json({"server_load": self._load_now})

    async def _tokenize(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await request.read()
        asked = openai.parse(body, b'"messages"' in body)
        count = openai.count_tokens(asked)
        return _json({"count": count, "max_model_len": self.max_model_len, "tokens": list(range(count))})

    async def _is_sleeping(self, request: web.BaseRequest) -> web.StreamResponse:
        return _json({"is_sleeping": self.faults.sleep > 0})

    async def _sleep(self, request: web.BaseRequest) -> web.StreamResponse:
        level = request.query.get("level", "1")
        if level not in {"1", "2"}:
            raise bad_request("level must be 1 or 2", "level")
        self.set_faults(sleep=int(level))
        return web.Response()

    async def _wake_up(self, request: web.BaseRequest) -> web.StreamResponse:
        self.set_faults(sleep=0)
        return web.Response()

    async def _reset_prefix_cache(self, request: web.BaseRequest) -> web.StreamResponse:
        self.set_faults(reset_prefix_cache=True)
        return web.Response()

    async def _split(self, request: web.BaseRequest) -> web.StreamResponse:
        return web.json_response({"prefilled": self.prefilled, "received": self.received})

    async def _control(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.method == "POST":
            try:
                self._apply(await request.read())
            except msgspec.DecodeError as error:
                raise bad_request(f"/demo/control: {error}") from error
        return web.Response(body=msgspec.json.encode(self.faults), content_type=JSON)

    async def _recorded(self, request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(body=msgspec.json.encode(list(self.requests)), content_type=JSON)


def _json(value: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type=JSON)


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


if __name__ == "__main__":
    from xds_control.demo.engine_main import main

    sys.exit(main())
