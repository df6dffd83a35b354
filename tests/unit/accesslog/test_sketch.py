from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xds_control.proto import fleet_pb2
from xds_control.signals.sketch import HIGHEST, LOWEST, Sketch

VALUES = st.lists(st.floats(min_value=1e-5, max_value=1e5), min_size=1, max_size=200)


@settings(max_examples=100, deadline=None)
@given(VALUES, st.floats(min_value=0, max_value=1))
def test_quantile_is_within_one_percent_of_the_exact_one(values: list[float], q: float) -> None:
    sketch = Sketch.of(values)
    exact = sorted(values)[math.floor(q * (len(values) - 1))]
    found = sketch.quantile(q)
    assert found is not None
    assert found == pytest.approx(exact, rel=0.0101)
    assert min(values) <= found <= max(values)


@settings(max_examples=100, deadline=None)
@given(VALUES, VALUES)
def test_merging_is_the_same_as_seeing_everything(left: list[float], right: list[float]) -> None:
    merged = Sketch.of(left)
    merged.merge(Sketch.of(right))
    whole = Sketch.of(left + right)
    assert merged == whole
    assert merged.sum == pytest.approx(whole.sum)
    assert (merged.min, merged.max) == (whole.min, whole.max)


@settings(max_examples=100, deadline=None)
@given(VALUES, st.floats(min_value=1e-5, max_value=1e5))
def test_share_is_right_up_to_the_bucket_of_the_bound(values: list[float], bound: float) -> None:
    share = Sketch.of(values).share_le(bound)
    assert share is not None
    assert sum(v <= bound / 1.021 for v in values) / len(values) <= share + 1e-9
    assert share - 1e-9 <= sum(v <= bound * 1.021 for v in values) / len(values)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(min_value=0, max_value=1e9), max_size=100))
def test_proto_keeps_everything(values: list[float]) -> None:
    sketch = Sketch.of(values)
    message = fleet_pb2.Sketch()
    sketch.to_proto(message)
    again = Sketch.from_proto(fleet_pb2.Sketch.FromString(message.SerializeToString()))
    assert again == sketch
    assert (again.sum, again.min, again.max) == (sketch.sum, sketch.min, sketch.max)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, -1.0, -1e-12])
def test_what_is_not_a_value_is_refused(bad: float) -> None:
    sketch = Sketch()
    assert not sketch.add(bad)
    assert sketch.count == 0
    assert sketch.quantile(0.5) is None
    assert sketch.mean is None


def test_an_empty_sketch_knows_nothing() -> None:
    sketch = Sketch()
    assert (sketch.count, sketch.mean, sketch.min, sketch.max) == (0, None, None, None)
    assert sketch.quantile(0.9) is None
    assert sketch.share_le(1.0) is None


def test_memory_is_bounded_whatever_comes() -> None:
    sketch = Sketch()
    value = 1e-12
    while value < 1e300:
        assert sketch.add(value)
        value *= 1.01
    assert sketch.buckets <= HIGHEST - LOWEST + 1
    assert sketch.quantile(1.0) == sketch.max


def test_zero_counts_as_zero() -> None:
    sketch = Sketch.of([0.0, 0.0, 0.0, 5.0])
    assert sketch.quantile(0.5) == 0.0
    assert sketch.share_le(0.0) == pytest.approx(0.75)
    assert sketch.share_le(5.0) == 1.0
    assert sketch.share_le(math.nan) == 0.0


@pytest.mark.parametrize(
    "message",
    [
        fleet_pb2.Sketch(index=[1, 2], count=[1], min=1, max=2, sum=3),
        fleet_pb2.Sketch(index=[HIGHEST + 1], count=[1], min=1, max=2, sum=3),
        fleet_pb2.Sketch(index=[LOWEST - 1], count=[1], min=1, max=2, sum=3),
        fleet_pb2.Sketch(index=[1], count=[0], min=1, max=2, sum=3),
        fleet_pb2.Sketch(index=[1], count=[1 << 60], min=1, max=2, sum=3),
        fleet_pb2.Sketch(index=[1], count=[1], min=math.nan, max=2, sum=3),
        fleet_pb2.Sketch(index=[1], count=[1], min=3, max=2, sum=3),
        fleet_pb2.Sketch(index=[1], count=[1], min=1, max=math.inf, sum=3),
        fleet_pb2.Sketch(index=[1], count=[1], min=1, max=2, sum=-1),
        fleet_pb2.Sketch(index=[1] * 2000, count=[1] * 2000, min=1, max=2, sum=3),
    ],
)
def test_a_message_that_contradicts_itself_changes_nothing(message: fleet_pb2.Sketch) -> None:
    sketch = Sketch.of([1.0])
    assert not sketch.merge_proto(message)
    assert sketch == Sketch.of([1.0])
