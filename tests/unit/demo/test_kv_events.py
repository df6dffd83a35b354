"""The demo engine's KV events tell exactly what its cache holds, whatever comes and goes."""

from __future__ import annotations

import random

import msgspec

from xds_control.demo.kv_events import CacheEvents, token_ids
from xds_control.demo.model import EngineModel, ModelConfig, Sequence
from xds_control.routing.kv_events import apply, decode
from xds_control.routing.kv_index import KvIndex, prompt_keys

BLOCK = 16
CONFIG = ModelConfig(prefill_tps=1e6, decode_s=0.001, kv_blocks=60, block_size=BLOCK, max_seqs=4)


def sequence(prompt: bytes, output: int = 8, **more: object) -> Sequence:
    tokens = max(1, -(-len(prompt) // 4))
    return Sequence(prompt, tokens, b"word" * output, output, "length", False, **more)  # type: ignore[arg-type]


def serve(model: EngineModel, one: Sequence, now: float) -> float:
    model.submit(now, one)
    while not one.done:
        now += 0.01
        model.advance(now)
    return now


def taken(events: CacheEvents, index: KvIndex) -> None:
    apply(index, 0, decode(msgspec.msgpack.encode([0.0, events.take(), 0])))


def test_the_index_follows_stores_evictions_and_a_reset() -> None:
    rng = random.Random(7)
    events, index = CacheEvents(BLOCK), KvIndex()
    model = EngineModel(CONFIG, events)
    heads = [rng.randbytes(4 * BLOCK * rng.randrange(1, 10)) for _ in range(6)]
    now = 0.0
    for _ in range(200):
        prompt = rng.choice(heads) + rng.randbytes(rng.randrange(0, 4 * BLOCK * 6))
        now = serve(model, sequence(prompt), now)
        taken(events, index)
        assert index.blocks(0) == model.cache.cached_blocks
        keys = prompt_keys(token_ids(prompt[: len(prompt) // 4 * 4]), BLOCK)
        levels = index.match(keys, 1)
        believed = levels[-1][0] if levels else 0
        assert believed == model.cache.match(sequence_keys(prompt))
    assert model.cache.evictions > 100
    model.cache.reset_prefixes()
    events.cleared()
    taken(events, index)
    assert index.blocks(0) == model.cache.cached_blocks == 0


def sequence_keys(prompt: bytes) -> list[int]:
    from xds_control.demo.kvcache import block_keys

    return block_keys(prompt, BLOCK)


def test_salted_blocks_are_held_and_never_matched_by_their_tokens() -> None:
    events, index = CacheEvents(BLOCK), KvIndex()
    model = EngineModel(CONFIG, events)
    prompt = bytes(range(64)) * 4
    serve(model, sequence(prompt, salt=99, cache_salted=True), 0.0)
    taken(events, index)
    assert index.blocks(0) == model.cache.cached_blocks > 0
    assert index.match(prompt_keys(token_ids(prompt), BLOCK), 1) == []


def test_an_adapters_blocks_are_its_own() -> None:
    events, index = CacheEvents(BLOCK), KvIndex()
    model = EngineModel(CONFIG, events)
    prompt = bytes(range(64)) * 4
    serve(model, sequence(prompt, salt=5, lora="tuned"), 0.0)
    taken(events, index)
    assert index.match(prompt_keys(token_ids(prompt), BLOCK), 1) == []
    assert index.match(prompt_keys(token_ids(prompt), BLOCK, "tuned"), 1) == [(4, 1)]
