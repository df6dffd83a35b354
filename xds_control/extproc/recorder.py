"""The newest requests worth looking at: sampled ones, and those that were slow, failed, fell back or were refused.

Pure and bounded; holds facts, decisions and outcomes by reference, never a body or a word of a prompt.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from xds_control.extproc.decision import Decision
from xds_control.inspect.facts import RequestFacts
from xds_control.policy.classes import ServiceClassPolicy
from xds_control.policy.processes import RequestRecords
from xds_control.signals.finished import FAILURES, Finished

MAX_RUNNING: Final = 8_192
"""Requests that run and may turn out notable, or whose end another processor hears of."""
MAX_KEYS: Final = 500_000
"""Prefix keys that they hold together: long prompts have thousands."""


class Kept:
    """One request. at: monotonic seconds of its decision. notable: slow, failed, fell-back, rejected, sampled, or ""
    while nothing is known of its end.

    One of `decided` and `outcome` is there: without `decided`, another processor decided it.
    """

    __slots__ = ("at", "decided", "notable", "outcome")

    def __init__(self, decided: Decision | None, at: float, outcome: Finished | None = None) -> None:
        self.decided = decided
        self.at = at
        self.outcome = outcome
        self.notable = ""

    @property
    def id(self) -> str:
        """The decision's id."""
        if self.decided is not None:
            return self.decided.id
        return self.outcome.id if self.outcome is not None else ""

    @property
    def decision(self) -> Decision:
        """The decision; as far as its outcome tells, where another processor made it."""
        if self.decided is not None:
            return self.decided
        assert self.outcome is not None
        return _as_told(self.outcome)


class Recorder:
    """Keeps requests by policy. classes: targets by which a request is slow."""

    def __init__(self, policy: RequestRecords, classes: Mapping[str, ServiceClassPolicy]) -> None:
        self._running: dict[str, Kept] = {}
        self._keys = 0
        self._kinds: dict[str, deque[Kept]] = {}
        self._recent: deque[Kept] = deque()
        self._count = 0
        self.use_policy(policy, classes)

    def use_policy(self, policy: RequestRecords, classes: Mapping[str, ServiceClassPolicy]) -> None:
        """Another policy; what is kept stays, as far as there is room."""
        self._classes = classes
        # A flood of one kind must not push the others out.
        sizes = dict.fromkeys(("failed", "fell-back", "slow", "rejected"), policy.notable)
        sizes["sampled"] = policy.sampled
        self._kinds = {kind: deque(self._kinds.get(kind, ()), maxlen=size) for kind, size in sizes.items()}
        self._recent = deque(self._recent, maxlen=policy.recent)
        self._each = round(1.0 / policy.sample_share) if policy.sample_share > 0 and policy.sampled else 0
        self._off = policy.notable == 0 and policy.recent == 0 and self._each == 0

    def on_decision(self, decision: Decision, now: float) -> None:
        """A request was decided."""
        if self._off:
            return
        if decision.body is not None:
            decision = replace(decision, body=None)  # a rewritten body is the client's prompt
        kept = Kept(decision, now)
        if decision.immediate is not None:
            kept.notable = "rejected"
            self._kinds["rejected"].append(kept)
        elif self._each:
            self._count += 1
            if self._count >= self._each:
                self._count = 0
                kept.notable = "sampled"
        running = self._running
        running[decision.id] = kept
        self._keys += len(decision.facts.prefix_keys)
        while len(running) > MAX_RUNNING or self._keys > MAX_KEYS:
            self._take(next(iter(running)))

    def on_finished(self, one: Finished, now: float = 0.0) -> None:
        """A request ended. Envoy tells any of the processors, so others may have decided it."""
        if self._off:
            return
        kept = self._take(one.id)
        why = self._notable_by(one)
        if kept is None:
            if not one.id:
                return
            kept = Kept(None, now - (one.e2e_s or 0.0))
        kept.outcome = one
        if kept.notable == "rejected":
            return
        if why:
            kept.notable = why
            self._kinds[why].append(kept)
        elif kept.notable:
            self._kinds["sampled"].append(kept)
        else:
            self._recent.append(kept)

    def find(self, identifier: str) -> Kept | None:
        """A request by its decision's id: running, kept, or among the last that ended; None when it is none of them."""
        running = self._running.get(identifier)
        if running is not None:
            return running
        return next((one for one in (*self._all(), *self._recent) if one.id == identifier), None)

    def newest(self) -> list[Kept]:
        """What is kept, newest first; of the ordinary requests only the sampled ones."""
        return sorted(self._all(), key=lambda one: one.at, reverse=True)

    def _all(self) -> Iterator[Kept]:
        for kind in self._kinds.values():
            yield from kind

    def _take(self, identifier: str) -> Kept | None:
        kept = self._running.pop(identifier, None)
        if kept is not None:
            assert kept.decided is not None
            self._keys -= len(kept.decided.facts.prefix_keys)
        return kept

    def _notable_by(self, one: Finished) -> str:
        kind = one.kind
        if kind != "ok":
            # what we refused ourselves made no attempt
            return "failed" if kind in FAILURES or (kind == "backpressure" and one.attempts) else ""
        if one.pick and one.endpoint and one.pick != one.endpoint:
            return "fell-back"
        return "slow" if self._is_slow(one) else ""

    def _is_slow(self, one: Finished) -> bool:
        target = self._classes.get(one.service_class)
        if target is None:
            return False
        if target.ttft_s is not None and one.ttft_s is not None and one.ttft_s > target.ttft_s:
            return True
        if target.e2e_s is not None and one.e2e_s is not None and one.e2e_s > target.e2e_s:
            return True
        tokens = one.completion_tokens or 0
        return (
            target.tpot_s is not None
            and one.decode_s is not None
            and tokens > 1
            and one.decode_s / (tokens - 1) > target.tpot_s
        )


def _as_told(one: Finished) -> Decision:
    """A decision made elsewhere, as far as its outcome tells."""
    facts = RequestFacts(
        api=one.api,
        model=one.model,
        prompt_bytes=one.prompt_bytes or 0,
        prompt_tokens=one.prompt_tokens_est or 0,
        expected_output_tokens=one.output_tokens_est or 0,
        stream=one.streamed,
        images=one.images,
        tenant=one.tenant,
        service_class=one.service_class,
    )
    return Decision(
        one.id,
        facts,
        one.processor,
        pool=one.pool,
        model=one.model,
        service_class=one.service_class,
        tenant=one.tenant,
        reason="picked" if one.pick else "weights",
        destinations=(one.pick,) if one.pick else (),
        matched_tokens=one.matched_tokens or 0,
    )
