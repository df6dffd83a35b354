from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.unit.extproc.support import FirstPicker, JsonInspector, body_of, decider_of, endpoint, pool
from xds_control.errors import PolicyError
from xds_control.extproc.decide import Decider, Pick, Refusal, Routes
from xds_control.extproc.decision import Decision
from xds_control.extproc.request import RequestView
from xds_control.fleet.snapshot import State
from xds_control.inspect.facts import RequestFacts
from xds_control.policy import headers as names
from xds_control.policy.extproc import ExtProcPolicy
from xds_control.policy.routing import Limits, Mirror, ModelRoute, Reject, RoutingPolicy, Rule, Target

POOLS = (pool("pool-a", ["model-a"]), pool("pool-b", ["model-b"]), pool("pool-c", []))


def view(body: bytes = b"", headers: dict[str, str] | None = None, **more: Any) -> RequestView:
    return RequestView({":path": "/v1/chat/completions", ":method": "POST", **(headers or {})}, body, **more)


def decide(routing: RoutingPolicy, body: bytes, headers: dict[str, str] | None = None, **more: Any) -> Decision:
    return decider_of(*POOLS, routing=routing, **more).decide(view(body, headers), 0.0)


def only(**rule: Any) -> RoutingPolicy:
    return RoutingPolicy(rules=(Rule(name="r", when=rule.pop("when", "true"), **rule),))


def test_rule_overrides_the_pool_that_serves_the_model() -> None:
    decision = decide(only(pool="pool-c"), body_of("model-a"))
    assert (decision.pool, decision.rule, decision.model) == ("pool-c", "r", "model-a")
    assert decision.headers[names.POOL] == "pool-c"
    assert decision.reason == "weights"


def test_rule_takes_the_first_of_its_pools_that_is_up() -> None:
    out = pool("pool-b", [], endpoint("10.0.0.1:1", "pool-b", state=State.EJECTED, weight=0, pickable=False))
    decider = decider_of(pool("pool-a", []), out, routing=only(pool=("pool-b", "pool-a")))
    assert decider.decide(view(body_of("x")), 0.0).pool == "pool-a"
    decider = decider_of(out, routing=only(pool=("pool-b",)))
    assert decider.decide(view(body_of("x")), 0.0).pool == "pool-b"


def test_rule_that_names_a_pool_lets_unknown_models_through() -> None:
    routing = RoutingPolicy(rules=(Rule(name="r", when="true", pool="pool-c"),), unknown_model=404)
    assert decide(routing, body_of("nobody")).immediate is None


def test_rule_sets_class_tenant_profile_and_headers() -> None:
    decision = decide(
        only(service_class="batch", tenant="t1", profile="fast", headers={"x-prio": "1"}),
        body_of("model-a"),
        {"x-service-class": "high"},
    )
    assert (decision.service_class, decision.tenant, decision.profile) == ("batch", "t1", "fast")
    assert decision.headers[names.CLASS] == "batch"
    assert decision.headers[names.TENANT] == "t1"
    assert decision.headers["x-prio"] == "1"
    assert decision.headers[names.RULE] == "r"
    assert decision.facts_metadata[names.META_CLASS] == "batch"


def test_class_is_the_clients_then_the_default() -> None:
    decider = decider_of(*POOLS)
    decider.default_class = "medium"
    assert decider.decide(view(body_of(), {"x-service-class": "high"}), 0.0).service_class == "high"
    assert decider.decide(view(body_of()), 0.0).service_class == "medium"


def test_rule_rejects_with_retry_after() -> None:
    decision = decide(only(reject=Reject(status=429, message="Later.", reason="closed", retry_after_s=1.5)), body_of())
    immediate = decision.immediate
    assert immediate is not None
    assert (immediate.status, immediate.reason, immediate.headers["retry-after"]) == (429, "closed", "2")
    assert b"Later." in immediate.body
    assert decision.reason == "rejected:closed"


@pytest.mark.parametrize(
    ("limits", "more", "status", "reason"),
    [
        (Limits(prompt_tokens=10), {"prompt": "x" * 100}, 400, "prompt-too-long"),
        (Limits(output_tokens=10), {"max_tokens": 11}, 400, "output-too-long"),
        (Limits(total_tokens=30), {"prompt": "x" * 100, "max_tokens": 10}, 400, "context-too-long"),
        (Limits(body_bytes=50), {"prompt": "x" * 100}, 413, "body-too-large"),
        (Limits(prompt_tokens=30, output_tokens=30, total_tokens=60, body_bytes=500, n=1, images=0), {}, None, None),
    ],
)
def test_limits_of_a_rule(limits: Limits, more: dict[str, Any], status: int | None, reason: str | None) -> None:
    immediate = decide(only(limits=limits), body_of("model-a", **more)).immediate
    assert (immediate.status if immediate else None, immediate.reason if immediate else None) == (status, reason)


def test_rule_rewrites_the_model_and_routes_by_the_new_name() -> None:
    decision = decide(only(model="model-b"), body_of("model-a"))
    assert (decision.pool, decision.model, decision.original_model) == ("pool-b", "model-b", "model-a")
    assert decision.body is not None
    assert b"model-b" in decision.body


def test_control_header_rewrites_the_model_where_policy_allows_it() -> None:
    asked = {"x-llm-d-model-name-rewrite": "model-b"}
    decision = decide(RoutingPolicy(), body_of("model-a"), asked)
    assert (decision.pool, decision.model) == ("pool-b", "model-b")
    decision = decide(RoutingPolicy(), body_of("model-a"), asked, extproc=ExtProcPolicy(control_headers=False))
    assert (decision.pool, decision.model) == ("pool-a", "model-a")
    assert decision.body is None


def test_rewritten_compressed_body_loses_its_encoding() -> None:
    decision = decide(only(model="model-b"), body_of("model-a"), {"content-encoding": "gzip"})
    assert decision.drop_headers == ("content-encoding",)


def test_mirror_names_the_pool_in_a_header() -> None:
    route = ModelRoute(model="m", to=(Target(pool="pool-a"),), mirror=Mirror(pool="pool-b"))
    assert decide(RoutingPolicy(models=(route,)), body_of("m")).headers[names.MIRROR] == "pool-b"


def test_session_keeps_its_side_of_a_split() -> None:
    route = ModelRoute(model="m", to=(Target(pool="pool-a", weight=1), Target(pool="pool-b", weight=1)))
    decider = decider_of(*POOLS, routing=RoutingPolicy(models=(route,)))
    for session in ("s1", "s2", "s3", "s4"):
        assert len({decider.decide(view(body_of("m", session=session)), 0.0).pool for _ in range(20)}) == 1
    assert {decider.decide(view(body_of("m")), 0.0).pool for _ in range(50)} == {"pool-a", "pool-b"}


@pytest.mark.parametrize(
    ("routing", "model", "expected"),
    [
        (RoutingPolicy(), "", ""),
        (RoutingPolicy(default_pool="pool-c"), "", "pool-c"),
        (RoutingPolicy(default_pool="pool-c"), "nobody", "pool-c"),
        (RoutingPolicy(default_pool="pool-c", unknown_model=404), "nobody", 404),
        (RoutingPolicy(), "nobody", 404),
    ],
)
def test_requests_without_a_known_model(routing: RoutingPolicy, model: str, expected: str | int) -> None:
    decision = decide(routing, body_of(model))
    assert (decision.immediate.status if decision.immediate else decision.pool) == expected


def test_fleet_that_is_not_known_yet_leaves_everything_to_envoy() -> None:
    decider = decider_of(*POOLS)
    decider.view = type(decider.view)()
    decision = decider.decide(view(body_of("anything")), 0.0)
    assert (decision.pool, decision.immediate, decision.reason) == ("", None, "passed")


def test_pick_is_asked_only_for_a_known_pool_and_not_for_refused_requests() -> None:
    picker = FirstPicker(Pick(("10.9.0.1:8000",)))
    decide(RoutingPolicy(), body_of("nobody"), picker=picker)
    decide(only(reject=Reject()), body_of("model-a"), picker=picker)
    assert picker.subsets == []
    assert decide(RoutingPolicy(), body_of("model-a"), picker=picker).reason == "picked"


def test_every_decision_is_told_once_with_its_own_id() -> None:
    decider = decider_of(*POOLS)
    seen: list[str] = []
    decider.on_decision = lambda decision, now: seen.append(decision.id)
    for body in (body_of(), b"{", body_of("nobody")):
        decider.decide(view(body), 0.0)
    assert len(set(seen)) == 3


@pytest.mark.parametrize("refused", [False, True])
def test_no_decision_that_is_told_holds_the_prompt(refused: bool) -> None:
    class Reader(JsonInspector):
        def inspect(self, path: str, headers: Mapping[str, str], body: bytes) -> RequestFacts:
            facts = super().inspect(path, headers, body)
            facts.token_ids = "[1,2,3]"
            return facts

    class Exact(FirstPicker):
        def pick(self, decision: Decision, *more: Any) -> Pick | Refusal | None:
            seen.append(decision.facts.token_ids)
            return super().pick(decision, *more)

    seen: list[str] = []
    decider = decider_of(*POOLS, routing=only(reject=Reject()) if refused else None, picker=Exact(None))
    decider.inspector = Reader()
    told: list[Decision] = []
    decider.on_decision = lambda decision, now: told.append(decision)
    decider.decide(view(body_of("model-a")), 0.0)
    assert seen == ([] if refused else ["[1,2,3]"])
    assert [one.facts.token_ids for one in told] == [""]


def test_dry_run_counts_and_charges_nothing() -> None:
    picker = FirstPicker(Refusal(429, "full", "Full."))
    decider = decider_of(*POOLS, routing=only(when="request.stream", pool="pool-c"), picker=picker)
    told: list[Decision] = []
    decider.on_decision = lambda decision, now: told.append(decision)
    decision, rules, _ = decider.dry_run(view(body_of("model-a", stream=True)))
    assert (decision.pool, decision.rule) == ("pool-c", "r")
    assert rules == [("r", True, "")]
    assert (picker.subsets, told, decider.routes.rules.rules[0].matches) == ([], [], 0)
    decision, _, _ = decider.dry_run(view(body_of("nobody")))
    assert decision.immediate is not None


def test_policy_errors_of_rules_and_models_come_together() -> None:
    policy = RoutingPolicy(
        rules=(Rule(name="r", when="nope"),), models=(ModelRoute(model="m", to=(Target(pool="gone"),)),)
    )
    with pytest.raises(PolicyError) as caught:
        Routes.compile(policy, ["pool-a"])
    assert [one.place.path for one in caught.value.problems] == [
        "routing.rules[0].when",
        "routing.models[0].to[0].pool",
    ]


@pytest.mark.parametrize(
    ("headers", "path"),
    [
        ({":path": "/v1/x"}, "/v1/x"),
        ({":path": "/rewritten", "x-original-path": "/v1/messages"}, "/v1/messages"),
        ({}, "/by-attribute"),
    ],
)
def test_path_of_a_request(headers: dict[str, str], path: str) -> None:
    assert RequestView(headers, attributes={"request.path": "/by-attribute"}).path == path


def test_ids_begin_elsewhere_after_a_restart() -> None:
    world, routes = decider_of(*POOLS), Routes.compile(RoutingPolicy())
    first, again = (Decider(world.view, world.inspector, routes, processor="p", first=at << 20) for at in (7, 8))
    ids = [one.decide(view(body_of("m")), 0.0).id for one in (first, first, again)]
    assert ids == ["p-700001", "p-700002", "p-800001"]


def test_new_policy_is_a_new_decider_and_the_old_one_still_works() -> None:
    first = decider_of(*POOLS)
    second = Decider(first.view, first.inspector, Routes.compile(RoutingPolicy(default_pool="pool-c")))
    assert first.decide(view(body_of("nobody")), 0.0).immediate is not None
    assert second.decide(view(body_of("nobody")), 0.0).pool == "pool-c"
