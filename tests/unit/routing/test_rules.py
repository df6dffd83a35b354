from __future__ import annotations

from typing import Any

import pytest

from tests.unit.extproc.support import endpoint, pool, view_of
from xds_control.errors import PolicyError
from xds_control.fleet.snapshot import State
from xds_control.inspect.facts import RequestFacts
from xds_control.policy.routing import Limits, ModelRoute, Reject, RoutingPolicy, Rule, Target
from xds_control.routing.rules import compile_rules
from xds_control.routing.view import RoutingView

POOLS = ["general", "long-context", "low-latency", "batch"]


def view(**signals: Any) -> RoutingView:
    return view_of(*(pool(name, [], endpoint("10.0.0.1:1", name, **signals)) for name in POOLS))


def chosen(policy: RoutingPolicy, facts: RequestFacts, headers: dict[str, str] | None = None) -> str:
    found = compile_rules(policy, POOLS).match(facts, headers or {}, view())
    return "" if found is None else found.rule.name


SEMANTIC = RoutingPolicy(
    rules=(
        Rule(name="batch", when="headers['x-batch'] == '1' || request.priority < 0", pool="batch"),
        Rule(name="long", when="request.prompt_tokens > 8000 || 'code' in request.tags", pool="long-context"),
        Rule(name="quick", when="request.stream && request.prompt_tokens < 500", pool="low-latency"),
        Rule(name="rest", when="true", pool="general"),
    )
)


@pytest.mark.parametrize(
    ("facts", "headers", "name"),
    [
        (RequestFacts(prompt_tokens=100, stream=True), {"x-batch": "1"}, "batch"),
        (RequestFacts(prompt_tokens=100, priority=-1), {}, "batch"),
        (RequestFacts(prompt_tokens=9000), {}, "long"),
        (RequestFacts(prompt_tokens=10, tags=("code",)), {}, "long"),
        (RequestFacts(prompt_tokens=10, stream=True), {}, "quick"),
        (RequestFacts(prompt_tokens=10), {}, "rest"),
        (RequestFacts(prompt_tokens=1000, stream=True), {"x-batch": "0"}, "rest"),
    ],
)
def test_routing_by_what_requests_are_needs_policy_only(
    facts: RequestFacts, headers: dict[str, str], name: str
) -> None:
    assert chosen(SEMANTIC, facts, headers) == name


@pytest.mark.parametrize(
    ("when", "expected"),
    [
        ("headers['x-team'] == 'a'", True),
        ("headers['x-absent'] == ''", True),
        ("'x-absent' in headers", False),
        ("!has(headers.cookie)", True),
        ("headers.exists(h, h == 'x-team')", True),
        ("headers[request.model] == 'a'", False),
        ("request.max_output_tokens == 0", True),
        ("request.temperature == 1.0", True),
        ("request.session", True),
        ("request.problem == 'body-truncated'", True),
        ("pools['general'].waiting == 3.0", True),
        ("pools['general'].kv_usage > 0.85 && pools['general'].kv_usage_max < 0.95", True),
        ("pools['general'].slo_headroom < 0.0", True),
        ("pools.all(p, pools[p].available)", True),
        ("request.api.startsWith('openai.')", True),
        ("request.n > 0 && (request.n) < 2", True),
        ("1 / (request.n - 1) > 0", False),
        ("1 / (request.n - 1) > 0 || true", True),
        ("int(headers['x-level']) > 2", False),
    ],
)
def test_what_expressions_see(when: str, expected: bool) -> None:
    facts = RequestFacts(api="openai.chat", model="m", session_key=5)
    facts.problem = facts.problem.TRUNCATED
    rules = compile_rules(RoutingPolicy(rules=(Rule(name="r", when=when),)), POOLS)
    found = rules.match(facts, {"x-team": "a"}, view(waiting=3, kv_usage=0.9, slo_attainment=0.9))
    assert (found is not None) == expected


def test_rule_that_fails_is_counted_and_the_next_is_tried() -> None:
    rules = compile_rules(
        RoutingPolicy(
            rules=(
                Rule(name="bad", when="int(headers['x-level']) > 2"),
                Rule(name="good", when="true"),
            )
        )
    )
    found = rules.match(RequestFacts(), {"x-level": "high"}, view())
    assert found is not None
    assert found.rule.name == "good"
    assert rules.rules[0].errors == 1
    assert rules.rules[0].last_error
    assert (rules.rules[1].matches, rules.rules[1].errors) == (1, 0)


def test_pool_that_is_gone_fails_only_the_rule_that_asks_for_it() -> None:
    rules = compile_rules(
        RoutingPolicy(rules=(Rule(name="a", when="pools['batch'].available"), Rule(name="b", when="true")))
    )
    found = rules.match(RequestFacts(), {}, view_of(pool("general", [])))
    assert found is not None
    assert found.rule.name == "b"


def test_explain_shows_every_rule_without_counting() -> None:
    rules = compile_rules(SEMANTIC, POOLS)
    outcome = rules.explain(RequestFacts(prompt_tokens=9000, stream=True), {}, view())
    assert [(name, matched) for name, matched, _ in outcome] == [
        ("batch", False),
        ("long", True),
        ("quick", False),
        ("rest", True),
    ]
    assert all(rule.matches == 0 and rule.errors == 0 for rule in rules.rules)


def test_headers_that_rules_read_are_known() -> None:
    rules = compile_rules(SEMANTIC)
    assert rules.header_names == frozenset({"x-batch"})
    everything = RoutingPolicy(rules=(Rule(name="r", when="headers.exists(h, h == 'x')"),))
    assert compile_rules(everything).header_names is None


def test_all_problems_are_reported_with_their_yaml_path() -> None:
    policy = RoutingPolicy(
        rules=(
            Rule(name="a", when="request.nope > 1 && request.n"),
            Rule(name="b", when="true", pool=("general", "genral")),
            Rule(name="c", when="request.stream &&"),
            Rule(name="d", when="request.tags.exists(a, request.tags.exists(b, request.tags.exists(c, a == b)))"),
        )
    )
    with pytest.raises(PolicyError) as caught:
        compile_rules(policy, POOLS)
    places = [(problem.place.path, problem.message) for problem in caught.value.problems]
    assert [place for place, _ in places] == [
        "routing.rules[0].when",
        "routing.rules[0].when",
        "routing.rules[1].pool",
        "routing.rules[2].when",
        "routing.rules[3].when",
    ]
    assert "no field 'nope'" in places[0][1]
    assert "'genral'" in places[2][1]
    assert "not a CEL expression" in places[3][1]
    assert "steps" in places[4][1]


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Rule(name="r", when="true", headers={"X-Upper": "1"}), "lower-case"),
        (lambda: Rule(name="r", when="true", headers={"x-xds-control-pool": "1"}), "reserved"),
        (lambda: Rule(name="r", when="true", headers={"host": "1"}), "cannot be changed"),
        (lambda: Rule(name="r", when="true", headers={"x-a": "b\r\nc: d"}), "line break"),
        (lambda: Rule(name="r", when="true", reject=Reject(), pool="a"), "rejects"),
        (lambda: ModelRoute(to=(Target(pool="a"),)), "exactly one"),
        (lambda: ModelRoute(model="a", prefix="b", to=(Target(pool="a"),)), "exactly one"),
        (lambda: ModelRoute(regex="(", to=(Target(pool="a"),)), "does not compile"),
        (lambda: ModelRoute(model="a", to=(Target(pool="a", weight=0),)), "all 0"),
        (lambda: RoutingPolicy(rules=(Rule(name="r", when="true"), Rule(name="r", when="true"))), "two rules"),
    ],
)
def test_sections_check_themselves(make: object, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        make()  # type: ignore[operator]


def test_pool_state_counts_only_what_serves() -> None:
    one = view_of(
        pool(
            "p",
            ["m"],
            endpoint("10.0.0.1:1", "p", waiting=2, running=4, kv_usage=0.2),
            endpoint("10.0.0.2:1", "p", waiting=4, kv_usage=0.6),
            endpoint("10.0.0.3:1", "p", state=State.EJECTED, weight=0, pickable=False, waiting=100),
        )
    ).pools["p"]
    assert one.state["endpoints"] == 3
    assert one.state["serving"] == 2
    assert one.state["waiting"] == 6
    assert one.state["waiting_mean"] == 3
    assert one.state["running"] == 4
    assert one.state["kv_usage"] == pytest.approx(0.4)
    assert one.state["kv_usage_max"] == 0.6
    assert one.state["slo_headroom"] == pytest.approx(0.05)


def test_limits_have_places_for_everything() -> None:
    assert Limits(prompt_tokens=1, output_tokens=1, total_tokens=1, body_bytes=1, images=0, n=1)
