"""What a shadow policy would decide for a sample of the requests; only the counts of it reach anybody (pure)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from xds_control.extproc.decide import Decider, Pick, Refusal, Routes
from xds_control.extproc.decision import Decision
from xds_control.extproc.picking import PoolPicker
from xds_control.extproc.reading import RequestReader
from xds_control.extproc.request import RequestView
from xds_control.fleet.snapshot import Snapshot
from xds_control.policy.schema import Policy
from xds_control.proto import fleet_pb2 as pb
from xds_control.routing.explain import Record
from xds_control.routing.view import RoutingView

SHARE: Final = 0.02
"""Share of the requests that both policies decide; one of them costs about as much again."""


class ShadowDecider:
    """Decides sampled requests by a second policy.

    reader: inspects for it alone. picker: the live one, which knows what every endpoint holds and does; it is asked
    what it would pick in the shadow's pool, before the live pick is charged. Where the shadow's picker section differs
    from the live one, no pick is predicted. Raises PolicyError when the policy does not compile.
    """

    def __init__(
        self,
        policy: Policy,
        version: str,
        reader: RequestReader,
        picker: PoolPicker,
        live: Policy,
        processor: str,
        clock: Callable[[], float],
        share: float = SHARE,
    ) -> None:
        self._policy = policy
        self._picker = picker if policy.picker == live.picker else None
        self._picks = {pool.name for pool in policy.pools if pool.picks}
        self._clock = clock
        self._each = max(1, round(1.0 / share))
        self._count = 0
        self._window = pb.ShadowWindow(version=version)
        self._decider = Decider(
            RoutingView(),
            reader,
            Routes.compile(policy.routing, [pool.name for pool in policy.pools]),
            policy=policy.ext_proc,
            processor=processor,
            default_class=policy.classes.default,
        )

    def update(self, snapshot: Snapshot) -> None:
        """The fleet's newest state."""
        self._decider.view = RoutingView.build(snapshot.pools, snapshot.version, self._policy.routing.slo_target)

    def dry_run(self, request: RequestView, now: float | None = None) -> tuple[Decision, Record | None]:
        """What it decides, and among whom. now: monotonic seconds, the clock's when absent."""
        at = self._clock() if now is None else now
        picker = self._picker

        def explain(decision: Decision, view: RequestView) -> tuple[Pick | Refusal | None, Record | None]:
            if picker is None or decision.pool not in self._picks:
                return None, None
            return picker.explain(decision, view.headers, None, at)

        decision, _rules, record = self._decider.dry_run(request, explain)
        return decision, record

    def beside(self, request: RequestView, now: float) -> Callable[[Decision], None] | None:
        """Of one request in so many: decides it, and compares with the live decision when that is made."""
        self._count += 1
        if self._count % self._each or self._window.problem:
            return None
        try:
            decision, _record = self.dry_run(request, now)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with a trial must not reach the request
            self._window.problem = f"{type(error).__name__}: {error}"
            return None
        return lambda live: self._compare(live, decision)

    def fill(self, window: pb.Window) -> None:
        """Puts what was compared since the last call into a window."""
        counts = self._window
        if counts.requests or counts.problem:
            window.shadow.CopyFrom(counts)
            self._window = pb.ShadowWindow(version=counts.version, problem=counts.problem)

    def _compare(self, live: Decision, shadow: Decision) -> None:
        counts = self._window
        counts.requests += 1
        refused = live.immediate is not None, shadow.immediate is not None
        counts.refused_live += refused[0]
        counts.refused_shadow += refused[1]
        if refused[0] == refused[1] and (refused[0] or live.pool == shadow.pool):
            counts.same_pool += 1
        if live.priced is None or shadow.priced is None or any(refused):
            return
        counts.picks += 1
        counts.same_endpoint += live.destinations[0] == shadow.destinations[0]
        counts.ttft_live_s += live.priced.expected_ttft_s
        counts.ttft_shadow_s += shadow.priced.expected_ttft_s
