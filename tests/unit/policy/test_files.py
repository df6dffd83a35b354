"""Policies of several files, references to secrets, and the reference pages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import gen_docs
from xds_control.admin.checks import CHECKS, warnings
from xds_control.errors import PolicyError
from xds_control.policy.load import load_files, load_policy, read_files

POOLS = """\
version: xds-control/v1
pools:
- name: chat
  endpoints: [{address: "10.0.0.1:80"}]
"""
MORE = """\
version: xds-control/v1
pools:
- name: code
  endpoints: [{address: "10.0.0.2:80"}]
routing:
  default_pool: chat
"""
RULE = POOLS + "routing:\n  rules:\n  - {name: a, when: 'true', headers: {authorization: 'Bearer ${env:KEY}'}}\n"


def problems(*files: tuple[str, str]) -> list[str]:
    with pytest.raises(PolicyError) as caught:
        load_files(files, CHECKS)
    return [str(problem) for problem in caught.value.problems]


def test_a_reference_that_leads_nowhere_is_one_problem_wherever_it_stands() -> None:
    text = POOLS + "tracing: {endpoint: '${env:NOT_SET}', sample_share: 2}\ncontrol: {xds: '${env:NOT_SET}'}\n"
    found = problems(("p.yaml", text))
    assert len(found) == 3, found
    assert sum("NOT_SET is not set" in one for one in found) == 2
    assert sum("sample_share" in one for one in found) == 1


def test_files_are_joined(tmp_path: Path) -> None:
    (tmp_path / "b.yaml").write_text(MORE)
    (tmp_path / "a.yaml").write_text(POOLS)
    (tmp_path / "notes.txt").write_text("nothing")
    policy = load_policy(tmp_path)
    assert [pool.name for pool in policy.pools] == ["chat", "code"]
    assert policy.default_pool() == "chat"


def test_what_two_files_set_is_a_conflict_with_both_places() -> None:
    found = problems(("a.yaml", POOLS + "routing: {default_pool: chat}\n"), ("b.yaml", MORE))
    assert found == ["b.yaml:6:3: routing.default_pool: set in a.yaml:5 already; say it in one file only"]


def test_mistakes_are_placed_in_their_own_file() -> None:
    wrong = MORE.replace("name: code", "name: chat")
    found = problems(("a.yaml", POOLS), ("b.yaml", wrong.replace("10.0.0.2", "nope:")))
    assert len(found) == 1
    assert found[0].startswith("b.yaml:4:15: pools[1].endpoints[0]: address")
    (twice,) = problems(("a.yaml", POOLS), ("b.yaml", wrong))
    assert twice.startswith("b.yaml:3:9: pools[1].name: pool 'chat' is named twice")


def test_all_files_are_read_before_anything_is_said() -> None:
    found = problems(("a.yaml", "a: [1"), ("b.yaml", "b: {2"))
    assert {line.split(":")[0] for line in found} == {"a.yaml", "b.yaml"}


def test_an_empty_folder_is_no_policy(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="no file that ends in"):
        read_files(tmp_path)


def test_a_secret_is_used_and_never_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KEY", "s3cr3t-value")
    loaded = load_files([("p.yaml", RULE)], CHECKS)
    assert loaded.policy.routing.rules[0].headers["authorization"] == "Bearer s3cr3t-value"
    shown = json.dumps(loaded.shown())
    assert "s3cr3t-value" not in shown
    assert "Bearer ${env:KEY}" in shown
    path = tmp_path / "key"
    path.write_text("from-file\n")
    loaded = load_files([("p.yaml", RULE.replace("env:KEY", f"file:{path}"))])
    assert loaded.policy.routing.rules[0].headers["authorization"] == "Bearer from-file"


def test_a_secret_is_not_in_error_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY", "s3cr3t-value")
    found = problems(("p.yaml", RULE.replace("name: a", "name: a, limits: '${env:KEY}'")))
    assert found
    assert "s3cr3t-value" not in "".join(found)
    assert "${env:KEY}" in "".join(found)


def test_a_reference_to_nothing_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KEY", raising=False)
    (found,) = problems(("p.yaml", RULE))
    assert "p.yaml:7:54" in found
    assert "the environment variable KEY is not set" in found
    (found,) = problems(("p.yaml", RULE.replace("env:KEY", "file:key")))
    assert "needs an absolute path" in found
    (found,) = problems(("p.yaml", RULE.replace("env:KEY", "file:/nowhere/key")))
    assert "No such file" in found


def test_names_of_signals_are_checked() -> None:
    (found,) = problems(("p.yaml", POOLS + "signals: {age_limits_s: {wating: 5}}\n"))
    assert found.startswith("p.yaml:5:34: signals.age_limits_s.wating: there is no signal 'wating'")


@pytest.mark.parametrize(
    ("engine", "words"),
    [("vlm", "did you mean 'vllm'?"), ("generic", "signals.engines.NAME"), ("none", "there are auto, dynamo")],
)
def test_names_of_engines_are_checked(engine: str, words: str) -> None:
    text = f"""\
version: xds-control/v1
pools:
- name: chat
  engine: {engine}
  endpoints:
  - address: 10.0.0.1:8000
    engine: {engine}
  - address: 10.0.0.2:8000
    engine: llama.cpp
  - address: 10.0.0.3:8000
    engine: mine
signals: {{engines: {{mine: {{signals: [{{metric: q, signal: waiting}}]}}}}}}
"""
    pool, endpoint = problems(("p.yaml", text))
    assert pool.startswith("p.yaml:4:11: pools[0].engine: ")
    assert words in pool
    assert endpoint.startswith("p.yaml:7:13: pools[0].endpoints[0].engine: ")
    assert words in endpoint


def test_harmful_settings_are_warned_of() -> None:
    text = POOLS + "weights: {profile: cache, cache_form: squared}\n"
    found = [str(one) for one in warnings(load_files([("p.yaml", text)]).policy)]
    assert any("feeds on itself" in one for one in found)
    assert not list(warnings(load_files([("p.yaml", POOLS)]).policy))


def test_the_generated_reference_is_current() -> None:
    assert gen_docs.stale() == []


def test_every_field_of_the_policy_is_documented() -> None:
    schema = json.loads((gen_docs.TARGET / "policy.schema.json").read_text())
    bare = [
        f"{name}.{field}"
        for name, definition in schema["$defs"].items()
        for field, shape in definition["properties"].items()
        if not shape.get("description")
    ]
    assert bare == []


@pytest.mark.parametrize("path", sorted((gen_docs.REPOSITORY / "examples").glob("*.yaml")), ids=lambda path: path.name)
def test_every_example_is_a_good_policy(path: Path) -> None:
    loaded = load_files(read_files(path), CHECKS)
    assert not list(warnings(loaded.policy))
