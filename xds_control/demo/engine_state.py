"""A demo engine while it runs: the timing model in real time, the faults in force, and what is counted and kept."""

from __future__ import annotations

import asyncio
import json
import random
import resource
import sys
import time
from collections import Counter, deque

from xds_control.demo import control
from xds_control.demo.engine_config import EngineConfig, ServedRequest
from xds_control.demo.kv_events import CacheEvents, Publisher
from xds_control.demo.metrics import MetricsPage, PageFacts
from xds_control.demo.model import EngineModel, QueueFullError, Sequence
from xds_control.demo.openai import ApiError


class EngineState:
    """What the paths of one engine work on, in one event loop.

    host, port: where it listens, once it does. requests: the last ones, as they came. prefilled: prompts that were
    read here for another engine. received: prompts that another engine read for this one. under_way: generations that
    are being answered. http_by_status: answers by path and class of status. http_open: closed while no path answers.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.max_model_len = min(config.max_model_len, config.timing.kv_blocks * config.timing.block_size - 1)
        self.served_names = (config.model, *config.loras)
        self.faults = control.Faults()
        self.requests: deque[ServedRequest] = deque(maxlen=config.record)
        self.host = ""
        self.port = 0
        self.prefilled = 0
        self.received = 0
        self.http_open = asyncio.Event()
        self.http_open.set()
        self._publisher: Publisher | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._waiters: dict[Sequence, asyncio.Event] = {}
        timing = config.timing
        self._page = MetricsPage(
            config.model,
            config.engine_label,
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
        self.http_by_status: Counter[tuple[str, str]] = Counter()
        self.under_way = 0

    @property
    def address(self) -> str:
        """`host:port` once it listens."""
        return f"{self.host}:{self.port}"

    def publish(self, host: str) -> None:
        """Publishes KV events there from now on, where the config asks for it. Raises ConfigError."""
        if self.config.kv_events_port and self._publisher is None:
            self._publisher = Publisher(host, self.config.kv_events_port, self.config.kv_replay_port)

    async def stop_publishing(self) -> None:
        """No KV events any more."""
        if self._publisher is not None:
            await self._publisher.stop()
            self._publisher = None

    def happens(self, share: float) -> bool:
        """Whether an injected fault of that share happens now; repeatable by the config's seed."""
        return share > 0 and self._random.random() < share

    def set_faults(self, **changes: object) -> control.Faults:
        """The same as a POST to /demo/control, for tests in the same process."""
        return self.apply(json.dumps(changes).encode())

    def apply(self, body: bytes) -> control.Faults:
        """Does what a POST to /demo/control asks. Raises msgspec.ValidationError or DecodeError."""
        faults, command = control.apply(self.faults, body)
        now = time.monotonic()
        self.pump()
        if command.restart:
            for sequence in [*self.model.running, *self.model.waiting]:
                self.model.abort(now, sequence)
            self.pump()
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
            self.http_open.clear()
        else:
            self.http_open.set()
        self.pump()
        return faults

    def pump(self) -> None:
        """Bring the model to now, wake who has news, and set the clock for the next thing to happen."""
        now = time.monotonic()
        for sequence in self.model.advance(now):
            waiter = self._waiters.get(sequence)
            if waiter is not None:
                waiter.set()
        self.stop_clock()
        if self.model.events is not None and self._publisher is not None:
            events = self.model.events.take()
            if events:
                self._publisher.publish(events)
        wake = self.model.next_wake()
        if wake is not None:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, wake - now), self.pump)

    def stop_clock(self) -> None:
        """Nothing happens by itself any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def submit(self, sequence: Sequence) -> asyncio.Event:
        """Queues a sequence; what comes back is set whenever there is news of it. Raises ApiError 503."""
        waiter = asyncio.Event()
        self._waiters[sequence] = waiter
        if sequence.lora:
            self._lora_seen_at = time.time()
        try:
            self.model.submit(time.monotonic(), sequence)
        except QueueFullError:
            self._waiters.pop(sequence, None)
            raise ApiError(503, "ServiceUnavailableError", "The request queue is full.") from None
        self.pump()
        return waiter

    def leave(self, sequence: Sequence, record: ServedRequest | None) -> None:
        """The handler is done with the sequence, or its client is gone."""
        self._waiters.pop(sequence, None)
        if not sequence.done:
            self.model.abort(time.monotonic(), sequence)
            self.pump()
        if record is not None:
            record.prompt_tokens = sequence.prompt_tokens
            record.completion_tokens = sequence.generated
            record.cached_tokens = sequence.cached_tokens
            if sequence.first_token is not None:
                record.ttft_s = sequence.first_token - sequence.arrived
            if sequence.finished is not None:
                record.total_s = sequence.finished - sequence.arrived

    def metrics_text(self) -> str:
        """The /metrics page as of the last step."""
        running = {s.lora for s in self.model.running if s.lora}
        waiting = {s.lora for s in self.model.waiting if s.lora}
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
                http_by_status=dict(self.http_by_status),
            ),
        )
