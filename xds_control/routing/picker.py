"""The endpoint picker: filters, a price for every endpoint, the least of them. Pure: no clock, no I/O.

One picker belongs to one processor. It is told of snapshots, of ends from the access log and of what its peers
did, and charges its own picks at once. docs/picker.md has the formula and the evidence.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from xds_control.fleet.snapshot import PoolSnapshot
from xds_control.inspect.facts import RequestFacts
from xds_control.policy.picker import PickerPolicy, ProfilePolicy
from xds_control.routing import choose, trail
from xds_control.routing import pick as reasons
from xds_control.routing.disagg import prefill_for, wants_split
from xds_control.routing.expect import expect, shed
from xds_control.routing.explain import Record, Records
from xds_control.routing.filters import allow
from xds_control.routing.job import Job
from xds_control.routing.kv_events import Batch, apply
from xds_control.routing.learn import learn
from xds_control.routing.outcome import SICK, FinishedLike
from xds_control.routing.pick import Pick
from xds_control.routing.record import record
from xds_control.routing.sessions import Sessions, make_token, read_token
from xds_control.routing.share import Peers, PrefixAdd, Share
from xds_control.routing.sharing import drain, merge
from xds_control.routing.slot import INFINITE, Floats, Slot
from xds_control.routing.slots import PoolSlots

_MOST_SHARED = 20_000
"""Prefix additions kept between two calls of `drain_share`; the oldest go first."""


class Picker:
    """Names endpoints. Not thread-safe; one per processor.

    policy: what to do. seed: of the random choices (weighted-random, power-of-two, requests without any key).
    """

    def __init__(self, policy: PickerPolicy, seed: int = 0) -> None:
        self._policy = policy
        self._profiles = policy.named()
        self._use = policy.use
        self._default = self._profiles["default"]
        self._rng = random.Random(seed)
        self._pools: dict[str, PoolSlots] = {}
        self._where: dict[str, list[PoolSlots]] = {}
        self._sessions = Sessions(max((p.session.remembered for p in self._profiles.values()), default=0))
        self._added: list[PrefixAdd] = []
        self._since_record = 0
        self._record_each = round(1.0 / policy.record_share) if policy.record_share > 0 and policy.records else 0
        self.records = Records(policy.records)
        self.keeps_trails = False
        """Whether picks carry what their costs were made of; see `trail`."""

    @property
    def policy(self) -> PickerPolicy:
        """What it works by."""
        return self._policy

    @property
    def index_bytes(self) -> int:
        """Estimated memory of the prefix indexes."""
        return sum(slots.index.estimated_bytes for slots in self._pools.values())

    def pool(self, name: str) -> PoolSlots | None:
        """The working state of a pool, for tests and explanations."""
        return self._pools.get(name)

    def update(self, pools: Mapping[str, PoolSnapshot], now: float) -> None:
        """Takes the pools of a new snapshot. Endpoints and pools that are gone are forgotten."""
        for name in [name for name in self._pools if name not in pools]:
            del self._pools[name]
        for name, snapshot in pools.items():
            slots = self._pools.get(name)
            if slots is None:
                slots = self._pools[name] = PoolSlots(name, self._policy, list(self._profiles.values()))
            slots.update(snapshot, now)
        self._where = {}
        for slots in self._pools.values():
            for address in slots.by_address:
                self._where.setdefault(address, []).append(slots)

    def pick(
        self,
        facts: RequestFacts,
        pool: str,
        now: float,
        *,
        subset: Sequence[str] | None = None,
        only: Sequence[str] | None = None,
        profile: str = "",
        model: str = "",
        service_class: str = "",
        slo_ttft_s: float | None = None,
        token: str = "",
        prefill_token: str = "",
        only_cached: bool = False,
        want_scores: bool = False,
        request_id: str = "",
        token_ids: Sequence[int] = (),
    ) -> Pick:
        """Picks for one request and charges the pick at once.

        subset: the data plane's hint, None = none given. only: a further restriction by test header. profile: name;
        "" = as policy says. model, service_class: what the engine will see and what it counts as, when they differ from
        the facts. slo_ttft_s: target for the time to first token, for shedding. token, prefill_token: session tokens
        that the client sent. only_cached: refuse (412) unless the pick has a prefix of it. token_ids: the prompt's,
        where known: matched exactly at endpoints whose KV events are received. Never raises for a request's content.
        """
        slots = self._pools.get(pool)
        if slots is None:
            return Pick(reason=reasons.NO_POOL)
        job = self._job(slots, facts, now, subset, only, profile, model, service_class, token)
        if isinstance(job, Pick):
            return job
        if token_ids and slots.kv.live:
            job.match_exact(token_ids)
        costs, chosen, reason, scores = self._choose(job, want_scores)
        if chosen < 0:
            return Pick(reason=reason, profile=job.name)
        slot = slots.at(chosen)
        answer = expect(job, slot, costs, reason)
        if only_cached and answer.matched_tokens <= 0:
            answer.reason = reasons.NOT_CACHED
            return answer
        if job.profile.shed.enabled and slo_ttft_s is not None:
            refused = shed(job, answer, slo_ttft_s)
            if refused is not None:
                return refused
        answer.addresses = choose.ordered(job, slot, costs, self._policy.fallbacks)
        if self.keeps_trails:
            answer.trail = trail.of(job, answer.addresses, costs)
        if scores is not None:
            answer.scores = scores
        if self._record_each:
            self._since_record += 1
            if self._since_record >= self._record_each:
                self._since_record = 0
                self.records.keep(record(job, answer, costs, request_id))
        uncached = job.prompt - answer.matched_tokens
        work = job.unread(answer.matched_tokens)
        if slots.prefill_bits and wants_split(job.profile.disagg, job.prompt, uncached):
            uncached = self._split(job, answer, prefill_token)
            work = work if uncached else 0.0
        self._charge(job, slot, uncached if uncached > 0 else 0, work)
        if job.profile.session.token_header:
            answer.token = make_token(slots.name, slot.address)
            if answer.prefill:
                answer.prefill_token = make_token(slots.name, answer.prefill)
        return answer

    def finished(
        self,
        outcome: FinishedLike,
        now: float,
        *,
        ended_at: float | None = None,
        ahead_tokens: float | None = None,
        batch: float | None = None,
        prefill: str = "",
    ) -> None:
        """A request ended, whoever picked for it: discharges it and learns from it.

        ended_at: monotonic seconds of its end where known better than `now`. ahead_tokens, batch, prefill: as its pick
        said.
        """
        slots = self._pools.get(outcome.pool)
        if slots is None:
            return
        slots.now = now
        ended = now if ended_at is None else min(ended_at, now)
        started = ended - (outcome.e2e_s or 0.0)
        if prefill:
            helper = slots.by_address.get(prefill)
            if helper is not None:
                # When its part ended is not told; with the answer's first token at the latest.
                helper.flight.end(started, ended - (outcome.decode_s or 0.0))
                slots.price(helper)
        served = slots.by_address.get(outcome.endpoint)
        picked = slots.by_address.get(outcome.pick) if outcome.pick else None
        if picked is not None and picked is not served:
            picked.flight.moved(started)
            # It went elsewhere: the pick refused it, unless the request never left Envoy.
            if outcome.attempts > 1 or (served is None and outcome.kind in SICK and outcome.attempts > 0):
                self._rest(slots, picked, now)
            slots.price(picked)
        if served is None:
            return
        # A request that we did not send here counts here only if a scrape saw it.
        if picked is served or started <= served.flight.anchored_at:
            served.flight.end(started, ended)
        served.done_at = max(served.done_at, ended)
        served.ends += 1
        if served.kv_capacity != INFINITE and ended > served.kv_at:
            held = (outcome.prompt_tokens or outcome.prompt_tokens_est or 0) + (
                outcome.completion_tokens or outcome.output_tokens_est or 0
            )
            served.kv_used = max(0.0, served.kv_used - held)
        if outcome.kind in SICK:
            self._rest(slots, served, now)
        elif outcome.kind == "ok":
            served.failures = 0
            learn(slots, served, outcome, ahead_tokens, batch, self._policy, now)
        slots.price(served)

    def failed(self, address: str, now: float) -> None:
        """An attempt at an endpoint failed: it rests, doubling with each failure in a row."""
        for slots in self._where.get(address, ()):
            self._rest(slots, slots.by_address[address], now)

    def kv_events(self, address: str, batch: Batch) -> None:
        """An endpoint published what its KV cache holds: the exact index follows, and the belief about sizes."""
        if self._policy.prefix.exact == "off":
            return
        for slots in self._where.get(address, ()):
            slot = slots.by_address[address]
            if apply(slots.kv, slot.index, batch):
                slots.index.purge(slot.index)
                slots.index.set_capacity(slot.index, slot.belief)

    def kv_lost(self, address: str) -> None:
        """Events of an endpoint were missed for good, or it started anew: nothing is known exactly any more."""
        for slots in self._where.get(address, ()):
            slots.kv.clear(slots.by_address[address].index)

    def merge_peers(self, peers: Peers, now: float) -> None:
        """Takes what the other processors did: prefixes sent since, outstanding work as it stands, speeds observed."""
        merge(self._pools, self._where, peers, now)

    def drain_share(self, now: float) -> Share:
        """What the peers should know: prefixes and speeds since the last call, outstanding work as it stands."""
        share = Share(prefixes=self._added)
        self._added = []
        return drain(self._pools.values(), share, now)

    def explain(
        self,
        facts: RequestFacts,
        pool: str,
        now: float,
        *,
        subset: Sequence[str] | None = None,
        profile: str = "",
        model: str = "",
        token: str = "",
        token_ids: Sequence[int] = (),
        limit: int = 0,
    ) -> Record:
        """What `pick` would do and why, without doing it. limit: most candidates in the record, 0 = all."""
        slots = self._pools.get(pool)
        if slots is None:
            return Record(now, pool, "", facts.model, facts.prompt_tokens, 0, 0, False, Pick(reason=reasons.NO_POOL))
        state = self._rng.getstate()
        job = self._job(slots, facts, now, subset, None, profile, model, "", token)
        if isinstance(job, Pick):
            return Record(now, pool, "", facts.model, facts.prompt_tokens, 0, 0, bool(facts.session_key), job)
        if token_ids and slots.kv.live:
            job.match_exact(token_ids)
        self._sessions.frozen = True
        try:
            costs, chosen, reason, scores = self._choose(job, True)
        finally:
            self._sessions.frozen = False
            self._rng.setstate(state)
        if chosen < 0:
            return record(job, Pick(reason=reason, profile=job.name), costs, "", limit)
        slot = slots.at(chosen)
        answer = expect(job, slot, costs, reason)
        answer.addresses = choose.ordered(job, slot, costs, self._policy.fallbacks)
        if scores is not None:
            answer.scores = scores
        return record(job, answer, costs, "", limit)

    def _profile(self, name: str, model: str, service_class: str, pool: str) -> tuple[str, ProfilePolicy]:
        profiles = self._profiles
        if name:
            found = profiles.get(name)
            if found is not None:
                return name, found
        for choice in self._use:
            if choice.matches(model, service_class, pool):
                return choice.profile, profiles[choice.profile]
        return "default", self._default

    def _job(
        self,
        slots: PoolSlots,
        facts: RequestFacts,
        now: float,
        subset: Sequence[str] | None,
        only: Sequence[str] | None,
        profile: str,
        model: str,
        service_class: str,
        token: str,
    ) -> Job | Pick:
        allowed = slots.eligible_bits
        if not allowed:
            return Pick(reason=reasons.NO_ENDPOINTS)
        if subset is not None:
            allowed &= slots.resolve(subset)
            if not allowed:
                return Pick(reason=reasons.SUBSET_EMPTY)
        service_class = service_class or facts.service_class
        name, chosen = self._profile(profile, model or facts.model, service_class, slots.name)
        if chosen.shed.classes and service_class in chosen.shed.classes:
            shed = chosen.shed
            if slots.saturation(shed.queue, shed.kv) >= shed.saturation:
                return Pick(reason=reasons.SHEDDABLE, profile=name, shed=True, retry_after_s=shed.retry_after_s)
        job = Job(slots, facts, name, chosen, allowed, now, model)
        if token:
            named = read_token(token)
            if named is not None:
                pinned = slots.find(named[1])
                if pinned is not None and 1 << pinned.index & allowed:
                    job.pinned = pinned.index
        if slots.told_models or slots.resting or slots.ranged or chosen.narrows or job.length > slots.shortest_context:
            refused = allow(job, self._policy.limits, only)
            if refused:
                return Pick(reason=refused, profile=name)
        if self._policy.prefix.enabled and facts.prefix_keys:
            job.match(facts.prefix_keys, facts.prefix_tokens)
        return job

    def _choose(self, job: Job, want_scores: bool) -> tuple[Floats, int, str, dict[str, float] | None]:
        """Costs of all slots, the chosen one, why, and scores where asked for."""
        costs = job.price()
        rule = job.profile.rule
        if job.pinned is not None and rule != "scorers" and costs[job.pinned] < INFINITE:
            chosen, reason = job.pinned, reasons.SESSION
        else:
            home = choose.session(job, costs, self._sessions) if job.facts.session_key and rule != "scorers" else None
            if home is not None:
                chosen, reason = home, reasons.SESSION
            elif rule == "least-cost":
                chosen, reason = choose.least_cost(job, costs, self._rng)
            elif rule == "affinity":
                chosen, reason = choose.affinity(job, costs, self._rng)
            else:
                if job.pinned is None and job.facts.session_key and "session-affinity" in job.profile.scorers:
                    job.pinned = job.rendezvous(job.candidates(), job.facts.session_key)[0]
                chosen, reason, places, scores = choose.scored(job, costs, self._rng)
                if want_scores:
                    addresses = [job.slots.at(i).address for i in places]
                    return costs, chosen, reason, dict(zip(addresses, (float(s) for s in scores), strict=True))
                return costs, chosen, reason, None
        if want_scores and chosen >= 0:
            # Least cost is the best score: the share of the pick's cost in each one's.
            low = max(1e-9, float(costs.min()))
            found = {
                job.slots.at(i).address: low / max(low, float(costs[i]))
                for i in job.candidates()
                if costs[i] < INFINITE
            }
            return costs, chosen, reason, found
        return costs, chosen, reason, None

    def _charge(self, job: Job, slot: Slot, uncached: int, unread: float) -> None:
        """Counts the pick where it went, before anybody reports it. unread: the work of its uncached tokens."""
        slots, now = job.slots, job.now
        slots.now = now
        work = unread * slot.rate
        if work > 0.0:
            ready = slot.busy
            if ready <= now:
                # It decodes: the step under way ends first, then comes the one that reads this prompt.
                slot.joins = now + 0.5 * slot.step
                ready = now + slot.step
            elif now >= slot.joins:
                # Prompts are being read: this one waits until they are, and shares its step with all who come by then.
                slot.joins = ready
                ready += slot.step
            slot.busy = ready + work
        slot.given += work + 0.002
        slot.picked_at = now
        need = float(job.prompt + job.output)
        slot.context += (job.prompt + 0.5 * job.output - slot.context) / (slot.flight.count + 8.0)
        slot.flight.pick(now, unread, need, slot.busy)
        slot.kv_used += need
        slot.sent += unread
        slots.price(slot)
        if job.keys:
            if not job.levels:
                slot.without_hit_at = now
            self._remember(job, slot)

    def _remember(self, job: Job, slot: Slot) -> None:
        prefix = self._policy.prefix
        index = job.slots.index
        new = index.add(slot.index, job.keys, job.packed, job.totals, job.now, job.path)
        if prefix.output_cached:
            index.add_output(slot.index, job.output, job.now)
        if new:
            self._added.append(PrefixAdd(slot.address, tuple(job.keys), tuple(job.totals)))
            if len(self._added) > _MOST_SHARED:
                del self._added[: _MOST_SHARED // 4]

    def _split(self, job: Job, answer: Pick, token: str) -> int:
        """Names and charges a prefill endpoint. Returns the uncached tokens that are left for the decode endpoint."""
        found = prefill_for(job, token)
        if found is None:
            return job.prompt - answer.matched_tokens
        slot, uncached, work = found
        answer.prefill = slot.address
        answer.wait_s = max(0.0, slot.busy - job.now)
        transfer = job.profile.disagg.transfer_s_per_token * job.prompt
        answer.expected_ttft_s = answer.wait_s + slot.rate * work + transfer + job.slots.rates.now.overhead
        self._charge(job, slot, uncached, work)
        return 0

    def _rest(self, slots: PoolSlots, slot: Slot, now: float) -> None:
        if now < slot.rest_until:
            return  # several failures at once are one
        limits = self._policy.limits
        slot.failures += 1
        rest = min(limits.rest_s * 2.0 ** min(slot.failures - 1, 16), limits.rest_max_s)
        if rest <= 0.0:
            return
        slot.rest_until = now + rest
        slots.resting.append(slot)
