"""A shadow policy decides a sample of the requests beside the live one, and nothing else changes."""

from __future__ import annotations

import pytest

from tests.unit.extproc.test_recorder import BODY, POLICY, state
from xds_control.extproc.request import RequestView
from xds_control.extproc.state import ProcessorState
from xds_control.policy.load import encode_policy, parse_policy
from xds_control.proto import fleet_pb2 as pb

ELSEWHERE = POLICY.replace("pools:\n", "pools:\n- {name: other, endpoints: [{address: '10.0.0.9:80'}]}\n").replace(
    "  rules:\n", "  rules:\n  - {name: all, when: 'true', pool: other}\n"
)


def view() -> RequestView:
    return RequestView({":path": "/v1/chat/completions", ":method": "POST"}, BODY)


def tell(made: ProcessorState, version: str, text: str = "", *, full: bool = False) -> None:
    assert made.snapshot is not None
    message = pb.WatchResponse(full=full)
    message.shadow.version = version
    if text:
        message.shadow.json = encode_policy(parse_policy(text))
    made.on_message(made.snapshot, message, 1.0)


def decide(made: ProcessorState, count: int) -> list[str]:
    assert made.decider is not None
    return [made.decider.decide(view(), 1.0).pool for _ in range(count)]


def test_an_equal_policy_agrees_in_everything() -> None:
    made = state()
    tell(made, "s", POLICY)
    assert set(decide(made, 100)) == {"chat"}
    found = made.window(1.0).shadow
    assert (found.version, found.requests, found.same_pool) == ("s", 2, 2)
    assert (found.picks, found.same_endpoint) == (2, 2)
    assert found.ttft_live_s == found.ttft_shadow_s
    assert not made.window(1.0).HasField("shadow")


def test_another_policy_is_compared_and_never_applied() -> None:
    made = state()
    tell(made, "s", ELSEWHERE)
    assert set(decide(made, 100)) == {"chat"}
    found = made.window(1.0).shadow
    assert (found.requests, found.same_pool, found.picks) == (2, 0, 0)
    assert made.shadow is not None
    decision, _record = made.shadow.dry_run(view())
    assert (decision.rule, decision.pool) == ("all", "other")


def test_refusals_are_compared() -> None:
    made = state()
    tell(made, "s", POLICY.replace("headers['x-batch'] == '1'", "true"))
    decide(made, 50)
    found = made.window(1.0).shadow
    assert (found.requests, found.refused_live, found.refused_shadow, found.same_pool) == (1, 0, 1, 0)


def test_it_ends_when_control_says_so_or_has_forgotten_it() -> None:
    made = state()
    for full in (False, True):
        tell(made, "s", POLICY)
        assert made.shadow is not None
        tell(made, "", full=full)
        assert made.shadow is None
        decide(made, 100)
        assert not made.window(1.0).HasField("shadow")


def test_a_fault_of_the_trial_reaches_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    made = state()
    tell(made, "s", POLICY)
    assert made.shadow is not None

    def fail(*_: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(made.shadow, "dry_run", fail)
    assert set(decide(made, 200)) == {"chat"}
    for _ in range(2):
        assert made.window(1.0).shadow.problem == "RuntimeError: broken"


def test_one_that_does_not_compile_is_told_and_left_out() -> None:
    made = state()
    assert made.snapshot is not None
    message = pb.WatchResponse()
    message.shadow.version, message.shadow.json = "bad", b"{"
    made.on_message(made.snapshot, message, 1.0)
    assert made.shadow is None
    assert "shadow policy bad" in made.problem
    assert set(decide(made, 100)) == {"chat"}
