"""The newest requests worth looking at: sampled ones, and those that were slow, failed, fell back or were refused.

Pure and bounded; holds facts, decisions and outcomes, never a body or a word of a prompt.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from xds_control.extproc.decision import Decision
from xds_control.policy.classes import ServiceClassPolicy
from xds_control.policy.processes import RequestRecords
from xds_control.signals.finished import FAILURES, Finished

MAX_RUNNING: Final = 8_192
"""Requests that run and may turn out notable."""
MAX_KEYS: Final = 500_000
"""Prefix keys that they hold together: long prompts have thousands."""


@dataclass(slots=True)
class Kept:
    """One request. at: monotonic seconds of its decision. notable: slow, failed, fell-back, rejected, sampled, or ""
    while nothing is known of its end."""

    decision: Decision
    at: float
    outcome: Finished | None = None
    notable: str = ""


class Recorder:
    """Keeps requests by policy. classes: targets by which a request is slow."""

    def __init__(self, policy: RequestRecords, classes: Mapping[str, ServiceClassPolicy]) -> None:
        self._running: OrderedDict[str, Kept] = OrderedDict()
        self._keys = 0
        self._notable: deque[Kept] = deque()
        self._sampled: deque[Kept] = deque()
        self._count = 0
        self.use_policy(policy, classes)

    def use_policy(self, policy: RequestRecords, classes: Mapping[str, ServiceClassPolicy]) -> None:
        """Another policy; what is kept stays, as far as there is room."""
        self._classes = classes
        self._notable = deque(self._notable, maxlen=policy.notable)
        self._sampled = deque(self._sampled, maxlen=policy.sampled)
        self._each = round(1.0 / policy.sample_share) if policy.sample_share > 0 else 0
        self._off = policy.notable == 0 and (policy.sampled == 0 or self._each == 0)

    def on_decision(self, decision: Decision, now: float) -> None:
        """A request was decided."""
        if self._off:
            return
        kept = Kept(_without_bodies(decision), now)
        if decision.immediate is not None:
            kept.notable = "rejected"
            self._notable.append(kept)
            return
        self._count += 1
        if self._each and self._count % self._each == 0:
            kept.notable = "sampled"
        self._running[decision.id] = kept
        self._keys += len(decision.facts.prefix_keys)
        while len(self._running) > MAX_RUNNING or self._keys > MAX_KEYS:
            self._take(next(iter(self._running)))

    def on_finished(self, one: Finished) -> None:
        """A request ended."""
        kept = self._take(one.id)
        if kept is None:
            return
        kept.outcome = one
        why = self._notable_by(kept.decision, one)
        if why:
            kept.notable = why
            self._notable.append(kept)
        elif kept.notable:
            self._sampled.append(kept)

    def find(self, identifier: str) -> Kept | None:
        """A request by its decision's id, running or kept; None when it is neither."""
        running = self._running.get(identifier)
        if running is not None:
            return running
        return next((one for one in self._all() if one.decision.id == identifier), None)

    def newest(self) -> list[Kept]:
        """What is kept, newest first."""
        return sorted(self._all(), key=lambda one: one.at, reverse=True)

    def _all(self) -> Iterator[Kept]:
        yield from reversed(self._notable)
        yield from reversed(self._sampled)

    def _take(self, identifier: str) -> Kept | None:
        kept = self._running.pop(identifier, None)
        if kept is not None:
            self._keys -= len(kept.decision.facts.prefix_keys)
        return kept

    def _notable_by(self, decision: Decision, one: Finished) -> str:
        if one.kind in FAILURES or one.kind == "backpressure":
            return "failed"
        if decision.destinations and one.endpoint and one.endpoint != decision.destinations[0]:
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


def _without_bodies(decision: Decision) -> Decision:
    """What is shown of a decision; the rewritten body would keep the prompt."""
    return Decision(
        decision.id,
        decision.facts,
        decision.processor,
        decision.pool,
        decision.rule,
        decision.route,
        decision.model,
        decision.service_class,
        decision.tenant,
        decision.profile,
        decision.reason,
        decision.headers,
        destinations=decision.destinations,
        matched_tokens=decision.matched_tokens,
        immediate=decision.immediate,
        original_model=decision.original_model,
    )
