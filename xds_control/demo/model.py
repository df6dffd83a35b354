"""The timing model of the demo engine: continuous batching with chunked prefill, a waiting queue and preemption.

Pure: time comes in as `now`, monotonic seconds. The engine works in steps. A step gives one
token to every decoding sequence and spends what is left of the token budget on prefill; it lasts

    slow × (prefill tokens ÷ prefill_tps + decode_s + decode_growth_s × (decoding sequences − 1))

so prefill delays everybody's next token and a larger batch makes each token slower, as on a GPU.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from xds_control.demo.histogram import Histogram
from xds_control.demo.kv_events import CacheEvents
from xds_control.demo.kvcache import BYTES_PER_TOKEN, Holding, PagedCache, block_keys

TTFT_BOUNDS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0),
    *(2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
ITL_BOUNDS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0),
    *(2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
LATENCY_BOUNDS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
ITERATION_BOUNDS = (1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0)
LENGTH_BOUNDS = (
    *(1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0),
    *(10000.0, 20000.0, 50000.0, 100000.0),
)


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """How fast and how large the engine is.

    prefill_tps: prompt tokens per second when nothing decodes, > 0.
    decode_s: seconds per step with one decoding sequence, > 0.
    decode_growth_s: seconds that each further decoding sequence adds to a step, ≥ 0.
    kv_blocks × block_size: tokens that the KV cache holds.
    max_seqs: sequences that run at once; the others wait.
    max_batched_tokens: token budget of a step; longer prompts are prefilled in chunks.
    max_queued: waiting sequences beyond which a request is refused; None = unbounded.
    """

    prefill_tps: float = 8000.0
    decode_s: float = 0.015
    decode_growth_s: float = 0.0005
    kv_blocks: int = 4096
    block_size: int = 16
    max_seqs: int = 64
    max_batched_tokens: int = 2048
    max_queued: int | None = None
    prefix_caching: bool = True

    def __post_init__(self) -> None:
        if self.prefill_tps <= 0 or self.decode_s <= 0 or self.decode_growth_s < 0:
            raise ValueError("prefill_tps and decode_s must be positive and decode_growth_s not negative")
        if self.kv_blocks <= 0 or self.block_size <= 0 or self.max_seqs <= 0:
            raise ValueError("kv_blocks, block_size and max_seqs must be positive")
        if self.max_batched_tokens <= self.max_seqs:
            raise ValueError("max_batched_tokens must be larger than max_seqs, or prefill could starve")


class QueueFullError(Exception):
    """The waiting queue is at `max_queued`."""


@dataclass(slots=True, eq=False)
class Sequence:
    """One request inside the engine. `output` is the whole answer, four bytes a token.

    `salt` separates prefixes that must not be shared (LoRA adapter, cache salt). `remote_tokens`: prompt tokens whose
    KV was computed elsewhere and moved here. Times: seconds of the model's clock.
    """

    prompt: bytes
    prompt_tokens: int
    output: bytes
    output_tokens: int
    finish_reason: str
    streaming: bool
    salt: int = 0
    lora: str = ""
    cache_salted: bool = False
    remote_tokens: int = 0
    keys: list[int] = field(default_factory=list)
    holding: Holding = field(default_factory=Holding)
    arrived: float = 0.0
    scheduled: float | None = None
    first_token: float | None = None
    last_token: float = 0.0
    finished: float | None = None
    generated: int = 0
    cached_tokens: int = 0
    computed: int = 0
    target: int = 0
    preemptions: int = 0
    done: str = ""

    @property
    def context(self) -> int:
        """Tokens in the context now: prompt and answer so far."""
        return self.prompt_tokens + self.generated


@dataclass(slots=True)
class Counters:
    """What the metrics page shows besides the gauges; all grow from process start."""

    prompt_tokens: int = 0
    generation_tokens: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    preemptions: int = 0
    rejections: int = 0
    finished: dict[str, int] = field(default_factory=lambda: {"stop": 0, "length": 0, "abort": 0, "error": 0})
    ttft: Histogram = field(default_factory=lambda: Histogram(TTFT_BOUNDS))
    itl: Histogram = field(default_factory=lambda: Histogram(ITL_BOUNDS))
    tpot: Histogram = field(default_factory=lambda: Histogram(ITL_BOUNDS))
    e2e: Histogram = field(default_factory=lambda: Histogram(LATENCY_BOUNDS))
    queue: Histogram = field(default_factory=lambda: Histogram(LATENCY_BOUNDS))
    prefill: Histogram = field(default_factory=lambda: Histogram(LATENCY_BOUNDS))
    decode: Histogram = field(default_factory=lambda: Histogram(LATENCY_BOUNDS))
    inference: Histogram = field(default_factory=lambda: Histogram(LATENCY_BOUNDS))
    iteration: Histogram = field(default_factory=lambda: Histogram(ITERATION_BOUNDS))
    request_prompt: Histogram = field(default_factory=lambda: Histogram(LENGTH_BOUNDS))
    request_generation: Histogram = field(default_factory=lambda: Histogram(LENGTH_BOUNDS))


class EngineModel:
    """One engine. Call `advance(now)` before reading anything, and again at `next_wake()`."""

    def __init__(self, config: ModelConfig, events: CacheEvents | None = None) -> None:
        self.config = config
        self.events = events
        self.cache = PagedCache(config.kv_blocks, config.prefix_caching)
        if events is not None:
            self.cache.on_evict = events.removed
        self.counters = Counters()
        self.running: list[Sequence] = []
        self.waiting: deque[Sequence] = deque()
        self.slow = 1.0
        self._step_end: float | None = None
        self._step_s = 0.0
        self._frozen_left: float | None = None
        self._frozen = False
        self._prefill_plan: list[tuple[Sequence, int]] = []
        self._decoding: list[Sequence] = []
        self._news: dict[Sequence, None] = {}

    def submit(self, now: float, sequence: Sequence) -> None:
        """Queue a sequence. Raises QueueFullError at `max_queued`."""
        self._run(now)
        limit = self.config.max_queued
        if limit is not None and len(self.waiting) >= limit:
            self.counters.rejections += 1
            raise QueueFullError
        sequence.arrived = now
        sequence.target = sequence.prompt_tokens
        if self.config.prefix_caching:
            sequence.keys = block_keys(sequence.prompt, self.config.block_size, sequence.salt)
        self.waiting.append(sequence)
        self.kick(now)

    def abort(self, now: float, sequence: Sequence) -> None:
        """The client went away: drop the sequence and free its blocks. No effect on a finished one."""
        self._run(now)
        if sequence.done:
            return
        if sequence in self.running:
            self.running.remove(sequence)
        else:
            self.waiting.remove(sequence)
        self._finish(now, sequence, "abort")
        self._decoding = [s for s in self._decoding if s is not sequence]
        self._prefill_plan = [(s, n) for s, n in self._prefill_plan if s is not sequence]
        self.kick(now)

    def advance(self, now: float) -> list[Sequence]:
        """Do every step that ends by `now`; the sequences that got tokens or finished since the last call."""
        self._run(now)
        if not self._news:
            return []
        news = list(self._news)
        self._news.clear()
        return news

    def _run(self, now: float) -> None:
        while self._step_end is not None and self._step_end <= now:
            end = self._step_end
            self._end_step(end)
            self._begin_step(end)

    def kick(self, now: float) -> None:
        """Start a step if none is running; after a submit, or after something was freed by hand."""
        if self._step_end is None and not self._frozen:
            self._begin_step(now)

    def freeze(self, now: float, frozen: bool) -> None:
        """Stop the engine in the middle of its step, or let it go on from there."""
        self._run(now)
        if frozen and not self._frozen:
            self._frozen_left = None if self._step_end is None else self._step_end - now
            self._step_end = None
        elif self._frozen and not frozen:
            self._step_end = None if self._frozen_left is None else now + self._frozen_left
        self._frozen = frozen
        self.kick(now)

    def next_wake(self) -> float | None:
        """When something next happens that a listener would want to know; None when nothing will by itself.

        With nobody streaming and nothing queued, that is the first end of a sequence, not every step.
        """
        if self._step_end is None:
            return None
        if self.waiting or self._prefill_plan or any(s.streaming for s in self.running):
            return self._step_end
        left = min(s.output_tokens - s.generated for s in self.running) if self.running else 1
        return self._step_end + (left - 1) * self._step_s

    def _begin_step(self, now: float) -> None:
        config = self.config
        self._grow_contexts()
        self._admit(now)
        decoding = [s for s in self.running if s.computed >= s.target]
        budget = config.max_batched_tokens - len(decoding)
        plan: list[tuple[Sequence, int]] = []
        prefill = 0
        for sequence in self.running:
            left = sequence.target - sequence.computed
            if left > 0 and budget > 0:
                chunk = min(left, budget)
                budget -= chunk
                prefill += chunk
                plan.append((sequence, chunk))
        self._decoding, self._prefill_plan = decoding, plan
        if not decoding and not plan:
            self._step_end = None
            return
        seconds = prefill / config.prefill_tps
        if decoding:
            seconds += config.decode_s + config.decode_growth_s * (len(decoding) - 1)
        self._step_s = seconds * self.slow
        self._step_end = now + self._step_s
        self.counters.iteration.observe(prefill + len(decoding))

    def _grow_contexts(self) -> None:
        """A block for the next token of each decoding sequence; the youngest give way when there is none."""
        block = self.config.block_size
        index = 0
        while index < len(self.running):
            sequence = self.running[index]
            enough = sequence.computed < sequence.target or len(sequence.holding) * block > sequence.context
            if enough or self.cache.acquire(sequence.holding, (), 1):
                index += 1
            else:
                self._preempt(self.running.pop())

    def _preempt(self, sequence: Sequence) -> None:
        """Recompute later: the blocks go, the tokens so far become part of the prompt."""
        self.cache.release(sequence.holding)
        sequence.computed = 0
        sequence.target = sequence.context
        sequence.preemptions += 1
        self.counters.preemptions += 1
        self.waiting.appendleft(sequence)

    def _admit(self, now: float) -> None:
        block = self.config.block_size
        while self.waiting and len(self.running) < self.config.max_seqs:
            sequence = self.waiting[0]
            # At least one prompt token is always computed, or there would be no logits to sample from.
            usable = sequence.keys[: (sequence.target - 1) // block]
            hits = self.cache.match(usable)
            needed = sequence.target // block + 1 - hits
            if not self.cache.acquire(sequence.holding, usable[:hits], needed):
                return
            self.waiting.popleft()
            self.running.append(sequence)
            sequence.computed = max(hits * block, min(sequence.remote_tokens, sequence.prompt_tokens - 1))
            if sequence.scheduled is None:
                sequence.scheduled = now
                sequence.cached_tokens = hits * block
                self.counters.prefix_queries += sequence.prompt_tokens
                self.counters.prefix_hits += sequence.cached_tokens

    def _end_step(self, now: float) -> None:
        counters, news = self.counters, self._news
        ended: list[Sequence] = []
        if self._decoding:
            # All of them waited for the same step, unless they were just resumed after a preemption.
            for sequence in self._decoding:
                counters.itl.observe(now - sequence.last_token)
                sequence.generated += 1
                sequence.last_token = now
                if sequence.generated >= sequence.output_tokens:
                    ended.append(sequence)
                elif sequence.streaming:
                    news[sequence] = None
            counters.generation_tokens += len(self._decoding)
        for sequence, chunk in self._prefill_plan:
            sequence.computed += chunk
            if sequence.computed < sequence.target:
                continue
            held = len(sequence.holding.keys)
            begin = held * self.config.block_size * BYTES_PER_TOKEN
            self._commit(sequence, sequence.keys[held:], sequence.keys[held - 1] if held else None, begin)
            if sequence.first_token is None:
                sequence.first_token = now
                counters.ttft.observe(now - sequence.arrived)
                counters.prompt_tokens += sequence.prompt_tokens
            else:
                counters.itl.observe(now - sequence.last_token)
            sequence.generated += 1
            sequence.last_token = now
            counters.generation_tokens += 1
            if sequence.generated >= sequence.output_tokens:
                ended.append(sequence)
            elif sequence.streaming:
                news[sequence] = None
        for sequence in ended:
            self.running.remove(sequence)
            self._finish(now, sequence, sequence.finish_reason)

    def _finish(self, now: float, sequence: Sequence, reason: str) -> None:
        sequence.done = reason
        sequence.finished = now
        counters = self.counters
        counters.finished[reason] += 1
        counters.e2e.observe(now - sequence.arrived)
        counters.queue.observe((now if sequence.scheduled is None else sequence.scheduled) - sequence.arrived)
        if sequence.first_token is not None and sequence.scheduled is not None:
            counters.prefill.observe(sequence.first_token - sequence.scheduled)
            counters.decode.observe(sequence.last_token - sequence.first_token)
            counters.inference.observe(sequence.last_token - sequence.scheduled)
            if sequence.generated > 1:
                counters.tpot.observe((sequence.last_token - sequence.first_token) / (sequence.generated - 1))
        counters.request_prompt.observe(sequence.prompt_tokens)
        counters.request_generation.observe(sequence.generated)
        if sequence.computed >= sequence.target:
            self._commit_answer(sequence)
        self.cache.release(sequence.holding)
        self._news[sequence] = None

    def _commit_answer(self, sequence: Sequence) -> None:
        """The next turn's prompt contains this answer: its blocks are reusable too."""
        if not self.config.prefix_caching or len(sequence.holding.keys) < len(sequence.keys):
            return
        block = self.config.block_size
        rest = sequence.prompt[len(sequence.keys) * block * BYTES_PER_TOKEN :]
        answer = sequence.output[: sequence.generated * BYTES_PER_TOKEN]
        parent = sequence.keys[-1] if sequence.keys else sequence.salt
        keys = block_keys(rest + answer, block, parent)
        begin = len(sequence.keys) * block * BYTES_PER_TOKEN
        self._commit(sequence, keys, sequence.keys[-1] if sequence.keys else None, begin)

    def _commit(self, sequence: Sequence, keys: list[int], parent: int | None, begin: int) -> None:
        """Makes blocks reusable and tells of those that are new. begin: where the first one's text begins."""
        fresh = self.cache.commit(sequence.holding, keys)
        if self.events is None or not fresh:
            return
        size = self.config.block_size * BYTES_PER_TOKEN
        text = sequence.prompt + sequence.output[: sequence.generated * BYTES_PER_TOKEN]
        first = 0
        while first < len(fresh):
            last = first
            while last + 1 < len(fresh) and fresh[last + 1] == fresh[last] + 1:
                last += 1
            low, high = fresh[first], fresh[last] + 1
            before = keys[low - 1] if low else parent
            data = text[begin + low * size : begin + high * size]
            self.events.stored(keys[low:high], before, data, sequence.lora, sequence.cache_salted)
            first = last + 1
