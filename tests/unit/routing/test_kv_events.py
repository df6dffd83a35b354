"""KV events: both wire forms, gaps, restarts, the exact index, and a picker that uses it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.routing.fleet import address, endpoint, facts, pool
from xds_control.policy.picker import PickerPolicy, PrefixPolicy
from xds_control.routing.kv_events import (
    MAX_EVENTS,
    Cleared,
    KvEventError,
    Removed,
    Sequencer,
    Stored,
    Verdict,
    apply,
    decode,
)
from xds_control.routing.kv_index import MAX_TIERS, KvIndex, block_key, prompt_keys
from xds_control.routing.picker import Picker

encode = msgspec.msgpack.Encoder().encode


def stored_array(hashes: Sequence[Any], parent: Any, tokens: Sequence[int], size: int, *rest: Any) -> list[Any]:
    return ["BlockStored", list(hashes), parent, list(tokens), size, None, *rest]


def stored_map(hashes: Sequence[Any], parent: Any, tokens: Sequence[int], size: int, **rest: Any) -> dict[str, Any]:
    return {
        "type": "BlockStored",
        "block_hashes": list(hashes),
        "parent_block_hash": parent,
        "token_ids": list(tokens),
        "block_size": size,
        **rest,
    }


def test_arrays_and_maps_mean_the_same() -> None:
    array = decode(encode([1.5, [stored_array([7, 8], 6, range(8), 4, "GPU"), ["BlockRemoved", [3], "CPU"]], 2]))
    mapped = decode(
        encode(
            [
                1.5,
                [
                    stored_map([7, 8], 6, range(8), 4, medium="GPU", locality="x"),
                    {"type": "BlockRemoved", "block_hashes": [3], "medium": "CPU"},
                ],
                2,
            ]
        )
    )
    assert array == mapped
    assert array.rank == 2
    assert array.events == (Stored((7, 8), 6, tuple(range(8)), 4, "", "gpu"), Removed((3,), "cpu"))


def test_old_and_odd_batches() -> None:
    short = decode(encode([0.0, [["BlockStored", [b"\x01" * 32], None, [1, 2], 2, None], ["AllBlocksCleared"]]]))
    assert short.rank is None
    assert short.events == (Stored((b"\x01" * 32,), None, (1, 2), 2, "", "gpu"), Cleared())
    lora = decode(encode([0.0, [stored_map([1], None, [1], 1, lora_name="sql", cache_salt="s")]]))
    assert isinstance(lora.events[0], Stored)
    assert lora.events[0].salt == "sql\0s"
    media = decode(encode([0.0, [stored_map([1], None, [1], 1, extra_keys=[["mm-digest", 0]])]]))
    assert isinstance(media.events[0], Stored)
    assert media.events[0].tokens == ()
    window = decode(encode([0.0, [stored_map([1], None, [1], 1, group_idx=1), {"type": "SomethingNew"}]]))
    assert window.events == ()
    assert window.passed == 2


@pytest.mark.parametrize(
    "payload",
    [b"", b"\xc1", encode(5), encode([1.0]), encode([1.0, 5]), encode([1.0, [5]]), encode([1.0, [["BlockStored", 7]]]),
     encode([1.0, [stored_map([1.5], None, [], 1)]]), encode([1.0, [stored_map([1], [2], [], 1)]])],
)  # fmt: skip
def test_nonsense_is_told_and_not_taken(payload: bytes) -> None:
    with pytest.raises(KvEventError):
        decode(payload)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_no_bytes_do_more_than_an_error(payload: bytes) -> None:
    try:
        apply(KvIndex(), 0, decode(payload))
    except KvEventError:
        return


_plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=4)
    | st.binary(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
_FIELDS = (*tuple(stored_map([], None, [], 1)), "medium", "lora_name", "cache_salt", "extra_keys", "group_idx")


@settings(max_examples=400, deadline=None)
@given(
    st.sampled_from(["BlockStored", "BlockRemoved", "AllBlocksCleared"]),
    st.dictionaries(st.sampled_from((*_FIELDS, "kv_cache_spec_kind")), _plain, max_size=6),
    st.lists(_plain, max_size=10),
)
def test_no_types_do_more_than_an_error(kind: str, fields: dict[str, Any], row: list[Any]) -> None:
    good = stored_map([1], None, [1], 1)
    for event in ({**good, **fields, "type": kind}, [kind, *row]):
        index = KvIndex()
        try:
            apply(index, 0, decode(encode([0.0, [event]])))
        except KvEventError:
            continue
        assert len(index) <= 3


def test_batches_that_would_hold_requests_up_are_refused() -> None:
    few, many = (encode([0.0, [["BlockRemoved", [1]]] * count]) for count in (MAX_EVENTS, MAX_EVENTS + 1))
    assert len(decode(few).events) == MAX_EVENTS
    blocks = encode([0.0, [["BlockRemoved", list(range(60_000))]] * 2])
    for payload in (many, blocks):
        with pytest.raises(KvEventError, match="a batch of"):
            decode(payload)


def test_names_that_no_engine_has_are_not_kept() -> None:
    for event in (
        stored_map([b"x" * 129], None, [1], 1),
        stored_map([1], "x" * 129, [1], 1),
        stored_map([1], None, [1], 1, lora_name="x" * 257),
        stored_map([1], None, [1], 1, medium="x" * 257),
    ):
        with pytest.raises(KvEventError):
            decode(encode([0.0, [event]]))
    index = KvIndex()
    for number in range(100):
        apply(index, 0, decode(encode([0.0, [stored_map([1], None, [1], 1, medium=f"tier{number}")]])))
    assert len(index._endpoints[0].names[1][1]) == MAX_TIERS


def test_sequences() -> None:
    order = Sequencer()
    assert order.see(5) is Verdict.TAKE
    assert order.see(6) is Verdict.TAKE
    assert order.see(9) is Verdict.MISSED
    assert order.next == 7
    assert [order.see(n) for n in (7, 8, 9)] == [Verdict.TAKE] * 3
    assert order.see(8) is Verdict.OLD
    assert order.see(0) is Verdict.RESTARTED
    assert order.see(1) is Verdict.TAKE


def test_prompts_match_what_other_engines_hold_whatever_they_call_it() -> None:
    index = KvIndex()
    tokens = list(range(100, 164))
    index.store(0, [b"a", b"b"], None, tokens[:32], 16)
    index.store(1, [11, 12, 13, 14], None, tokens, 16)
    keys = prompt_keys([*tokens, 1, 2, 3], 16)
    assert len(keys) == 4
    assert index.match(keys, 0b11) == [(2, 0b11), (4, 0b10)]
    index.remove(1, [12])
    assert index.match(keys, 0b11) == [(1, 0b11), (2, 0b01)]
    index.store(1, [12], 11, tokens[16:32], 16)
    assert index.match(keys, 0b10) == [(4, 0b10)]
    assert prompt_keys(tokens, 16, "lora") != keys[:4]
    index.clear(1)
    assert index.match(keys, 0b11) == [(2, 0b01)]
    assert len(index) == 2


def test_a_block_behind_an_unknown_parent_is_held_but_not_matched() -> None:
    index = KvIndex()
    assert index.store(0, ["x"], "never-seen", [1, 2], 2) == 0
    assert index.store(0, ["y"], None, [], 2) == 0
    assert index.blocks(0) == 2
    assert index.match([block_key(0, [1, 2])], 1) == []


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 8)), max_size=40), st.integers(0, 1 << 30)
)
def test_the_index_is_the_set_of_what_was_stored_and_not_removed(ops: list[tuple[int, int, int]], seed: int) -> None:
    rng = random.Random(seed)
    index = KvIndex()
    prompts = [[rng.randrange(3) for _ in range(8)] for _ in range(4)]
    names = {key: f"n{key}" for prompt in prompts for key in prompt_keys(prompt, 1)}
    held: dict[int, set[int]] = {0: set(), 1: set(), 2: set()}
    for slot, kind, amount in ops:
        prompt = prompts[amount % 4]
        keys = prompt_keys(prompt, 1)
        if kind == 0:
            index.store(slot, [names[key] for key in keys], None, prompt, 1)
            held[slot].update(keys)
        elif kind == 1:
            gone = keys[amount % len(keys)]
            index.remove(slot, [names[gone]])
            held[slot].discard(gone)
        else:
            index.clear(slot)
            held[slot].clear()
    for prompt in prompts:
        keys = prompt_keys(prompt, 1)
        for slot, mine in held.items():
            count = next((i for i, key in enumerate(keys) if key not in mine), len(keys))
            assert index.longest(slot, [names[key] for key in keys]) == count
            assert sum(blocks for blocks, _ in index.match(keys, 1 << slot)[-1:]) == count


def test_the_limit_forgets_the_oldest() -> None:
    index = KvIndex(limit=10)
    for number in range(100):
        index.store(0, [number], None, [number], 1)
    assert index.blocks(0) == 10
    assert len(index) == 10


def test_a_picker_goes_by_events_where_it_has_them() -> None:
    rows = [endpoint(i, at=0.0, running=0, waiting=0, kv_usage=0.1) for i in range(3)]
    picker = Picker(PickerPolicy(record_share=0.0))
    picker.update({"p": pool("p", rows)}, 0.0)
    tokens = list(range(4096))
    batch = decode(encode([0.0, [stored_map(list(range(256)), None, tokens, 16)]]))
    picker.kv_events(address(1), batch)
    asked = facts(prompt=4096)
    told = picker.explain(asked, "p", 0.0, token_ids=tokens)
    assert (told.pick.address, told.pick.matched_tokens) == (address(1), 4095)
    chosen = picker.pick(asked, "p", 0.0, token_ids=tokens)
    assert chosen.address == address(1)
    assert chosen.matched_tokens == 4095
    picker.kv_events(address(1), decode(encode([0.0, [["AllBlocksCleared"]]])))
    assert picker.pick(asked, "p", 5.0, token_ids=tokens).matched_tokens == 0
    picker.kv_events(address(1), batch)
    picker.kv_lost(address(1))
    assert picker.pick(asked, "p", 9.0, token_ids=tokens).matched_tokens == 0


def test_events_replace_the_belief_only_where_they_come_from() -> None:
    rows = [endpoint(i, at=0.0, running=0, waiting=0, kv_usage=0.1) for i in range(2)]
    picker = Picker(PickerPolicy(record_share=0.0))
    picker.update({"p": pool("p", rows)}, 0.0)
    tokens = list(range(2048))
    keys = list(range(1, 9))
    asked = facts(keys=keys, totals=[256 * (i + 1) for i in range(8)], prompt=2048)
    believed = picker.pick(asked, "p", 0.0, token_ids=tokens)
    other = address(1) if believed.address == address(0) else address(0)
    # The other one publishes half of the prompt; the first publishes nothing and stays as believed.
    picker.kv_events(other, decode(encode([0.0, [stored_map(list(range(64)), None, tokens[:1024], 16)]])))
    assert picker.pick(asked, "p", 3.0, token_ids=tokens).address == believed.address
    # Now the first one publishes too: nothing of it is there.
    picker.kv_events(believed.address, decode(encode([0.0, [stored_map([1], None, [9] * 16, 16)]])))
    assert picker.pick(asked, "p", 9.0, token_ids=tokens).address == other


def test_exact_can_be_switched_off() -> None:
    picker = Picker(PickerPolicy(record_share=0.0, prefix=PrefixPolicy(exact="off")))
    picker.update({"p": pool("p", [endpoint(0)])}, 0.0)
    picker.kv_events(address(0), decode(encode([0.0, [stored_map([1], None, list(range(16)), 16)]])))
    state = picker.pool("p")
    assert state is not None
    assert state.kv.blocks(0) == 0
