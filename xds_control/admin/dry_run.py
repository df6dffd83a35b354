"""What another policy would change, tried on the live fleet without touching it (pure: `now` comes in)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from xds_control.admin.core import ControlCore
from xds_control.fleet.endpoint import Endpoint
from xds_control.fleet.snapshot import PoolSnapshot
from xds_control.policy.schema import Policy
from xds_control.weights.inputs import EndpointWeight

_SCALED = re.compile(r": weight \d+$")
"""The end of an engine's sentence, on the engine's own scale."""

MAX_VALUE = 2_000
"""Characters of a value that a field change shows."""


@dataclass(frozen=True, slots=True)
class WeightMove:
    """One endpoint's weight and share of its pool's traffic, before and after. A weight of None: it is not there."""

    pool: str
    endpoint: str
    weight_before: int | None
    weight: int | None
    share_before: float
    share: float
    why: str


@dataclass(frozen=True, slots=True)
class Effect:
    """What a policy would do. moved: pool → share of its traffic that goes elsewhere than now. emptied: pools that
    have endpoints now and would have none. burden: pool → the larger of the share that loses its endpoint, and the
    share that the endpoints of today would take on besides theirs."""

    weights: tuple[WeightMove, ...] = ()
    moved: Mapping[str, float] = field(default_factory=dict)
    emptied: tuple[str, ...] = ()
    burden: Mapping[str, float] = field(default_factory=dict)

    def objections(self, limit: float) -> list[str]:
        """Why the push should not go through unasked. limit: the largest burden that may."""
        found = [f"pool {pool} would be left without endpoints" for pool in self.emptied]
        found += [
            f"{share:.0%} of the traffic of pool {pool} would move, {limit:.0%} may without being forced"
            for pool, share in sorted(self.burden.items())
            if share > limit + 1e-9 and pool not in self.emptied
        ]
        return found


def try_policy(core: ControlCore, policy: Policy, endpoints: Sequence[Endpoint], now: float) -> Effect:
    """The weights that the policy would give, from the signals of this moment. endpoints: what it would discover.

    Endpoints that are new count as ready, so that the effect shown is the one after their ramp.
    """
    live = core.snapshot.pools if core.snapshot is not None else {}
    weights: list[WeightMove] = []
    moved: dict[str, float] = {}
    burden: dict[str, float] = {}
    emptied: list[str] = []
    members: dict[str, list[Endpoint]] = {pool.name: [] for pool in policy.pools}
    for endpoint in endpoints:
        members[endpoint.pool].append(endpoint)
    for pool in policy.pools:
        before = pool_shares(live.get(pool.name))
        inputs = core.inputs_of(pool.models, members[pool.name], now, assume_ready=True)
        result = core.new_engine(policy, pool).tick(inputs, now)
        after = {one.address: one for one in result.endpoints}
        moves = weight_moves(pool.name, before, after)
        weights += [move for move in moves if _differs(move)]
        if before:
            moved[pool.name] = sum(max(0.0, move.share_before - move.share) for move in moves)
            burden[pool.name] = _burden(moves)
            if not members[pool.name] and live[pool.name].endpoints:
                emptied.append(pool.name)
    for name, gone in live.items():
        if name not in members:
            before = pool_shares(gone)
            weights += weight_moves(name, before, {})
            if gone.endpoints:
                emptied.append(name)
            if before:
                moved[name] = burden[name] = 1.0
    return Effect(
        tuple(weights),
        {name: share for name, share in moved.items() if share > 0.005},
        tuple(sorted(emptied)),
        {name: share for name, share in burden.items() if share > 0.0},
    )


def pool_shares(pool: PoolSnapshot | None) -> dict[str, tuple[int, float]]:
    """Address → weight, share of the traffic of the first priority."""
    if pool is None:
        return {}
    total = sum(one.weight for one in pool.endpoints if one.priority == 0)
    return {
        one.endpoint.address: (one.weight, one.weight / total if total and one.priority == 0 else 0.0)
        for one in pool.endpoints
    }


def weight_moves(
    pool: str, before: Mapping[str, tuple[int, float]], after: Mapping[str, EndpointWeight]
) -> list[WeightMove]:
    """Every endpoint of a pool. before: as of `pool_shares`; after: the weights of another engine."""
    total = sum(one.weight for one in after.values() if one.priority == 0)
    total_before = sum(weight for weight, share in before.values() if share > 0.0)
    # a new engine begins on its own scale; the live one keeps the pool's total
    scale = total_before / total if total and total_before else 1.0
    moves: list[WeightMove] = []
    for address in sorted({*before, *after}):
        old, new = before.get(address), after.get(address)
        share = new.weight / total if new is not None and total and new.priority == 0 else 0.0
        moves.append(
            WeightMove(
                pool,
                address,
                None if old is None else old[0],
                None if new is None else round(new.weight * scale),
                0.0 if old is None else old[1],
                share,
                "leaves the pool: drains" if new is None else _SCALED.sub("", new.why),
            )
        )
    return moves


def _differs(move: WeightMove) -> bool:
    if move.weight_before is None or move.weight is None:
        return True
    return abs(move.share - move.share_before) > 0.005 or (move.weight == 0) != (move.weight_before == 0)


def _burden(moves: Sequence[WeightMove]) -> float:
    gained = sum(max(0.0, m.share - m.share_before) for m in moves if m.weight_before is not None)
    lost = sum(m.share_before for m in moves if not m.weight)
    return max(gained, lost)


# Differences of policies.


@dataclass(frozen=True, slots=True)
class Change:
    """A field that differs. before, after: JSON, "" where it is not there."""

    path: str
    before: str
    after: str


def changes(before: Any, after: Any) -> list[Change]:
    """Every field that differs between two effective policies (plain values)."""
    return list(_changes("", before, after))


def _changes(path: str, before: Any, after: Any) -> Iterator[Change]:
    if before == after:
        return
    if isinstance(before, dict) and isinstance(after, dict):
        for key in [*before, *(key for key in after if key not in before)]:
            below = f"{path}.{key}" if path else str(key)
            yield from _changes(below, before.get(key, _ABSENT), after.get(key, _ABSENT))
        return
    if isinstance(before, list) and isinstance(after, list):
        old, new = _keyed(before), _keyed(after)
        if old is not None and new is not None:
            for key in [*old, *(key for key in new if key not in old)]:
                yield from _changes(f"{path}[{key}]", old.get(key, _ABSENT), new.get(key, _ABSENT))
            if [key for key in old if key in new] != [key for key in new if key in old]:
                yield Change(f"{path} (order)", _json(list(old)), _json(list(new)))
            return
    if before is _ABSENT or after is _ABSENT:
        before, after = _bare(before), _bare(after)
    yield Change(path, _json(before), _json(after))


_ABSENT: Any = object()


def _bare(value: Any) -> Any:
    """Something new or gone without its empty fields."""
    if isinstance(value, dict):
        return {key: _bare(item) for key, item in value.items() if item is not None and item not in ("", [], {})}
    return [_bare(item) for item in value] if isinstance(value, list) else value


def _keyed(items: list[Any]) -> dict[str, Any] | None:
    """Items by what names them, None when something is nameless or named twice."""
    keyed: dict[str, Any] = {}
    for item in items:
        name = (item.get("address") or item.get("name")) if isinstance(item, dict) else None
        if not name or name in keyed:
            return None
        keyed[name] = item
    return keyed


def _json(value: Any) -> str:
    if value is _ABSENT:
        return ""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= MAX_VALUE else text[: MAX_VALUE - 3] + "..."


def routes(before: Policy, after: Policy) -> list[str]:
    """Sentences about pools, rules and model routes that would change."""
    found: list[str] = []
    old_pools, new_pools = ({pool.name: pool for pool in policy.pools} for policy in (before, after))
    found += [f"pool {name} is added" for name in new_pools if name not in old_pools]
    found += [f"pool {name} is removed" for name in old_pools if name not in new_pools]
    for name in old_pools.keys() & new_pools.keys():
        if old_pools[name].models != new_pools[name].models:
            models = ", ".join(new_pools[name].models) or "no model"
            found.append(f"pool {name} serves {models}")
    if before.default_pool() != after.default_pool():
        found.append(
            f"requests without a pool of their own go to {after.default_pool() or 'nowhere (404)'} "
            f"instead of {before.default_pool() or 'nowhere (404)'}"
        )
    found += _named("rule", [(r.name, r) for r in before.routing.rules], [(r.name, r) for r in after.routing.rules])
    found += _named(
        "model route",
        [(one.label, one) for one in before.routing.models],
        [(one.label, one) for one in after.routing.models],
    )
    return found


def _named(kind: str, before: Sequence[tuple[str, Any]], after: Sequence[tuple[str, Any]]) -> Iterator[str]:
    old, new = dict(before), dict(after)
    for name, value in new.items():
        if name not in old:
            yield f"{kind} {name} is added"
        elif old[name] != value:
            yield f"{kind} {name} changes"
    for name in old:
        if name not in new:
            yield f"{kind} {name} is removed"
    if [name for name in old if name in new] != [name for name in new if name in old]:
        yield f"the order of the {kind}s changes"
