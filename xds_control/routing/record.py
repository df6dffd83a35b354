"""The record of a decision with all its candidates."""

from __future__ import annotations

from xds_control.routing import trail
from xds_control.routing.explain import Candidate, Record
from xds_control.routing.job import Job
from xds_control.routing.pick import Pick
from xds_control.routing.slot import Floats


def record(job: Job, answer: Pick, costs: Floats, identifier: str, limit: int = 8) -> Record:
    """The decision with its candidates, the cheapest first. limit: most of them; 0 adds who was out, and why."""
    slots = job.slots
    places = slots.places(job.allowed)
    total = len(places)
    order = [int(i) for i in places[costs[places].argsort()]]
    if limit:
        order = order[:limit]
    addresses = [slots.at(i).address for i in order]
    candidates = trail.read(addresses, trail.of(job, addresses, costs), answer.scores)
    if not limit:
        shown = slots.eligible_bits & ~job.allowed
        for slot in slots.each():
            if shown >> slot.index & 1 or not slots.eligible_bits >> slot.index & 1:
                why = "filtered" if shown >> slot.index & 1 else slot.endpoint.why or slot.endpoint.state.value
                zero = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
                candidates.append(
                    Candidate(slot.address, *zero, 0, slot.flight.count, slot.speed, None, why or "not pickable")
                )
    return Record(
        job.now,
        slots.name,
        identifier,
        job.facts.model,
        job.prompt,
        job.output,
        len(job.keys),
        bool(job.facts.session_key),
        answer,
        candidates,
        total,
    )
