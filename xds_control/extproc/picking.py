"""The picker as the decider and the Fleet messages want it: policy per pool, wire forms, refusals."""

from __future__ import annotations

import zlib
from collections.abc import Mapping

from xds_control.extproc.decide import Pick, Refusal
from xds_control.extproc.decision import Decision
from xds_control.fleet.snapshot import Snapshot
from xds_control.policy.schema import Policy
from xds_control.proto import fleet_pb2 as pb
from xds_control.routing import pick as reasons
from xds_control.routing.disagg import connector_headers
from xds_control.routing.picker import Picker
from xds_control.routing.share import Outstanding, Peers, PrefixAdd, RateState
from xds_control.signals.finished import Finished

_TEXT = {
    reasons.NO_ENDPOINTS: "No endpoint is ready.",
    reasons.NO_POOL: "No endpoint is ready.",
    reasons.SUBSET_EMPTY: "None of the endpoints that the data plane allows is ready.",
    reasons.SATURATED: "Every endpoint is at its limit; try again later.",
    reasons.FILTERED: "No endpoint can serve this request.",
    reasons.SHED: "The answer would begin too late; try again later.",
}
_PASS = frozenset({reasons.NO_ENDPOINTS, reasons.NO_POOL})
"""Without candidates Envoy decides by its weights, unless the data plane narrowed the choice itself."""


class PoolPicker:
    """Picks for the pools whose policy allows it; leaves the others to Envoy's weights."""

    def __init__(self, policy: Policy, processor: str) -> None:
        self._seed = zlib.crc32(processor.encode())
        self._picker = Picker(policy.picker, self._seed)
        self._pools: frozenset[str] = frozenset()
        self._rooms = 0
        self._told: list[Outstanding] = []
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
        token_header = policy.named()["default"].session.token_header
        found = self._picker.pick(
            decision.facts,
            decision.pool,
            now,
            subset=subset,
            profile=decision.profile or (headers.get(policy.header, "") if policy.header else ""),
            model=decision.model,
            slo_ttft_s=self._targets.get(decision.service_class),
            token=headers.get(token_header, "") if token_header else "",
            want_scores=self._policy.ext_proc.emit_scores,
            request_id=decision.id,
        )
        if found.addresses:
            extra: Mapping[str, str] = {}
            if found.prefill:
                disagg = policy.named()[found.profile].disagg
                self._rooms += 1
                room = zlib.crc32(f"{decision.id}/{self._rooms}".encode())
                extra = connector_headers(disagg, found.prefill, found.address, decision.id, room)
            return Pick(found.addresses, found.matched_tokens, extra, found.scores or None)
        if found.reason in _PASS and subset is None:
            return None
        return Refusal(
            found.status, found.reason, _TEXT[found.reason], found.retry_after_s or None, found.dropped_reason
        )

    def finished(self, one: Finished, now: float) -> None:
        """A request ended, whoever picked for it."""
        self._picker.finished(one, now)

    def failed(self, address: str, now: float) -> None:
        """An attempt at an endpoint failed."""
        self._picker.failed(address, now)

    def merge_peers(self, state: pb.PeerState, now: float) -> None:
        """What the other processors did. An absent list of outstanding work means no news of it."""
        told = [
            Outstanding(one.endpoint, one.requests, one.prefill_tokens, one.decode_tokens)
            for one in state.outstanding
            if one.endpoint
        ]
        peers = Peers(
            prefixes=[PrefixAdd(one.endpoint, tuple(one.keys), tuple(one.tokens)) for one in state.prefixes],
            outstanding=told if state.outstanding else self._told,
            rates=[RateState(one.pool, one.endpoint, one.state) for one in state.rates],
        )
        self._told = peers.outstanding
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

    def _configure(self, policy: Policy) -> None:
        self._policy = policy
        self._pools = frozenset(pool.name for pool in policy.pools if pool.picks)
        self._targets = {name: one.ttft_s for name, one in policy.classes.by_name().items()}
