"""What one processor works with: policy, view, decider, learners. Rebuilt by messages from control (pure)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from xds_control.errors import PolicyError
from xds_control.extproc.admitting import Gate
from xds_control.extproc.decide import Decider, Refusal, Routes
from xds_control.extproc.decision import Decision, Hold
from xds_control.extproc.margins import Margins
from xds_control.extproc.picking import PoolPicker
from xds_control.extproc.reading import RequestReader
from xds_control.extproc.recorder import Recorder
from xds_control.extproc.request import RequestView
from xds_control.extproc.responses import Observed, Response, Responses
from xds_control.extproc.shadow import ShadowDecider
from xds_control.fleet.snapshot import Snapshot
from xds_control.inspect import TokenEstimator
from xds_control.policy.load import decode_policy
from xds_control.policy.schema import Policy
from xds_control.proto import fleet_pb2 as pb
from xds_control.routing.explain import Record
from xds_control.routing.forwarded import forwarded_headers
from xds_control.routing.view import RoutingView
from xds_control.signals.accesslog import AccessLog, Taken


class ProcessorState:
    """Policy and fleet as this processor knows them, and everything that is built from them.

    Before the first message from control there is no decider: requests then pass untouched and Envoy
    balances by its weights.
    """

    def __init__(
        self, processor: str, now: float, clock: Callable[[], float] | None = None, *, first_id: int = 0
    ) -> None:
        self.processor = processor
        self.policy: Policy | None = None
        self.policy_version = ""
        self.snapshot: Snapshot | None = None
        self.decider: Decider | None = None
        self.reader: RequestReader | None = None
        self.picker: PoolPicker | None = None
        self.gate: Gate | None = None
        self.log: AccessLog | None = None
        self.recorder: Recorder | None = None
        self.shadow: ShadowDecider | None = None
        self.secret = ""
        self.forwarded: frozenset[str] | None = None
        self.problem = ""
        self.requests = 0
        self.entries = 0
        self.decisions: dict[tuple[str, str, str], int] = {}
        self.margins = Margins()
        self._started = now
        self._first_id = first_id
        self._clock = clock or (lambda: now)
        self._responses: Responses | None = None
        self._shadow_message = pb.Policy()

    @property
    def ready(self) -> bool:
        """Whether requests are decided rather than passed."""
        return self.decider is not None

    def on_message(self, snapshot: Snapshot, message: pb.WatchResponse, now: float) -> None:
        """Takes in what control sent. A policy that does not compile is kept out, and said so."""
        if message.HasField("policy") and message.policy.version != self.policy_version:
            try:
                self._use_policy(decode_policy(message.policy.json), message.policy.version, now)
                self.problem = ""
            except (PolicyError, ValueError) as error:
                self.problem = f"policy {message.policy.version}: {error}"
        self.snapshot = snapshot
        if message.secret:
            self.secret = message.secret
        if message.full or message.HasField("shadow"):
            self._use_shadow(message.shadow)
        decider, policy = self.decider, self.policy
        news = message.full or message.pools or message.removed_pools
        if decider is not None and policy is not None and (news or not decider.view.pools):
            decider.view = RoutingView.build(snapshot.pools, snapshot.version, policy.routing.slo_target)
            if self.picker is not None:
                self.picker.update(snapshot, now)
            if self.gate is not None:
                self.gate.kick(now)
            if self.shadow is not None:
                self.shadow.update(snapshot)
        if message.HasField("peers") and self.picker is not None:
            self.picker.merge_peers(message.peers, now)
        if message.HasField("estimates") and self.reader is not None:
            self.reader.merge(message.estimates.tokens)

    def on_taken(self, taken: Taken, now: float) -> None:
        """Learns from requests that ended."""
        for finished in taken.finished:
            self.entries += 1
            self.margins.finished(finished)
            if self.recorder is not None:
                self.recorder.on_finished(finished, now)
            if self.reader is not None:
                self.reader.learn(finished)
            if self.picker is not None and (self._responses is None or self._responses.fresh(finished.id)):
                self.picker.finished(finished, now)
        if self.gate is not None:
            self.gate.kick(now)
        if self.picker is not None:
            for attempt in taken.failed_attempts:
                self.picker.failed(attempt.endpoint, now)

    def observer(self, decision: Any) -> Response:
        """Follows an answer that the data plane shows to us."""
        assert self._responses is not None  # streams begin only once there is a policy
        return self._responses(decision)

    def on_observed(self, observed: Observed) -> None:
        """Learns from an answer that passed by."""
        finished = observed.finished()
        if finished is None:
            return
        # An Envoy of ours sends access logs too, which tell more; elsewhere nobody else counts.
        if self.log is not None and self.policy is not None and self.policy.processors.mode == "endpoint-picker":
            self.log.add(finished)
        if self.recorder is not None:
            self.recorder.on_finished(finished, observed.last_s)
        if self.reader is not None:
            self.reader.learn(finished)
        if self.picker is not None:
            self.picker.finished(finished, observed.last_s)
        if self.gate is not None:
            self.gate.kick(observed.last_s)

    def on_decision(self, decision: Any, now: float) -> None:
        """Counts a decision."""
        self.requests += 1
        priced = decision.priced
        if priced is not None and priced.trail:
            self.margins.picked(decision.pool, priced.trail)
        if self.gate is not None:
            self.gate.decided(decision.id)
        if self.recorder is not None:
            self.recorder.on_decision(decision, now)
        key = (decision.pool, decision.rule, decision.reason)
        if key in self.decisions or len(self.decisions) < 4096:
            self.decisions[key] = self.decisions.get(key, 0) + 1

    def window(self, now: float) -> pb.Window:
        """What happened since the last call."""
        window = self.log.drain(now) if self.log is not None else pb.Window()
        for (pool, rule, reason), count in self.decisions.items():
            window.decisions.add(pool=pool, rule=rule, reason=reason, count=count)
        self.decisions.clear()
        if self.shadow is not None:
            self.shadow.fill(window)
        if self.picker is not None:
            self.picker.fill(window, now)
        if self.reader is not None:
            window.tokens = self.reader.export()
        return window

    def wait(self, hold: Hold) -> asyncio.Future[Refusal | None]:
        """What a held request waits on."""
        assert self.gate is not None  # nothing else holds requests
        return self.gate.wait(hold)

    def _admission(self, policy: Policy) -> Gate | None:
        """Who lets requests in; None where they need not wait. Those who wait when it is switched off go on."""
        if not policy.admission.enabled:
            return None
        if self.gate is None:
            self.gate = Gate(policy, self._room, self._clock)
        else:
            self.gate.use_policy(policy)
        return self.gate

    def _room(self, pool: str) -> int | None:
        return None if self.picker is None else self.picker.room(pool)

    def dry_run(self, request: RequestView) -> tuple[Decision, Record | None]:
        """What would be decided, and among whom; nothing is counted or charged."""
        decider, picker = self.decider, self.picker
        assert decider is not None  # the port opens only once there is a policy
        explain = None if picker is None else lambda one, view: picker.explain(one, view.headers, None, self._clock())
        decision, _rules, record = decider.dry_run(request, explain)
        return decision, record

    def _use_shadow(self, message: pb.Policy) -> None:
        """Another shadow policy; one that does not compile is left out, and said so."""
        self.shadow = None
        if message.version and self.policy is not None and self.reader is not None and self.picker is not None:
            try:
                self.shadow = ShadowDecider(
                    decode_policy(message.json),
                    message.version,
                    RequestReader(self.policy.inspect, self.reader.estimator),
                    self.picker,
                    self.policy,
                    self.processor,
                    self._clock,
                )
                if self.snapshot is not None:
                    self.shadow.update(self.snapshot)
            except (PolicyError, ValueError) as error:
                self.problem = f"shadow policy {message.version}: {error}"
        self._shadow_message = message
        if self.decider is not None:
            self.decider.beside = None if self.shadow is None else self.shadow.beside

    def _use_policy(self, policy: Policy, version: str, now: float) -> None:
        routes = Routes.compile(policy.routing, [pool.name for pool in policy.pools])
        if self.reader is None or self.reader.policy != policy.inspect:
            estimator = TokenEstimator(policy.inspect.tokens)
            if self.reader is not None:
                estimator.adopt(self.reader.estimator)
            self.reader = RequestReader(policy.inspect, estimator)
        classes = policy.classes.by_name()
        if self.log is None:
            self.log = AccessLog(classes, policy.classes.default, now)
        else:
            self.log.use_classes(classes, policy.classes.default)
        if self.picker is None:
            self.picker = PoolPicker(policy, self.processor)
        else:
            self.picker.use_policy(policy, now)
        decider = Decider(
            RoutingView(),
            self.reader,
            routes,
            self.picker,
            policy.ext_proc,
            admission=self._admission(policy),
            processor=self.processor,
            default_class=policy.classes.default,
            first=self._first_id,
        )
        decider.on_decision = self.on_decision
        decider.continue_from(self.decider)
        if self.recorder is None:
            self.recorder = Recorder(policy.processors.requests, classes)
        else:
            self.recorder.use_policy(policy.processors.requests, classes)
        self._responses = Responses(policy.ext_proc, self._clock, self.on_observed)
        self.decider = decider
        self.policy = policy
        self.policy_version = version
        names = forwarded_headers(policy)
        self.forwarded = None if names is None else frozenset(names)
        if self.shadow is not None:
            self._use_shadow(self._shadow_message)  # it compares with the live policy
