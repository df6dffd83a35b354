"""From raw weights to the integers in force: bounds, step limit, equal groups, dead band, push times."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from xds_control.policy.weights import WeightsPolicy
from xds_control.weights import stabilise
from xds_control.weights.stabilise import Ints
from xds_control.weights.table import Bools, Floats

_SUM_LIMIT = 2**32 - 1
_REST_PUSHES = 5
_STILL = 0.01  # natural logarithm: targets that move less stand still


class Tier(enum.IntEnum):
    """Where an endpoint stands for Envoy."""

    REMOVED = 0
    DRAINING = 1
    SPILL = 2
    ACTIVE = 3


Tiers = npt.NDArray[np.int8]


@dataclass(slots=True)
class Settled:
    """weights: integers in force. fair: what capacity alone would give. stages: for explanations, NaN where not used.
    due: a push is due. moved: share of traffic it moves. reasons: why it is due."""

    weights: Ints
    fair: Floats
    stages: list[tuple[str, Floats]]
    due: bool
    moved: float
    reasons: tuple[str, ...]


class Settler:
    """The memory of what was pushed, per endpoint of one pool."""

    def __init__(self, policy: WeightsPolicy, seed: str) -> None:
        self._policy = policy
        self._seed = seed
        self._value: Floats = np.zeros(0)
        self._int: Ints = np.zeros(0, dtype=np.int64)
        self._tier: Tiers = np.zeros(0, dtype=np.int8)
        self._turns: Floats = np.zeros(0)
        self._direction: Ints = np.zeros(0, dtype=np.int64)
        self._pushes = 0
        self._pushed_at: float | None = None
        self._next_at = 0.0
        self._members_changed = True
        self._left = 0
        self._anchor: Floats = np.zeros(0)
        self._still_since = 0.0

    def adopt(self, other: Settler) -> None:
        """Goes on from what another settler pushed."""
        self._value, self._int, self._tier = other._value.copy(), other._int.copy(), other._tier.copy()
        self._turns, self._direction = np.zeros_like(other._turns), np.zeros_like(other._direction)
        self._pushes, self._pushed_at, self._next_at = other._pushes, other._pushed_at, other._next_at
        self._members_changed = other._members_changed
        self._anchor = np.full_like(other._value, np.nan)

    def pushed(self) -> Floats:
        """Weights in force, NaN where an endpoint has none."""
        return np.where(self._int > 0, self._int.astype(np.float64), np.nan)

    def reorder(self, old_index: npt.NDArray[np.int64]) -> None:
        """Moves the memory to a new order of endpoints; -1 marks a newcomer."""
        here = old_index >= 0
        serving = np.where(self._tier == Tier.ACTIVE, self._int, 0)
        self._left += int(serving.sum()) - int(serving[old_index[here]].sum())

        def take(values: npt.NDArray[np.generic], default: float) -> npt.NDArray[np.generic]:
            if not len(values):
                return np.full(len(old_index), default, dtype=values.dtype)
            return np.where(here, values[old_index], np.asarray(default, dtype=values.dtype))

        self._value = take(self._value, np.nan).astype(np.float64)
        self._int = take(self._int, 0).astype(np.int64)
        self._tier = take(self._tier, Tier.REMOVED).astype(np.int8)
        self._turns = take(self._turns, 0.0).astype(np.float64)
        self._direction = take(self._direction, 0).astype(np.int64)
        self._anchor = take(self._anchor, np.nan).astype(np.float64)
        self._members_changed = True

    def settle(
        self, tiers: Tiers, raw: Floats, capacity: Floats, pins: Mapping[int, int | None], now: float
    ) -> Settled:
        """Weights in force at `now`. raw > 0 for serving endpoints. pins: index → integer that holds regardless."""
        policy = self._policy
        n = len(tiers)
        nan = np.full(n, np.nan)
        stages = {name: nan.copy() for name in ("normalised", "bounded", "stepped", "equalised")}
        fair = np.zeros(n)
        start_all, target_all = nan.copy(), nan.copy()
        value, integers = nan.copy(), np.zeros(n, dtype=np.int64)
        pinned = np.zeros(n, dtype=bool)
        for i, weight in pins.items():
            pinned[i] = True
            integers[i] = max(int(weight or 0), 1)
            value[i] = float(integers[i])
        scale = min(policy.scale, _SUM_LIMIT // max(n, 1) // 64)
        dead_band = policy.stabilise.dead_band
        soft = bool((pinned & (integers != self._int)).any())
        for tier in (Tier.ACTIVE, Tier.SPILL):
            free = (tiers == tier) & ~pinned
            index = np.flatnonzero(free)
            if not len(index):
                continue
            total = float(scale * len(index))
            weights = np.where(np.isfinite(raw[index]) & (raw[index] > 0.0), raw[index], 1e-12)
            normalised = stabilise.to_total(weights, total)
            bounded = stabilise.bound(normalised, capacity[index], policy.stabilise)
            start = self._start(index, tier, bounded, total)
            gain = stabilise.gain(self._turns_at(now)[index], policy.stabilise)
            stepped = stabilise.step(start, bounded, gain, policy.stabilise)
            equal = stabilise.equalise(stepped, dead_band)
            if tier is Tier.ACTIVE and self._at_rest(index, bounded, now):
                # Nothing pulls at the weights any more: what the dead band left unequal is made equal.
                equal = stabilise.equalise(bounded, dead_band)
                soft = True
            stages["normalised"][index] = normalised
            stages["bounded"][index] = bounded
            stages["stepped"][index] = stepped
            stages["equalised"][index] = equal
            fair[index] = stabilise.to_total(capacity[index], total)
            start_all[index], target_all[index] = start, bounded
            value[index] = equal
            integers[index] = stabilise.quantise(equal)
            known = self._int[index] > 0
            if stabilise.moved(self._int[index][known], integers[index][known], dead_band):
                soft = True
        return self._decide(tiers, value, integers, fair, stages, start_all, target_all, soft, now)

    def _start(self, index: npt.NDArray[np.int64], tier: Tier, bounded: Floats, total: float) -> Floats:
        last = self._value[index]
        before = self._tier[index]
        known = np.isfinite(last) & (before == tier)
        start = np.where(known, last, bounded)
        if known.any():
            # Those who left or came change the sum; that alone is no movement of the ones that stayed.
            rest = float(bounded[known].sum())
            start = np.where(known, last * (rest / float(last[known].sum())), bounded)
        if tier is Tier.ACTIVE:
            back: Bools = ((before == Tier.SPILL) | (before == Tier.DRAINING)) & ~known
            if known.any():
                start = np.where(back, bounded * self._policy.gates.return_factor, start)
        return stabilise.to_total(start, total)

    def _turns_at(self, now: float) -> Floats:
        """Turns that still count at `now`; they wear off whether something is pushed or not."""
        since = 0.0 if self._pushed_at is None else max(0.0, now - self._pushed_at)
        return np.maximum(self._turns - since / self._policy.stabilise.gain_recovery_s, 0.0)

    def _at_rest(self, index: npt.NDArray[np.int64], bounded: Floats, now: float) -> bool:
        """Whether what the dead band left over may be levelled: nothing was pushed for some intervals, and either the
        targets stand still or they are all equal (power of two choices in Envoy needs exact equality)."""
        policy = self._policy.stabilise
        anchor = self._anchor[index]
        if np.isnan(anchor).any() or float(np.abs(np.log(bounded / anchor)).max()) > _STILL:
            self._anchor[index] = bounded
            self._still_since = now
        patience = _REST_PUSHES * policy.push_interval_s
        in_force = self._int[index]
        if self._pushed_at is None or now - self._pushed_at < patience or (in_force <= 0).any():
            return False
        goal = stabilise.equalise(bounded, policy.dead_band)
        away = float(np.abs(np.log(in_force / goal)).max())
        if (stabilise.quantise(goal) == in_force).all() or away > math.log(policy.max_step):
            return False
        return now - self._still_since >= patience or bool(goal.min() == goal.max())

    def _decide(
        self,
        tiers: Tiers,
        value: Floats,
        integers: Ints,
        fair: Floats,
        stages: dict[str, Floats],
        start: Floats,
        target: Floats,
        soft: bool,
        now: float,
    ) -> Settled:
        reasons: list[str] = []
        if self._members_changed:
            reasons.append("endpoints came or went")
        elif (tiers != self._tier).any():
            reasons.append("an endpoint changed its standing")
        if soft and now >= self._next_at:
            reasons.append("weights moved")
        before = self._int
        due = bool(reasons)
        moved = 0.0
        if due:
            moved = _moved_share(before, self._tier, integers, tiers, self._left)
            self._left = 0
            dt = 0.0 if self._pushed_at is None else max(0.0, now - self._pushed_at)
            live = np.isfinite(start)
            turns, direction = stabilise.guard(
                self._turns[live],
                self._direction[live],
                start[live],
                value[live],
                target[live],
                dt,
                self._policy.stabilise,
            )
            self._turns[live], self._direction[live] = turns, direction
            due = self._members_changed or bool((integers != before).any() or (tiers != self._tier).any())
            self._value, self._int, self._tier = value, integers, tiers.copy()
            self._members_changed = False
            self._pushes += 1
            self._pushed_at = now
            self._next_at = now + stabilise.push_delay(self._policy.stabilise, self._seed, self._pushes)
        named = [*stages.items(), ("in force", np.where(self._int > 0, self._int, np.nan).astype(np.float64))]
        return Settled(self._int, fair, named, due, moved, tuple(reasons) if due else ())


def _moved_share(before: Ints, tiers_before: Tiers, after: Ints, tiers: Tiers, left: int) -> float:
    """Share of traffic that changes its endpoint. left: weight of endpoints that are gone since."""
    old = np.where(tiers_before == Tier.ACTIVE, before, 0).astype(np.float64)
    new = np.where(tiers == Tier.ACTIVE, after, 0).astype(np.float64)
    total = float(old.sum()) + left
    if total <= 0.0 or new.sum() <= 0.0:
        return 1.0 if new.sum() != total else 0.0
    return float((np.abs(new / new.sum() - old / total).sum() + left / total) / 2.0)
