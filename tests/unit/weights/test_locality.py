"""Localities: sums, and preference for near endpoints with spill-over."""

from __future__ import annotations

import pytest

from tests.unit.weights.build import item, once
from xds_control.fleet.endpoint import Locality
from xds_control.fleet.snapshot import State
from xds_control.policy.weights import LocalityWeights, WeightsPolicy
from xds_control.weights.inputs import EndpointInput
from xds_control.weights.locality import Placed, distance, locality_weights, prefer_local

EAST_A, EAST_B, WEST = Locality("east", "a"), Locality("east", "b"), Locality("west", "c")
PREFER = LocalityWeights(mode="prefer-local")


def rows(*places: tuple[Locality, State]) -> list[EndpointInput]:
    return [item(i, 0.0, state=state, fields={"locality": place}) for i, (place, state) in enumerate(places)]


def placed(inputs: list[EndpointInput], work: dict[int, float] | None = None) -> list[Placed]:
    result = once(WeightsPolicy(serve_unproven=False), inputs)
    return [
        Placed(e, i.endpoint.locality, (work or {}).get(k, 4.0), 16.0)
        for k, (e, i) in enumerate(zip(result.endpoints, inputs, strict=True))
    ]


def test_each_locality_weighs_the_sum_of_its_endpoints() -> None:
    inputs = rows((EAST_A, State.READY), (EAST_A, State.READY), (WEST, State.READY), (WEST, State.SUSPECT))
    result = once(WeightsPolicy(), inputs)
    assert [(w.locality, w.priority, w.weight, w.endpoints) for w in result.localities] == [
        (EAST_A, 0, 20_000, 2),
        (WEST, 0, 10_000, 1),
        (WEST, 1, 10_000, 1),
    ]
    assert locality_weights([], ()) == ()


def test_distance() -> None:
    assert [distance(EAST_A, x) for x in (EAST_A, Locality("east", "a", "rack"), EAST_B, WEST)] == [0, 0, 1, 2]
    assert distance(Locality("east"), EAST_B) == 0


def test_near_ones_first_then_the_region_then_the_rest() -> None:
    inputs = rows((EAST_A, State.READY), (EAST_B, State.READY), (WEST, State.READY), (EAST_A, State.SUSPECT))
    view = prefer_local(placed(inputs), EAST_A, LocalityWeights(mode="prefer-local", spill_below=0.5))
    by = [view.priorities[i.endpoint.address] for i in inputs]
    assert by == [0, 1, 2, 3]
    assert view.kept == 1.0
    # From the other side it looks the other way round, without gaps in the levels.
    assert [prefer_local(placed(inputs), WEST, PREFER).priorities[i.endpoint.address] for i in inputs] == [1, 1, 0, 2]


def test_a_zone_that_lost_most_of_its_capacity_spills_by_what_is_left() -> None:
    inputs = rows(
        (EAST_A, State.READY),
        (EAST_A, State.EJECTED),
        (EAST_A, State.EJECTED),
        (EAST_B, State.READY),
        (WEST, State.READY),
    )
    view = prefer_local(placed(inputs), EAST_A, PREFER)
    assert view.kept == pytest.approx(0.4)
    assert view.why == "33 % of the zone's capacity is in service"
    assert set(view.priorities.values()) == {0}
    weights = {w.locality: w.weight for w in view.localities}
    assert weights == {EAST_A: 4_000, EAST_B: 3_000, WEST: 3_000}


def test_a_busy_zone_sends_its_surplus_away() -> None:
    inputs = rows((EAST_A, State.READY), (EAST_B, State.READY), (EAST_B, State.READY))
    view = prefer_local(placed(inputs, {0: 40.0, 1: 4.0, 2: 4.0}), EAST_A, PREFER)
    assert view.kept == pytest.approx(0.5)
    assert view.why == "the zone is 2.5 times as busy as the pool"
    assert {w.locality: w.weight for w in view.localities} == {EAST_A: 5_000, EAST_B: 5_000}
    calm = prefer_local(placed(inputs, {0: 6.0, 1: 1.0, 2: 1.0}), EAST_A, PREFER)
    assert calm.kept == 1.0  # busier than the rest, but far from full


def test_envoys_outside_of_every_zone_see_everything() -> None:
    inputs = rows((EAST_A, State.READY), (WEST, State.READY))
    view = prefer_local(placed(inputs), Locality("north", "x"), PREFER)
    assert set(view.priorities.values()) == {0}
