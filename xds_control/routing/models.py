"""Model names → pools: aliases, exact, prefix and regex routes, LoRA adapters, splits, mirrors, fallback."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import xxhash

from xds_control.errors import Place, PolicyError, Problem
from xds_control.policy.routing import ModelRoute, RoutingPolicy, Target
from xds_control.routing.view import RoutingView

_TO_UNIT = 2.0**-64


@dataclass(frozen=True, slots=True)
class ModelChoice:
    """Where a model's request goes.

    pool: "" when no pool is known. model: the name to write into the body, "" to leave it alone.
    lora: the adapter that is asked for, "" when none. mirror: pool that gets a copy, "" when none.
    route: label of the model route, "" when the pool was found by the models that it serves.
    fell_back: every pool of first choice was out.
    """

    pool: str = ""
    model: str = ""
    lora: str = ""
    mirror: str = ""
    route: str = ""
    fell_back: bool = False


NO_CHOICE = ModelChoice()


def _draw(salt: str, key: int) -> float:
    """A number in (0, 1) that depends on nothing but its arguments, on every processor and in every run."""
    return (xxhash.xxh3_64_intdigest(salt.encode(), seed=key & 0xFFFFFFFFFFFFFFFF) + 0.5) * _TO_UNIT


class _Split:
    """Targets with weights; a key stays with its target as long as that target's share does not shrink.

    Weighted rendezvous: the target with the greatest weight / -ln(u) wins, so moving a canary from 5 % to 10 %
    moves 5 % of the sessions and no others.
    """

    def __init__(self, label: str, targets: Sequence[Target]) -> None:
        given = any(target.weight is not None for target in targets)
        self.targets = tuple(targets)
        self._weights = tuple((target.weight or 0.0) if given else 1.0 for target in targets)
        self._salts = tuple(f"{label}\0{target.pool}\0{target.model}" for target in targets)

    def choose(self, key: int, view: RoutingView, only_available: bool) -> Target | None:
        if len(self.targets) == 1 and self._weights[0] > 0:
            target = self.targets[0]
            return target if not only_available or view.is_available(target.pool) else None
        best: Target | None = None
        best_score = -1.0
        for target, weight, salt in zip(self.targets, self._weights, self._salts, strict=True):
            if weight <= 0 or (only_available and not view.is_available(target.pool)):
                continue
            score = weight / -math.log(_draw(salt, key))
            if score > best_score:
                best, best_score = target, score
        return best


class _Route:
    def __init__(self, route: ModelRoute) -> None:
        self.route = route
        self.label = route.label
        self.adapters = frozenset(route.adapters)
        self._split = _Split(self.label, route.to)

    def choose(self, name: str, key: int, view: RoutingView) -> ModelChoice:
        target = self._split.choose(key, view, only_available=True)
        fell_back = target is None
        if target is None:
            target = next((one for one in self.route.fallback if view.is_available(one.pool)), None)
        if target is None:
            # Everything is out: the first choice is as good as any, and Envoy's retry and panic rules apply there.
            target = self._split.choose(key, view, only_available=False) or self.route.to[0]
        lora = name if name in self.adapters else ""
        mirror = self.route.mirror
        copied = mirror is not None and _draw(f"mirror\0{self.label}", key) < mirror.share
        return ModelChoice(
            pool=target.pool,
            model="" if lora or target.model == name else target.model,
            lora=lora,
            mirror=mirror.pool if mirror is not None and copied else "",
            route=self.label,
            fell_back=fell_back,
        )


class ModelRoutes:
    """All model routes of a policy: exact names and aliases first, then the longest prefix, then regexes in order."""

    def __init__(self, routes: Sequence[ModelRoute] = ()) -> None:
        compiled = [_Route(route) for route in routes]
        self._exact: dict[str, _Route] = {}
        self._prefixes: list[tuple[str, _Route]] = []
        self._patterns: list[tuple[re.Pattern[str], _Route]] = []
        for one in compiled:
            route = one.route
            for name in (route.model, *route.aliases, *route.adapters):
                if name:
                    self._exact.setdefault(name, one)
            if route.prefix:
                self._prefixes.append((route.prefix, one))
            if route.regex:
                self._patterns.append((re.compile(route.regex), one))
        self._prefixes.sort(key=lambda item: -len(item[0]))

    def choose(self, name: str, key: int, view: RoutingView) -> ModelChoice | None:
        """The choice for model `name`, or None when neither a route nor a pool knows it.

        key: what makes the choice stable: the session's hash, or any number that differs per request.
        """
        route = self._exact.get(name) or self._other(name)
        if route is not None:
            return route.choose(name, key, view)
        pools = view.models.get(name)
        if not pools:
            return None
        if len(pools) == 1:
            return ModelChoice(pool=pools[0])
        # Several pools serve it: like the pools of one route with equal weights.
        available = [pool for pool in pools if view.is_available(pool)] or list(pools)
        return ModelChoice(pool=max(available, key=lambda pool: _draw(f"{name}\0{pool}", key)))

    def _other(self, name: str) -> _Route | None:
        for prefix, route in self._prefixes:
            if name.startswith(prefix):
                return route
        for pattern, route in self._patterns:
            if pattern.fullmatch(name):
                return route
        return None


def compile_models(policy: RoutingPolicy, pools: Sequence[str] | None = None, path: str = "routing") -> ModelRoutes:
    """Checks and compiles the model routes. `pools`: names of the pools that exist, None when not known yet.

    Raises PolicyError with every problem; its places carry the YAML path below `path`.
    """
    problems: list[Problem] = []
    owner: dict[str, str] = {}
    for number, route in enumerate(policy.models):
        here = f"{path}.models[{number}]"
        for where, name in (
            *((f"{here}.model", name) for name in (route.model,) if name),
            *((f"{here}.prefix", f"{name}*") for name in (route.prefix,) if name),
            *((f"{here}.aliases[{at}]", name) for at, name in enumerate(route.aliases)),
            *((f"{here}.adapters[{at}]", name) for at, name in enumerate(route.adapters)),
        ):
            if name in owner:
                problems.append(Problem(Place(path=where), f"model name {name!r} is taken by {owner[name]}"))
            owner.setdefault(name, where)
        named = [
            *((f"{here}.to[{at}].pool", target.pool) for at, target in enumerate(route.to)),
            *((f"{here}.fallback[{at}].pool", target.pool) for at, target in enumerate(route.fallback)),
            *([(f"{here}.mirror.pool", route.mirror.pool)] if route.mirror else []),
        ]
        for where, pool in named:
            if pools is not None and pool not in pools:
                known = ", ".join(sorted(pools))
                problems.append(Problem(Place(path=where), f"unknown pool {pool!r} (known: {known})"))
    if pools is not None and policy.default_pool and policy.default_pool not in pools:
        known = ", ".join(sorted(pools))
        message = f"unknown pool {policy.default_pool!r} (known: {known})"
        problems.append(Problem(Place(path=f"{path}.default_pool"), message))
    if problems:
        raise PolicyError(problems)
    return ModelRoutes(policy.models)
