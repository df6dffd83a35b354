"""How fast endpoints are, learned online: seconds per prefill token, and what one decode step takes.

All of it rests on statistics that decay with time and simply add up over processors.

Prefill: attention makes a token the dearer the more tokens stand before it, so reading the tokens from m to p takes
prefill · (f(p) − f(m)), f(x) = x + attention / 2 · x². Of the times to first token per uncached token a low quantile is
taken among prompts of similar length, and a line through these quantiles gives both coefficients. Some requests always
find little ahead of them; if none does, the result is too high and not too low. A regression over all requests fails
here: in overload the waiting has nothing to do with the prompt's length, the slope goes to zero, prefixes seem
worthless, and the overload gets worse. The overhead is a low quantile of what is left.

Decode: time per output token = base + per_sequence · batch + per_kv_token · KV + prefill · prefill tokens per step,
a regression with coefficients at or above zero, pulled to the priors while little has been seen.

Each endpoint has a speed factor, observed ÷ predicted; within a band around 1 it counts as 1, so that noise does not
make equal machines look different.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass

from xds_control.policy.picker import RatesPolicy
from xds_control.routing.estimators import PRIOR_WEIGHT, Fit, Histogram, PrefillTimes

_STEP = 4
_STEP_SCALE = (1.0, 16.0, 50_000.0, 256.0)
_LONG = 512.0
"""Prompts with fewer uncached tokens tell of the overhead, not of the speed."""

_STEP_VALUES = 1 + _STEP * _STEP + _STEP
_POOL_STATE = struct.Struct(f"<{1 + _STEP_VALUES + Histogram.BUCKETS + 7}d")
_TIME_STATE = struct.Struct("<Hf")
_VERSION = 3.0
_LOW_QUANTILE = 0.2
_WAITED = 0.02
"""How much the time of a prompt counts that had work ahead of it: only where nothing better was seen."""
_ESTIMATED = 4000.0
"""Prompt tokens that are taken to have been estimated rightly before any was seen."""
_ESTIMATES_KEPT = 500_000.0
_ESTIMATE_BAND = 0.1
_SPEED_STATE = struct.Struct("<4d")
_NEWEST = 30.0


@dataclass(slots=True)
class Coefficients:
    """The pool's speeds as used now, seconds. residence_s: how long a request stays; context: its mean KV tokens.

    prefill: of one token without context; attention: what each token of context adds, as a share of it.
    """

    prefill: float
    attention: float
    overhead: float
    base: float
    per_sequence: float
    per_kv_token: float
    residence_s: float
    context: float
    output: float


class PoolRates:
    """Speeds of one pool and of its endpoints by address."""

    def __init__(self, policy: RatesPolicy) -> None:
        self._policy = policy
        self._step = Fit(_STEP_SCALE)
        self._token = PrefillTimes()
        self._rest = Histogram(1e-4)
        self._new_step = Fit(_STEP_SCALE)
        self._new_token = PrefillTimes()
        self._new_rest = Histogram(1e-4)
        self._means = [0.0] * 7  # weight, residence, context, output, uncached, prompts as counted and as estimated
        self._new_means = [0.0] * 7
        # Address → sums of log(observed ÷ predicted) and weights, of first tokens and of steps.
        self._speeds: dict[str, list[float]] = {}
        self._applied: dict[str, float] = {}
        self._new_speeds: dict[str, list[float]] = {}
        self._decayed_at: float | None = None
        self._level = 0.0
        self.now = Coefficients(
            policy.prefill_s_per_token,
            0.0,
            0.01,
            policy.step_base_s,
            policy.step_per_sequence_s,
            policy.step_per_kv_token_s,
            5.0,
            1000.0,
            float(policy.output_tokens),
        )

    @property
    def observations(self) -> float:
        """Decayed number of first-token and step observations."""
        return self._step.count + self._rest.total

    def observe_step(
        self, address: str, tpot_s: float, batch: float, kv_tokens: float, prefill_per_step: float
    ) -> None:
        """One finished request's mean time per output token, and what ran beside it."""
        if not (1e-5 < tpot_s < 60.0):
            return
        now = self.now
        predicted = now.base + now.per_sequence * batch + now.per_kv_token * kv_tokens + now.prefill * prefill_per_step
        self._note(address, 2, math.log(min(20.0, max(0.05, tpot_s / predicted))), 1.0)
        value = tpot_s / self._applied.get(address, 1.0)
        features = (1.0, batch, kv_tokens, prefill_per_step)
        self._step.add(features, value)
        self._new_step.add(features, value)

    def work(self, tokens: float) -> float:
        """Prompt tokens up to this one, those counting more that have more before them."""
        return tokens * (1.0 + 0.5 * self.now.attention * tokens)

    def observe_first(
        self,
        address: str,
        ttft_s: float,
        uncached: float,
        ahead: float,
        cached: float = 0.0,
        step_s: float | None = None,
    ) -> None:
        """One request's time to first token, and its own uncached tokens behind the cached ones.

        ahead: work believed ahead of it. step_s: decode step of those that ran beside it; None = of nobody.
        """
        if not (1e-5 < ttft_s < 600.0) or uncached < 0:
            return
        now = self.now
        own = self.work(cached + uncached) - self.work(cached)
        total = own + max(0.0, ahead)
        if total >= 512 and ahead <= own:
            predicted = now.overhead + now.prefill * total
            self._note(address, 0, math.log(min(20.0, max(0.05, ttft_s / predicted))), 0.5)
        applied = self._applied.get(address, 1.0)
        value = ttft_s / applied
        if uncached >= _LONG:
            # The step in which it is read decodes for the others as well.
            beside = now.base if step_s is None else step_s / applied
            weight = min(uncached / 1024.0, 8.0) * (1.0 if ahead <= 0.1 * own else _WAITED)
            for times in (self._token, self._new_token):
                times.add(max(value - beside, 0.3 * value) / uncached, cached + 0.5 * uncached, weight)
        rest = max(value - now.prefill * own, 0.05 * value)
        for histogram in (self._rest, self._new_rest):
            histogram.add(rest, 1.0)

    def observe_request(self, duration_s: float, prompt: float, output: float, uncached: float) -> None:
        """How long a request stayed, and how much KV it held. uncached: the work of what had to be read."""
        for means in (self._means, self._new_means):
            means[0] += 1.0
            means[1] += min(duration_s, 3600.0)
            means[2] += prompt + output / 2
            means[3] += output
            means[4] += uncached

    def observe_estimate(self, tokens: float, estimated: float) -> None:
        """A prompt's tokens as the engine counted them, and as they were estimated."""
        for means in (self._means, self._new_means):
            means[5] += tokens
            means[6] += estimated

    @property
    def calibration(self) -> float:
        """Counted ÷ estimated prompt tokens; 1 as long as estimates are right on the whole."""
        ratio = (self._means[5] + _ESTIMATED) / (self._means[6] + _ESTIMATED)
        return 1.0 if abs(ratio - 1.0) <= _ESTIMATE_BAND else min(8.0, max(0.125, ratio))

    @property
    def mean_uncached(self) -> float:
        """Mean work of a request's uncached prompt tokens, for queues of which only the length is known."""
        weight = self._means[0]
        return (self._means[4] + 4 * 512.0) / (weight + 4)

    def _note(self, address: str, place: int, log_ratio: float, weight: float) -> None:
        """Adds a ratio of observed to predicted. place: 0 for first tokens, 2 for steps."""
        for speeds in (self._speeds, self._new_speeds):
            entry = speeds.get(address)
            if entry is None:
                entry = speeds[address] = [0.0] * 4
            entry[place] += log_ratio * weight
            entry[place + 1] += weight
        self._limit(self._speeds[address], place)

    @staticmethod
    def _limit(entry: list[float], place: int) -> None:
        weight = entry[place + 1]
        if weight > _NEWEST:  # the newest some dozens of observations decide
            entry[place] *= _NEWEST / weight
            entry[place + 1] = _NEWEST

    @staticmethod
    def _mean(entry: list[float]) -> float:
        """Mean log ratio, pulled to 0 while little has been seen."""
        return (entry[0] + entry[2]) / (entry[1] + entry[3] + 4.0)

    def speed(self, address: str, declared: float | None = None) -> float:
        """Factor on every time at this endpoint: above 1 is slower than the pool, 1 inside the band.

        declared: its capacity over the pool's mean, where known: what holds until enough has been seen.
        """
        entry = self._speeds.get(address)
        seen = entry[1] + entry[3] if entry else 0.0
        log_factor = self._mean(entry) - self._level if entry else 0.0
        if declared is not None and declared > 0:
            trust = seen / (seen + 8.0)
            log_factor = trust * log_factor - (1 - trust) * math.log(declared)
        factor = math.exp(log_factor)
        band = 1.0 + self._policy.speed_band
        if 1 / band <= factor <= band:
            return 1.0
        return min(20.0, max(0.05, factor))

    def refresh(self, now: float) -> None:
        """Solves with what was seen, and lets the old fade. Call it about once a second."""
        policy = self._policy
        if self._decayed_at is not None and now > self._decayed_at:
            factor = math.exp(-(now - self._decayed_at) / policy.memory_s)
            self._step.decay(factor)
            self._token.decay(factor)
            self._rest.decay(factor)
            self._means = [value * factor for value in self._means]
            for entry in self._speeds.values():
                entry[:] = [value * factor for value in entry]
        self._decayed_at = now
        if self._means[6] > _ESTIMATES_KEPT:  # the estimator learns too: the newest estimates decide
            newest = _ESTIMATES_KEPT / self._means[6]
            self._means[5] *= newest
            self._means[6] *= newest
        if not policy.learn:
            return
        current = self.now
        prefill, attention = self._token.solve(policy.prefill_s_per_token)
        step = self._step.solve((policy.step_base_s, policy.step_per_sequence_s, policy.step_per_kv_token_s, prefill))
        weight, residence, context, output = self._means[:4]
        before = self._typical()
        current.overhead = self._rest.quantile(_LOW_QUANTILE, 0.01, PRIOR_WEIGHT)
        current.prefill, current.attention = prefill, attention
        current.base = max(1e-5, step[0])
        current.per_sequence = step[1]
        current.per_kv_token = step[2]
        current.residence_s = (residence + 4 * 5.0) / (weight + 4)
        current.context = (context + 4 * 1000.0) / (weight + 4)
        current.output = (output + 4 * policy.output_tokens) / (weight + 4)
        # Ratios to the old predictions become ratios to the new ones.
        shifts = [math.log(new / old) for new, old in zip(self._typical(), before, strict=True)]
        for entry in self._speeds.values():
            entry[0] -= shifts[0] * entry[1]
            entry[2] -= shifts[1] * entry[3]
        # The factors mean relative speeds: what all share belongs to the pool's coefficients.
        known = sorted(self._mean(entry) for entry in self._speeds.values() if entry[1] + entry[3] >= 4.0)
        self._level = known[(len(known) - 1) // 2] if known else 0.0
        self._applied = {address: self.speed(address) for address in self._speeds}

    def _typical(self) -> tuple[float, float]:
        """Predictions for a usual request: first token and step, seconds."""
        now = self.now
        first = now.overhead + now.prefill * self.mean_uncached
        return first, now.base + now.per_sequence * 8.0 + now.per_kv_token * 8.0 * now.context

    def forget(self, address: str) -> None:
        """Drops an endpoint's own factor: it restarted or left."""
        self._speeds.pop(address, None)
        self._applied.pop(address, None)

    def drain(self) -> dict[str, bytes]:
        """What was observed here since the last call: "" → the pool's sums, address → the endpoint's."""
        states: dict[str, bytes] = {}
        if self._new_step.count or self._new_means[0] or self._new_rest.total:
            head = _POOL_STATE.pack(_VERSION, *self._new_step.to_list(), *self._new_rest.counts, *self._new_means)
            states[""] = head + b"".join(_TIME_STATE.pack(*one) for one in self._new_token.sparse())
            self._new_step = Fit(_STEP_SCALE)
            self._new_token = PrefillTimes()
            self._new_rest = Histogram(1e-4)
            self._new_means = [0.0] * 7
        for address, entry in self._new_speeds.items():
            states[address] = _SPEED_STATE.pack(*entry)
        self._new_speeds = {}
        return states

    def merge(self, states: Mapping[str, bytes]) -> None:
        """Adds what another processor drained. States that are not finite or not of this version are left out."""
        for address, state in states.items():
            if address == "":
                self._merge_pool(state)
            elif address and len(state) == _SPEED_STATE.size:
                values = _SPEED_STATE.unpack(state)
                if all(map(math.isfinite, values)) and min(values[1], values[3]) >= 0:
                    entry = self._speeds.setdefault(address, [0.0] * 4)
                    entry[:] = [a + b for a, b in zip(entry, values, strict=True)]
                    self._limit(entry, 0)
                    self._limit(entry, 2)

    def _merge_pool(self, state: bytes) -> None:
        size = _POOL_STATE.size
        if len(state) < size or (len(state) - size) % _TIME_STATE.size:
            return
        version, *values = _POOL_STATE.unpack_from(state)
        times = list(_TIME_STATE.iter_unpack(state[size:]))
        if version != _VERSION or not all(map(math.isfinite, (*values, *(value for _, value in times)))):
            return
        other = Fit(_STEP_SCALE)
        other.load(values[:_STEP_VALUES])
        self._step.merge(other)
        self._token.merge(times)
        rest = _STEP_VALUES + Histogram.BUCKETS
        self._rest.merge(values[_STEP_VALUES:rest])
        self._means = [a + b for a, b in zip(self._means, values[rest:], strict=True)]
