"""The approximate prefix index against a naive model, its bounds, its splits and its forgetting."""

from __future__ import annotations

import random
import tracemalloc
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from xds_control.routing.prefix_index import RUN_BLOCKS, PrefixIndex, indices, pack

TOKENS = 10


def totals(count: int) -> tuple[int, ...]:
    return tuple((i + 1) * TOKENS for i in range(count))


def chain(*parts: int) -> tuple[int, ...]:
    """Chained hashes: each stands for its whole prefix."""
    found: list[int] = []
    for part in parts:
        found.append(hash((found[-1] if found else 0, part)) & 0xFFFFFFFFFFFFFFFF)
    return tuple(found)


def add(index: PrefixIndex, slot: int, keys: tuple[int, ...], now: float = 0.0) -> int:
    packed = pack(keys)
    path: list[object] = []
    index.match(keys, packed, ~0 & (1 << 64) - 1, path)  # type: ignore[arg-type]
    return index.add(slot, keys, packed, totals(len(keys)), now, path)  # type: ignore[arg-type]


def matched(index: PrefixIndex, keys: tuple[int, ...], slots: int = 8) -> dict[int, int]:
    """Slot → leading blocks, by the levels."""
    found: dict[int, int] = {}
    for blocks, bits in index.match(keys, pack(keys), (1 << slots) - 1):
        for slot in indices(bits):
            found[slot] = blocks
    return found


def index_of(slots: int, capacity: float = 1e9, budget: int = 1 << 30, ttl: float = 1e9) -> PrefixIndex:
    index = PrefixIndex(budget, ttl)
    for slot in range(slots):
        index.set_capacity(slot, capacity)
    return index


paths = st.lists(st.integers(0, 2), min_size=1, max_size=70)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), paths), max_size=12), paths)
def test_matches_like_a_set_of_prefixes_per_endpoint(adds: list[tuple[int, list[int]]], query: list[int]) -> None:
    index = index_of(4)
    known: dict[int, set[int]] = {slot: set() for slot in range(4)}
    for time, (slot, path) in enumerate(adds):
        keys = chain(*path)
        new = add(index, slot, keys, float(time))
        assert new == TOKENS * len(set(keys) - known[slot])
        known[slot].update(keys)
        assert index.held_tokens(slot) == TOKENS * len(known[slot])
    keys = chain(*query)
    wanted = {}
    for slot, held in known.items():
        count = 0
        for key in keys:
            if key not in held:
                break
            count += 1
        if count:
            wanted[slot] = count
    assert matched(index, keys, 4) == wanted


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), paths), min_size=1, max_size=30), st.integers(5, 60))
def test_never_believes_more_than_fits_and_forgets_the_oldest(adds: list[tuple[int, list[int]]], blocks: int) -> None:
    index = index_of(3, capacity=blocks * TOKENS)
    for time, (slot, path) in enumerate(adds):
        add(index, slot, chain(*path), float(time))
        assert index.held_tokens(slot) <= blocks * TOKENS
    slot, path = adds[-1]
    keys = chain(*path)
    if len(keys) <= blocks - RUN_BLOCKS:
        assert matched(index, keys, 3).get(slot) == len(keys)  # what was used last is there


def test_levels_are_nested_and_rise() -> None:
    index = index_of(6)
    long = chain(*range(40))
    for slot, length in enumerate((3, 10, 10, 25, 40)):
        add(index, slot, long[:length])
    levels = index.match(long, pack(long), 0b111111)
    assert [blocks for blocks, _ in levels] == [3, 10, 25, 40]
    for (_, wide), (_, narrow) in pairwise(levels):
        assert wide & narrow == narrow
        assert wide != narrow
    assert index.match(long, pack(long), 0b000001) == [(3, 1)]
    assert index.match((), b"", 0b1) == []


def test_a_gap_ends_the_match() -> None:
    index = index_of(2)
    keys = chain(*range(RUN_BLOCKS * 3))
    add(index, 0, keys)
    other = (*keys[:RUN_BLOCKS], 12345, *keys[RUN_BLOCKS + 1 :])
    assert matched(index, other, 2) == {0: RUN_BLOCKS}


def test_within_one_use_the_deepest_goes_first() -> None:
    index = index_of(1, capacity=RUN_BLOCKS * 3 * TOKENS)
    keys = chain(*range(RUN_BLOCKS * 3))
    add(index, 0, keys, 0.0)
    add(index, 0, chain(*range(1000, 1000 + RUN_BLOCKS)), 1.0)
    assert matched(index, keys, 1) == {0: RUN_BLOCKS * 2}


def test_a_shared_head_outlives_its_old_branches() -> None:
    index = index_of(1, capacity=RUN_BLOCKS * 4 * TOKENS)
    head = list(range(RUN_BLOCKS))
    for turn in range(20):
        add(index, 0, chain(*head, *range(100 * turn + 100, 100 * turn + 100 + RUN_BLOCKS)), float(turn))
    assert matched(index, chain(*head, 7), 1) == {0: RUN_BLOCKS}
    first = chain(*head, *range(100, 100 + RUN_BLOCKS))
    assert matched(index, first, 1) == {0: RUN_BLOCKS}


def test_a_split_tail_is_forgotten_at_its_own_time() -> None:
    index = index_of(1, capacity=20 * TOKENS)
    first = chain(1, 2, 3, 4, 5, 6, 7, 8)
    add(index, 0, first, 0.0)
    add(index, 0, chain(1, 2, 3, 9), 1.0)  # splits the run after three blocks
    add(index, 0, chain(*range(50, 66)), 2.0)  # pushes out the tail of `first`, not what both share
    assert matched(index, first, 1) == {0: 3}
    assert index.held_tokens(0) == 20 * TOKENS


def test_time_to_live_and_purge() -> None:
    index = index_of(2, ttl=100.0)
    keys = chain(*range(10))
    add(index, 0, keys, 0.0)
    add(index, 1, keys, 90.0)
    index.expire(150.0)
    assert matched(index, keys, 2) == {1: 10}
    index.purge(1)
    assert matched(index, keys, 2) == {}
    assert index.blocks == 0
    assert index.estimated_bytes == 0
    index.set_capacity(1, 1e9)
    add(index, 1, keys, 200.0)
    assert matched(index, keys, 2) == {1: 10}


def test_generated_tokens_take_room() -> None:
    index = index_of(1, capacity=100)
    keys = chain(*range(8))
    add(index, 0, keys, 0.0)
    index.add_output(0, 30, 1.0)
    assert index.held_tokens(0) <= 100
    assert matched(index, keys, 1) == {}


def test_the_budget_holds_and_the_estimate_is_near_the_truth() -> None:
    rng = random.Random(3)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        index = index_of(16, budget=1 << 40)
        for number in range(2500):
            head = (number % 40,)
            keys = chain(*head, *(rng.getrandbits(30) for _ in range(rng.randrange(1, 90))))
            add(index, rng.randrange(16), keys, float(number))
            add(index, rng.randrange(16), keys, float(number))
        used = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert 0.6 < index.estimated_bytes / used < 1.7
    index.budget_bytes = index.estimated_bytes // 3
    index.expire(3000.0)
    assert index.estimated_bytes <= index.budget_bytes


def test_uses_stay_in_proportion_to_what_is_held() -> None:
    index = index_of(1)
    keys = chain(*range(64))
    for number in range(20_000):
        add(index, 0, keys, float(number))
    assert len(index._holders[0].uses) < 600
