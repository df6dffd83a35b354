"""Readings of a pool as arrays: extraction, age, confidence and time-aware smoothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from xds_control.fleet.readings import Reading, Readings
from xds_control.policy.weights import WeightsPolicy
from xds_control.weights.spec import SPECS, SignalSpec

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

_MISSING = Reading(float("nan"), float("nan"), "")
_HUGE = 1e15  # no signal is larger; squares and sums of it are still finite
_FADE = 0.5  # a value counts fully until half of its age limit, then fades to nothing at the limit


@dataclass(slots=True)
class Column:
    """One signal over the pool. raw: newest values, NaN when absent or too old. value: smoothed, NaN likewise.
    age: seconds. confidence: 1 = fresh, 0 = absent or too old."""

    name: str
    spec: SignalSpec
    raw: Floats
    value: Floats
    age: Floats
    confidence: Floats
    known: bool


@dataclass(slots=True)
class SignalTable:
    """Smoothing state of one pool's signals; `update` is called once a tick with the endpoints in a fixed order."""

    names: tuple[str, ...]
    specs: dict[str, SignalSpec]
    half_lives: dict[str, tuple[float, float]]
    age_limits: dict[str, float]
    _state: dict[str, Floats] = field(default_factory=dict)
    _at: float | None = None

    @classmethod
    def of(
        cls,
        policy: WeightsPolicy,
        names: Sequence[str],
        directions: Mapping[str, bool],
        age_limits: Mapping[str, float] | None = None,
    ) -> SignalTable:
        """directions: signal → lower is better, for signals without a spec. age_limits: the catalogue's, in seconds;
        the policy's own go before them."""
        specs: dict[str, SignalSpec] = {}
        half_lives: dict[str, tuple[float, float]] = {}
        limits: dict[str, float] = {}
        for name in names:
            spec = SPECS.get(name) or SignalSpec(directions.get(name, True), low=float("-inf"), label=name)
            specs[name] = spec
            own = policy.half_lives.get(name)
            general = policy.half_life
            if own is not None:
                half_lives[name] = (own.worsen_s, own.recover_s)
            else:
                # A queue's noise is symmetric, so a slow recovery would only bias it; a shorter general half-life wins.
                half_lives[name] = (
                    general.worsen_s if spec.worsen_s is None else min(spec.worsen_s, general.worsen_s),
                    general.recover_s if spec.recover_s is None else min(spec.recover_s, general.recover_s),
                )
            limits[name] = policy.age_limits_s.get(name) or (age_limits or {}).get(name) or spec.age_limit_s
        return cls(tuple(names), specs, half_lives, limits)

    def adopt(self, other: SignalTable) -> None:
        """Goes on from another table's smoothed values, where it has the same signals."""
        self._state = {name: values.copy() for name, values in other._state.items() if name in self.specs}
        self._at = other._at

    def reorder(self, old_index: npt.NDArray[np.int64]) -> None:
        """Moves the state to a new order of endpoints: `old_index[i]` is where endpoint i stood, -1 for a newcomer."""
        for name, values in self._state.items():
            moved = np.where(old_index >= 0, values[old_index] if len(values) else np.nan, np.nan)
            self._state[name] = moved

    def update(self, readings: Sequence[Readings], now: float) -> dict[str, Column]:
        """Columns of this tick. Values that are not finite count as absent; values out of range are clipped."""
        n = len(readings)
        dt = 0.0 if self._at is None else max(0.0, now - self._at)
        self._at = now
        columns: dict[str, Column] = {}
        for name in self.names:
            cells = [r.get(name, _MISSING) for r in readings]
            raw, at, _ = zip(*cells, strict=True) if n else ((), (), ())
            columns[name] = self._column(name, np.array(raw, np.float64), np.array(at, np.float64), now, dt, n)
        return columns

    def _column(self, name: str, raw: Floats, at: Floats, now: float, dt: float, n: int) -> Column:
        spec = self.specs[name]
        limit = self.age_limits[name]
        finite = np.isfinite(raw) & np.isfinite(at)
        age = np.where(finite, np.maximum(now - at, 0.0), np.nan)
        confidence = np.where(finite, np.clip((limit - age) / (limit * _FADE), 0.0, 1.0), 0.0)
        alive = confidence > 0.0
        raw = np.where(alive, np.clip(raw, max(spec.low, -_HUGE), min(spec.high, _HUGE)), np.nan)
        before = self._state.get(name)
        if before is None or len(before) != n:
            before = np.full(n, np.nan)
        worse = raw > before if spec.lower_better else raw < before
        worsen, recover = self.half_lives[name]
        alpha = np.where(worse, _alpha(dt, worsen), _alpha(dt, recover))
        # A first value, or one after silence, is taken as it is: there is nothing to smooth it with.
        value = np.where(np.isfinite(before), before + (raw - before) * alpha, raw)
        self._state[name] = value
        return Column(name, spec, raw, value, age, confidence, bool(alive.any()))


def _alpha(dt: float, half_life: float) -> float:
    """Share of the way to the new value after `dt` seconds: 1 − 2^(−dt / half-life)."""
    return 1.0 if half_life <= 0.0 else float(1.0 - np.exp2(-dt / half_life))


def fill(values: Floats, confidence: Floats, neutral: float, weight: Floats | None = None) -> Floats:
    """Values blended towards the pool's mean as they age; absent ones take it. `neutral` when nobody has one.

    An expired metric takes the mean of the rest: neither zero nor its last value.
    weight: what each counts in the mean, its confidence when absent.
    """
    counts = confidence if weight is None else weight
    total = float(counts.sum())
    known = np.where(confidence > 0.0, values, 0.0)
    mean = float((known * counts).sum()) / total if total > 0.0 else neutral
    return np.where(confidence >= 1.0, known, mean + (known - mean) * confidence)
