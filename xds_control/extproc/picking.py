"""The picker as the decider and the Fleet messages want it: policy per pool, wire forms, refusals."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping

import msgspec

from xds_control.extproc.decide import Pick, Refusal
from xds_control.extproc.decision import Decision
from xds_control.fleet.snapshot import Snapshot
from xds_control.policy import headers as names
from xds_control.policy.schema import Policy
from xds_control.proto import fleet_pb2 as pb
from xds_control.routing import pick as reasons
from xds_control.routing.disagg import P2P_MARK, REQUEST_ID, connector_headers
from xds_control.routing.explain import Record
from xds_control.routing.kv_events import Batch
from xds_control.routing.pick import Pick as Priced
from xds_control.routing.picker import Picker
from xds_control.routing.share import Outstanding, Peers, PrefixAdd, RateState
from xds_control.routing.subset import parse_hint
from xds_control.signals.finished import Finished

_TEXT = {
    reasons.NO_ENDPOINTS: "No endpoint is ready.",
    reasons.NO_POOL: "No endpoint is ready.",
    reasons.SUBSET_EMPTY: "None of the endpoints that the data plane allows is ready.",
    reasons.SATURATED: "Every endpoint is at its limit; try again later.",
    reasons.FILTERED: "No endpoint can serve this request.",
    reasons.NOT_CACHED: "No endpoint has a cached prefix of this request.",
    reasons.SHEDDABLE: "Every endpoint is busy, and requests of this class can wait; try again later.",
    reasons.SHED: "The answer would begin too late; try again later.",
}
IN_STEP_S = 0.5
"""Clocks of Envoy and processor that differ by less, access log delay included, are taken to be in step."""
_IF_AVAILABLE = "if-available"
_TEST_ENDPOINTS = "test-epp-endpoint-selection"
_SLO_TTFT = ("x-llm-d-slo-ttft-ms", "x-slo-ttft-ms")
_PASS = frozenset({reasons.NO_ENDPOINTS, reasons.NO_POOL})
"""Without candidates Envoy decides by its weights, unless the data plane narrowed the choice itself."""


class PoolPicker:
    """Picks for the pools whose policy allows it; leaves the others to Envoy's weights."""

    def __init__(self, policy: Policy, processor: str) -> None:
        self._seed = zlib.crc32(processor.encode())
        self._picker = Picker(policy.picker, self._seed)
        self._pools: frozenset[str] = frozenset()
        self._rooms = 0
        self._clock_gap = math.inf
        self.own_gap = math.inf
        """Monotonic less wall-clock seconds of this machine; infinite where nobody says it."""
        self._token_header = ""
        self._obeys_test_header = False
        self._told: list[pb.Outstanding] = []
        self._told_at = 0.0
        self._targets: dict[str, float | None] = {}
        self._snapshot: Snapshot | None = None
        self._policy = policy
        self._configure(policy)

    @property
    def picker(self) -> Picker:
        """The pure picker, for explanations."""
        return self._picker

    def use_policy(self, policy: Policy, now: float) -> None:
        """A new policy. What was learned is kept when the picker's own section did not change."""
        if policy.picker != self._policy.picker:
            self._picker = Picker(policy.picker, self._seed)
            if self._snapshot is not None:
                self._picker.update(self._snapshot.pools, now)
        self._configure(policy)

    def update(self, snapshot: Snapshot, now: float) -> None:
        """A new snapshot."""
        self._snapshot = snapshot
        self._picker.update(snapshot.pools, now)

    def pick(
        self, decision: Decision, headers: Mapping[str, str], subset: tuple[str, ...] | None, now: float
    ) -> Pick | Refusal | None:
        """A pick, a refusal, or None to leave the choice to Envoy's weights."""
        if decision.pool not in self._pools:
            return None
        policy = self._picker.policy
        control = self._policy.ext_proc.control_headers
        token_header = self._token_header
        only = None
        if self._obeys_test_header:
            named = headers.get(_TEST_ENDPOINTS)
            only = None if named is None else parse_hint(named)
        found = self._picker.pick(
            decision.facts,
            decision.pool,
            now,
            subset=subset,
            only=only,
            profile=decision.profile or (headers.get(policy.header, "") if policy.header else ""),
            model=decision.model,
            service_class=decision.service_class,
            slo_ttft_s=self._slo(decision, headers),
            token=headers.get(token_header, "") if token_header else "",
            prefill_token=headers.get(f"{token_header}-prefill", "") if token_header else "",
            only_cached=control and headers.get("prefer", "").strip().lower() == _IF_AVAILABLE,
            want_scores=self._policy.ext_proc.emit_scores,
            request_id=decision.id,
            token_ids=self._token_ids(decision),
        )
        if found.addresses:
            told: dict[str, float | str] = {
                names.META_AHEAD_TOKENS: found.ahead_tokens,
                names.META_BATCH: round(found.batch),
            }
            if found.prefill:
                told[names.META_PREFILL] = found.prefill
            if found.token:
                decision.response_headers[token_header] = told[names.META_TOKEN] = found.token
                if found.prefill_token:
                    told[names.META_PREFILL_TOKEN] = found.prefill_token
                    decision.response_headers[f"{token_header}-prefill"] = found.prefill_token
            extra: Mapping[str, str] = {}
            if found.prefill:
                disagg = policy.named()[found.profile].disagg
                self._rooms += 1
                room = zlib.crc32(f"{decision.id}/{self._rooms}".encode())
                extra = connector_headers(disagg, found.prefill, found.address, decision.id, room)
            elif P2P_MARK in headers.get(REQUEST_ID, ""):
                extra = {REQUEST_ID: decision.id}  # a client may not say where its prompt is read
            return Pick(found.addresses, found.matched_tokens, extra, found.scores or None, told, found)
        return self._nobody(found, decision, subset)

    def _nobody(self, found: Priced, decision: Decision, subset: tuple[str, ...] | None) -> Refusal | None:
        """There is no pick: None leaves the choice to Envoy's weights."""
        if found.reason in _PASS and subset is None and self._leaves(decision.pool):
            return None
        text = _TEXT.get(found.reason, "No endpoint can take this request now.")
        return Refusal(found.status, found.reason, text, found.retry_after_s or None, found.dropped_reason)

    def explain(
        self,
        decision: Decision,
        headers: Mapping[str, str],
        subset: tuple[str, ...] | None,
        now: float,
        limit: int = 32,
    ) -> tuple[Pick | Refusal | None, Record | None]:
        """What `pick` would answer, refusals by prediction left out, and the candidates; nothing is charged.

        None without candidates where Envoy's weights choose.
        """
        if decision.pool not in self._pools:
            return None, None
        policy = self._picker.policy
        record = self._picker.explain(
            decision.facts,
            decision.pool,
            now,
            subset=subset,
            profile=decision.profile or (headers.get(policy.header, "") if policy.header else ""),
            model=decision.model,
            token=headers.get(self._token_header, "") if self._token_header else "",
            token_ids=self._token_ids(decision),
            limit=limit,
        )
        found = record.pick
        if not found.addresses:
            return self._nobody(found, decision, subset), record
        return Pick(found.addresses, found.matched_tokens, {}, found.scores or None, {}, found), record

    def finished(self, one: Finished, now: float) -> None:
        """A request ended, whoever picked for it."""
        ended = None
        if one.ended_unix_s is not None:
            # Entries come some time after the end, never before: the least distance seen is that of the clocks.
            self._clock_gap = seen = min(self._clock_gap + 1e-4, now - one.ended_unix_s)
            # Where both clocks are in step, ours is nearer: what is seen has the log's own delay in it, and an end that
            # seems later than the scrape which has it already would count twice.
            ended = one.ended_unix_s + (self.own_gap if 0.0 <= seen - self.own_gap < IN_STEP_S else seen)
        self._picker.finished(
            one, now, ended_at=ended, ahead_tokens=one.ahead_tokens, batch=one.batch, prefill=one.prefill
        )

    def in_flight(self) -> Iterator[tuple[str, str, float]]:
        """(pool, address, requests believed in flight) of every endpoint."""
        for name in sorted(self._pools):
            slots = self._picker.pool(name)
            for slot in slots.each() if slots is not None else ():
                yield name, slot.address, slot.flight.count

    def room(self, pool: str) -> int | None:
        """How many more requests the endpoints of a pool may have by the concurrency limit; None when nobody takes
        requests, or without a limit."""
        limit = self._policy.picker.limits.max_concurrency
        slots = self._picker.pool(pool)
        taking = [slot.flight.taken for slot in slots.each() if slot.takes] if slots is not None and limit else []
        return sum(max(0, math.floor(limit - count)) for count in taking) if taking else None

    def kv_blocks(self) -> Iterator[tuple[str, str, int]]:
        """(pool, address, KV blocks held) of every endpoint whose events are received."""
        for name in sorted(self._pools):
            slots = self._picker.pool(name)
            for slot in slots.each() if slots is not None and slots.kv.live else ():
                if slots is not None and slots.kv.live >> slot.index & 1:
                    yield name, slot.address, slots.kv.blocks(slot.index)

    def kv_events(self, address: str, batch: Batch) -> None:
        """An endpoint published what its KV cache holds."""
        self._picker.kv_events(address, batch)

    def kv_lost(self, address: str) -> None:
        """What an endpoint published before is no longer known."""
        self._picker.kv_lost(address)

    def failed(self, address: str, now: float) -> None:
        """An attempt at an endpoint failed."""
        self._picker.failed(address, now)

    def merge_peers(self, state: pb.PeerState, now: float) -> None:
        """What the other processors did. Without news of their outstanding work the last stands, and grows older."""
        if state.outstanding:
            self._told, self._told_at = [one for one in state.outstanding if one.endpoint], now
        since = now - self._told_at
        peers = Peers(
            prefixes=[PrefixAdd(one.endpoint, tuple(one.keys), tuple(one.tokens)) for one in state.prefixes],
            outstanding=[
                Outstanding(one.endpoint, one.requests, one.prefill_tokens, one.decode_tokens, one.age_s + since)
                for one in self._told
            ],
            rates=[RateState(one.pool, one.endpoint, one.state) for one in state.rates],
        )
        self._picker.merge_peers(peers, now)

    def fill(self, window: pb.Window, now: float) -> None:
        """Puts what the peers should know into a window."""
        share = self._picker.drain_share(now)
        for added in share.prefixes:
            window.prefixes.add(endpoint=added.endpoint, keys=added.keys, tokens=added.tokens)
        for one in share.outstanding:
            window.outstanding.add(
                endpoint=one.endpoint,
                requests=one.requests,
                prefill_tokens=one.prefill_tokens,
                decode_tokens=one.decode_tokens,
            )
        for rate in share.rates:
            window.rates.add(pool=rate.pool, endpoint=rate.endpoint, state=rate.state)
        window.load.prefix_index_bytes = self._picker.index_bytes

    def _token_ids(self, decision: Decision) -> list[int]:
        """The prompt's token ids, where they were sent and some endpoint tells which blocks it holds."""
        # Blocks of a salted prompt are named by its salt, which events do not tell: there is no exact match for it.
        text = "" if decision.facts.cache_salt else decision.facts.token_ids
        slots = self._picker.pool(decision.pool) if text else None
        if slots is None or not slots.kv.live:
            return []
        try:
            return msgspec.json.decode(text, type=list[int])
        except msgspec.DecodeError:
            return []

    def _leaves(self, pool: str) -> bool:
        """Whether Envoy's weights get a request for which there is no candidate: not where there is nobody at all."""
        if self._policy.picker.nobody == "reject":
            return False
        slots = self._picker.pool(pool)
        return slots is None or bool(slots.by_address)

    def _slo(self, decision: Decision, headers: Mapping[str, str]) -> float | None:
        """The target for the time to first token: the client's own, else its class's."""
        if self._policy.ext_proc.control_headers:
            for name in _SLO_TTFT:
                text = headers.get(name, "")
                if text.isascii() and text.isdigit() and len(text) < 10:
                    return int(text) / 1000.0
        return self._targets.get(decision.service_class)

    def _configure(self, policy: Policy) -> None:
        self._policy = policy
        self._picker.keeps_trails = policy.processors.requests.notable > 0
        profiles = policy.picker.named().values()
        self._token_header = policy.picker.token_header
        self._obeys_test_header = any("test-header" in profile.filters for profile in profiles)
        self._pools = frozenset(pool.name for pool in policy.pools if pool.picks)
        self._targets = {name: one.ttft_s for name, one in policy.classes.by_name().items()}
