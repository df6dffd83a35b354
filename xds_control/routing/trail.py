"""What candidates cost, kept raw, and made readable for the few requests that are asked about.

That is cheap enough to be kept of the first candidates of every pick. It is one piece of bytes, because thousands are
held at once: many small objects would be cold when they are let go.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Final

from xds_control.routing.explain import Candidate
from xds_control.routing.job import Job
from xds_control.routing.pick import Pick
from xds_control.routing.slot import INFINITE, ROW_BYTES, Floats
from xds_control.routing.slots import STATE_BYTES

_HEAD: Final = struct.Struct("=7d")
"""Now, prompt, output, need, KV floor, overhead, bend of the time that tokens take."""
_ROW: Final = struct.Struct("=15d")
"""Cost, stall, speed, LoRA cost, matched; then the endpoint's row of state (rate, in flight, free, release) and its row
of prices (see `Columns`)."""
_OWN: Final = struct.Struct("=5d")
_head, _own = _HEAD.pack, _OWN.pack


def candidates(pick: Pick) -> list[Candidate]:
    """The candidates of a pick as they stood before it was charged, in the order of its addresses; none where no trail
    was kept."""
    return read(pick.addresses, pick.trail, pick.scores) if pick.trail else []


def read(addresses: Sequence[str], trail: bytes, scores: Mapping[str, float] | None) -> list[Candidate]:
    """The candidates of a trail. addresses: those that it was made of. scores: by address, where scorers decided."""
    now, prompt, output, need, kv_floor, overhead, bend = _HEAD.unpack_from(trail)
    work = prompt * (1.0 + bend * prompt)
    found = []
    for address, row in zip(addresses, _ROW.iter_unpack(trail[_HEAD.size :]), strict=True):
        cost, stall, speed, lora, matched, rate, in_flight, free, release, *prices = row
        per_token, per_output, per_need, fixed, busy, _one = prices
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
                None if scores is None else scores.get(address),
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


def of(job: Job, addresses: Sequence[str], costs: Floats) -> bytes:
    """The trail of these endpoints, taken before a pick is charged."""
    slots, levels = job.slots, job.levels
    known, cost_of = slots.by_address, costs.item
    prices, states = job.columns.row_bytes, slots.state_bytes
    lora = slots.lora_cost(job.lora, job.profile.cost) if job.lora and slots.loras else None
    parts: list[bytes | memoryview] = [
        _head(job.now, job.prompt, job.output, job.need, slots.kv_floor, slots.rates.now.overhead, slots.bend)
    ]
    for address in addresses:
        one = known[address]
        i = one.index
        matched = job.matched(i) if levels else 0
        parts += (
            _own(cost_of(i), one.stall, one.speed, 0.0 if lora is None else lora[i], matched),
            states[i * STATE_BYTES : (i + 1) * STATE_BYTES],
            prices[i * ROW_BYTES : (i + 1) * ROW_BYTES],
        )
    return b"".join(parts)
