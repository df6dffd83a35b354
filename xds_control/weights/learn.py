"""Learned capacity: what each endpoint of a pool delivers, made comparable although they run different batches.

A decode step takes s·(g0 + g1·batch) seconds: the shape g1/g0 is the engine's and the model's, shared by
the pool, and s is how slow one endpoint is. The shape is found from how each endpoint's own step time
changes with its own batch (a slow endpoint with a small batch does not bend it), then every endpoint is
compared at the same batch. Prompt tokens are treated alike, cached ones counted, so that a better hit rate
is a higher capacity. Requests that queued say nothing about speed and are left out.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field

from xds_control.fleet.rates import LearnedRates
from xds_control.policy.capacity import Learning

_PRIOR_SLOPE = 0.02  # per sequence: a batch of 50 doubles the step, between small dense and large sparse models
_PRIOR_WEIGHT = 0.05  # weight of the prior, as relative variance of the batch times confidence
_MAX_SLOPE = 1.0
_PEAK_HALF_LIFE_S = 600.0
_LOGS_HOLD_S = 30.0  # access logs that say how long tokens took outrank the engine's own figures for so long
_MOST_BETWEEN_SCRAPES_S = 30.0
_USUAL_PROMPT, _USUAL_COMPLETION = 512.0, 128.0  # tokens of a request, until one was seen


@dataclass(frozen=True, slots=True)
class Delivered:
    """What one endpoint delivered in one window, from access logs.

    requests: ended. prompt_tokens, cached_tokens, completion_tokens: sums. prefill_seconds: times to first token
    summed, prefill_tokens: uncached prompt tokens of those requests. decode_seconds: times from the first to the
    last token summed, decode_tokens: output tokens in them. batch: requests that ran there; None = as at the last
    scrape.
    """

    requests: int = 0
    prompt_tokens: float = 0.0
    cached_tokens: float = 0.0
    completion_tokens: float = 0.0
    prefill_seconds: float = 0.0
    prefill_tokens: float = 0.0
    decode_seconds: float = 0.0
    decode_tokens: float = 0.0
    batch: float | None = None


@dataclass(slots=True)
class _Fit:
    """Decayed, token-weighted moments of seconds per token against batch."""

    tokens: float = 0.0
    b: float = 0.0
    t: float = 0.0
    bb: float = 0.0
    bt: float = 0.0

    def decay(self, factor: float) -> None:
        self.tokens *= factor
        self.b *= factor
        self.t *= factor
        self.bb *= factor
        self.bt *= factor

    def add(self, tokens: float, seconds: float, batch: float) -> None:
        self.tokens += tokens
        self.b += tokens * batch
        self.t += seconds
        self.bb += tokens * batch * batch
        self.bt += seconds * batch

    @property
    def mean_batch(self) -> float:
        return self.b / self.tokens

    @property
    def mean_time(self) -> float:
        return self.t / self.tokens

    def slope(self) -> tuple[float, float]:
        """(g1/g0, its weight): how much one more sequence lengthens the time, as a share of that at batch 0."""
        variance = self.bb / self.tokens - self.mean_batch**2
        if variance <= 1e-9 or self.mean_time <= 0.0:
            return _PRIOR_SLOPE, 0.0
        slope = (self.bt / self.tokens - self.mean_batch * self.mean_time) / variance
        share = slope / self.mean_time
        base = 1.0 - share * self.mean_batch
        relative = _MAX_SLOPE if base <= 0.0 else min(max(share / base, 0.0), _MAX_SLOPE)
        return relative, variance / (1.0 + self.mean_batch) ** 2


@dataclass(slots=True)
class _Seen:
    decode: _Fit = field(default_factory=_Fit)
    prefill: _Fit = field(default_factory=_Fit)
    decode_slope: _Fit = field(default_factory=_Fit)
    prefill_slope: _Fit = field(default_factory=_Fit)
    running: float = 0.0
    waiting: float = 0.0
    peak: float = 0.0
    requests: float = 0.0
    service: float = 0.0
    at: float = -math.inf
    scraped_at: float = -math.inf
    logged_at: float = -math.inf
    decayed_at: float | None = None


class CapacityLearner:
    """Learns the capacities of one pool. Feed it every window and every scrape; ask `rates` at each tick."""

    def __init__(self, policy: Learning) -> None:
        self.policy = policy
        self._seen: dict[str, _Seen] = {}
        self._prompt = self._completion = self._requests = 0.0
        self._mix_at: float | None = None
        self._cache: dict[str, LearnedRates] | None = None

    def on_scrape(
        self,
        address: str,
        running: float,
        waiting: float,
        now: float,
        *,
        tpot_s: float | None = None,
        decode_tps: float | None = None,
    ) -> None:
        """Load of an endpoint at its scrape.

        tpot_s, decode_tps: the engine's own time per output token and output rate. They teach its speed as long
        as access logs do not: many streamed answers carry no token counts.
        """
        if not (math.isfinite(running) and math.isfinite(waiting)):
            return
        seen = self._of(address, now)
        since = min(max(0.0, now - seen.scraped_at), _MOST_BETWEEN_SCRAPES_S)
        seen.scraped_at = now
        if tpot_s and decode_tps and running >= 1.0 and now - seen.logged_at > _LOGS_HOLD_S and since > 0.0:
            tokens = decode_tps * since
            if _sane(tokens, tokens * tpot_s):
                self._cache = None
                seen.at = now
                for fit in (seen.decode, seen.decode_slope):
                    fit.add(tokens, tokens * tpot_s, running)
        seen.running, seen.waiting = max(running, 0.0), max(waiting, 0.0)
        seen.peak = max(seen.peak, seen.running)

    def on_window(self, address: str, delivered: Delivered, now: float) -> None:
        """What an endpoint delivered since the last window. Figures that are not finite or negative are left out."""
        seen = self._of(address, now)
        self._cache = None
        batch = seen.running if delivered.batch is None else delivered.batch
        decode = _sane(delivered.decode_tokens, delivered.decode_seconds)
        if decode:
            for fit in (seen.decode, seen.decode_slope):
                fit.add(delivered.decode_tokens, delivered.decode_seconds, batch)
        served = delivered.prefill_tokens + delivered.cached_tokens
        prefill = _sane(served, delivered.prefill_seconds) and seen.waiting <= 0.0
        if prefill:
            for fit in (seen.prefill, seen.prefill_slope):
                fit.add(served, delivered.prefill_seconds, batch)
        if decode or prefill:
            seen.at = now
        if decode:
            seen.logged_at = now
        if delivered.requests > 0:
            seen.requests += delivered.requests
            if math.isfinite(delivered.prefill_seconds) and math.isfinite(delivered.decode_seconds):
                seen.service += max(delivered.prefill_seconds, 0.0) + max(delivered.decode_seconds, 0.0)
            self._mix(delivered, now)

    def seed(self, address: str, rates: LearnedRates, now: float, batch: float) -> None:
        """Starts an endpoint from a calibration: its rates count like that of a full measure of traffic."""
        seen = self._of(address, now)
        self._cache = None
        tokens = self.policy.least_tokens
        if rates.decode_tps and rates.decode_tps > 0.0:
            seen.decode = _Fit()
            seen.decode.add(tokens, tokens * max(batch, 1.0) / rates.decode_tps, max(batch, 1.0))
            seen.at = now
        if rates.prefill_tps and rates.prefill_tps > 0.0:
            seen.prefill = _Fit()
            seen.prefill.add(tokens, tokens / rates.prefill_tps, 0.0)
            seen.at = now

    def forget(self, address: str) -> None:
        """Drops an endpoint that is gone, or whose engine restarted with another model."""
        self._seen.pop(address, None)
        self._cache = None

    def retain(self, alive: Collection[str]) -> None:
        """Drops every endpoint that is not among `alive`."""
        for address in [known for known in self._seen if known not in alive]:
            self.forget(address)

    def rates(self, address: str) -> LearnedRates | None:
        """What is known of an endpoint; None when nothing is."""
        if self._cache is None:
            self._cache = self._compute()
        return self._cache.get(address)

    def _of(self, address: str, now: float) -> _Seen:
        seen = self._seen.setdefault(address, _Seen())
        last = seen.decayed_at
        seen.decayed_at = now if last is None else max(last, now)
        dt = 0.0 if last is None else now - last
        if dt > 0.0:
            fast = 0.5 ** (dt / self.policy.half_life_s)
            # The shape belongs to the model and the engine, not to the moment: it may remember longer.
            slow = 0.5 ** (dt / (10.0 * self.policy.half_life_s))
            for fit, factor in (
                (seen.decode, fast),
                (seen.prefill, fast),
                (seen.decode_slope, slow),
                (seen.prefill_slope, slow),
            ):
                fit.decay(factor)
            seen.requests *= fast
            seen.service *= fast
            seen.peak *= 0.5 ** (dt / _PEAK_HALF_LIFE_S)
        return seen

    def _mix(self, delivered: Delivered, now: float) -> None:
        dt = 0.0 if self._mix_at is None else max(0.0, now - self._mix_at)
        self._mix_at = now
        factor = 0.5 ** (dt / (10.0 * self.policy.half_life_s))
        self._prompt = self._prompt * factor + max(delivered.prompt_tokens, 0.0)
        self._completion = self._completion * factor + max(delivered.completion_tokens, 0.0)
        self._requests = self._requests * factor + delivered.requests

    def _compute(self) -> dict[str, LearnedRates]:
        batch = max([1.0, *(seen.peak for seen in self._seen.values())])
        decode = _at_batch({a: (s.decode, s.decode_slope) for a, s in self._seen.items()}, batch)
        prefill = _at_batch({a: (s.prefill, s.prefill_slope) for a, s in self._seen.items()}, batch)
        share, usual_s = self._usual_request(decode, prefill, batch)
        mean_d, mean_p = _mean(decode), _mean(prefill)
        out: dict[str, LearnedRates] = {}
        for address in decode.keys() | prefill.keys():
            seen = self._seen[address]
            slow_d = decode[address] / mean_d if address in decode else None
            slow_p = prefill[address] / mean_p if address in prefill else None
            # A card that is slow at one is taken to be as slow at the other until that has been seen.
            d = slow_d if slow_d is not None else slow_p
            p = slow_p if slow_p is not None else slow_d
            assert d is not None
            assert p is not None
            tokens = seen.decode.tokens + seen.prefill.tokens
            out[address] = LearnedRates(
                prefill_tps=1.0 / prefill[address] if address in prefill else None,
                decode_tps=batch / decode[address] if address in decode else None,
                capacity=1.0 / (usual_s * (share * p + (1.0 - share) * d)),
                service_s=seen.service / seen.requests if seen.requests > 0.5 else None,
                confidence=min(1.0, tokens / self.policy.least_tokens),
                at=seen.at,
            )
        return out

    def _usual_request(self, decode: dict[str, float], prefill: dict[str, float], batch: float) -> tuple[float, float]:
        """(share of the prompt in the work of the pool's usual request, seconds of the pool's mean endpoint for it)."""
        known = self._requests > 0.5 and self._prompt + self._completion > 0.0
        prompt = self._prompt / self._requests if known else _USUAL_PROMPT
        completion = self._completion / self._requests if known else _USUAL_COMPLETION
        p = prompt * _mean(prefill) if prefill else 0.0
        d = completion * _mean(decode) / batch if decode else 0.0
        work = p + d
        if work <= 0.0:
            return 0.5, 1.0
        return (p / work if prefill and decode else 0.5), work


def _at_batch(fits: dict[str, tuple[_Fit, _Fit]], batch: float) -> dict[str, float]:
    """Seconds per token of each endpoint at one common batch."""
    known = {a: f for a, f in fits.items() if f[0].tokens > 1e-6 and f[0].mean_time > 0.0}
    slope, weight = _PRIOR_SLOPE * _PRIOR_WEIGHT, _PRIOR_WEIGHT
    for _, shape in known.values():
        if shape.tokens > 1e-6:
            own, own_weight = shape.slope()
            slope, weight = slope + own * own_weight, weight + own_weight
    relative = slope / weight
    return {a: f.mean_time * (1.0 + relative * batch) / (1.0 + relative * f.mean_batch) for a, (f, _) in known.items()}


def _mean(values: dict[str, float]) -> float:
    return math.exp(sum(math.log(v) for v in values.values()) / len(values)) if values else 1.0


def _sane(tokens: float, seconds: float) -> bool:
    return math.isfinite(tokens) and math.isfinite(seconds) and tokens > 0.0 and seconds > 0.0
