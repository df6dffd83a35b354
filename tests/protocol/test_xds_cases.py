"""The protocol cases, on the pure core and over a gRPC channel."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.protocol.xds_backends import Kind
from tests.protocol.xds_cases import POLICY_CHECKS, load, main, run_all
from tests.shared import shared_path
from xds_control.xds import CDS, EDS, LDS

OWN = Path(__file__).with_name("xds_more.yaml")


async def _run(path: Path) -> list[str]:
    cases, _ = load(path)
    assert cases
    return [f"{o.case.id} on {o.backend}: {o.failure}" for o in await run_all(cases) if o.failure is not None]


async def test_the_shared_cases_pass() -> None:
    assert await _run(shared_path("cases/xds_cases.yaml")) == []


async def test_the_further_cases_pass() -> None:
    assert await _run(OWN) == []


async def test_the_choices_where_servers_differ_are_kept() -> None:
    assert await _run(POLICY_CHECKS) == []


def test_a_policy_given_in_words_is_checked_by_its_steps() -> None:
    cases, words = load(shared_path("cases/xds_cases.yaml"))
    assert words == []
    assert {c.id for c in cases if c.section == "policy"} == {
        *("P01a", "P01b", "P02a", "P03a", "P03b", "P05a", "P06a", "P06b", "P07a", "P09a", "P09b", "P10a")
    }


FAILING = """
must:
- {id: A, title: wrong, world: {CDS: {c1: 1}}, steps: [{open: sotw-ads}, {send: {t: CDS}}, {%s}]}
- {id: B, title: right, world: {CDS: {c1: 1}}, steps: [{open: sotw-ads}, {send: {t: CDS}}, {expect: {t: CDS}}]}
"""


@pytest.mark.parametrize(
    "step",
    [
        "expect: {t: CDS, only: [c2]}",
        "expect: {t: CDS, not: [c1]}",
        "expect: {t: CDS, rev: {c1: 2}}",
        "expect: {t: EDS}",
        "expect: {t: CDS, v: other}",
        "quiet: true",
        "quiet_except_only: [c2]",
        "drain: optional_empty",
        "expect_end: [UNAVAILABLE]",
        "expect: {t: CDS, surprise: 1}",
        "perhaps: true",
        "send: {t: CDS, v: $NEVER}",
    ],
)
def test_the_runner_notices_what_is_wrong(step: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "cases.yaml"
    file.write_text(FAILING % step)
    assert main([str(file)]) == 1
    assert capsys.readouterr().out.splitlines()[-1] == "2 passed, 2 failed"


def test_the_runner_says_so_when_all_is_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "cases.yaml"
    file.write_text(FAILING % "expect: {t: CDS, only: [c1]}")
    assert main([str(file)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "4 passed, 0 failed"
    assert main([str(tmp_path / "none.yaml")]) == 2


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("sotw-ads", Kind(False, None)),
        ("delta-ads", Kind(True, None)),
        ("delta", Kind(True, None)),
        ("sotw-eds", Kind(False, EDS)),
        ("delta_cds", Kind(True, CDS)),
        ("LDS/Delta", Kind(True, LDS)),
        ("delta endpoints", Kind(True, EDS)),
    ],
)
def test_any_spelling_of_a_stream_is_understood(text: str, kind: Kind) -> None:
    assert Kind.parse(text) == kind
