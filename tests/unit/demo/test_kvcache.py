from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xds_control.demo.kvcache import Holding, PagedCache, block_keys, token_count


def test_keys_name_a_block_and_all_before_it() -> None:
    one = block_keys(b"a" * 64 + b"b" * 64, 16)
    two = block_keys(b"c" * 64 + b"b" * 64, 16)
    assert len(one) == len(two) == 2
    assert one[1] != two[1]
    assert block_keys(b"a" * 64 + b"b" * 63, 16) == one[:1]
    assert block_keys(b"b" * 64, 16, parent=one[0]) == one[1:]


def test_salt_separates_equal_texts() -> None:
    assert block_keys(b"a" * 64, 16, parent=7) != block_keys(b"a" * 64, 16)


@pytest.mark.parametrize(("size", "tokens"), [(0, 1), (1, 1), (4, 1), (5, 2), (400, 100)])
def test_token_count(size: int, tokens: int) -> None:
    assert token_count(size) == tokens


def test_released_prefix_stays_until_its_room_is_needed_and_the_tail_goes_first() -> None:
    cache = PagedCache(4)
    first = Holding()
    assert cache.acquire(first, (), 3)
    cache.commit(first, [1, 2, 3])
    assert cache.usage == 0.75
    cache.release(first)
    assert cache.usage == 0.0
    assert cache.match([1, 2, 3]) == 3
    other = Holding()
    assert cache.acquire(other, (), 2)
    assert cache.match([1, 2, 3]) == 2
    assert cache.evictions == 1


def test_shared_prefix_is_held_once() -> None:
    cache = PagedCache(10)
    first, second = Holding(), Holding()
    cache.acquire(first, (), 4)
    cache.commit(first, [1, 2, 3])
    assert cache.acquire(second, [1, 2, 3], 1)
    assert cache.free == 5
    cache.release(first)
    assert cache.free == 6
    cache.release(second)
    assert cache.free == 10


def test_a_block_computed_twice_is_kept_once() -> None:
    cache = PagedCache(10)
    first, second = Holding(), Holding()
    cache.acquire(first, (), 2)
    cache.acquire(second, (), 2)
    cache.commit(first, [1, 2])
    cache.commit(second, [1, 2])
    assert cache.free == 8
    assert second.keys == [1, 2]


def test_nothing_is_taken_when_it_does_not_fit() -> None:
    cache = PagedCache(3)
    holding = Holding()
    assert not cache.acquire(holding, (), 4)
    assert len(holding) == 0
    assert cache.free == 3


def test_cached_blocks_of_a_hit_do_not_count_as_room() -> None:
    cache = PagedCache(2)
    holding = Holding()
    cache.acquire(holding, (), 2)
    cache.commit(holding, [1, 2])
    cache.release(holding)
    assert not cache.acquire(Holding(), [1, 2], 1)
    assert cache.acquire(Holding(), [1], 1)


def test_reservation_takes_what_is_free_and_the_rest_when_it_frees_up() -> None:
    cache = PagedCache(10)
    holding = Holding()
    cache.acquire(holding, (), 5)
    cache.reserve(0.9)
    assert cache.usage == 1.0
    cache.release(holding)
    assert cache.usage == pytest.approx(0.9)
    cache.reserve(0.0)
    assert cache.usage == 0.0


def test_without_prefix_caching_nothing_is_found_again() -> None:
    cache = PagedCache(4, prefix_caching=False)
    holding = Holding()
    cache.acquire(holding, (), 2)
    cache.commit(holding, [1, 2])
    cache.release(holding)
    assert cache.match([1]) == 0


def test_reset_forgets_idle_prefixes_only() -> None:
    cache = PagedCache(4)
    held, idle = Holding(), Holding()
    cache.acquire(held, (), 1)
    cache.commit(held, [1])
    cache.acquire(idle, (), 1)
    cache.commit(idle, [2])
    cache.release(idle)
    cache.reset_prefixes()
    assert cache.match([2]) == 0
    assert cache.match([1]) == 1
    assert cache.free == 3


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 6), st.floats(0, 1)), max_size=40))
def test_blocks_are_conserved(steps: list[tuple[int, int, float]]) -> None:
    cache = PagedCache(16)
    held: list[Holding] = []
    for prompt, length, share in steps:
        keys = [prompt * 100 + i for i in range(length)]
        hits = cache.match(keys)
        holding = Holding()
        if cache.acquire(holding, keys[:hits], length - hits):
            cache.commit(holding, keys[hits:])
            held.append(holding)
        elif held:
            cache.release(held.pop(0))
        cache.reserve(share)
        assert 0 <= cache.free <= cache.blocks
    for holding in held:
        cache.release(holding)
    cache.reserve(0.0)
    assert cache.free == cache.blocks
