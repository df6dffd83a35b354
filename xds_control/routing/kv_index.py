"""Exact prefix index: which KV blocks an engine holds, by its own block events.

Engines name blocks by hashes of their own making, and different engines, versions and seeds name equal content
differently. So each block also gets a hash of ours, made from its parent's and its token ids; a prompt whose token
ids are known is matched by these, over all endpoints at once.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import xxhash

Name = int | str | bytes
"""A block's name as the engine gives it."""

TIERS = {"gpu": 1.0, "cpu": 0.8, "disk": 0.5}
"""What a cached block is worth by where it lies."""

ROOT = 0
MAX_TIERS = 8
"""Tiers that one block is held by at most; further names of tiers are nonsense."""


def block_key(parent: int, tokens: Sequence[int], salt: str = "") -> int:
    """Our hash of a block: of its parent's, its token ids and what else tells contents apart (adapter, cache salt)."""
    packed = struct.pack(f"<Q{len(tokens)}I", parent, *(token & 0xFFFFFFFF for token in tokens))
    return xxhash.xxh3_64_intdigest(packed + salt.encode())


def prompt_keys(tokens: Sequence[int], block_size: int, salt: str = "") -> list[int]:
    """Keys of the whole blocks of a prompt, in order."""
    found: list[int] = []
    parent = ROOT
    for start in range(0, len(tokens) - block_size + 1, block_size):
        parent = block_key(parent, tokens[start : start + block_size], salt)
        found.append(parent)
    return found


class _Holdings:
    """One endpoint: engine's name → (our key, tiers that hold it)."""

    __slots__ = ("block_size", "names")

    def __init__(self) -> None:
        self.names: dict[Name, tuple[int, set[str]]] = {}
        self.block_size = 0


class KvIndex:
    """Blocks by endpoint slot. limit: most blocks of one endpoint; beyond it the oldest are forgotten."""

    def __init__(self, limit: int = 1_000_000) -> None:
        self._limit = limit
        self._endpoints: dict[int, _Holdings] = {}
        self._holders: dict[int, int] = {}  # our key → endpoints as bits
        self.live = 0

    def __len__(self) -> int:
        return len(self._holders)

    def block_size(self, slot: int) -> int:
        """Tokens per block as the endpoint's events say, 0 when not known."""
        found = self._endpoints.get(slot)
        return found.block_size if found else 0

    def blocks(self, slot: int) -> int:
        """How many blocks an endpoint holds."""
        found = self._endpoints.get(slot)
        return len(found.names) if found else 0

    def store(
        self,
        slot: int,
        names: Sequence[Name],
        parent: Name | None,
        tokens: Sequence[int] = (),
        block_size: int = 0,
        salt: str = "",
        medium: str = "gpu",
    ) -> int:
        """Blocks were stored one after the other behind `parent`. tokens: their ids, `block_size` each.

        Returns how many of them have keys of ours: none when token ids are missing or the parent is not known.
        """
        mine = self._endpoints.setdefault(slot, _Holdings())
        self.live |= 1 << slot
        if block_size > 0:
            mine.block_size = block_size
        tier = medium.lower()
        before: int | None = ROOT
        if parent is not None:
            known = mine.names.get(parent)
            before = known[0] if known is not None and known[0] else None
        keyed = 0
        whole = block_size > 0 and len(tokens) >= block_size * len(names)
        for number, name in enumerate(names):
            key = 0
            if whole and before is not None:
                key = block_key(before, tokens[number * block_size : (number + 1) * block_size], salt)
                keyed += 1
            held = mine.names.get(name)
            if held is None:
                mine.names[name] = (key, {tier})
            else:
                if len(held[1]) < MAX_TIERS:
                    held[1].add(tier)
                key = held[0] or key
                mine.names[name] = (key, held[1])
            if key:
                self._holders[key] = self._holders.get(key, 0) | 1 << slot
            before = key or None
        while len(mine.names) > self._limit:
            self._drop(slot, mine, next(iter(mine.names)))
        return keyed

    def remove(self, slot: int, names: Sequence[Name], medium: str = "gpu") -> None:
        """Blocks were evicted from a tier; they are gone when no tier holds them."""
        mine = self._endpoints.get(slot)
        if mine is None:
            return
        for name in names:
            held = mine.names.get(name)
            if held is None:
                continue
            held[1].discard(medium.lower())
            if not held[1]:
                self._drop(slot, mine, name)

    def clear(self, slot: int) -> None:
        """The endpoint dropped everything, or left."""
        mine = self._endpoints.pop(slot, None)
        self.live &= ~(1 << slot)
        if mine is not None:
            for name in list(mine.names):
                self._drop(slot, mine, name)

    def _drop(self, slot: int, mine: _Holdings, name: Name) -> None:
        key = mine.names.pop(name)[0]
        if not key:
            return
        holders = self._holders.get(key, 0) & ~(1 << slot)
        if holders:
            self._holders[key] = holders
        else:
            self._holders.pop(key, None)

    def longest(self, slot: int, names: Sequence[Name]) -> int:
        """How many of these blocks, from the first on, an endpoint holds without a gap."""
        mine = self._endpoints.get(slot)
        if mine is None:
            return 0
        count = 0
        for name in names:
            if name not in mine.names:
                break
            count += 1
        return count

    def weighted(self, slot: int, names: Sequence[Name]) -> float:
        """The same, each block counting by the best tier that holds it."""
        mine = self._endpoints.get(slot)
        total = 0.0
        for name in names[: self.longest(slot, names)] if mine is not None else ():
            assert mine is not None
            total += max(TIERS.get(tier, 0.5) for tier in mine.names[name][1])
        return total

    def match(self, keys: Sequence[int], live: int) -> list[tuple[int, int]]:
        """(blocks, endpoints as bits) as `PrefixIndex.match` gives them, for keys of `prompt_keys`."""
        alive = live & self.live
        levels: list[tuple[int, int]] = []
        for at, key in enumerate(keys):
            holders = alive & self._holders.get(key, 0)
            if holders != alive:
                if at:
                    levels.append((at, alive))
                alive = holders
                if not alive:
                    return levels
        if alive and keys:
            levels.append((len(keys), alive))
        return levels
