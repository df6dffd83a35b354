"""The shadow policy: a second policy on the same signals, whose weights and decisions are shown and never applied."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from xds_control.admin.backend import BadRequest
from xds_control.admin.checks import CHECKS, warnings
from xds_control.admin.dry_run import WeightMove, pool_shares, weight_moves
from xds_control.admin.policies import MAX_FILES, MAX_REASON, problem_message
from xds_control.discovery.targets import endpoints
from xds_control.errors import PolicyError
from xds_control.fleet.endpoint import Endpoint
from xds_control.fleet.snapshot import PoolSnapshot, State
from xds_control.observe.logs import logger
from xds_control.policy.load import Loaded, encode_policy, load_files
from xds_control.policy.store import AuditRecord, PolicyRecord
from xds_control.proto import admin_pb2 as pb
from xds_control.proto import fleet_pb2
from xds_control.signals.engines import default_path
from xds_control.weights.engine import WeightEngine
from xds_control.weights.inputs import EndpointInput, PoolWeights

if TYPE_CHECKING:
    from xds_control.admin.control import Control
    from xds_control.admin.core import ControlCore

PERIOD_S: Final = 1.0
"""How often its weights are computed: seldom enough that the live ones are never late for it."""
MEANS: Final = {"ttft": "ttft_s", "kv_usage": "kv_usage", "waiting": "waiting"}
"""Signals whose means over the traffic are compared, and what the difference is called."""


@dataclass(slots=True)
class ShadowWeights:
    """The weights of a shadow policy (pure: `now` comes in, monotonic seconds).

    engines keep their memory from tick to tick, as the live ones do, so that smoothing and hysteresis show.
    """

    loaded: Loaded
    core: ControlCore
    engines: dict[str, WeightEngine] = field(default_factory=dict)
    weights: dict[str, PoolWeights] = field(default_factory=dict)

    def __post_init__(self) -> None:
        policy = self.loaded.policy
        self.engines = {pool.name: self.core.new_engine(policy, pool) for pool in policy.pools}

    def tick(self, found: Sequence[Endpoint], now: float) -> None:
        """Weighs anew. found: the endpoints that the policy has."""
        by_pool: dict[str, list[Endpoint]] = {}
        for one in found:
            by_pool.setdefault(one.pool, []).append(one)
        for pool in self.loaded.policy.pools:
            members = by_pool.get(pool.name, [])
            inputs = self.core.inputs_of(pool.models, members, now)
            known = {item.endpoint.address for item in inputs}
            # one that only this policy has: nothing is known of it, and it would come up
            inputs += [EndpointInput(one, State.READY, now, {}) for one in members if one.address not in known]
            self.weights[pool.name] = self.engines[pool.name].tick(inputs, now)

    def compared(self) -> tuple[list[WeightMove], dict[str, float], dict[str, float]]:
        """(every endpoint's weights, share of each pool's traffic that would go elsewhere, predicted effect)."""
        live = self.core.snapshot.pools if self.core.snapshot is not None else {}
        moves: list[WeightMove] = []
        moved: dict[str, float] = {}
        predicted: dict[str, float] = {}
        for name, result in self.weights.items():
            here = weight_moves(name, pool_shares(live.get(name)), {one.address: one for one in result.endpoints})
            moves += here
            if name in live:
                moved[name] = sum(abs(move.share - move.share_before) for move in here) / 2.0
                predicted |= _predicted(live[name], here)
        return moves, moved, predicted


def _info(record: PolicyRecord) -> pb.PolicyVersion:
    return pb.PolicyVersion(
        version=record.version, at_unix_s=record.at, by=record.by, reason=record.reason, source="shadow"
    )


def _predicted(pool: PoolSnapshot, moves: Sequence[WeightMove]) -> dict[str, float]:
    """What moving the shares does to the means, if every endpoint stayed as it is now."""
    found: dict[str, float] = {}
    known = {one.endpoint.address: one for one in pool.endpoints}
    if any(move.share > 0.0 and move.endpoint not in known for move in moves):
        return found
    for name, called in MEANS.items():
        values = {address: one.readings[name].value for address, one in known.items() if name in one.readings}
        if all(move.endpoint in values for move in moves if move.share > 0.0 or move.share_before > 0.0):
            change = sum((move.share - move.share_before) * values.get(move.endpoint, 0.0) for move in moves)
            found[f"{pool.name}.{called}"] = change
    total = sum(one.capacity for one in known.values())
    if total > 0.0:
        part = {address: one.capacity / total for address, one in known.items()}
        loads = [
            (move.share / part[move.endpoint], move.share_before / part[move.endpoint])
            for move in moves
            if part.get(move.endpoint, 0.0) > 0.0
        ]
        if loads:
            found[f"{pool.name}.imbalance"] = max(one for one, _ in loads) - max(one for _, one in loads)
    return found


@dataclass(slots=True)
class Compared:
    """Sampled requests that both policies decided."""

    requests: int = 0
    same_pool: int = 0
    refused_live: int = 0
    refused_shadow: int = 0
    picks: int = 0
    same_endpoint: int = 0
    ttft_live_s: float = 0.0
    ttft_shadow_s: float = 0.0

    def add(self, window: fleet_pb2.ShadowWindow) -> None:
        """One processor's window."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(window, name))

    def predicted(self) -> dict[str, float]:
        """Their difference, shadow minus live."""
        found: dict[str, float] = {}
        if self.picks:
            found["expected_ttft_s"] = (self.ttft_shadow_s - self.ttft_live_s) / self.picks
        if self.requests:
            found["refused"] = (self.refused_shadow - self.refused_live) / self.requests
        return found


class Shadow:
    """Sets, shows and ends the shadow policy of a control process; kept in the store, it outlives the process."""

    def __init__(self, control: Control, wall: Callable[[], float] = time.time) -> None:
        self._control = control
        self._wall = wall
        self._weights: ShadowWeights | None = None
        self._info = pb.PolicyVersion()
        self._compared = Compared()
        self._problem = ""
        self._found: tuple[Endpoint, ...] | None = None
        self._addresses: Mapping[str, Sequence[str]] = {}
        self._next = 0.0
        self._log = logger("shadow")

    @property
    def version(self) -> str:
        """Version of the shadow policy, "" when there is none."""
        return "" if self._weights is None else self._weights.loaded.version

    async def set(self, request: pb.SetShadowRequest, who: str) -> pb.GetShadowResponse:
        """Another shadow policy; what is wrong with it is in the answer's problems, and then nothing changes."""
        if len(request.reason) > MAX_REASON:
            raise BadRequest(f"the reason is longer than {MAX_REASON} characters")
        if not request.files or len(request.files) > MAX_FILES:
            raise BadRequest(f"give 1 to {MAX_FILES} files")
        try:
            files = [(one.name or "<policy>", one.text) for one in request.files]
            loaded = await asyncio.to_thread(load_files, files, CHECKS)  # ticks go on meanwhile
        except PolicyError as error:
            return pb.GetShadowResponse(problems=map(problem_message, error.problems))
        record = PolicyRecord(loaded.version, self._wall(), who, request.reason, "shadow", loaded.files, b"")
        self._control.store.put_shadow(
            record, AuditRecord(record.at, who, "shadow", loaded.version, "", request.reason)
        )
        self._begin(loaded, record)
        answer = self.get()
        answer.problems.extend(map(problem_message, warnings(loaded.policy)))
        return answer

    def restore(self) -> None:
        """The one from before the restart. Where it is no good any more, that is shown in place of its weights."""
        record = self._control.store.shadow()
        if record is None:
            return
        try:
            loaded = load_files(record.files, CHECKS)
        except PolicyError as error:
            self._info = _info(record)
            self._problem = f"it cannot be used any more: {error.problems[0]}"
            self._log.error("shadow-not-restored", version=record.version, problems=[str(p) for p in error.problems])
            return
        self._begin(loaded, replace(record, version=loaded.version))
        self._log.info("shadow-restored", version=loaded.version, by=record.by)

    def _begin(self, loaded: Loaded, record: PolicyRecord) -> None:
        self._weights = ShadowWeights(loaded, self._control.core)
        self._compared = Compared()
        self._problem = ""
        self._found = None
        self._info = _info(record)
        self._control.hub.publish_shadow(loaded.version, encode_policy(loaded.policy))
        self._next = 0.0
        self.tick(time.monotonic())

    def clear(self, request: pb.ClearShadowRequest, who: str) -> pb.GetShadowResponse:
        """Ends it."""
        if len(request.reason) > MAX_REASON:
            raise BadRequest(f"the reason is longer than {MAX_REASON} characters")
        if self._info.version:
            record = AuditRecord(self._wall(), who, "shadow-clear", self._info.version, "", request.reason)
            self._control.store.put_shadow(None, record)
            self._weights = None
            self._info = pb.PolicyVersion()
            self._problem = ""
            self._control.hub.publish_shadow("", b"")
        return self.get()

    def get(self) -> pb.GetShadowResponse:
        """What it would do. Without one, the answer has no info."""
        weights, compared = self._weights, self._compared
        problems = [pb.Problem(message=self._problem)] if self._problem else []
        if weights is None:
            return pb.GetShadowResponse(info=self._info if self._info.version else None, problems=problems)
        moves, moved, predicted = weights.compared()
        return pb.GetShadowResponse(
            info=self._info,
            weights=[
                pb.WeightChange(
                    pool=one.pool,
                    endpoint=one.endpoint,
                    weight_before=one.weight_before,
                    weight=one.weight,
                    share_before=one.share_before,
                    share=one.share,
                    why=one.why,
                )
                for one in moves
            ],
            moved=moved,
            requests=compared.requests,
            same_pool=compared.same_pool,
            same_endpoint=compared.same_endpoint,
            picks=compared.picks,
            predicted={**predicted, **compared.predicted()},
            problems=problems,
        )

    def on_window(self, window: fleet_pb2.ShadowWindow) -> None:
        """What a processor's sample says."""
        if self._weights is not None and window.version == self.version:
            self._compared.add(window)
            if window.problem:
                self._problem = f"a processor has stopped trying it: {window.problem}"

    def tick(self, now: float) -> None:
        """Computes its weights when they are due. now: monotonic seconds."""
        weights = self._weights
        if weights is None or now < self._next:
            return
        self._next = now + PERIOD_S
        policy = weights.loaded.policy
        try:
            addresses = dict(self._control.resolver.addresses)
            if self._found is None or addresses != self._addresses:
                self._found, self._addresses = endpoints(policy.pools, addresses, default_path), addresses
            weights.tick(self._found, now)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with a trial must not reach the live tick
            self._problem = f"its weights cannot be computed: {error}"
            self._log.exception("shadow-failed", version=self.version)
