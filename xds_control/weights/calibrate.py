"""Calibration: the plan of a short standard load, and what its results say about an endpoint. Sends nothing itself."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from xds_control.fleet.rates import LearnedRates
from xds_control.policy.capacity import Calibration

Part = Literal["prefill", "decode"]
_SATURATED = 1.05  # one more level that adds less than this ratio to the throughput means that the engine is full


@dataclass(frozen=True, slots=True)
class Step:
    """Requests of one kind: `concurrency` streams of `rounds` requests each, every prompt different from all others."""

    part: Part
    concurrency: int
    rounds: int
    prompt_tokens: int
    output_tokens: int

    @property
    def requests(self) -> int:
        """Requests of this step."""
        return self.concurrency * self.rounds


@dataclass(frozen=True, slots=True)
class Result:
    """One request of a step. Times in seconds on one clock; first_token_at None: the answer had none.

    prompt_tokens, output_tokens: as the engine counted them; None = it did not say.
    """

    step: int
    started_at: float
    first_token_at: float | None
    ended_at: float
    prompt_tokens: int | None
    output_tokens: int | None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Level:
    """Decode at one concurrency: output tokens per second over all streams, and the time per token of one stream."""

    concurrency: int
    tokens_per_s: float
    tpot_s: float


@dataclass(frozen=True, slots=True)
class Report:
    """What the load showed.

    prefill_tps: prompt tokens per second of one long prompt at a time. decode_tps: output tokens per second at the
    best level. levels: decode by concurrency. saturated: whether the last level added next to nothing, so that
    `decode_tps` is all the engine can do. failed: requests without an answer, errors: their reasons, counted.
    """

    prefill_tps: float | None
    decode_tps: float | None
    levels: tuple[Level, ...]
    saturated: bool
    requests: int
    failed: int
    errors: dict[str, int]
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether both rates are known and most requests were answered."""
        return self.prefill_tps is not None and self.decode_tps is not None and self.failed * 2 < self.requests

    @property
    def batch(self) -> float:
        """The concurrency at which `decode_tps` was reached."""
        best = max(self.levels, key=lambda level: level.tokens_per_s, default=None)
        return float(best.concurrency) if best is not None else 1.0

    def rates(self, now: float, policy: Calibration) -> LearnedRates | None:
        """As learned rates, for a request of the lengths that the policy names; None when the load failed."""
        if not self.ok or self.prefill_tps is None or self.decode_tps is None:
            return None
        seconds = policy.prompt_tokens / self.prefill_tps + policy.output_tokens / self.decode_tps
        return LearnedRates(
            prefill_tps=self.prefill_tps,
            decode_tps=self.decode_tps,
            capacity=1.0 / seconds,
            service_s=None,
            slots=None,
            confidence=1.0,
            at=now,
        )


def plan(policy: Calibration) -> tuple[Step, ...]:
    """The steps in order: long prompts one after another, then short prompts at rising concurrency.

    The first prompt warms the engine up and is not counted.
    """
    long = Step("prefill", 1, policy.prefill_requests + 1, policy.prompt_tokens, 1)
    return (long, *(Step("decode", c, policy.rounds, 16, policy.output_tokens) for c in policy.concurrency))


def prompt(step: int, number: int, tokens: int, run: int = 0) -> str:
    """A prompt of about `tokens` tokens that shares no prefix with any other, so that no cache helps.

    run: another number for each run: the server may still hold the prompts of the last one.

    Short common English words are one token each in every usual vocabulary.
    """
    state = (run * 2_654_435_761 + step * 1_000_003 + number * 7_919 + 1) & 0xFFFFFFFF
    words = []
    for _ in range(max(1, tokens)):
        state = (state * 1_664_525 + 1_013_904_223) & 0xFFFFFFFF
        words.append(_WORDS[(state >> 16) % len(_WORDS)])
    return " ".join(words)


def analyse(steps: Sequence[Step], results: Iterable[Result]) -> Report:
    """What the results say. Requests that failed, or whose figures are impossible, count as failed."""
    by_step: dict[int, list[Result]] = {}
    errors: dict[str, int] = {}
    count = failed = 0
    first, last = math.inf, -math.inf
    for result in results:
        count += 1
        first, last = min(first, result.started_at), max(last, result.ended_at)
        reason = result.error or _impossible(result)
        if reason:
            failed += 1
            errors[reason] = errors.get(reason, 0) + 1
            continue
        by_step.setdefault(result.step, []).append(result)
    prefill = _prefill([r for i, s in enumerate(steps) if s.part == "prefill" for r in by_step.get(i, [])], steps)
    levels = tuple(
        level
        for i, step in enumerate(steps)
        if step.part == "decode" and (level := _level(step, by_step.get(i, []))) is not None
    )
    best = max((level.tokens_per_s for level in levels), default=None)
    saturated = len(levels) >= 2 and levels[-1].tokens_per_s < _SATURATED * max(x.tokens_per_s for x in levels[:-1])
    seconds = last - first if count else 0.0
    return Report(prefill, best, levels, saturated, count, failed, errors, seconds)


def _impossible(result: Result) -> str:
    if result.first_token_at is None:
        return "no token"
    if not result.started_at < result.first_token_at <= result.ended_at:
        return "times out of order"
    return ""


def _prefill(results: list[Result], steps: Sequence[Step]) -> float | None:
    counted = sorted(results, key=lambda r: r.started_at)[1:]
    rates = []
    for r in counted:
        tokens = r.prompt_tokens if r.prompt_tokens else steps[r.step].prompt_tokens
        assert r.first_token_at is not None
        rates.append(tokens / (r.first_token_at - r.started_at))
    # The median keeps one hiccup out.
    return sorted(rates)[len(rates) // 2] if rates else None


def _level(step: Step, results: list[Result]) -> Level | None:
    tokens = seconds = 0.0
    for r in results:
        output = r.output_tokens if r.output_tokens is not None else step.output_tokens
        assert r.first_token_at is not None
        if output > 1 and r.ended_at > r.first_token_at:
            tokens += output - 1
            seconds += r.ended_at - r.first_token_at
    if tokens <= 0.0 or seconds <= 0.0:
        return None
    tpot = seconds / tokens
    # Tokens per second of one stream times the streams: the start and the end of a round, when fewer run, do not count.
    return Level(step.concurrency, min(step.concurrency, len(results)) / tpot, tpot)


_TEXT = (
    "time year people way day man thing woman life child world school state family student group country problem "
    "hand part place case week company system program question work government number night point home water room "
    "mother area money story fact month lot right study book eye job word business issue side kind head house "
    "service friend father power hour game line end member law car city community name president team minute idea "
    "body information back parent face others level office door health person art war history party result change "
    "morning reason research girl guy moment air teacher force education"
)
_WORDS = tuple(_TEXT.split())
