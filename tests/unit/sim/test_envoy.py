"""Envoy's balancers: shares by weight, two choices, bounded load, priorities."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from xds_control.sim.envoy import Algorithm, Envoy


@pytest.mark.parametrize("algorithm", ["round_robin", "least_request"])
def test_weights_become_shares(algorithm: Algorithm) -> None:
    envoy = Envoy(4, algorithm, random.Random(1))
    envoy.update([40, 30, 20, 10])
    seen = Counter(envoy.choose() for _ in range(2000))
    assert [round(seen[i] / 20) for i in range(4)] == pytest.approx([40, 30, 20, 10], abs=1)


def test_two_choices_take_the_less_busy_one() -> None:
    envoy = Envoy(2, "least_request", random.Random(1))
    envoy.active = [5, 0]
    seen = Counter(envoy.choose() for _ in range(1000))
    # Both choices fall on the busy host in a quarter of the cases.
    assert 190 < seen[0] < 310


def test_unequal_weights_count_active_requests_too() -> None:
    envoy = Envoy(2, "least_request", random.Random(1))
    envoy.update([2, 1])
    envoy.active = [9, 0]
    seen = Counter(envoy.choose() for _ in range(600))
    assert seen[0] / 600 == pytest.approx(0.2 / 1.2, abs=0.05)


def test_hashing_keeps_a_key_and_bounds_the_load() -> None:
    envoy = Envoy(5, "maglev", random.Random(1))
    home = envoy.choose(77)
    assert all(envoy.choose(77) == home for _ in range(20))
    for _ in range(100):
        envoy.active[envoy.choose(77)] += 1
    assert max(envoy.active) <= 1.25 * 101 / 5 + 1
    homes = Counter(Envoy(5, "maglev", random.Random(1)).choose(key) for key in range(1, 2001))
    assert min(homes.values()) > 300


def test_spilled_hosts_serve_only_when_no_other_is_left() -> None:
    envoy = Envoy(3, "round_robin", random.Random(1))
    envoy.update([10, 10, 10], [2])
    assert {envoy.choose() for _ in range(50)} == {0, 1}
    assert envoy.has(2), "a host that is named can still be reached"
    envoy.update([0, 0, 10], [2])
    assert envoy.choose() == 2
    envoy.update([0, 0, 0])
    assert envoy.choose() == -1


def test_a_retry_goes_elsewhere() -> None:
    envoy = Envoy(3, "random", random.Random(1))
    assert all(envoy.choose(0, [0, 2]) == 1 for _ in range(50))
