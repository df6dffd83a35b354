"""Prefix and session keys: chained 64-bit hashes that are the same in every process and after every restart."""

from __future__ import annotations

from typing import Final

from xxhash import xxh3_64_intdigest

_SESSION_SEED: Final = 0x73657373696F6E  # "session": sessions and prefixes never share a key by construction


def namespace(model: str, lora: str, cache_salt: str) -> int:
    """Seed of a prefix chain: nothing is shared across models, adapters or cache salts."""
    return xxh3_64_intdigest(f"{model}\0{lora}\0{cache_salt}".encode("utf-8", "surrogatepass"))


def chain(head: bytes, body: bytes, seed: int, block: int, growth: float, limit: int) -> tuple[list[int], list[int]]:
    """Keys of the prefixes of head + body, and where each ends (bytes).

    Blocks are `block` bytes long until that is less than `growth` of what lies before them, and grow from there:
    400 KB cost about 140 hashes, 1 MB about 170. A block always ends with the head, so that requests
    which share only their system prompt and tools share those keys. What does not fill a block is not
    keyed, but a prompt that fills none has one key for the whole. At most `limit` keys.
    """
    keys: list[int] = []
    ends: list[int] = []
    add_key, add_end = keys.append, ends.append
    key = seed
    before = 0
    for data in (head, body):
        view = memoryview(data)
        size = len(data)
        start = 0
        while limit > 0:
            length = int((before + start) * growth)
            end = start + (length if length > block else block)
            if end > size:
                if start == size or (data is body and keys):
                    break
                end = size
            key = xxh3_64_intdigest(view[start:end], key)
            add_key(key)
            add_end(before + end)
            start = end
            limit -= 1
        before += size
    return keys, ends


def session_key(value: str) -> int:
    """Key of a session value that a client sent; the same for the same value, whichever source it came from."""
    return xxh3_64_intdigest(value.encode("utf-8", "surrogatepass"), _SESSION_SEED) or 1


def fingerprint(head: bytes, first_user: str) -> int:
    """Key of a conversation known only by how it begins."""
    seed = xxh3_64_intdigest(head, _SESSION_SEED)
    return xxh3_64_intdigest(first_user.encode("utf-8", "surrogatepass"), seed) or 1
