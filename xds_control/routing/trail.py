"""What the first candidates of every pick cost, kept raw: made readable only for the few requests that are asked about.

A record of the picker (`Picker.explain`) costs more than the pick; this costs little enough to be kept of each.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, TypeAlias

from xds_control.routing.explain import Candidate
from xds_control.routing.job import Job
from xds_control.routing.pick import Pick
from xds_control.routing.picker import Picker
from xds_control.routing.prefix_index import Levels
from xds_control.routing.slots import INFINITE, Floats, Slot

_PRICES: Final = struct.Struct("=6d")
_prices = _PRICES.unpack_from
_WIDTH: Final = _PRICES.size

Prices: TypeAlias = tuple[float, ...]
"""A row of `Columns`."""
Row: TypeAlias = tuple[str, int, Prices, float, float, float, float, float, float, float, float, float]
"""Address, slot, its prices, its cost, rate, busy, free, release, stall, in flight, speed, LoRA cost."""
Trail: TypeAlias = tuple[float, int, int, float, float, float, float, Levels, Sequence[Row]]
"""Now, prompt, output, need, KV floor, overhead, bend of the time that tokens take, matched levels, and the candidates
in the order of the answer."""


def candidates(trail: Trail) -> list[Candidate]:
    """The candidates of a pick as they stood before it was charged, as the picker's own explanation shows them."""
    now, prompt, output, need, kv_floor, overhead, bend, levels, rows = trail
    work = prompt * (1.0 + bend * prompt)
    found = []
    for address, index, prices, cost, rate, busy, free, release, stall, in_flight, speed, lora in rows:
        per_token, per_output, per_need, fixed, _ready, _one = prices
        held = next((tokens for tokens, bits in reversed(levels) if bits >> index & 1), 0)
        matched = min(held, prompt - 1) if held else 0
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
                matched,
                in_flight,
                speed,
                None,
                "" if cost < INFINITE else "at its limit",
            )
        )
    return found


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
        if not self.keeps:
            return order
        made = self._made
        assert made is not None  # an answer is priced before it is ordered
        slots = job.slots
        known, matrix = slots.by_address, job.columns.rows
        lora = slots.lora_cost(job.lora, job.profile.cost) if job.lora and slots.loras else None
        rows: list[Row] = []
        for address in order:
            one = known[address]
            i = one.index
            extra = 0.0 if lora is None else float(lora[i])
            at = _prices(matrix, i * _WIDTH)
            cost = costs.item(i)
            rows.append(
                (
                    address,
                    i,
                    at,
                    cost,
                    one.rate,
                    one.busy,
                    one.free,
                    one.release,
                    one.stall,
                    one.flight.count,
                    one.speed,
                    extra,
                )
            )
        made.trail = (
            job.now,
            job.prompt,
            job.output,
            job.need,
            slots.kv_floor,
            slots.rates.now.overhead,
            slots.bend,
            job.levels,
            rows,
        )
        return order
