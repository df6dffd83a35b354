from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xds_control.signals.sketch import Sketch
from xds_control.signals.sliding import SlidingSketches, SlidingSums


def test_old_sums_fall_out() -> None:
    sums = SlidingSums(2.0, 5)
    sums.add(100.0, {"a": 1.0})
    sums.add(101.0, {"a": 2.0, "b": 1.0})
    sums.add(105.0, {"a": 4.0})
    assert sums.totals(105.0) == {"a": 7.0, "b": 1.0}
    assert sums.totals(109.9) == {"a": 7.0, "b": 1.0}
    assert sums.totals(110.0) == {"a": 4.0}
    assert sums.totals(114.0) == {}
    sums.add(200.0, {"a": 1.0})
    assert sums.totals(200.0) == {"a": 1.0}


def test_a_clock_that_goes_back_loses_nothing() -> None:
    sums = SlidingSums(2.0, 5)
    sums.add(100.0, {"a": 1.0})
    sums.add(50.0, {"a": 1.0})
    assert sums.totals(100.0) == {"a": 2.0}


def test_a_rate_knows_how_long_it_looked() -> None:
    sums = SlidingSums(2.0, 5)
    sums.add(100.0, {"a": 1.0})
    assert sums.covered_s(100.2) == 1.0
    assert sums.covered_s(104.0) == 4.0
    assert sums.covered_s(151.0) == 9.0


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 30), st.integers(1, 9)), min_size=1, max_size=60), st.floats(0, 20))
def test_running_totals_are_those_of_the_slots(steps: list[tuple[float, int]], later: float) -> None:
    steps.sort()
    sums = SlidingSums(2.0, 5)
    for at, value in steps:
        sums.add(at, {"a": float(value)})
        sums.totals(at)
    now = steps[-1][0] + later
    oldest = int(now / 2.0) - 5
    expected = sum(value for at, value in steps if int(at / 2.0) > oldest)
    assert sums.totals(now).get("a", 0.0) == expected


def test_sketches_slide_too() -> None:
    sketches = SlidingSketches(2.0, 5)
    sketches.add(0.0, {"t": Sketch.of([1.0])})
    sketches.add(1.0, {"t": Sketch.of([3.0])})
    sketches.add(9.0, {"t": Sketch.of([5.0])})
    merged = sketches.merged(9.0)["t"]
    assert merged.count == 3
    assert merged.mean == pytest.approx(3.0)
    assert sketches.merged(11.0)["t"].count == 1
    assert sketches.merged(30.0) == {}
