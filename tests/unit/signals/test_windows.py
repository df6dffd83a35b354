from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xds_control.signals.windows import Change, Tally, Window, quantile, share_within


def test_a_tally_sums_increases_and_takes_new_series_from_where_they_stand() -> None:
    tally = Tally()
    assert tally.feed({"a": 5.0}) is Change.FIRST
    assert tally.feed({"a": 5.0}) is Change.SAME
    assert tally.feed({"a": 7.0, "b": 100.0}) is Change.MOVED
    assert tally.feed({"a": 7.0, "b": 103.0}) is Change.MOVED
    assert tally.total == 5.0
    assert tally.feed({"a": 1.0, "b": 104.0}) is Change.RESET
    assert tally.total == 0.0
    assert tally.feed({"a": 2.0, "b": 104.0}) is Change.MOVED
    assert tally.total == 1.0


def test_a_window_spans_what_it_should() -> None:
    window = Window(10.0)
    assert window.feed(0.0, (0.0,)) is None
    for second in range(1, 100):
        found = window.feed(float(second), (second * 2.0,))
        assert found is not None
        span, (increase,) = found
        assert increase == 2 * span
        assert span <= 10.0 + 10.0 / 8 + 1.0
    assert span >= 10.0


def test_share_within_interpolates_and_tells_its_bounds() -> None:
    share = share_within((0.1, 0.2, 0.4), (10, 30, 90), 100, 0.3)
    assert share is not None
    assert tuple(share) == pytest.approx((0.6, 0.3, 0.9, 100))
    exact = share_within((0.1, 0.2, 0.4), (10, 30, 90), 100, 0.2)
    assert exact is not None
    assert exact[:3] == (0.3, 0.3, 0.3)
    first = share_within((0.1, 0.2, 0.4), (10, 30, 90), 100, 0.05)
    assert first is not None
    assert first[:3] == pytest.approx((0.05, 0.0, 0.1))


def test_over_the_last_bound_nothing_is_promised() -> None:
    share = share_within((0.1, 0.2), (10, 60), 100, 5.0)
    assert share is not None
    assert share[:3] == (0.6, 0.6, 1.0)


def test_no_observations_no_share() -> None:
    assert share_within((0.1,), (0,), 0, 0.1) is None
    assert quantile((0.1,), (0,), 0, 0.5) is None


@settings(max_examples=80, deadline=None)
@given(st.lists(st.floats(0.0, 3.0), min_size=1, max_size=60), st.floats(0.001, 4.0))
def test_the_true_share_lies_within_the_bounds(values: list[float], target: float) -> None:
    bounds = (0.05, 0.1, 0.5, 1.0, 2.0)
    counts = tuple(float(sum(value <= bound for value in values)) for bound in bounds)
    share = share_within(bounds, counts, float(len(values)), target)
    assert share is not None
    true = sum(value <= target for value in values) / len(values)
    assert share.low - 1e-9 <= true <= share.high + 1e-9
    assert share.low - 1e-9 <= share.estimate <= share.high + 1e-9


def test_buckets_that_were_read_while_they_moved_stay_in_order() -> None:
    share = share_within((0.1, 0.2, 0.4), (50, 49, 90), 89, 0.25)
    assert share is not None
    assert 0 <= share.low <= share.estimate <= share.high <= 1


def test_quantiles_come_close() -> None:
    rng = random.Random(1)
    values = sorted(rng.expovariate(2.0) for _ in range(5000))
    bounds = tuple(0.05 * n for n in range(1, 101))
    counts = [float(sum(value <= bound for value in values)) for bound in bounds]
    for q in (0.1, 0.5, 0.9, 0.99):
        found = quantile(bounds, counts, 5000.0, q)
        assert found == pytest.approx(values[int(q * 5000)], abs=0.05)
    assert quantile((0.1, 0.2), (1.0, 2.0), 100.0, 0.9) == 0.2, "cut at the last bound"
