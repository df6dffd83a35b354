"""One simulated inference engine: continuous batching with chunked prefill, a waiting queue and preemption.

A step gives one token to every decoding sequence and spends what is left of the token budget on prefill:

    seconds = slow × (step_s + prefill tokens × prefill_s + attention_s × Σ tokens × context
                      + [decoding] (decode_s + sequence_s × (n − 1) + kv_s × context tokens))

Steps without prefill are equal but for the growing context, so a whole run of them is one event: its length is
a sum in closed form and it is cut at a step's end when something arrives.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from dataclasses import dataclass, replace

from xds_control.sim.kv import KvCache
from xds_control.sim.request import Request

_OUTPUT_KEYS = 1 << 63
"""Keys of cached answers that no later prompt repeats."""


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """How fast and how large an engine is. Seconds; tokens.

    prefill_s: per prompt token. attention_s: per prompt token and token of context before it. decode_s: step of one
    decoding sequence; sequence_s: each further one; kv_s: each KV token read. step_s: of every step.
    kv_tokens: tokens that fit into the KV cache. max_seqs: sequences that run at once. max_batched_tokens: token budget
    of a step. max_waiting: waiting requests beyond which one is refused (503), None = unbounded.
    """

    prefill_s: float = 1.0 / 8000.0
    attention_s: float = 0.0
    decode_s: float = 0.015
    sequence_s: float = 0.0005
    kv_s: float = 0.0
    step_s: float = 0.0
    kv_tokens: int = 65536
    max_seqs: int = 64
    max_batched_tokens: int = 2048
    max_waiting: int | None = None
    caching: bool = True

    def __post_init__(self) -> None:
        if min(self.prefill_s, self.decode_s) < 0 or self.prefill_s + self.decode_s <= 0:
            raise ValueError("prefill_s and decode_s must not be negative, and not both 0")
        if min(self.attention_s, self.sequence_s, self.kv_s, self.step_s) < 0:
            raise ValueError("times of an engine must not be negative")
        if self.kv_tokens <= 0 or self.max_seqs <= 0:
            raise ValueError("kv_tokens and max_seqs must be positive")
        if self.max_batched_tokens <= self.max_seqs:
            raise ValueError("max_batched_tokens must be larger than max_seqs, or prefill could starve")

    def scaled(self, speed: float = 1.0, memory: float = 1.0) -> EngineSpec:
        """The same engine, `speed` times as fast and with `memory` times the KV cache."""
        if speed <= 0 or memory <= 0:
            raise ValueError("speed and memory must be positive")
        return replace(
            self,
            prefill_s=self.prefill_s / speed,
            attention_s=self.attention_s / speed,
            decode_s=self.decode_s / speed,
            sequence_s=self.sequence_s / speed,
            kv_s=self.kv_s / speed,
            step_s=self.step_s / speed,
            kv_tokens=max(1, int(self.kv_tokens * memory)),
        )


class Sequence:
    """One request inside an engine. `first` and `done`: when its first token and its end came, −1 before."""

    __slots__ = (
        "arrived",
        "cached",
        "committed",
        "computed",
        "decoding",
        "done",
        "end_at",
        "first",
        "generated",
        "joined",
        "preemptions",
        "private",
        "refs",
        "request",
        "target",
    )

    def __init__(self, request: Request) -> None:
        self.request = request
        self.arrived = self.first = self.done = -1.0
        self.cached = -1
        self.target = request.prompt
        self.computed = self.generated = self.private = self.committed = self.preemptions = 0
        self.joined = self.end_at = 0
        self.decoding = False
        self.refs: list[int] = []


@dataclass(frozen=True, slots=True)
class Gauges:
    """What a metrics page shows; counters since the process began at `started_at`."""

    running: int
    waiting: int
    kv_usage: float
    prompt_tokens: int
    output_tokens: int
    preemptions: int
    cached_tokens: int
    started_at: float = 0.0


class Engine:
    """One engine, or one data-parallel rank. Call `end_step` at `wakes_at`; `version` tells stale wake-ups apart."""

    __slots__ = (
        "_counter",
        "_ctx",
        "_ends",
        "_n",
        "_plan",
        "_prefilling",
        "_run_a",
        "_run_b",
        "_run_k",
        "_serial",
        "_started",
        "alive",
        "busy_s",
        "cached_tokens",
        "kv",
        "output_tokens",
        "preemptions",
        "prompt_tokens",
        "running",
        "slow",
        "spec",
        "started_at",
        "version",
        "waiting",
        "wakes_at",
    )

    def __init__(self, spec: EngineSpec) -> None:
        self.spec = spec
        self.kv = KvCache(spec.kv_tokens, spec.caching)
        self.running: dict[Sequence, None] = {}
        self.waiting: deque[Sequence] = deque()
        self.slow = 1.0
        self.alive = True
        self.version = 0
        self.wakes_at = math.inf
        self.prompt_tokens = self.output_tokens = self.preemptions = self.cached_tokens = 0
        self.busy_s = 0.0
        self.started_at = 0.0
        self._prefilling: list[Sequence] = []
        self._ends: list[tuple[int, int, Sequence]] = []
        self._n = 0
        self._ctx = 0
        self._counter = 0
        self._serial = 0
        self._plan: list[tuple[Sequence, int]] = []
        self._started = 0.0
        self._run_k = 0
        self._run_a = self._run_b = 0.0

    @property
    def load(self) -> int:
        """Requests inside."""
        return len(self.running) + len(self.waiting)

    def submit(self, sequence: Sequence, now: float) -> bool:
        """Takes a request; False when the queue is full or it can never fit."""
        spec = self.spec
        full = spec.max_waiting is not None and len(self.waiting) >= spec.max_waiting
        if not self.alive or full or sequence.request.prompt + sequence.request.output > spec.kv_tokens:
            return False
        sequence.arrived = now
        first = not self.waiting
        self.waiting.append(sequence)
        if self.wakes_at == math.inf:
            self._begin(now)
        elif first and not self._plan and self._run_k > 1 and len(self.running) < spec.max_seqs:
            self._cut(now)
        return True

    def set_slow(self, slow: float, now: float) -> None:
        """Makes everything `slow` times slower from the next step on."""
        if not self._plan and self._run_k > 1 and self.wakes_at < math.inf:
            self._cut(now)
        self.slow = slow

    def kill(self) -> list[Sequence]:
        """The process dies: what was inside is lost and returned, caches are empty."""
        lost = [*self.running, *self.waiting]
        self.running.clear()
        self.waiting.clear()
        self._prefilling.clear()
        self._ends.clear()
        self._plan = []
        self._n = self._ctx = self._run_k = 0
        self.kv.clear()
        self.alive = False
        self.version += 1
        self.wakes_at = math.inf
        return lost

    def revive(self, now: float) -> None:
        """The process is there again, with nothing in it."""
        self.alive = True
        self.started_at = now

    def gauges(self, now: float) -> Gauges:
        """The state at this moment."""
        steps = self._steps_by(now) if not self._plan and self._run_k else 0
        grown = steps * self._n
        used = min(1.0, (self.kv.used + grown) / self.kv.capacity)
        return Gauges(
            len(self.running),
            len(self.waiting),
            used,
            self.prompt_tokens,
            self.output_tokens + grown,
            self.preemptions,
            self.cached_tokens,
            self.started_at,
        )

    def end_step(self, now: float) -> list[Sequence]:
        """The step or run that wakes now has ended: the sequences that got their first token or finished, in order."""
        self.busy_s += now - self._started
        news: list[Sequence] = []
        n = self._n
        if n:
            steps = self._run_k
            self._counter += steps
            self._ctx += steps * n
            self.kv.grow(steps * n)
            self.output_tokens += steps * n
            ends = self._ends
            while ends and ends[0][0] <= self._counter:
                end, _, sequence = heapq.heappop(ends)
                if sequence.decoding and sequence.end_at == end:
                    self._leave(sequence)
                    self._finish(sequence, now)
                    news.append(sequence)
        plan = self._plan
        if plan:
            for sequence, chunk in plan:
                if sequence in self.running:
                    self._read(sequence, chunk, now, news)
            if any(s.computed >= s.target for s in self._prefilling):
                self._prefilling = [s for s in self._prefilling if s.computed < s.target]
        self._begin(now)
        return news

    def _read(self, sequence: Sequence, chunk: int, now: float, news: list[Sequence]) -> None:
        sequence.computed += chunk
        request = sequence.request
        block = request.block
        keys = request.keys
        kv = self.kv
        upto = min(len(keys), sequence.computed // block)
        for i in range(sequence.committed, upto):
            kv.commit(keys[i], block)
            sequence.refs.append(keys[i])
            sequence.private -= block
        sequence.committed = max(sequence.committed, upto)
        if sequence.computed < sequence.target:
            return
        if sequence.first < 0:
            sequence.first = now
            self.prompt_tokens += request.prompt
            self.cached_tokens += max(0, sequence.cached)
            news.append(sequence)
        sequence.generated += 1
        sequence.private += 1
        kv.grow(1)
        self.output_tokens += 1
        if sequence.generated >= request.output:
            self._finish(sequence, now)
            if news[-1:] != [sequence]:
                news.append(sequence)
            return
        sequence.decoding = True
        sequence.joined = self._counter
        sequence.end_at = self._counter + request.output - sequence.generated
        self._serial += 1
        heapq.heappush(self._ends, (sequence.end_at, self._serial, sequence))
        self._n += 1
        self._ctx += request.prompt + sequence.generated

    def _leave(self, sequence: Sequence) -> None:
        """Stops decoding: its tokens so far are settled."""
        made = self._counter - sequence.joined
        sequence.generated += made
        sequence.private += made
        sequence.decoding = False
        self._n -= 1
        self._ctx -= sequence.request.prompt + sequence.generated

    def _finish(self, sequence: Sequence, now: float) -> None:
        sequence.done = now
        self.running.pop(sequence, None)
        request, kv = sequence.request, self.kv
        if kv.caching and sequence.committed >= len(request.keys):
            block = request.block
            for key in request.answer_keys:
                if sequence.private < block:
                    break
                kv.commit(key, block)
                sequence.refs.append(key)
                sequence.private -= block
            if not request.answer_keys and sequence.private > 0:
                key = _OUTPUT_KEYS | request.index
                kv.commit(key, sequence.private)
                sequence.refs.append(key)
                sequence.private = 0
        kv.release(sequence.refs, sequence.private)
        sequence.refs = []
        sequence.private = 0

    def _preempt(self) -> None:
        """The youngest gives its memory back and is read again later, tokens so far included."""
        sequence = next(reversed(self.running))
        del self.running[sequence]
        if sequence.decoding:
            self._leave(sequence)
        elif sequence in self._prefilling:
            self._prefilling.remove(sequence)
        self.kv.release(sequence.refs, sequence.private)
        sequence.refs = []
        sequence.private = sequence.computed = sequence.committed = 0
        sequence.target = sequence.request.prompt + sequence.generated
        sequence.preemptions += 1
        self.preemptions += 1
        self.waiting.appendleft(sequence)

    def _begin(self, now: float) -> None:
        self.version += 1
        kv, spec = self.kv, self.spec
        preempted = False
        while self._n and kv.capacity - kv.used < self._n + len(self._prefilling) and len(self.running) > 1:
            self._preempt()
            preempted = True
        if not preempted and self.waiting:
            self._admit()
        budget = spec.max_batched_tokens - self._n
        plan: list[tuple[Sequence, int]] = []
        prefill = 0
        attention = 0.0
        for sequence in self._prefilling:
            if budget <= 0:
                break
            chunk = min(sequence.target - sequence.computed, budget)
            budget -= chunk
            prefill += chunk
            attention += chunk * (sequence.computed + 0.5 * chunk)
            plan.append((sequence, chunk))
        self._plan = plan
        self._started = now
        n = self._n
        if not n and not plan:
            self._run_k = 0
            self.wakes_at = math.inf
            return
        slow = self.slow
        step = spec.step_s
        if n:
            step += spec.decode_s + spec.sequence_s * (n - 1) + spec.kv_s * self._ctx
        if plan:
            self._run_k = 1
            step += prefill * spec.prefill_s + attention * spec.attention_s
            self.wakes_at = now + slow * step
            return
        ends = self._ends
        while True:
            end, _, sequence = ends[0]
            if sequence.decoding and sequence.end_at == end:
                break
            heapq.heappop(ends)
        room = max(1, (kv.capacity - kv.used) // n)
        self._run_k = min(ends[0][0] - self._counter, room)
        self._run_a = slow * step
        self._run_b = slow * spec.kv_s * n
        self.wakes_at = now + self._length(self._run_k)

    def _admit(self) -> None:
        kv, spec = self.kv, self.spec
        waiting, running = self.waiting, self.running
        budget = spec.max_batched_tokens - self._n - sum(s.target - s.computed for s in self._prefilling)
        while waiting and len(running) < spec.max_seqs and budget > 0:
            sequence = waiting[0]
            request = sequence.request
            block = request.block
            # At least one prompt token is always computed, or there would be nothing to sample from.
            hits = kv.match(request.keys, (sequence.target - 1) // block) if spec.caching else 0
            keys = request.keys[:hits]
            need = sequence.target - hits * block + 1
            if kv.used + kv.pinned_by(keys) + need > kv.capacity and running:
                return
            waiting.popleft()
            for key in keys:
                kv.refer(key)
            kv.grow(need - 1)
            sequence.refs = list(keys)
            sequence.private = need - 1
            sequence.computed = hits * block
            sequence.committed = hits
            if sequence.cached < 0:
                sequence.cached = sequence.computed
            running[sequence] = None
            self._prefilling.append(sequence)
            budget -= sequence.target - sequence.computed

    def _length(self, steps: int) -> float:
        return steps * self._run_a + self._run_b * (steps * (steps - 1) // 2)

    def _steps_by(self, now: float) -> int:
        """Steps of this run that have ended by now."""
        passed = now - self._started
        if passed <= 0:
            return 0
        a, b = self._run_a, 0.5 * self._run_b
        if b <= 0:
            steps = int(passed / a) if a > 0 else self._run_k
        else:
            linear = a - b
            steps = int((math.sqrt(linear * linear + 4 * b * passed) - linear) / (2 * b))
        steps = max(0, min(steps, self._run_k))
        while steps > 0 and self._length(steps) > passed:
            steps -= 1
        return steps

    def _cut(self, now: float) -> None:
        """Ends the run with the step that is under way."""
        steps = self._steps_by(now) + 1
        if steps >= self._run_k:
            return
        self._run_k = steps
        self.wakes_at = self._started + self._length(steps)
        self.version += 1
