"""Expected output length per model and service class, from a forgetting histogram of past answers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import accumulate
from typing import Any, Final

from xds_control.policy.inspect import TokensPolicy

_PER_OCTAVE: Final = 3
_BUCKETS: Final = 61  # up to 2**20 tokens
_MIDDLES: Final = tuple(2 ** ((i + 0.5) / _PER_OCTAVE) for i in range(_BUCKETS))
_PRIOR_WEIGHT: Final = 4.0  # answers that the assumed length is worth
_REFRESH: Final = 16


def _bucket(tokens: float) -> int:
    return min(_BUCKETS - 1, max(0, int(math.log2(tokens) * _PER_OCTAVE))) if tokens > 1 else 0


class _History:
    __slots__ = ("counts", "others", "seen", "shorter", "tokens", "weight")

    def __init__(self) -> None:
        self.counts = [0.0] * _BUCKETS
        self.others: dict[str, list[float]] = {}
        self.seen = 0
        self.weight = 0.0  # answers that the history is worth against what is assumed
        self.shorter: list[float] = []  # share of answers in the buckets below each one, and in all
        self.tokens: list[float] = []  # their tokens, per answer of all


class OutputLengths:
    """Histograms per (model, class) and per model; answers are capped means, shrunk towards the wider history."""

    def __init__(self, policy: TokensPolicy) -> None:
        self._policy = policy
        self._decay = 1.0 - 1.0 / policy.memory_requests
        self._histories: dict[tuple[str, str], _History] = {}

    def estimate(self, model: str, service_class: str, cap: int | None) -> int:
        """Expected tokens of an answer of at most `cap` tokens (None: no limit)."""
        assumed = self._policy.output_tokens
        expected = assumed if cap is None or cap > assumed else float(cap)
        histories = self._histories
        if histories:
            bucket = _BUCKETS if cap is None else _bucket(cap)
            for key in ((model, ""), (model, service_class)) if service_class else ((model, ""),):
                history = histories.get(key)
                if history is not None and history.weight > 0:
                    mean = history.tokens[bucket]
                    if cap is not None:
                        mean += (1.0 - history.shorter[bucket]) * cap
                    expected += (mean - expected) * history.weight / (history.weight + _PRIOR_WEIGHT)
        if cap is not None and expected > cap:
            return max(cap, 0)
        return int(expected + 0.5)

    def observe(self, model: str, service_class: str, tokens: int) -> None:
        """Adds one answer; lengths below zero are ignored."""
        if tokens < 0:
            return
        bucket = _bucket(tokens)
        for key in ((model, ""), (model, service_class)) if service_class else ((model, ""),):
            history = self._histories.pop(key, None)
            if history is None:
                history = _History()
                if len(self._histories) >= self._policy.max_models:
                    del self._histories[next(iter(self._histories))]
            self._histories[key] = history
            if history.seen % _REFRESH == 0:  # forgetting goes in steps, so that most answers cost one addition
                faded = self._decay**_REFRESH
                history.counts = [count * faded for count in history.counts]
            history.counts[bucket] += 1.0
            history.seen += 1
            if history.seen % _REFRESH == 0 or history.seen < _REFRESH:
                _refresh(history)

    def export(self, *, without: str | None = None) -> list[dict[str, Any]]:
        """JSON-able histories: the own ones, or with `without` those of all sources but that one."""
        exported: list[dict[str, Any]] = []
        for (model, service_class), history in self._histories.items():
            counts = history.counts
            if without is not None:
                for source, other in history.others.items():
                    if source != without:
                        counts = [mine + theirs for mine, theirs in zip(counts, other, strict=True)]
            if any(counts):
                exported.append({"model": model, "class": service_class, "counts": list(counts)})
        return exported

    def merge(self, exported: Any, source: str) -> None:
        """Takes what `source` exported, in place of what it exported before; malformed entries are ignored."""
        for entry in exported if isinstance(exported, list | tuple) else ():
            parsed = _parse(entry)
            if parsed is None:
                continue
            key, counts = parsed
            history = self._histories.get(key)
            if history is None:
                if len(self._histories) >= self._policy.max_models:
                    continue
                history = self._histories[key] = _History()
            history.others[source] = counts
            _refresh(history)

    def adopt(self, other: OutputLengths) -> None:
        """Goes on with another's histories."""
        for key, history in list(other._histories.items())[-self._policy.max_models :]:
            mine = self._histories[key] = _History()
            mine.counts, mine.others, mine.seen = list(history.counts), dict(history.others), history.seen
            _refresh(mine)


def _refresh(history: _History) -> None:
    counts = history.counts
    for other in history.others.values():
        counts = [mine + theirs for mine, theirs in zip(counts, other, strict=True)]
    total = sum(counts)
    if total <= 0:
        return
    history.weight = max(total, float(history.seen))
    history.shorter = [0.0, *accumulate(count / total for count in counts)]
    history.tokens = [0.0, *accumulate(count * middle / total for count, middle in zip(counts, _MIDDLES, strict=True))]


def _parse(entry: Any) -> tuple[tuple[str, str], list[float]] | None:
    if not isinstance(entry, Mapping):
        return None
    model, service_class, counts = entry.get("model"), entry.get("class"), entry.get("counts")
    if not isinstance(model, str) or not isinstance(service_class, str) or not isinstance(counts, list | tuple):
        return None
    if len(counts) != _BUCKETS:
        return None
    values = [float(count) if isinstance(count, int | float) else -1.0 for count in counts]
    if any(not math.isfinite(value) or value < 0 for value in values):
        return None
    return (model, service_class), values
