"""What the first candidates of every pick cost, kept raw: made readable only for the few requests that are asked about.

A record of the picker (`Picker.explain`) costs more than the pick; this costs little enough to be kept of each. It is
one piece of bytes, because thousands are held at once: many small objects would be cold when they are let go.
"""

from __future__ import annotations

import struct
from typing import Final

from xds_control.routing.explain import Candidate
from xds_control.routing.job import Job
from xds_control.routing.pick import Pick
from xds_control.routing.picker import Picker
from xds_control.routing.slots import INFINITE, Floats, Slot

_HEAD: Final = struct.Struct("=7d")
"""Now, prompt, output, need, KV floor, overhead, bend of the time that tokens take."""
_ROW: Final = struct.Struct("=16d")
"""Cost, rate, busy, free, release, stall, in flight, speed, LoRA cost, matched; then the row of prices."""
_OWN: Final = struct.Struct("=10d")
_PRICES: Final = struct.calcsize("=6d")  # a row of `Columns`
_head, _own = _HEAD.pack, _OWN.pack


def candidates(pick: Pick) -> list[Candidate]:
    """The candidates of a pick as they stood before it was charged, as the picker's own explanation shows them.

    In the order of its addresses; none where no trail was kept.
    """
    trail = pick.trail
    if not trail:
        return []
    now, prompt, output, need, kv_floor, overhead, bend = _HEAD.unpack_from(trail)
    work = prompt * (1.0 + bend * prompt)
    found = []
    for address, row in zip(pick.addresses, _ROW.iter_unpack(trail[_HEAD.size :]), strict=True):
        cost, rate, busy, free, release, stall, in_flight, speed, lora, matched, *prices = row
        per_token, per_output, per_need, fixed, _ready, _one = prices
        unread = work - matched * (1.0 + bend * matched)
        wait = max(0.0, busy - now)
        kv_wait = max(0.0, need - free) * release if need > kv_floor else 0.0
        found.append(
            Candidate(
                address,
                cost,
                wait + rate * unread + overhead + stall + kv_wait + lora,
                wait,
                rate * unread,
                kv_wait,
                (per_token - rate) * unread,
                per_output * output,
                per_need * (prompt + output),
                fixed + lora,
                int(matched),
                in_flight,
                speed,
                None,
                "" if cost < INFINITE else "at its limit",
            )
        )
    return found


def margin(trail: bytes) -> float | None:
    """Seconds by which the next best one would have cost more, negative where a dearer one was chosen; None for one
    candidate."""
    if len(trail) < _HEAD.size + 2 * _ROW.size:
        return None
    first, second = (_ROW.unpack_from(trail, _HEAD.size + i * _ROW.size)[0] for i in (0, 1))
    return float(second - first)


class TrailPicker(Picker):
    """A picker whose picks carry their trail: the pick, and those that stand ready for a retry.

    It looks in where the order of the answer is made, before the pick is charged. keeps: False leaves them out.
    """

    keeps = True
    _made: Pick | None = None

    def _price(self, job: Job, slot: Slot, costs: Floats, reason: str) -> Pick:
        self._made = made = super()._price(job, slot, costs, reason)
        return made

    def _ordered(self, job: Job, slot: Slot, costs: Floats) -> tuple[str, ...]:
        order = super()._ordered(job, slot, costs)
        made = self._made
        if not self.keeps or made is None:
            return order
        slots, levels = job.slots, job.levels
        known, cost_of, prices = slots.by_address, costs.item, job.columns.rows.cast("B")
        lora = slots.lora_cost(job.lora, job.profile.cost) if job.lora and slots.loras else None
        overhead = slots.rates.now.overhead
        parts: list[bytes | memoryview] = [
            _head(job.now, job.prompt, job.output, job.need, slots.kv_floor, overhead, slots.bend)
        ]
        for address in order:
            one = known[address]
            i = one.index
            extra = 0.0 if lora is None else lora[i]
            matched = job.matched(i) if levels else 0
            rate, busy, free, release, stall = one.rate, one.busy, one.free, one.release, one.stall
            parts.append(
                _own(cost_of(i), rate, busy, free, release, stall, one.flight.count, one.speed, extra, matched)
            )
            parts.append(prices[i * _PRICES : (i + 1) * _PRICES])
        made.trail = b"".join(parts)
        return order
