from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from xds_control.errors import Place, PolicyError, Problem
from xds_control.policy.load import decode_policy, encode_policy, load_files, load_policy, parse_policy, policy_version
from xds_control.policy.schema import Policy

GOOD = """\
version: xds-control/v1
pools:
- name: chat
  models: [m]
  endpoints:
  - address: 127.0.0.1:8000
  - address: 127.0.0.1:8001
    capacity: 2
"""


def problems(text: str) -> list[str]:
    with pytest.raises(PolicyError) as caught:
        parse_policy(text, "p.yaml")
    return [str(problem) for problem in caught.value.problems]


def test_a_small_policy_is_enough() -> None:
    policy = parse_policy(GOOD)
    assert [e.address for e in policy.pools[0].endpoints] == ["127.0.0.1:8000", "127.0.0.1:8001"]
    assert policy.default_pool() == "chat"
    assert policy.processors.count == 1


def test_a_policy_survives_the_wire_and_keeps_its_version() -> None:
    policy = parse_policy(GOOD)
    again = decode_policy(encode_policy(policy))
    assert again == policy
    assert policy_version(again) == policy_version(policy)
    assert policy_version(parse_policy(GOOD.replace("capacity: 2", "capacity: 3"))) != policy_version(policy)


def test_an_unknown_field_names_the_nearest_one() -> None:
    found = problems(GOOD.replace("models: [m]", "modles: [m]"))
    assert found == ["p.yaml:4:3: pools[0].modles: unknown field `modles`; did you mean `models`?"]


def test_wrong_types_name_place_and_value() -> None:
    found = problems(GOOD.replace("capacity: 2", "capacity: lots"))
    assert len(found) == 1
    assert found[0].startswith("p.yaml:8:15: pools[0].endpoints[1].capacity: expected a number, found ")
    assert "'lots'" in found[0]


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("models: [m]", "models: m", "expected a list, found 'm'"),
        ("models: [m]", "models: [[m]]", "expected text, found a list"),
        ("capacity: 2", "picks: 2\n    capacity: {}", "expected a number, found a mapping"),
        ("capacity: 2", "locality: here", "expected a mapping, found 'here'"),
    ],
)
def test_types_are_called_as_people_call_them(before: str, after: str, message: str) -> None:
    assert any(line.endswith(message) for line in problems(GOOD.replace(before, after)))


def test_a_misspelt_field_is_not_missing_too() -> None:
    (found,) = problems(GOOD.replace("address:", "adress:", 1))
    assert "did you mean `address`?" in found


def test_values_out_of_range_are_refused() -> None:
    (found,) = problems(GOOD.replace("capacity: 2", "capacity: -1"))
    assert found.startswith("p.yaml:8:15: pools[0].endpoints[1].capacity: expected a number > 0")


@pytest.mark.parametrize("word", [".inf", "-.inf", ".nan", "1.0e+999"])
def test_numbers_are_finite(word: str) -> None:
    assert problems(GOOD.replace("capacity: 2", f"capacity: {word}")) == [
        f"p.yaml:8:15: pools[0].endpoints[1].capacity: cannot be read: {word} is not a finite number"
    ]


def test_bad_and_duplicate_addresses() -> None:
    (found,) = problems(GOOD.replace("127.0.0.1:8001", "127.0.0.1:99999"))
    assert found.startswith("p.yaml:7:5: pools[0].endpoints[1]")
    assert "port '99999'" in found
    (found,) = problems(GOOD.replace("127.0.0.1:8001", "127.0.0.1:8000"))
    assert found == (
        "p.yaml:7:14: pools[0].endpoints[1].address: endpoint 127.0.0.1:8000 is listed twice "
        "(first pools[0].endpoints[0])"
    )


def test_curves_out_of_range() -> None:
    text = GOOD + "weights:\n  profile: custom\n  curves:\n  - signal: kv_usage\n    floor: 1.5\n"
    (found,) = problems(text)
    assert found.startswith("p.yaml:13:12: weights.curves[0].floor: expected a number <= 1")
    text = GOOD + "weights:\n  profile: custom\n  curves:\n  - signal: kv_usage\n    good: 1\n    bad: 1\n"
    (found,) = problems(text)
    assert found.startswith("p.yaml:12:5: weights.curves[0]")
    assert "must differ" in found


def test_everything_wrong_is_reported_at_once_in_file_order() -> None:
    text = GOOD.replace("capacity: 2", "capacity: lots").replace("models: [m]", "modles: [m]") + "nonsense: 1\n"
    found = problems(text)
    assert [line.split(": ")[1] for line in found] == ["pools[0].modles", "pools[0].endpoints[1].capacity", "nonsense"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "`pools` is missing"),
        ("[]", "expected a mapping, found a list"),
        ("version: xds-control/v2\npools: []\n", "'xds-control/v2' is none of xds-control/v1"),
        ("version: xds-control/v1\npools: []\n", "length >= 1"),
        ("version: xds-control/v1\npools: 5\n", "expected a list, found 5"),
    ],
)
def test_other_shapes(text: str, expected: str) -> None:
    assert any(expected in line for line in problems(text)), problems(text)


def test_one_place_has_one_problem_although_several_checks_see_it() -> None:
    def further(policy: Policy) -> None:
        places = ("routing.default_pool", "routing.unknown_model")
        raise PolicyError([Problem(Place(path=path), "seen by a later check") for path in places])

    with pytest.raises(PolicyError) as caught:
        parse_policy(GOOD + "routing:\n  default_pool: chatt\n", "p.yaml", [further])
    assert sorted("later" in str(problem) for problem in caught.value.problems) == [False, True]


def test_classes_have_to_exist_where_they_are_named() -> None:
    rules = 'routing: {rules: [{name: a, when: "true", class: hihg}, {name: b, when: "true", class: low}]}\n'
    found = problems(GOOD + rules + "picker: {use: [{class: bulk, profile: default}]}\n")
    assert len(found) == 2
    assert "routing.rules[0].class: there is no class 'hihg'; classes are critical, high, medium, low" in found[0]
    assert found[0].endswith("did you mean `high`?")
    assert "picker.use[0].class: there is no class 'bulk'" in found[1]


def test_pools_have_to_exist_where_they_are_named() -> None:
    (found,) = problems(GOOD + "routing:\n  default_pool: chatt\n")
    assert found == "p.yaml:10:17: routing.default_pool: there is no pool 'chatt'; pools are chat; did you mean `chat`?"


def test_a_missing_file_is_a_policy_error(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="cannot be read: No such file"):
        load_policy(tmp_path / "none.yaml")
    with pytest.raises(PolicyError, match="the folder has no file"):
        load_policy(tmp_path)


@pytest.mark.parametrize(
    ("lines", "what", "wanted"),
    [
        ("picker: {prefix: {budget_bytes: 1e9}}", lambda p: p.picker.prefix.budget_bytes, 1_000_000_000),
        ("picker: {prefix: {budget_bytes: 1E+9}}", lambda p: p.picker.prefix.budget_bytes, 1_000_000_000),
        ("lifecycle: {draining: {timeout_s: 1.2e2}}", lambda p: p.lifecycle.draining.timeout_s, 120.0),
        ("signals: {age_limits_s: {running: 5e-1}}", lambda p: p.signals.age_limits_s["running"], 0.5),
        ("envoy: {retries: {status_codes: [5.03e2]}}", lambda p: p.envoy.retries.status_codes, [503]),
        ("envoy: {node_id: '1e9'}", lambda p: p.envoy.node_id, "1e9"),
        ("envoy: {node_id: 1e9}", lambda p: p.envoy.node_id, "1e9"),
    ],
)
def test_numbers_with_an_exponent_are_numbers_where_numbers_are_wanted(lines: str, what: Any, wanted: Any) -> None:
    files = [("a.yaml", "version: xds-control/v1\npools: [{name: a}]\n"), ("b.yaml", lines + "\n")]
    found = what(load_files(files).policy)
    assert found == wanted
    assert type(found) is type(wanted)


@pytest.mark.parametrize(
    ("lines", "path", "words"),
    [
        ("envoy: {node_id: on}", "envoy.node_id", "found on: write it in quotes to have it as text"),
        ("envoy: {node_id: 4.10}", "envoy.node_id", "found 4.10: write it in quotes"),
        ("envoy: {node_id: 2026-01-02}", "envoy.node_id", "found 2026-01-02: write it in quotes"),
        ("routing: {default_pool: no}", "routing.default_pool", "found no: write it in quotes"),
        ("ext_proc: {request_headers: [x-a, 12]}", "ext_proc.request_headers[1]", "found 12: write it in quotes"),
        ("envoy: {concurrency: 010}", "envoy.concurrency", "YAML reads 010 as 8: write 8, or '010' in quotes"),
        ("envoy: {node_id: 10:30}", "envoy.node_id", "YAML reads 10:30 as 630"),
        ("envoy: {concurrency: 1e99}", "envoy.concurrency", "expected a whole number <= 256"),
        ("envoy: {concurrency: '1e2'}", "envoy.concurrency", "expected a whole number, found '1e2'"),
        ("envoy: {connect_timeout_s: 1e999}", "envoy.connect_timeout_s", "expected a number, found "),
    ],
)
def test_what_yaml_reads_unlike_people_is_told(lines: str, path: str, words: str) -> None:
    with pytest.raises(PolicyError) as caught:
        load_files([("p.yaml", "version: xds-control/v1\npools: [{name: a}]\n" + lines + "\n")])
    found = [one for one in caught.value.problems if one.place.path == path]
    assert any(words in one.message for one in found), caught.value.problems
    assert all(one.place.line == 3 for one in found)


@pytest.mark.parametrize(
    ("lines", "path", "words"),
    [
        ("weights: {profile: balancd}", "weights.profile", "'balancd' is none of balanced, "),
        ("weights: {profile: balancd}", "weights.profile", "did you mean `balanced`?"),
        ("log: {level: loud}", "log.level", "'loud' is none of debug, info, warning, error"),
        ("picker: {profiles: {default: {picker: max-scor}}}", "picker", "did you mean `max-score`?"),
        (
            "picker: {profiles: {default: {filters: [prefix-afinity]}}}",
            "picker.profiles.default.filters[0]",
            "did you mean",
        ),
        (
            "control: {admin_security: {tokens: [{name: a, role: adm, file: /f}]}}",
            "control.admin_security",
            "view, operate",
        ),
        ("routing: {default_pool: chta}", "routing.default_pool", "did you mean `chat`?"),
    ],
)
def test_a_wrong_word_is_told_with_those_allowed_and_the_nearest(lines: str, path: str, words: str) -> None:
    with pytest.raises(PolicyError) as caught:
        parse_policy(f"version: xds-control/v1\npools: [{{name: chat}}]\n{lines}\n")
    assert any(one.place.path.startswith(path) and words in one.message for one in caught.value.problems), str(
        caught.value
    )
