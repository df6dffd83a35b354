"""What pickers tell each other of their endpoints, and how it counts (the messages are in `share`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from xds_control.routing.prefix_index import pack
from xds_control.routing.share import Outstanding, Peers, RateState, Share
from xds_control.routing.slots import PoolSlots


def merge(pools: Mapping[str, PoolSlots], where: Mapping[str, Sequence[PoolSlots]], peers: Peers, now: float) -> None:
    """Takes what the other processors did: prefixes sent since, outstanding work as it stands, speeds observed."""
    for added in peers.prefixes:
        keys, tokens = added.keys, added.tokens
        if not keys or len(keys) != len(tokens):
            continue
        for slots in where.get(added.endpoint, ()):
            slots.index.add(slots.by_address[added.endpoint].index, keys, pack(keys), tokens, now)
    told: dict[str, Outstanding] = {one.endpoint: one for one in peers.outstanding}
    for slots in pools.values():
        for slot in slots.each():
            one = told.get(slot.address)
            rate = slot.rate
            # What was told is of a moment ago, and was read on since.
            tokens_there = max(0.0, one.prefill_tokens - max(0.0, one.age_s) / rate) if one is not None else 0.0
            requests = one.requests if one is not None else 0
            if tokens_there == 0.0 and slot.peer_tokens == 0 and requests == slot.flight.peers:
                continue
            slot.flight.set_peers(float(requests))
            slot.peer_tokens = tokens_there
            ahead = (slot.flight.unread(now, rate) + tokens_there) * rate
            if ahead > 0.0:
                ahead += slot.step  # which decodes for those that run there
            slot.busy = max(now + ahead, min(slot.busy, slot.told_busy_until))
            slots.price(slot)
    for state in peers.rates:
        found = pools.get(state.pool)
        if found is not None:
            found.rates.merge({state.endpoint: state.state})


def drain(pools: Iterable[PoolSlots], share: Share, now: float) -> Share:
    """Adds what the peers should know of work and speeds: outstanding as it stands, speeds since the last call."""
    for slots in pools:
        for slot in slots.each():
            unread = int(slot.flight.unread(now, slot.rate))
            own = slot.flight.own
            if own or unread:
                output = int(max(0, own) * slots.rates.now.output)
                share.outstanding.append(Outstanding(slot.address, own, unread, output))
        for endpoint, state in slots.rates.drain().items():
            share.rates.append(RateState(slots.name, endpoint, state))
    return share
