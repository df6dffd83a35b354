"""What an ended request teaches: speeds, and how much of the believed cache was there."""

from __future__ import annotations

from xds_control.policy.picker import PickerPolicy
from xds_control.routing.outcome import FinishedLike
from xds_control.routing.slot import Slot
from xds_control.routing.slots import PoolSlots

_JUDGED_TOKENS = 256
"""Shorter beliefs are not judged: block rounding and token estimates would decide."""
_RESET_AFTER = 3
"""So many answers in a row with nothing cached of what was believed: the engine dropped its cache."""


def learn(
    slots: PoolSlots,
    slot: Slot,
    outcome: FinishedLike,
    ahead_tokens: float | None,
    batch: float | None,
    policy: PickerPolicy,
    now: float,
) -> None:
    """Takes an outcome of kind "ok"."""
    prompt = outcome.prompt_tokens if outcome.prompt_tokens is not None else outcome.prompt_tokens_est
    matched = outcome.matched_tokens or 0
    if outcome.cached_tokens is not None and outcome.pick == outcome.endpoint:
        judge_cache(slots, slot, matched, outcome.cached_tokens, policy)
    if prompt is None or not policy.rates.learn:
        return
    rates = slots.rates
    if outcome.prompt_tokens and outcome.prompt_tokens_est:
        rates.observe_estimate(outcome.prompt_tokens, outcome.prompt_tokens_est)
    cached = outcome.cached_tokens if outcome.cached_tokens is not None else matched
    uncached = max(0, prompt - cached)
    output = outcome.completion_tokens or 0
    if outcome.e2e_s is not None:
        rates.observe_request(outcome.e2e_s, prompt, output, rates.work(prompt) - rates.work(prompt - uncached))
    if outcome.ttft_s is not None and (ahead_tokens is not None or slot.flight.count < 1.0):
        step = slot.step if batch is not None and batch >= 1.0 else None
        rates.observe_first(slot.address, outcome.ttft_s, uncached, ahead_tokens or 0.0, prompt - uncached, step)
    if outcome.decode_s is not None and output >= 8:
        tpot = outcome.decode_s / (output - 1)
        beside = slot.flight.count + 1.0 if batch is None else 0.5 * (batch + slot.flight.count) + 1.0
        rates.observe_step(slot.address, tpot, beside, beside * slot.context, slot.read_rate * tpot)


def judge_cache(slots: PoolSlots, slot: Slot, believed: int, cached: int, policy: PickerPolicy) -> None:
    """Holds the engine's count of cached tokens against what was believed, and resizes the belief."""
    if believed < _JUDGED_TOKENS:
        return
    if cached * 2 >= believed:
        slot.misses = 0
        if slot.belief < slot.cache:
            slot.belief = min(slot.cache, slot.belief * 1.01)
            slots.index.set_capacity(slot.index, slot.belief)
        return
    slot.misses += 1
    slot.belief = max(0.02 * slot.cache, slot.belief * (1.0 - policy.prefix.shrink))
    if cached == 0 and slot.misses >= _RESET_AFTER:
        slot.misses = 0
        slots.index.purge(slot.index)
    slots.index.set_capacity(slot.index, slot.belief)
