"""Pick margins and picks that were passed over, per pool and bounded."""

from __future__ import annotations

from tests.unit.extproc.test_recorder import A, B, ended
from tests.unit.routing.fleet import endpoint, facts, pool
from xds_control.extproc.margins import EACH, MOST_POOLS, NEWEST, Margins
from xds_control.extproc.server import Counters, code_of
from xds_control.extproc.stream import ProtocolViolation, StreamError
from xds_control.policy.picker import PickerPolicy
from xds_control.routing.picker import Picker
from xds_control.routing.trail import candidates


def test_margins_are_what_the_next_best_would_have_cost_more() -> None:
    picker = Picker(PickerPolicy(), 1)
    picker.keeps_trails = True
    picker.update({"p": pool("p", [endpoint(i, running=4 * i, waiting=3 * i, at=0.0) for i in range(3)])}, 0.0)
    margins = Margins()
    wanted = []
    for step in range(20 * EACH):
        found = picker.pick(facts(prompt=2000), "p", 0.001 * step)
        assert found.trail
        first, second, *_ = candidates(found)
        if step % EACH == 0:
            wanted.append(max(0.0, second.cost_s - first.cost_s))
        margins.picked("p", found.trail)
    told = {quantile: value for _pool, quantile, value in margins.quantiles()}
    assert told == {0.1: sorted(wanted)[2], 0.5: sorted(wanted)[10], 0.9: sorted(wanted)[18]}
    assert max(wanted) > 0.0


def test_a_pool_of_one_has_none_and_what_is_kept_is_bounded() -> None:
    picker = Picker(PickerPolicy(), 1)
    picker.keeps_trails = True
    picker.update({"p": pool("p", [endpoint(0, running=0, waiting=0, at=0.0)])}, 0.0)
    margins = Margins()
    trail = picker.pick(facts(), "p", 0.0).trail
    assert trail
    margins.picked("p", trail)
    assert list(margins.quantiles()) == []
    picker.update({"p": pool("p", [endpoint(i, running=0, waiting=0, at=0.0) for i in range(2)])}, 0.0)
    trail = picker.pick(facts(), "p", 0.0).trail
    assert trail
    for number in range(EACH * (MOST_POOLS + 50)):
        margins.picked(f"p{number // EACH}", trail)
    for _ in range(EACH * (NEWEST + 50)):
        margins.picked("p0", trail)
    assert len({name for name, _q, _v in margins.quantiles()}) == MOST_POOLS


def test_picks_that_were_passed_over_are_counted_by_pool() -> None:
    margins = Margins()
    for one in (
        ended("1", pool="chat", pick=A, endpoint=A),
        ended("2", pool="chat", pick=A, endpoint=B),
        ended("3", pool="chat", pick="", endpoint=B),
        ended("4", pool="code", pick=A, endpoint=""),
    ):
        margins.finished(one)
    assert margins.passed_over == {"chat": 1}


def test_failures_are_counted_by_code() -> None:
    counters = Counters()
    for error in (StreamError("a"), ProtocolViolation("b"), ProtocolViolation("c"), KeyError("d")):
        counters.fail(error, 0.0)
    assert counters.by_code == {"stream-failed": 1, "protocol-violation": 2, "decision-failed": 1}
    assert code_of(StreamError("x")) == "stream-failed"
