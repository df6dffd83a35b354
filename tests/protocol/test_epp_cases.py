"""Every case of the shared file: passed, or out of scope for a reason that is told."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.protocol.epp_cases import load, run_all
from tests.protocol.epp_peer import Core, Grpc
from tests.shared import shared_path
from xds_control.extproc import picking
from xds_control.routing import pick as reasons

OUT_OF_SCOPE = {"adm-11-prerequest-typed-failure"}


@pytest.mark.slow
def test_all_cases() -> None:
    cases, fixtures = load(shared_path("cases/epp_cases.yaml"))
    assert len(cases) > 80
    outcomes = asyncio.run(run_all(cases, fixtures, (Core, Grpc)))
    failed = [f"{outcome.id}: {outcome.text}" for outcome in outcomes if outcome.state == "failed"]
    assert not failed, "\n".join(failed)
    skipped = {outcome.id: outcome.text for outcome in outcomes if outcome.state == "skipped"}
    no_envoy = {name for name, text in skipped.items() if "no envoy binary" in text}
    assert set(skipped) - no_envoy == OUT_OF_SCOPE


@pytest.mark.slow
def test_our_own_further_cases() -> None:
    cases, fixtures = load(Path(__file__).with_name("epp_more.yaml"))
    outcomes = asyncio.run(run_all(cases, fixtures, (Core, Grpc)))
    assert [f"{one.id}: {one.state} {one.text}" for one in outcomes if one.state != "passed"] == []


def test_every_refusal_has_its_words() -> None:
    assert set(reasons._STATUS) == set(picking._TEXT)


def test_a_case_that_does_not_hold_fails() -> None:
    wrong = {
        "id": "wrong",
        "kind": "pick",
        "pool": [[1, 0, 0.1, []], [2, 9, 0.9, []]],
        "config": {"scorers": {"queue": 1}},
        "expect": {"endpoint": "10.9.0.2:8000"},
    }
    unknown = {**wrong, "id": "unknown", "expect": {"colour": "blue"}}
    outcomes = asyncio.run(run_all([wrong, unknown], {}, (Core,)))
    assert [outcome.state for outcome in outcomes] == ["failed", "skipped"]
    assert "wanted '10.9.0.2:8000'" in outcomes[0].text
