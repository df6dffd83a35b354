from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xds_control.signals.sketch import Sketch
from xds_control.signals.sliding import SlidingSketches, SlidingTable


def table() -> tuple[SlidingTable, int]:
    made = SlidingTable(["a", "b"])
    return made, made.make(100.0)


def put(into: SlidingTable, row: int, now: float, a: float, b: float = 0.0) -> None:
    into.add(now, [row], np.array([[a, b]]))


def test_old_sums_fall_out() -> None:
    sums, row = table()
    put(sums, row, 100.0, 1.0)
    put(sums, row, 101.0, 2.0, 1.0)
    put(sums, row, 105.0, 4.0)
    assert sums.short([row], 109.9) == {"a": 7.0, "b": 1.0}
    assert sums.short([row], 110.0) == {"a": 4.0, "b": 0.0}
    assert sums.long([row], 114.0) == {"a": 7.0, "b": 1.0}
    assert sums.long([row], 171.0) == {"a": 0.0, "b": 0.0}
    assert sums.total([row]) == {"a": 7.0, "b": 1.0}
    assert sums.last_of([row]) == {"a": 105.0, "b": 101.0}
    put(sums, row, 1000.0, 1.0)
    assert sums.long([row], 1000.0)["a"] == 1.0


def test_rows_are_apart_and_add_up() -> None:
    sums, first = table()
    second = sums.make(100.0)
    sums.add(100.0, [first, second, first], np.array([[1.0, 0.0], [10.0, 0.0], [2.0, 5.0]]))
    assert sums.short([first], 100.0) == {"a": 3.0, "b": 5.0}
    assert sums.short([first, second], 100.0) == {"a": 13.0, "b": 5.0}


def test_a_row_given_back_is_empty_when_it_is_used_again() -> None:
    sums, row = table()
    put(sums, row, 100.0, 1.0)
    sums.free(row)
    assert len(sums) == 0
    assert sums.make(101.0) == row
    assert sums.long([row], 101.0)["a"] == 0.0
    assert sums.total([row])["a"] == 0.0
    assert sums.last_of([row])["a"] == 0.0


def test_a_clock_that_goes_back_loses_nothing() -> None:
    sums, row = table()
    put(sums, row, 100.0, 1.0)
    put(sums, row, 50.0, 1.0)
    assert sums.short([row], 100.0)["a"] == 2.0


def test_a_rate_knows_how_long_it_looked() -> None:
    sums, row = table()
    assert sums.covered_s([row], 100.2) == 1.0
    assert sums.covered_s([row], 104.0) == 4.0
    assert sums.covered_s([row], 151.0) == 9.0
    assert sums.covered_s([row], 151.0, long=True) == 51.0
    assert sums.covered_s([row], 900.0, long=True) == 50.0
    assert sums.covered_s([row], 909.0, long=True) == 59.0


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 200), st.integers(1, 9)), min_size=1, max_size=60), st.floats(0, 80))
def test_windows_hold_what_fell_into_them(steps: list[tuple[float, int]], later: float) -> None:
    steps.sort()
    sums = SlidingTable(["a", "b"])
    row = sums.make(steps[0][0])
    sketches = SlidingSketches()
    for at, value in steps:
        put(sums, row, at, float(value))
        sketches.add(at, {"t": Sketch.of([1.0] * value)})
    now = steps[-1][0] + later
    tick = int(now / 2.0)
    short = sum(value for at, value in steps if int(at / 2.0) > tick - 5)
    long = sum(value for at, value in steps if int(at / 2.0) // 5 > (tick - 5) // 5 - 5)
    assert sums.short([row], now)["a"] == short
    assert sums.long([row], now)["a"] == long
    empty = Sketch()
    assert sketches.short(now).get("t", empty).count == short
    assert sketches.long(now).get("t", empty).count == long


def test_sketches_merge_by_name() -> None:
    sketches = SlidingSketches()
    sketches.add(0.0, {"t": Sketch.of([1.0])})
    sketches.add(1.0, {"t": Sketch.of([3.0]), "u": Sketch.of([9.0])})
    sketches.add(9.0, {"t": Sketch.of([5.0])})
    merged = sketches.short(9.0)
    assert merged["t"].count == 3
    assert merged["t"].mean == pytest.approx(3.0)
    assert merged["u"].count == 1
    assert sketches.short(11.0)["t"].count == 1
    assert sketches.long(11.0)["t"].count == 3
    assert sketches.long(300.0) == {}
