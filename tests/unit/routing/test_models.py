from __future__ import annotations

from collections import Counter

import pytest

from tests.unit.extproc.support import endpoint, pool, view_of
from xds_control.errors import PolicyError
from xds_control.fleet.readings import ModelInfo
from xds_control.fleet.snapshot import PoolSnapshot, State
from xds_control.policy.routing import Mirror, ModelRoute, RoutingPolicy, Target
from xds_control.routing.models import ModelChoice, ModelRoutes, compile_models


def out(name: str) -> PoolSnapshot:
    """A pool in which nothing takes traffic."""
    return pool(name, [], endpoint("10.0.0.9:1", name, state=State.EJECTED, weight=0, pickable=False))


VIEW = view_of(pool("a", ["model-a"]), pool("b", ["model-b"]), pool("c", []))


def choose(routes: list[ModelRoute], name: str, key: int = 1, view: object = VIEW) -> ModelChoice | None:
    return ModelRoutes(routes).choose(name, key, view)  # type: ignore[arg-type]


def to(*pools: str) -> tuple[Target, ...]:
    return tuple(Target(pool=name) for name in pools)


def test_exact_beats_longest_prefix_beats_regex() -> None:
    routes = [
        ModelRoute(name="any", regex="llama-.*", to=to("a")),
        ModelRoute(name="short", prefix="llama-", to=to("b")),
        ModelRoute(name="long", prefix="llama-3.1-", to=to("c")),
        ModelRoute(name="exact", model="llama-3.1-8b", aliases=("small",), to=to("a")),
        ModelRoute(name="rx", regex="qwen[0-9]", to=to("a")),
    ]

    def found(name: str) -> str | None:
        choice = choose(routes, name)
        return None if choice is None else choice.route

    assert found("llama-3.1-8b") == "exact"
    assert found("small") == "exact"
    assert found("llama-3.1-70b") == "long"
    assert found("llama-2") == "short"
    assert found("qwen2") == "rx"
    assert found("qwen22") is None


def test_pools_that_serve_a_model_need_no_route() -> None:
    choice = choose([], "model-b")
    assert choice == ModelChoice(pool="b")
    assert choose([], "nobody") is None


def test_models_and_adapters_that_engines_report_are_known() -> None:
    info = ModelInfo(models=("reported",), lora_running=("sql",), lora_waiting=("chat",))
    view = view_of(pool("a", [], endpoint("10.0.0.1:1", "a", info=info)), pool("b", []))
    for name in ("reported", "sql", "chat"):
        assert choose([], name, view=view) == ModelChoice(pool="a")


def test_split_follows_the_weights_and_sessions_stay() -> None:
    route = ModelRoute(model="m", to=(Target(pool="a", weight=95), Target(pool="b", weight=5)))
    routes = ModelRoutes([route])
    first = [routes.choose("m", key, VIEW) for key in range(20_000)]
    share = Counter(choice.pool for choice in first if choice is not None)
    assert 0.04 < share["b"] / 20_000 < 0.06
    assert [ModelRoutes([route]).choose("m", key, VIEW) for key in range(20_000)] == first


def test_growing_a_canary_moves_no_other_session() -> None:
    def pools(weight: float) -> list[str]:
        targets = (Target(pool="a", weight=100 - weight), Target(pool="b", weight=weight))
        routes = ModelRoutes([ModelRoute(model="m", to=targets)])
        return [choice.pool for key in range(5000) if (choice := routes.choose("m", key, VIEW)) is not None]

    before, after = pools(5), pools(10)
    assert all(late == "b" for early, late in zip(before, after, strict=True) if early == "b")
    assert 150 < sum(early != late for early, late in zip(before, after, strict=True)) < 350


@pytest.mark.parametrize(
    ("weights", "expected"),
    [((10.0, None), {"a": 1.0}), ((None, None), {"a": 0.5, "b": 0.5}), ((0.0, 1.0), {"b": 1.0})],
)
def test_missing_weights(weights: tuple[float | None, ...], expected: dict[str, float]) -> None:
    targets = tuple(Target(pool=name, weight=weight) for name, weight in zip("ab", weights, strict=True))
    routes = ModelRoutes([ModelRoute(model="m", to=targets)])
    counts = Counter(choice.pool for key in range(4000) if (choice := routes.choose("m", key, VIEW)) is not None)
    assert {name: pytest.approx(count / 4000, abs=0.03) for name, count in counts.items()} == expected


def test_target_that_is_out_gives_its_share_to_the_others_and_then_to_the_fallback() -> None:
    route = ModelRoute(model="m", to=to("a", "b"), fallback=to("x", "c"))
    view = view_of(out("a"), pool("b", []), out("x"), pool("c", []))
    assert {choice.pool for key in range(50) if (choice := choose([route], "m", key, view))} == {"b"}
    view = view_of(out("a"), out("b"), out("x"), pool("c", []))
    choice = choose([route], "m", 1, view)
    assert choice is not None
    assert (choice.pool, choice.fell_back) == ("c", True)
    everything_out = view_of(out("a"), out("b"), out("x"), out("c"))
    choice = choose([route], "m", 1, everything_out)
    assert choice is not None
    assert choice.pool in ("a", "b")


def test_rewrite_and_adapters() -> None:
    route = ModelRoute(model="base", aliases=("gpt-4",), adapters=("sql-lora",), to=(Target(pool="a", model="base"),))
    assert choose([route], "gpt-4") == ModelChoice(pool="a", model="base", route="base")
    assert choose([route], "base") == ModelChoice(pool="a", route="base")
    assert choose([route], "sql-lora") == ModelChoice(pool="a", lora="sql-lora", route="base")


def test_mirror_takes_a_stable_share() -> None:
    route = ModelRoute(model="m", to=to("a"), mirror=Mirror(pool="b", share=0.1))
    found = [choose([route], "m", key) for key in range(5000)]
    copied = sum(choice.mirror == "b" for choice in found if choice is not None)
    assert 0.08 < copied / 5000 < 0.12


def test_model_in_several_pools_is_split_evenly_over_those_that_are_up() -> None:
    view = view_of(pool("a", ["m"]), pool("b", ["m"]), out("c"))
    counts = Counter(choice.pool for key in range(2000) if (choice := choose([], "m", key, view)) is not None)
    assert set(counts) == {"a", "b"}
    assert 800 < counts["a"] < 1200


def test_all_problems_are_reported_with_their_yaml_path() -> None:
    policy = RoutingPolicy(
        models=(
            ModelRoute(model="a", to=to("a", "nope"), fallback=to("gone"), mirror=Mirror(pool="lost")),
            ModelRoute(model="b", aliases=("a",), to=to("a")),
        ),
        default_pool="missing",
    )
    with pytest.raises(PolicyError) as caught:
        compile_models(policy, ["a"])
    assert [problem.place.path for problem in caught.value.problems] == [
        "routing.models[0].to[1].pool",
        "routing.models[0].fallback[0].pool",
        "routing.models[0].mirror.pool",
        "routing.models[1].aliases[0]",
        "routing.default_pool",
    ]
