"""Models of others' rules, each on a case that shows the rule."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from xds_control.sim.engine import Gauges
from xds_control.sim.envoy import Envoy
from xds_control.sim.policies import POLICIES, make
from xds_control.sim.request import Request
from xds_control.sim.rivals import ApproxIndex
from xds_control.sim.router import BoundedHashing, Router, World


def started(name: str, hosts: int = 3, **options: Any) -> Router:
    router = make(name)
    rng = random.Random(1)
    envoys = [Envoy(hosts, router.balancer, rng)]
    router.start(World(hosts, [1.0] * hosts, [64000] * hosts, 64, envoys, 1, 2.0, 0.1, 0.05, 1, options))
    return router


def ask(router: Router, index: int, keys: Sequence[int], prompt: int | None = None) -> int:
    request = Request(index, 0.0, prompt or max(1, 64 * len(keys)), 10, list(keys), 64)
    return router.route(request, 0.0, 0).hosts[0]


def gauges(waiting: int, kv: float) -> Gauges:
    return Gauges(5, waiting, kv, 0, 0, 0, 0)


def test_the_index_counts_leading_blocks_only_and_forgets_the_oldest() -> None:
    index = ApproxIndex([4, 4])
    index.add(0, [1, 2, 3])
    index.add(1, [1, 9, 3])
    assert index.match([1, 2, 3, 4], 2) == [3, 1]
    index.add(0, [7, 8])
    assert index.match([1, 2, 3], 2) == [0, 1]
    assert index.size(0) == 4


def test_the_blend_weighs_prefix_three_queue_two_kv_two() -> None:
    router = started("epp-default")
    home = ask(router, 0, range(1, 11))
    other = (home + 1) % 3
    for host in range(3):
        router.scraped(host, gauges(5 if host == home else 0, 0.0), 0.0, 0.0)
    # Prefix 3 against queue 2: it stays. With a fifth of the prefix it goes.
    assert ask(router, 1, range(1, 11)) == home
    assert ask(router, 2, [1, 2, *range(100, 108)]) != home
    router.scraped(home, gauges(0, 0.5), 0.0, 0.0)
    assert ask(router, 3, [*range(1, 9), 500, 501]) == home
    router.scraped(other, gauges(0, 0.0), 0.0, 0.0)
    assert ask(router, 4, [*range(1, 4), *range(200, 207)]) != home


def test_sticky_stays_until_the_queue_is_eighteen_seconds_longer() -> None:
    router = started("sticky-until-saturated", peak_prefill_tps=1000.0)
    home = ask(router, 0, range(1, 11))
    for i in range(1, 15):
        # Each brings 1,000 uncached tokens beside its 10 cached blocks of 12: at least 80 % match.
        assert ask(router, i, [*range(1, 11), 1000 + i], prompt=1640) == home
    for i in range(15, 40):
        last = ask(router, i, [*range(1, 11), 1000 + i], prompt=1640)
    assert last != home
    router.first_token(Request(0, 0.0, 1, 1), home, 0, 1.0)


def test_cache_aware_keeps_matches_until_the_queues_differ_by_sixty_four() -> None:
    router = started("sglang-cache-aware")
    home = ask(router, 0, range(1, 11))
    seen = [ask(router, i, range(1, 11)) for i in range(1, 80)]
    assert set(seen[:64]) == {home}
    assert len(set(seen[64:])) > 1
    fresh = started("sglang-cache-aware")
    places = Counter(ask(fresh, i, range(100 * i, 100 * i + 10)) for i in range(30))
    assert set(places.values()) == {10}, "prompts that nobody knows go to the smallest tree"


def test_dynamo_counts_prefill_and_distinct_decode_blocks() -> None:
    router = started("dynamo-cost", hosts=2)
    home = ask(router, 0, range(1, 21))
    # The same prompt costs nothing more there; another one goes to the empty host.
    assert ask(router, 1, range(1, 21)) == home
    assert ask(router, 2, range(100, 120)) != home
    request = Request(0, 0.0, 1280, 10, list(range(1, 21)), 64)
    router.first_token(request, home, 0, 1.0)
    router.ended(request, home, 0, 2.0)
    router.ended(Request(1, 0.0, 1280, 10, list(range(1, 21)), 64), home, 0, 2.0)
    assert ask(router, 3, range(200, 203)) == home


def test_hashing_goes_by_session_or_the_first_256_tokens() -> None:
    hashing = BoundedHashing()
    one = Request(0, 0.0, 640, 1, [1, 2, 3, 4, 5], 64)
    two = Request(1, 0.0, 640, 1, [1, 2, 3, 4, 9], 64)
    assert hashing.key(one) == hashing.key(two)
    assert hashing.key(Request(2, 0.0, 640, 1, [1, 2, 3, 4], 64, session=5)) == 5


@pytest.mark.parametrize("name", [p for p in POLICIES if p not in ("ours", "weights")])
def test_in_flight_counts_come_back_to_zero(name: str) -> None:
    router = started(name)
    if not router.sees_ends:
        assert router.route(Request(0, 0.0, 64, 1, [1], 64), 0.0, 0).hosts == ()
        return
    requests = [Request(i, 0.0, 640, 10, list(range(10 * i, 10 * i + 10)), 64) for i in range(20)]
    hosts = [router.route(r, 0.0, 0).hosts[0] for r in requests]
    for request, host in zip(requests, hosts, strict=True):
        router.ended(request, host, 0, 1.0)
    assert router.flight == [[0, 0, 0]]  # type: ignore[attr-defined]
    for name_of in ("_tokens", "_prefill"):
        left = getattr(router, name_of, [[0.0]])
        assert all(abs(v) < 1e-9 for v in left[0])


def test_unknown_policies_are_named_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"unknown policy 'best'.*dynamo-cost"):
        make("best")
