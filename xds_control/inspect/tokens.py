"""Prompt tokens from bytes: a linear model per model name that learns from the counts that engines report."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from xds_control.inspect.outputs import OutputLengths
from xds_control.inspect.profile import FIRST_SHARE, MAX_MESSAGES, PROSE, SHARES, UNLEARNABLE, message_count, shares
from xds_control.policy.inspect import TokensPolicy

Array = npt.NDArray[np.float64]

_FEATURES: Final = 10  # bytes that are lower, upper, digit, space, newline, punct, two-byte, wide; messages; images
# Tokens per byte that common tokenizers spend on each class, for prose at 4.2 bytes per token.
_PRIOR: Final = (0.105, 0.35, 0.5, 0.7, 0.4, 0.6, 0.35, 0.28)
_PRIOR_RATIO: Final = 4.2
_NOISE: Final = 0.07  # relative error that is left when the linear model fits
_MIN_RATIO: Final = 1 / 64  # tokens per byte: runs of white space merge far, but not farther
_MAX_RATIO: Final = 1.25  # byte-level fallback costs one token per byte, templates add a little
_SETTLED: Final = 30  # observations before outliers are judged by the usual error
_MAX_TOKENS: Final = 1 << 27


class _Model:
    """Sums of one model's observations (information form): they add up over processors, so they can be shared."""

    __slots__ = ("error", "fresh", "moments", "observed", "others", "seen", "targets", "weights")

    def __init__(self, weights: tuple[float, ...]) -> None:
        self.moments: Array = np.zeros((_FEATURES, _FEATURES))
        self.targets: Array = np.zeros(_FEATURES)
        self.seen = 0.0  # effective number of own observations, after forgetting
        self.error = 0.0  # running mean of the relative error
        self.observed = 0
        self.fresh = 0  # observations since the weights were last solved
        self.others: dict[str, tuple[Array, Array, float]] = {}
        self.weights = weights


class TokenEstimator:
    """Estimates prompt and output lengths per model, learning from returned usage.

    An estimate is linear in the bytes of each class of characters (see `profile`), the messages and
    the images, so that prose, code and Chinese under one model name do not disturb each other.
    Observations count by relative error, outliers count less, and every estimate is kept within
    what byte-level tokenizers can do. Not thread-safe.
    """

    def __init__(self, policy: TokensPolicy | None = None) -> None:
        self.policy = policy or TokensPolicy()
        scale = _PRIOR_RATIO / self.policy.bytes_per_token
        self._prior: Array = np.array(
            [weight * scale for weight in _PRIOR] + [self.policy.message_tokens, self.policy.image_tokens]
        )
        self._precision: Array = np.diag((_NOISE / (0.5 * self._prior + 0.02)) ** 2)
        self._prior_weights = _relative(self._prior.tolist())
        self._models: dict[str, _Model] = {}
        self._decay = 1.0 - 1.0 / self.policy.memory_requests
        self.outputs = OutputLengths(self.policy)

    def estimate(self, model: str, prompt_bytes: int, *, profile: int = 0, images: int = 0) -> int:
        """Prompt tokens; at least 1 when there is any prompt. profile: `facts.text_profile`, 0 when unknown."""
        known = self._models.get(model)
        weights = self._prior_weights if known is None else known.weights
        return int(_predict(weights, prompt_bytes, profile, images) + 0.5) or int(prompt_bytes > 0)

    def image_tokens(self, model: str) -> float:
        """Tokens of one image."""
        known = self._models.get(model)
        return (self._prior_weights if known is None else known.weights)[-1]

    def observe(
        self, model: str, prompt_bytes: int, prompt_tokens: float, *, profile: int = 0, images: int = 0
    ) -> None:
        """Learns from one answered request. prompt_tokens: what the engine counted, cached tokens included.

        Impossible counts (not positive, more than bytes and media explain) are ignored.
        """
        if (
            profile & UNLEARNABLE
            or not self.policy.learn
            or not 0 < prompt_tokens < _MAX_TOKENS
            or prompt_bytes <= 0
            or images < 0
        ):
            return
        room = prompt_bytes * _MAX_RATIO + 64 * (message_count(profile) + 1) + 100_000 * images
        if prompt_tokens > room or prompt_tokens < prompt_bytes * _MIN_RATIO * 0.25:
            return
        state = self._models.pop(model, None)
        if state is None:
            state = _Model(self._prior_weights)
            if len(self._models) >= self.policy.max_models:
                del self._models[next(iter(self._models))]
        self._models[model] = state  # last: the least recent is the first to go
        predicted = _predict(state.weights, prompt_bytes, profile, images)
        miss = abs(predicted - prompt_tokens) / prompt_tokens
        bound = max(0.15, 4.0 * state.error) if state.observed >= _SETTLED else 1.0
        weight = bound / miss if miss > bound else 1.0
        state.error += (min(miss, 1.0) - state.error) * 0.05
        features: Array = np.array(
            [prompt_bytes * share for share in shares(profile)] + [message_count(profile), images], dtype=np.float64
        )
        features /= prompt_tokens
        state.moments *= self._decay
        state.moments += np.multiply.outer(features, features * weight)
        state.targets *= self._decay
        state.targets += features * weight
        state.seen = state.seen * self._decay + 1.0
        state.observed += 1
        state.fresh += 1
        if state.fresh * 16 >= min(state.observed, 256):
            self._solve(state)

    def expected_output(self, model: str, service_class: str, max_output_tokens: int | None) -> int:
        """Expected output tokens, at most `max_output_tokens`."""
        return self.outputs.estimate(model, service_class, max_output_tokens)

    def observe_output(self, model: str, service_class: str, output_tokens: int) -> None:
        """Learns from the length of one whole answer (not of one that was aborted)."""
        if self.policy.learn:
            self.outputs.observe(model, service_class, output_tokens)

    def relative_error(self, model: str) -> float | None:
        """Running mean of |estimate - actual| / actual, None before anything was observed."""
        state = self._models.get(model)
        return state.error if state is not None and state.observed else None

    def export(self, *, without: str | None = None) -> dict[str, Any]:
        """What is known, JSON-able. A processor exports its own observations only (`without` None), so that nothing
        echoes; control, which has merged every processor's, exports the sum of all but `without`."""
        models: dict[str, Any] = {}
        for name, state in self._models.items():
            moments, targets, seen = state.moments, state.targets, state.seen
            if without is not None:
                for source, (other_moments, other_targets, other_seen) in state.others.items():
                    if source != without:
                        moments, targets, seen = moments + other_moments, targets + other_targets, seen + other_seen
            if seen > 0:
                models[name] = {"seen": seen, "moments": moments.ravel().tolist(), "targets": targets.tolist()}
        return {"version": 1, "prompt": models, "output": self.outputs.export(without=without)}

    def merge(self, state: Mapping[str, Any], source: str = "control") -> None:
        """Takes what `source` exported, in place of what it exported before; malformed parts are ignored."""
        if state.get("version") != 1:
            return
        prompt = state.get("prompt")
        for name, entry in prompt.items() if isinstance(prompt, Mapping) else ():
            parsed = _parse(entry)
            if parsed is None or not isinstance(name, str):
                continue
            known = self._models.get(name)
            if known is None:
                if len(self._models) >= self.policy.max_models:
                    continue
                known = self._models[name] = _Model(self._prior_weights)
            known.others[source] = parsed
            self._solve(known)
        self.outputs.merge(state.get("output"), source)

    def adopt(self, other: TokenEstimator) -> None:
        """Goes on with what another estimator learned itself and was given, as after a change of policy."""
        for name, state in list(other._models.items())[-self.policy.max_models :]:
            mine = self._models[name] = _Model(self._prior_weights)
            mine.moments, mine.targets = state.moments.copy(), state.targets.copy()
            mine.seen, mine.error, mine.observed = state.seen, state.error, state.observed
            mine.others = dict(state.others)
            self._solve(mine)
        self.outputs.adopt(other.outputs)

    def _solve(self, state: _Model) -> None:
        state.fresh = 0
        moments: Array = self._precision + state.moments
        targets: Array = self._precision @ self._prior + state.targets
        for other_moments, other_targets, _ in state.others.values():
            moments = np.add(moments, other_moments)
            targets = np.add(targets, other_targets)
        try:
            solved: Array = np.asarray(np.linalg.solve(moments, targets), dtype=np.float64)
        except np.linalg.LinAlgError:  # only sums that were no sums of observations do that: keep what was known
            return
        # A negative price per message or image only ever means too little was seen of them.
        solved[-2:] = np.maximum(solved[-2:], 0.0)
        state.weights = _relative(solved.tolist())


def _relative(weights: list[float]) -> tuple[float, ...]:
    """Weights as `_predict` wants them: the share of lower-case letters is what the others leave, so that its weight
    is the base and the other classes' are differences to it."""
    base = weights[0]
    return (base, *(weight - base for weight in weights[1:8]), *weights[8:])


def _predict(weights: tuple[float, ...], prompt_bytes: int, profile: int, images: int) -> float:
    base, d1, d2, d3, d4, d5, d6, d7, per_message, per_image = weights
    if profile < FIRST_SHARE:
        profile |= PROSE
    of = SHARES
    per_byte = (
        base
        + of[profile >> 10 & 63] * d1
        + of[profile >> 16 & 63] * d2
        + of[profile >> 22 & 63] * d3
        + of[profile >> 28 & 63] * d4
        + of[profile >> 34 & 63] * d5
    )
    if profile >> 40:
        per_byte += of[profile >> 40 & 63] * d6 + of[profile >> 46 & 63] * d7
    if per_byte < _MIN_RATIO:
        per_byte = _MIN_RATIO
    elif per_byte > _MAX_RATIO:
        per_byte = _MAX_RATIO
    return prompt_bytes * per_byte + (profile & MAX_MESSAGES) * per_message + images * per_image


def _parse(entry: Any) -> tuple[Array, Array, float] | None:
    try:
        moments: Array = np.array(entry["moments"], dtype=np.float64).reshape(_FEATURES, _FEATURES)
        targets: Array = np.array(entry["targets"], dtype=np.float64).reshape(_FEATURES)
        seen = float(entry["seen"])
    except (KeyError, TypeError, ValueError):
        return None
    if not (np.isfinite(moments).all() and np.isfinite(targets).all() and math.isfinite(seen) and seen >= 0):
        return None
    # A sum of outer products has no negative diagonal; without that the solution could run away.
    if (np.diagonal(moments) < 0).any():
        return None
    return moments, targets, seen
