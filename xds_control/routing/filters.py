"""Who may serve a request: hard filters on the set of endpoints. None of the soft ones ever empties it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xds_control.policy.picker import LimitPolicy
from xds_control.routing import pick as reasons
from xds_control.routing.job import Job
from xds_control.routing.slot import Slot
from xds_control.routing.slots import PoolSlots


def _keep(slots: PoolSlots, bits: int, test: Callable[[Slot], bool]) -> int:
    kept = 0
    for slot in slots.of_bits(bits):
        if test(slot):
            kept |= 1 << slot.index
    return kept


def allow(job: Job, limits: LimitPolicy, only: Sequence[str] | None) -> str:
    """Narrows `job.allowed`. Returns the reason code when nobody is left, else ""."""
    slots, profile = job.slots, job.profile
    if profile.require_labels:
        wanted = profile.require_labels.items()
        job.allowed = _keep(slots, job.allowed, lambda slot: wanted <= slot.endpoint.endpoint.labels.items())
        if not job.allowed:
            return reasons.FILTERED
    if only is not None and "test-header" in profile.filters:
        job.allowed &= slots.resolve(only)
        if not job.allowed:
            return reasons.FILTERED
    if slots.resting:
        resting = 0
        for slot in slots.resting:
            if slot.rest_until > job.now:
                resting |= 1 << slot.index
        if resting:
            job.allowed = job.allowed & ~resting or job.allowed
        else:
            slots.resting = []
    if limits.context_length and job.length > slots.shortest_context:
        job.allowed = _keep(slots, job.allowed, lambda slot: slot.max_len >= job.length) or job.allowed
    if slots.ranged and "context-length" not in profile.scorers:
        tokens = job.prompt + job.output
        inside = _keep(
            slots,
            job.allowed,
            lambda slot: slot.label_range is None or slot.label_range[0] <= tokens <= slot.label_range[1],
        )
        job.allowed = inside or job.allowed
    if slots.told_models and job.model:
        job.allowed = job.allowed & slots.serving(job.model) or job.allowed
    if profile.filters:
        _profile_filters(job)
    return ""


def _profile_filters(job: Job) -> None:
    slots = job.slots
    for name in job.profile.filters:
        kept = job.allowed
        if name == "session-affinity":
            if job.pinned is None and job.facts.session_key:
                job.pinned = job.rendezvous(job.candidates(), job.facts.session_key)[0]
            if job.pinned is not None:
                kept &= 1 << job.pinned
        elif name == "kv-fit":
            kept = _keep(slots, kept, lambda slot: slot.free >= job.need and slot.memory_fits())
        elif name == "saturation":
            kept = _keep(slots, kept, lambda slot: not (slot.value("waiting") > 5.0 or slot.value("kv_usage") > 0.8))
        elif name == "lora" and job.lora:
            kept &= slots.loras.get(job.lora, 0)
        job.allowed = kept or job.allowed
