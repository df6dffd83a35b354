"""What a request may expect where it goes: its time to first token, and whether that is worth sending it."""

from __future__ import annotations

from xds_control.routing import choose
from xds_control.routing import pick as reasons
from xds_control.routing.job import Job
from xds_control.routing.pick import Pick
from xds_control.routing.slot import Floats, Slot


def expect(job: Job, slot: Slot, costs: Floats, reason: str) -> Pick:
    """The pick with what is expected of it."""
    slots, i, rate = job.slots, slot.index, slot.rate
    matched = job.matched(i) if job.levels else 0
    uncached = job.prompt - matched
    wait = slot.busy - job.now
    if wait < 0.0:
        wait = 0.0
    expected = wait + rate * job.unread(matched) + slots.rates.now.overhead + slot.stall
    if job.need > slots.kv_floor:
        expected += max(0.0, job.need - slot.free) * slot.release
    if job.lora and slots.loras:
        expected += float(slots.lora_cost(job.lora, job.profile.cost)[i])
    return Pick(
        (),
        reason,
        job.name,
        matched,
        uncached,
        expected,
        float(costs[i]),
        wait,
        int(wait / rate) if rate > 0.0 else 0,
        slot.flight.count,
        job.allowed.bit_count(),
    )


def shed(job: Job, answer: Pick, slo_ttft_s: float) -> Pick | None:
    """The refusal of a request for which even the best expected time to first token is too long; None to let it in."""
    policy = job.profile.shed
    bound = policy.slo_share * slo_ttft_s
    if answer.expected_ttft_s <= bound:
        return None
    expected = choose.expected_ttft(job)
    best = float(expected.min()) + job.slots.rates.now.overhead
    if best <= bound:
        return None
    answer.reason = reasons.SHED
    answer.shed = True
    answer.expected_ttft_s = best
    answer.retry_after_s = max(policy.retry_after_s, best - bound)
    return answer
