"""Prefill and decode on different endpoints: when to split a request, and how the connectors are told."""

from __future__ import annotations

from collections.abc import Mapping

from xds_control.policy import headers
from xds_control.policy.picker import DisaggPolicy
from xds_control.routing.job import Job
from xds_control.routing.sessions import read_token
from xds_control.routing.slot import INFINITE, Slot
from xds_control.routing.subset import split_address

REQUEST_ID = "x-request-id"
P2P_MARK = "___prefill_addr_"
"""Begins the part of a request id that vLLM's P2P NCCL connector reads addresses from."""


def wants_split(policy: DisaggPolicy, prompt_tokens: int, uncached_tokens: float) -> bool:
    """Whether a request of this size should be prefilled elsewhere."""
    if policy.mode == "always":
        return True
    if policy.mode == "off":
        return False
    return uncached_tokens > policy.uncached_tokens and prompt_tokens >= policy.prompt_tokens


def connector_headers(policy: DisaggPolicy, prefill: str, decode: str, request_id: str, room: int) -> Mapping[str, str]:
    """Request headers that tell the decode side where its prefill runs.

    llm-d: its sidecar reads `x-prefiller-host-port`. vllm: the P2P NCCL connector finds both addresses in the
    request id. sglang: bootstrap host, port and a random room (0 .. 2**63), which a sidecar puts into both bodies.
    """
    if not prefill:
        return {}
    found = {headers.PREFILL: prefill}
    if policy.connector == "vllm":
        found[REQUEST_ID] = f"{P2P_MARK}{prefill}___decode_addr_{decode}_{request_id}"
    elif policy.connector == "sglang":
        host, _ = split_address(prefill)
        found[headers.BOOTSTRAP_HOST] = host
        found[headers.BOOTSTRAP_PORT] = str(policy.bootstrap_port)
        found[headers.BOOTSTRAP_ROOM] = str(room & 0x7FFFFFFFFFFFFFFF)
    return found


def prefill_for(job: Job, token: str) -> tuple[Slot, int, float] | None:
    """The prefill endpoint at which the prompt is read soonest, or the one that a session token names, with the
    uncached tokens there and the work of them; None when nobody is ready."""
    slots = job.slots
    best: tuple[Slot, int, float] | None = None
    least = INFINITE
    pinned = read_token(token) if token else None
    levels = slots.index.match(job.keys, job.packed, slots.prefill_bits) if job.keys else []
    seen = {i: job.totals[blocks - 1] for blocks, bits in levels for i in slots.places(bits)}
    for slot in slots.of_bits(slots.prefill_bits):
        if slot.rest_until > job.now:
            continue
        held = min(seen.get(slot.index, 0), job.prompt)
        unread = job.unread(held)
        cost = max(0.0, slot.busy - job.now) + float(job.columns.per_token[slot.index]) * unread
        cost += 1e-6 * slot.given
        if pinned is not None and pinned[1] in (slot.address, slot.endpoint.endpoint.name):
            cost = -1.0
        if cost < least:
            best, least = (slot, job.prompt - held, unread), cost
    return best
