"""KV memory of one simulated engine: blocks shared by prefix, least recently used ones evicted, the rest private."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class KvCache:
    """Counts tokens. `held`: in blocks that running sequences refer to; `idle`: in cached blocks that nobody refers to;
    `private`: not in any block. held + idle + private ≤ capacity.

    capacity: tokens that fit, > 0. caching: whether blocks are kept after their last reference.
    """

    __slots__ = ("_idle", "_refs", "_sizes", "caching", "capacity", "evicted", "held", "idle", "private")

    def __init__(self, capacity: int, caching: bool = True) -> None:
        self.capacity = capacity
        self.caching = caching
        self.held = self.idle = self.private = 0
        self.evicted = 0
        self._refs: dict[int, int] = {}
        self._sizes: dict[int, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()

    @property
    def used(self) -> int:
        """Tokens that cannot be evicted."""
        return self.held + self.private

    def match(self, keys: Sequence[int], most: int) -> int:
        """How many of the first `most` keys are cached without a gap."""
        sizes = self._sizes
        hits = 0
        for key in keys:
            if hits >= most or key not in sizes:
                break
            hits += 1
        return hits

    def pinned_by(self, keys: Sequence[int]) -> int:
        """Tokens that referring to these cached blocks would make unevictable."""
        refs, sizes = self._refs, self._sizes
        return sum(sizes[key] for key in keys if key not in refs)

    def refer(self, key: int) -> None:
        """One more sequence uses a cached block."""
        count = self._refs.get(key, 0)
        if not count:
            del self._idle[key]
            size = self._sizes[key]
            self.idle -= size
            self.held += size
        self._refs[key] = count + 1

    def take(self, tokens: int) -> bool:
        """Takes private memory, evicting idle blocks for it; False, and nothing taken, when that is not enough."""
        if self.held + self.private + tokens > self.capacity:
            return False
        self.private += tokens
        self._fit()
        return True

    def grow(self, tokens: int) -> None:
        """Takes private memory that is known to fit."""
        self.private += tokens
        self._fit()

    def _fit(self) -> None:
        over = self.held + self.private + self.idle - self.capacity
        while over > 0 and self._idle:
            key, _ = self._idle.popitem(last=False)
            size = self._sizes.pop(key)
            self.idle -= size
            over -= size
            self.evicted += size

    def commit(self, key: int, tokens: int) -> None:
        """A computed block becomes shareable; its sequence goes on referring to it."""
        self.private -= tokens
        if key in self._sizes:
            self.refer(key)
            return
        self._sizes[key] = tokens
        self._refs[key] = 1
        self.held += tokens

    def release(self, keys: Sequence[int], private: int) -> None:
        """A sequence ends. The deepest blocks become the first to be evicted, as in the engines."""
        self.private -= private
        refs, sizes = self._refs, self._sizes
        for key in reversed(keys):
            count = refs[key] - 1
            if count:
                refs[key] = count
                continue
            del refs[key]
            size = sizes[key]
            self.held -= size
            if self.caching:
                self._idle[key] = None
                self.idle += size
            else:
                del sizes[key]

    def clear(self) -> None:
        """The engine restarted."""
        self.held = self.idle = self.private = 0
        self._refs.clear()
        self._sizes.clear()
        self._idle.clear()
