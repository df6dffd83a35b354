"""The paged KV cache of the demo engine: blocks, prefix reuse and LRU eviction, as vLLM V1 keeps them.

Only counts and keys are held, no data. A block is in one of four places:

- plain: free, holds nothing
- idle: free, but still holds a prefix that a later prompt may reuse; evicted oldest first
- shared: keyed and referenced by running sequences
- private: referenced by exactly one sequence, not reusable yet

Usage counts shared, private and reserved blocks only, so an idle engine reads 0 even
when its prefix cache is warm.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from collections.abc import Sequence as Seq

import xxhash

BYTES_PER_TOKEN = 4
"""The demo tokenizer: a token is four bytes of text."""


def token_count(text_bytes: int) -> int:
    """Tokens of a text of that many bytes, at least 1."""
    return max(1, -(-text_bytes // BYTES_PER_TOKEN))


def block_keys(data: bytes, block_size: int, parent: int = 0) -> list[int]:
    """Chained 64-bit keys of the full blocks in `data`; a key names its block and all before it."""
    size = block_size * BYTES_PER_TOKEN
    digest = xxhash.xxh3_64_intdigest
    keys: list[int] = []
    view = memoryview(data)
    for start in range(0, len(data) - size + 1, size):
        parent = digest(view[start : start + size], parent)
        keys.append(parent)
    return keys


class Holding:
    """The blocks of one sequence: keyed ones in prefix order, then private ones."""

    __slots__ = ("keys", "private")

    def __init__(self) -> None:
        self.keys: list[int] = []
        self.private = 0

    def __len__(self) -> int:
        return len(self.keys) + self.private


class PagedCache:
    """Allocates blocks to holdings. `blocks` > 0 in all; `prefix_caching` off means that nothing is reused."""

    def __init__(self, blocks: int, prefix_caching: bool = True) -> None:
        if blocks <= 0:
            raise ValueError("a KV cache needs at least one block")
        self.blocks = blocks
        self._prefix_caching = prefix_caching
        self._plain = blocks
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._shared: dict[int, int] = {}
        self._reserved = 0
        self._reserve_target = 0
        self.evictions = 0
        self.on_evict: Callable[[int], None] | None = None

    @property
    def free(self) -> int:
        """Blocks that an allocation could take now."""
        return self._plain + len(self._idle)

    @property
    def usage(self) -> float:
        """0..1: the share of blocks that live sequences or the reservation hold."""
        return 1.0 - self.free / self.blocks

    @property
    def cached_blocks(self) -> int:
        """Blocks that hold a reusable prefix, referenced or not."""
        return len(self._idle) + len(self._shared)

    def match(self, keys: Seq[int]) -> int:
        """How many leading keys are cached."""
        count = 0
        shared, idle = self._shared, self._idle
        for key in keys:
            if key not in shared and key not in idle:
                break
            count += 1
        return count

    def acquire(self, holding: Holding, keys: Seq[int], new: int) -> bool:
        """Take the cached `keys` and `new` more blocks, or nothing at all when they do not fit."""
        idle, shared = self._idle, self._shared
        woken = sum(1 for key in keys if key in idle)
        if self.free - woken < new:
            return False
        for key in keys:
            if key in idle:
                del idle[key]
                shared[key] = 1
            else:
                shared[key] += 1
        holding.keys.extend(keys)
        self._take(new)
        holding.private += new
        return True

    def commit(self, holding: Holding, keys: Seq[int]) -> list[int]:
        """Make the holding's blocks after its keyed ones reusable under `keys`, as far as blocks go.

        Where another sequence computed the same block meanwhile, that one is referenced and ours is freed. Returns
        the positions in `keys` of those that were not cached before.
        """
        fresh: list[int] = []
        if not self._prefix_caching:
            return fresh
        for position, key in enumerate(keys):
            if holding.private == 0:
                break
            holding.keys.append(key)
            holding.private -= 1
            if key in self._shared:
                self._shared[key] += 1
                self._plain += 1
            elif key in self._idle:
                del self._idle[key]
                self._shared[key] = 1
                self._plain += 1
            else:
                self._shared[key] = 1
                fresh.append(position)
        return fresh

    def release(self, holding: Holding) -> None:
        """Give everything back. The tail goes first, so that the beginnings of prompts live longest."""
        self._plain += holding.private
        holding.private = 0
        for key in reversed(holding.keys):
            references = self._shared[key] - 1
            if references:
                self._shared[key] = references
            else:
                del self._shared[key]
                self._idle[key] = None
        holding.keys.clear()
        self._top_up()

    def reserve(self, share: float) -> None:
        """Hold `share` (0..1) of all blocks for nobody: what is free at once, the rest as it becomes free."""
        self._reserve_target = min(self.blocks, max(0, round(share * self.blocks)))
        if self._reserved > self._reserve_target:
            self._plain += self._reserved - self._reserve_target
            self._reserved = self._reserve_target
        self._top_up()

    def reset_prefixes(self) -> None:
        """Forget every prefix that nobody holds."""
        self._plain += len(self._idle)
        self._idle.clear()

    def _top_up(self) -> None:
        more = min(self._reserve_target - self._reserved, self.free)
        if more > 0:
            self._take(more)
            self._reserved += more

    def _take(self, count: int) -> None:
        plain = min(count, self._plain)
        self._plain -= plain
        for _ in range(count - plain):
            key, _ = self._idle.popitem(last=False)
            self.evictions += 1
            if self.on_evict is not None:
                self.on_evict(key)
