from __future__ import annotations

from typing import Any

import pytest

from xds_control.demo.scenario import CYCLE_S, Course, scenario


def state(weights: dict[str, int], shares: dict[str, float], spilled: str = "") -> dict[str, Any]:
    endpoints = [
        {"name": name, "weight": weight, "priority": int(name == spilled), "share": shares[name]}
        for name, weight in weights.items()
    ]
    return {"pools": [{"name": "chat", "endpoints": endpoints}]}


def test_one_is_slowed_another_filled_then_both_are_healed() -> None:
    plan = scenario(["a", "b", "c"], 40.0)
    assert [step.at for step in plan.steps] == pytest.approx([8.0, 14.0, 24.0])
    slow, fill, heal = plan.steps
    assert list(slow.commands) == ["c"]
    assert slow.commands["c"]["slow"] > 1
    assert list(fill.commands) == ["b"]
    assert 0.5 < fill.commands["b"]["kv_fill"] <= 1
    assert heal.commands == {"b": {"heal": True}, "c": {"heal": True}}


def test_without_an_end_it_repeats_every_minute() -> None:
    plan = scenario(["a", "b"], None)
    assert plan.cycle_s == CYCLE_S
    first = plan.due(-1.0, CYCLE_S)
    assert len(first) == 3
    assert plan.due(CYCLE_S, 2 * CYCLE_S) == first
    assert plan.due(0.0, 1.0) == []


def test_each_step_comes_once_however_time_is_cut() -> None:
    plan = scenario(["a", "b"], 40.0)
    before, seen = 0.0, []
    for tick in range(1, 81):
        now = tick / 2
        seen += plan.due(before, now)
        before = now
    assert seen == list(plan.steps)


def test_with_no_engine_nothing_happens() -> None:
    plan = scenario([], 40.0)
    assert plan.due(-1.0, 100.0) == []
    assert Course(plan).moved() == []


def test_the_course_tells_what_moved() -> None:
    course = Course(scenario(["a", "b"], 40.0))
    for tick in range(90):
        at = tick / 2
        if at < 8:
            now = state({"a": 100, "b": 100}, {"a": 0.5, "b": 0.5})
        elif at < 24:
            now = state({"a": 100, "b": 25}, {"a": 0.8, "b": 0.2}, spilled="a" if at > 14 else "")
        else:
            now = state({"a": 100, "b": 100}, {"a": 0.5, "b": 0.5})
        course.add(at, now)
    slowed, filled = course.moved()
    assert slowed.startswith("b slowed: weight 50% → ")
    assert slowed.endswith("share 50% → 20% → 50%")
    assert filled == "a KV full: weight 80% → 0% → 50%, share 80% → 80% → 50%"


def test_a_show_that_ended_early_tells_nothing_it_did_not_see() -> None:
    course = Course(scenario(["a", "b"], 40.0))
    course.add(1.0, state({"a": 1, "b": 1}, {"a": 0.5, "b": 0.5}))
    assert course.moved() == []
