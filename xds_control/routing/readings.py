"""What an endpoint tells of itself, taken over into its slot."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xds_control.fleet.snapshot import EndpointSnapshot
from xds_control.routing.slot import INFINITE, Slot

if TYPE_CHECKING:
    from xds_control.routing.slots import PoolSlots

_CLOSE_S = 0.02
"""A backlog this close to what the engine's queue allows is no contradiction."""


def reading(one: EndpointSnapshot, name: str) -> float | None:
    """The value of a signal, or None when it is not known."""
    found = one.readings.get(name)
    return None if found is None else found.value


def load(slots: PoolSlots, slot: Slot, one: EndpointSnapshot) -> None:
    """Takes an endpoint's new readings."""
    slot.endpoint = one
    slot.role = one.endpoint.role
    info = one.info
    slot.lora = frozenset(info.lora_running)
    slot.models = frozenset(info.models)
    slot.max_len = float(info.max_model_len or INFINITE)
    slot.label_range = _range(one.endpoint.labels.get("llm-d.ai/context-length-range"))
    _set_memory(slots, slot, one)
    if info.started_at is not None:
        if slot.info_started is not None and info.started_at > slot.info_started + 1.0:
            slots.restarted(slot)
        slot.info_started = info.started_at
    running, waiting = one.readings.get("running"), one.readings.get("waiting")
    told = running or waiting
    if told is not None and told.at > slot.flight.anchored_at:
        queue = waiting.value if waiting is not None else 0.0
        slot.waiting = queue
        slot.flight.anchor((running.value if running is not None else 0.0) + queue, told.at)
        _anchor_backlog(slots, slot, one, queue, told.at)
    kv = one.readings.get("kv_usage")
    if kv is not None and kv.at > slot.kv_at and slot.kv_capacity != INFINITE:
        slot.kv_at = kv.at
        slot.kv_used = kv.value * slot.kv_capacity + slot.flight.need_since(kv.at)


def _set_memory(slots: PoolSlots, slot: Slot, one: EndpointSnapshot) -> None:
    info = one.info
    capacity = reading(one, "kv_capacity_tokens")
    if not capacity and info.num_blocks and info.block_size:
        capacity = float(info.num_blocks * info.block_size)
    told = bool(capacity)
    size = capacity or float(slots.policy.prefix.cache_tokens)
    slot.kv_capacity = size if told or reading(one, "kv_usage") is not None else INFINITE
    if slot.cache != size:
        slot.cache = slot.belief = size
        slots.index.set_capacity(slot.index, size)


def _anchor_backlog(slots: PoolSlots, slot: Slot, one: EndpointSnapshot, waiting: float, at: float) -> None:
    """Holds the backlog that was reckoned from picks against the queue that the engine tells of.

    The reckoning is the finer of the two, so it stays as long as the queue does not contradict it.
    """
    rate = slots.rates.now.prefill * slot.speed
    later = slot.flight.prefill_since(at) * rate
    then = slot.busy - later - at
    # A long prompt that is being read now is in no queue.
    room = (slot.flight.largest_unread(at) + slot.peer_tokens) * rate + slots.rates.now.overhead + _CLOSE_S
    tokens = reading(one, "waiting_tokens")
    if tokens is not None:
        low, high = 0.5 * tokens * rate, 2.0 * tokens * rate + room
    else:
        usual = waiting * slots.rates.mean_uncached * rate
        # Who waits for a place in the batch waits until requests end, however short their prompts are. A few
        # always wait for the next step.
        running = max(1.0, slot.value("running") if "running" in one.readings else 1.0)
        places = max(0.0, waiting - 2.0 - 0.1 * running) * slots.rates.now.residence_s / running
        low, high = max(0.25 * usual, 0.5 * places), max(4.0 * usual, 2.0 * places) + room
    slot.told_busy_until = at + low
    if then > high:
        slot.busy += high - then
    elif low > max(then, 0.0) + _CLOSE_S:
        slot.busy = max(slot.busy, at + low + later)


def _range(label: str | None) -> tuple[float, float] | None:
    """`lo-hi` of the context-length label; a label that cannot be read is an empty range."""
    if label is None:
        return None
    low, dash, high = label.partition("-")
    try:
        return (float(low), float(high)) if dash else (1.0, 0.0)
    except ValueError:
        return (1.0, 0.0)
