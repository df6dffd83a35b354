"""Prefix and session keys: chained 64-bit hashes that are the same in every process and after every restart."""

from __future__ import annotations

import math
from typing import Final

from xxhash import xxh3_64_intdigest as hash_of

_SESSION_SEED: Final = 0x73657373696F6E  # "session": sessions and prefixes never share a key by construction


def namespace(model: str, lora: str, cache_salt: str) -> int:
    """Seed of a prefix chain: nothing is shared across models, adapters or cache salts."""
    return hash_of(f"{model}\0{lora}\0{cache_salt}".encode("utf-8", "surrogatepass"))


def chain(head: bytes, body: bytes, seed: int, block: int, growth: float, limit: int) -> tuple[list[int], list[int]]:
    """Keys of the prefixes of head + body, and where each ends (bytes).

    Blocks are `block` bytes long until that is less than `growth` of what lies before them, and grow from there:
    400 KB cost about 140 hashes, 1 MB about 170. A block always ends with the head, so that requests
    which share only their system prompt and tools share those keys. What does not fill a block is not
    keyed, but a prompt that fills none has one key for the whole. At most `limit` keys.
    """
    keys: list[int] = []
    ends: list[int] = []
    add = keys.append
    key = seed
    before = 0
    parts: tuple[bytes, ...] = (body,)
    if head:
        if len(head) <= block:
            add(key := hash_of(head, key))
            ends.append(before := len(head))
        else:
            parts = (head, body)
    constant = block / growth if growth > 0 else math.inf  # up to here blocks do not grow yet
    for data in parts:
        size = len(data)
        start = 0
        if size >= block and before < constant:
            # Small blocks of one size: copies are cheaper than views, and the ends are a range.
            last = int(min(size, constant - before + block, (limit - len(keys)) * block)) // block * block
            for start in range(0, last, block):
                add(key := hash_of(data[start : start + block], key))
            ends.extend(range(before + block, before + last + 1, block))
            start = last
        rest = size - start
        if rest <= block:
            if rest and (data is head or not keys) and len(keys) < limit:
                add(key := hash_of(data[start:], key))
                ends.append(before + size)
        else:
            view = memoryview(data)
            while start < size and len(keys) < limit:
                end = start + max(int((before + start) * growth), block)
                if end > size:
                    if data is body and keys:
                        break
                    end = size
                add(key := hash_of(view[start:end], key))
                ends.append(before + end)
                start = end
        before += size
    return keys, ends


def session_key(value: str) -> int:
    """Key of a session value that a client sent; the same for the same value, whichever source it came from."""
    return hash_of(value.encode("utf-8", "surrogatepass"), _SESSION_SEED) or 1


def fingerprint(head: bytes, first_user: str) -> int:
    """Key of a conversation known only by how it begins."""
    seed = hash_of(head, _SESSION_SEED)
    return hash_of(first_user.encode("utf-8", "surrogatepass"), seed) or 1
