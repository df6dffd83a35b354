"""The rules by which one slot is chosen: least total cost, affinity with release, weighted scorers; and sessions."""

from __future__ import annotations

import random

import numpy as np

from xds_control.routing import pick as reasons
from xds_control.routing import scorers
from xds_control.routing.affinity import rank, ranks
from xds_control.routing.job import Job
from xds_control.routing.sessions import Sessions
from xds_control.routing.slot import INFINITE, Floats, Places, Slot

_FEW = 12
"""Up to so many endpoints a loop is cheaper than arrays over all of them."""

Choice = tuple[int, str]
"""Slot, −1 when nobody has room, and the reason code."""


def least_cost(job: Job, costs: Floats, rng: random.Random) -> Choice:
    """The least total cost; near ties to a long match, else by rendezvous hash with two choices."""
    best = int(costs.argmin())
    low = float(costs[best])
    if low == INFINITE:
        return -1, reasons.SATURATED
    slots = job.slots
    cost = job.profile.cost
    bound = low + cost.tie_s + cost.tie_ratio * low
    costs[best] = INFINITE
    second = int(costs.argmin())
    costs[best] = low
    if costs[second] > bound:
        job.second = second
        return best, reasons.PREFIX if job.levels and job.matched(best) else reasons.LEAST_COST
    places = np.less_equal(costs, bound, out=slots.near).nonzero()[0]
    if job.hit_tokens and job.hit_tokens >= job.profile.affinity.min_match_ratio * job.prompt:
        # Only a long match that saves real time settles a tie: one that all prompts share would bring them all to one
        # place for nothing.
        if len(places) <= _FEW:
            matched = np.array([job.matched(int(i)) for i in places])
        else:
            matched = job.matched_all()[places]
        longest = float(matched.max())
        saves = longest * (1.0 + slots.bend * longest) * float(slots.prefill[places[0]])
        if longest >= job.profile.affinity.min_match_ratio * job.prompt and saves > cost.tie_s:
            places = places[matched == longest]
            if len(places) == 1:
                return int(places[0]), reasons.PREFIX
    cooldown = slots.cooldown_s
    if cooldown > 0.0:
        rested = [int(i) for i in places if slots.at(int(i)).picked_at <= job.now - cooldown]
        if rested:
            places = np.array(rested, dtype=np.intp)
    return tie(job, places, rng), reasons.TIE


def tie(job: Job, places: Places, rng: random.Random) -> int:
    """One of several equals: of the two first in the key's rendezvous order the one that was given less of late."""
    slots = job.slots
    key = job.tie_key if job.tie_key is not None else rng.getrandbits(64)
    if len(places) == 1:
        return int(places[0])
    if len(places) <= _FEW:
        ranked = sorted(((rank(slot.seed, key), slot) for slot in map(slots.at, places.tolist())), key=_by_rank)
        one, other = ranked[-1][1], ranked[-2][1]
    else:
        order = ranks(slots.seeds[places], key)
        first = int(order.argmax())
        order[first] = 0
        one, other = slots.at(int(places[first])), slots.at(int(places[int(order.argmax())]))
    return one.index if one.given <= other.given else other.index


def _by_rank(pair: tuple[int, Slot]) -> int:
    return pair[0]


def expected_ttft(job: Job) -> Floats:
    """Expected time to first token of every slot: what this request itself would feel. Infinite where it may not go."""
    slots = job.slots
    expected = slots.prefill * job.unread_all()
    expected += slots.wait(job.columns, job.now)
    if job.need > slots.kv_floor:
        expected += slots.kv_wait(job.need)
    expected[job.columns.fixed == INFINITE] = INFINITE
    if job.allowed != slots.eligible_bits:
        expected[slots.outside(job.allowed)] = INFINITE
    return expected


def affinity(job: Job, costs: Floats, rng: random.Random) -> Choice:
    """Stay with the longest match until its endpoint is saturated; else the least work ahead."""
    policy = job.profile.affinity
    expected = expected_ttft(job)
    best = int(expected.argmin())
    low = float(expected[best])
    if low == INFINITE:
        return -1, reasons.SATURATED
    slots = job.slots
    if job.levels:
        need = policy.min_match_ratio * job.prompt
        if policy.min_match_tokens:
            need = min(need, policy.min_match_tokens)
        kept = ((slots.matched >= max(1.0, need)) & (expected <= low + policy.max_penalty_s)).nonzero()[0]
        if len(kept):
            if len(kept) > 1:
                wait = expected[kept]
                kept = kept[wait <= wait.min() + job.profile.cost.tie_s]
            return tie(job, kept, rng), reasons.PREFIX
    bound = low + job.profile.cost.tie_s + job.profile.cost.tie_ratio * low
    return tie(job, (expected <= bound).nonzero()[0], rng), reasons.LEAST_COST


def score_all(job: Job, places: list[int]) -> Floats:
    """Weighted sum of the profile's scorers for these slots."""
    slots, profile = job.slots, job.profile
    total = np.zeros(len(places))
    chosen = [slots.at(i) for i in places]
    known = np.array([slot.known for slot in chosen], dtype=np.bool_)
    for name, weight in profile.scorers.items():
        if weight <= 0.0:
            continue
        if name in ("queue", "queue-depth", "load-aware", "running", "kv"):
            signal = {"running": "running", "kv": "kv_usage"}.get(name, "waiting")
            values = np.array([slot.value(signal) for slot in chosen])
            usable = known & ~np.isnan(values)
            part = np.zeros(len(places))
            if usable.any():
                seen = values[usable]
                if name == "queue":
                    part[usable] = scorers.queue(seen)
                elif name == "queue-depth":
                    part[usable] = scorers.queue_depth(seen)
                elif name == "load-aware":
                    part[usable] = scorers.load_aware(seen, profile.load_aware_threshold)
                elif name == "running":
                    part[usable] = scorers.running(seen)
                else:
                    part[usable] = scorers.kv(seen)
            part = scorers.fill_unknown(part, usable)
        else:
            part = _score(job, name, places)
        total += weight * np.clip(part, 0.0, 1.0)
    return total


def _score(job: Job, name: str, places: list[int]) -> Floats:
    slots, profile = job.slots, job.profile
    chosen = [slots.at(i) for i in places]
    matched = job.matched_all()[places] if job.levels else np.zeros(len(places))
    if name == "prefix":
        return scorers.prefix(matched, job.prompt, profile.prefix_length_weight, profile.prefix_length_tokens)
    if name == "lora":
        infos = [slot.endpoint.info for slot in chosen]
        want = job.lora
        if not want:
            return np.zeros(len(places))
        return np.array([scorers.lora_one(want, i.lora_running, i.lora_waiting, i.lora_max or 0) for i in infos])
    if name == "active-request":
        counts = [slot.flight.count for slot in chosen]
        return scorers.active_request(counts, profile.active_idle, profile.active_max_busy)
    if name == "token-load":
        rates = np.maximum(slots.prefill[places], 1e-9)
        return scorers.token_load(
            slots.wait(job.columns, job.now)[places] / rates, job.prompt - matched, profile.token_load_threshold
        )
    if name == "context-length":
        tokens = float(job.prompt + job.output)
        return np.array([scorers.context_length_one(tokens, slot.label_range) for slot in chosen])
    if name == "session-affinity":
        pinned = places.index(job.pinned) if job.pinned in places else None
        return scorers.session_affinity(len(places), pinned)
    if name == "no-hit-lru":
        return scorers.no_hit_lru(bool(matched.any()), [slot.without_hit_at for slot in chosen])
    if name == "least-latency":
        return scorers.least_latency(expected_ttft(job)[places])
    if name == "lmetric":
        work = job.prompt - matched + slots.wait(job.columns, job.now)[places] / np.maximum(slots.prefill[places], 1e-9)
        return scorers.lmetric(work, [slot.flight.count for slot in chosen])
    return np.full(len(places), 0.5)  # topology: nothing to be near to outside a split


def scored(job: Job, costs: Floats, rng: random.Random) -> tuple[int, str, list[int], Floats]:
    """By weighted scorers and the profile's picker. Also gives the candidates and their scores; `job.ranked` gets the
    candidates by falling score."""
    places = [i for i in job.candidates() if costs[i] < INFINITE]
    if not places:
        return -1, reasons.SATURATED, [], np.zeros(0)
    if "prefix-affinity" in job.profile.filters:
        places = _long_matches(job, places)
    scores = score_all(job, places)
    job.ranked = [places[int(i)] for i in np.argsort(-scores, kind="stable")]
    kind = job.profile.picker
    if kind == "weighted-random" and scores.max() > 0.0:
        draws = [rng.random() ** (1.0 / score) if score > 0.0 else 0.0 for score in scores]
        chosen = max(range(len(places)), key=draws.__getitem__)
    elif kind in ("random", "weighted-random"):
        chosen = rng.randrange(len(places))
    elif kind == "power-of-two" and len(places) > 2:
        one, other = rng.sample(range(len(places)), 2)
        chosen = one if scores[one] >= scores[other] else other
    else:
        equal = np.flatnonzero(scores >= scores.max() - 1e-9)
        best = tie(job, np.array(places)[equal], rng)
        return best, reasons.SCORED, places, scores
    return places[chosen], reasons.SCORED, places, scores


def _long_matches(job: Job, places: list[int]) -> list[int]:
    """The filter `prefix-affinity`: the long matches that are not saturated; all when there are none."""
    slots, policy = job.slots, job.profile.affinity
    if not job.levels:
        return places
    expected = expected_ttft(job)[places]
    low = float(expected.min())
    matched = slots.matched[places]
    kept = [
        i
        for i, tokens, wait in zip(places, matched, expected, strict=True)
        if tokens > 0 and tokens >= policy.min_match_ratio * job.prompt and wait <= low + policy.max_penalty_s
    ]
    return kept or places


def session(job: Job, costs: Floats, sessions: Sessions) -> int | None:
    """Where the request's session belongs, None when it is to be placed by cost.

    Home by rendezvous over the endpoints that take traffic; passed over while it is over the bounded load or much
    slower than the best one. A session that had to leave is remembered where it went.
    """
    policy = job.profile.session
    key = job.facts.session_key
    if policy.mode == "off" or not key or (policy.mode == "auto" and job.keys):
        return None
    slots = job.slots
    places = (costs < INFINITE).nonzero()[0]
    if not len(places):
        return None
    if policy.mode == "strict":
        fits = np.ones(len(places), dtype=np.bool_)
    else:
        here = costs[places]
        loads = slots.counts[places]
        mean = float(loads.mean())
        bound = max(policy.load_bound * mean, mean + policy.load_margin)
        fits = (loads <= bound) & (here <= here.min() + policy.max_penalty_s)
    away = sessions.place(key, job.now)
    if away is not None:
        slot = slots.by_address.get(away)
        if slot is not None and fits[places == slot.index].any():
            sessions.remember(key, away, job.now + policy.ttl_s)
            return slot.index
    order = ranks(slots.seeds[places], key)
    home = int(order.argmax())
    if fits[home]:
        if away is not None:
            sessions.forget(key)
        return int(places[home])
    order[~fits] = 0
    other = int(order.argmax())
    if not fits[other]:
        return None
    sessions.remember(key, slots.at(int(places[other])).address, job.now + policy.ttl_s)
    return int(places[other])


def ordered(job: Job, slot: Slot, costs: Floats, count: int) -> tuple[str, ...]:
    """Addresses of the pick and the next best ones, for retries: `count` together."""
    slots = job.slots
    if count == 1:
        return (slot.address,)
    if job.ranked is not None:
        others = [slots.at(i).address for i in job.ranked if i != slot.index]
        return (slot.address, *others[: count - 1])
    order = [slot.address]
    kept = [(slot.index, costs[slot.index])]
    costs[slot.index] = INFINITE
    i = job.second
    while len(order) < count:
        if i < 0:
            i = int(costs.argmin())
        cost = costs[i]
        if cost == INFINITE:
            break
        order.append(slots.slots[i].address)  # type: ignore[union-attr]
        kept.append((i, cost))
        costs[i] = INFINITE
        i = -1
    for i, cost in kept:
        costs[i] = cost
    return tuple(order)
