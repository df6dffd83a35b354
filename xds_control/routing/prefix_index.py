"""Which endpoint is believed to hold which prefix: a radix tree over chained block hashes, bounded in bytes.

A block's hash covers everything before it, so a run of blocks is found by its first hash alone and no
parent links are needed. A run knows its holders as the bits of one integer; walking a request's hashes
ANDs these sets, so only contiguous matches count and the cost is one step per run, not per block.

Each endpoint has its own least-recently-used order and its own size in tokens, because that is what the
engine has. Within one use the deepest run goes first, as in the engines: a prefix outlives its branches.
"""

from __future__ import annotations

import struct
from array import array
from collections import deque
from collections.abc import Sequence

RUN_BLOCKS = 32
"""Most blocks in a run that is recorded at once: the grain of eviction."""
USE_GRAIN_S = 0.25
"""Uses of a run this close together count as one."""

_RUN_BYTES = 420
_BLOCK_BYTES = 12
_HOLD_BYTES = 210
_NO_KEYS = b""

Levels = list[tuple[int, int]]
"""(blocks, set of endpoints as bits): all in the set hold at least so many leading blocks. Blocks rise, and each set
is part of the one before."""

_packers: list[struct.Struct] = []


def pack(keys: Sequence[int]) -> bytes:
    """64-bit hashes as bytes, 8 each, so that runs compare by memcmp."""
    count = len(keys)
    while len(_packers) <= count and len(_packers) <= 1024:
        _packers.append(struct.Struct(f"<{len(_packers)}Q"))
    packer = _packers[count] if count <= 1024 else struct.Struct(f"<{count}Q")
    return packer.pack(*keys)


def indices(bits: int) -> list[int]:
    """Places of the ones of `bits`, ascending."""
    found = []
    while bits:
        low = bits & -bits
        found.append(low.bit_length() - 1)
        bits ^= low
    return found


def _common(keys: bytes, at: int, run: bytes) -> int:
    """How many leading blocks of `run` stand in `keys` from byte `at` on."""
    low, high = 0, min(len(run), len(keys) - at) // 8
    while low < high:
        middle = (low + high + 1) // 2
        if keys[at + low * 8 : at + middle * 8] == run[low * 8 : middle * 8]:
            low = middle
        else:
            high = middle - 1
    return low


class _Run:
    """Consecutive blocks with the same holders. `totals`: tokens from the prompt's beginning to the end of each block,
    `before`: to the run's beginning. `last`: endpoint → time of last use. `rest`: the run that was split off behind it,
    for which old entries of the use order stand too."""

    __slots__ = ("before", "bits", "first", "keys", "last", "rest", "tokens", "totals")

    def __init__(self, first: int, keys: bytes, totals: array[int], before: int) -> None:
        self.first = first
        self.keys = keys
        self.totals = totals
        self.before = before
        self.tokens = max(0, totals[-1] - before)
        self.bits = 0
        self.last: dict[int, float] = {}
        self.rest: _Run | None = None


_Use = tuple[float, "_Run | int"]
Path = list[_Run]
"""Runs that a match walked whole, from the first block on."""


class _Holder:
    """One endpoint's side: uses in order of time, tokens believed held, tokens that fit, runs held."""

    __slots__ = ("capacity", "compact_at", "output", "runs", "tokens", "uses")

    def __init__(self, capacity: float) -> None:
        self.uses: deque[_Use] = deque()
        self.tokens = 0
        self.capacity = capacity
        self.runs = 0
        self.compact_at = 256
        self.output = 0


class PrefixIndex:
    """Prefixes by endpoint slot (a small integer). One per pool.

    budget_bytes: what it may take by its own estimate. ttl_s: unused prefixes are forgotten after this.
    """

    def __init__(self, budget_bytes: int, ttl_s: float) -> None:
        self.budget_bytes = budget_bytes
        self.ttl_s = ttl_s
        self._runs: dict[int, _Run] = {}
        self._blocks = 0
        self._holds = 0
        self._holders: dict[int, _Holder] = {}
        self.live = 0

    @property
    def estimated_bytes(self) -> int:
        """Memory of the index as estimated from its counts."""
        return len(self._runs) * _RUN_BYTES + self._blocks * _BLOCK_BYTES + self._holds * _HOLD_BYTES

    @property
    def blocks(self) -> int:
        """Distinct blocks known."""
        return self._blocks

    def held_tokens(self, slot: int) -> int:
        """Tokens believed cached at an endpoint."""
        holder = self._holders.get(slot)
        return holder.tokens if holder else 0

    def fullness(self, slot: int) -> float:
        """Tokens believed cached at an endpoint as a share of what fits, 0 to 1."""
        holder = self._holders.get(slot)
        return 0.0 if holder is None else min(1.0, holder.tokens / holder.capacity)

    def set_capacity(self, slot: int, tokens: float) -> None:
        """Says how many tokens fit at an endpoint; what no longer fits is forgotten, least recently used first."""
        holder = self._holders.get(slot)
        if holder is None:
            self._holders[slot] = _Holder(tokens)
            self.live |= 1 << slot
        else:
            holder.capacity = tokens
            if holder.tokens > tokens:
                self._fit(slot, holder)

    def match(self, first: Sequence[int], keys: bytes, live: int, path: Path | None = None) -> Levels:
        """Who of `live` holds how many leading blocks. first: the hashes; keys: the same, packed.

        path: an empty list that takes the runs walked, for an `add` of the same chain right after.
        """
        get = self._runs.get
        count = len(first)
        at = 0
        alive = live & self.live
        levels: Levels = []
        while at < count:
            run = get(first[at])
            if run is None:
                break
            holders = alive & run.bits
            if holders != alive:
                if at:
                    levels.append((at, alive))
                alive = holders
                if not holders:
                    return levels
            stored = run.keys
            end = at * 8 + len(stored)
            if keys[at * 8 : end] != stored:
                at += _common(keys, at * 8, stored)
                break
            if path is not None:
                path.append(run)
            at = end >> 3
        if at and alive:
            levels.append((at, alive))
        return levels

    def add(
        self,
        slot: int,
        first: Sequence[int],
        keys: bytes,
        totals: Sequence[int],
        now: float,
        path: Path | None = None,
    ) -> int:
        """Records that an endpoint was sent this chain. totals: tokens up to and including each block.

        path: what `match` of the same chain walked, when nothing changed since. Returns how many tokens are new there.
        """
        holder = self._holders.get(slot)
        if holder is None:
            return 0
        bit = 1 << slot
        at = 0
        new = 0
        used: list[_Use] = []
        for run in path or ():
            at += len(run.keys) >> 3
            if not run.bits & bit:
                new += self._hold(run, bit, holder)
                run.last[slot] = now
                used.append((now, run))
            elif now - run.last[slot] >= USE_GRAIN_S:
                run.last[slot] = now
                used.append((now, run))
        count = len(first)
        get = self._runs.get
        while at < count:
            known = get(first[at])
            if known is None:
                end = at + RUN_BLOCKS
                if end > count:
                    end = count
                before = totals[at - 1] if at else 0
                run = _Run(first[at], keys[at * 8 : end * 8], array("I", totals[at:end]), before)
                self._runs[first[at]] = run
                self._blocks += end - at
                new += self._hold(run, bit, holder)
            else:
                run = known
                end = at + (len(run.keys) >> 3)
                if keys[at * 8 : end * 8] != run.keys:
                    end = at + _common(keys, at * 8, run.keys)
                    # A prompt that ends inside a run its endpoint holds anyway needs no split.
                    if end < count or not run.bits & bit:
                        self._split(run, end - at)
                if not run.bits & bit:
                    new += self._hold(run, bit, holder)
            run.last[slot] = now
            used.append((now, run))
            at = end
        holder.tokens += new
        if used:
            used.reverse()
            uses = holder.uses
            uses.extend(used)
            if len(uses) > holder.compact_at:
                self._compact(slot, holder)
        if holder.tokens > holder.capacity:
            self._fit(slot, holder)
        return new

    def _hold(self, run: _Run, bit: int, holder: _Holder) -> int:
        run.bits |= bit
        self._holds += 1
        holder.runs += 1
        return run.tokens

    def add_output(self, slot: int, tokens: int, now: float) -> None:
        """Generated tokens take room too, though nobody can match them yet."""
        holder = self._holders.get(slot)
        if holder is None or tokens <= 0:
            return
        holder.output += tokens
        if holder.output >= 0.01 * holder.capacity:  # in lumps: one by one they would crowd the order of use
            holder.uses.append((now, holder.output))
            holder.tokens += holder.output
            holder.output = 0
            if holder.tokens > holder.capacity:
                self._fit(slot, holder)

    def purge(self, slot: int) -> None:
        """Forgets everything about an endpoint: it left, restarted, or dropped its cache."""
        holder = self._holders.pop(slot, None)
        self.live &= ~(1 << slot)
        if holder is not None:
            for use in holder.uses:
                self._evict(slot, holder, use)

    def expire(self, now: float, limit: int = 2000) -> None:
        """Forgets what is too old or over the budget; at most `limit` uses for age, so a call costs a bounded time."""
        before = now - self.ttl_s
        for slot, holder in self._holders.items():
            uses = holder.uses
            while uses and uses[0][0] < before and limit > 0:
                self._evict(slot, holder, uses.popleft())
                limit -= 1
        while self.estimated_bytes > self.budget_bytes:
            slot, holder = max(self._holders.items(), key=lambda item: item[1].runs)
            if not holder.uses:
                break
            for _ in range(max(1, len(holder.uses) // 16)):
                self._evict(slot, holder, holder.uses.popleft())

    def _fit(self, slot: int, holder: _Holder) -> None:
        uses = holder.uses
        while holder.tokens > holder.capacity and uses:
            self._evict(slot, holder, uses.popleft())

    def _evict(self, slot: int, holder: _Holder, use: _Use) -> None:
        """Forgets what was last used then; what was used again since stays."""
        then, run = use
        if isinstance(run, int):
            holder.tokens -= run
            return
        bit = 1 << slot
        piece: _Run | None = run
        while piece is not None:
            if piece.last.get(slot) == then and piece.bits & bit:
                del piece.last[slot]
                piece.bits &= ~bit
                holder.tokens -= piece.tokens
                holder.runs -= 1
                self._holds -= 1
                if not piece.bits and self._runs.get(piece.first) is piece:
                    del self._runs[piece.first]
                    self._blocks -= len(piece.totals)
            piece = piece.rest

    def _split(self, run: _Run, blocks: int) -> None:
        """Cuts a run in two after `blocks` blocks; both keep holders and times of use."""
        first = int.from_bytes(run.keys[blocks * 8 : blocks * 8 + 8], "little")
        tail = _Run(first, run.keys[blocks * 8 :], run.totals[blocks:], run.totals[blocks - 1])
        tail.bits = run.bits
        tail.last = dict(run.last)
        tail.rest = run.rest
        run.rest = tail
        run.keys = run.keys[: blocks * 8]
        run.totals = run.totals[:blocks]
        run.tokens -= tail.tokens
        self._runs[first] = tail
        for slot in run.last:
            self._holders[slot].runs += 1
            self._holds += 1

    def _compact(self, slot: int, holder: _Holder) -> None:
        """Drops uses that were overtaken by later ones, so that the order stays in proportion to what is held."""
        kept: deque[_Use] = deque()
        for use in holder.uses:
            then, run = use
            if isinstance(run, int):
                kept.append(use)
                continue
            piece: _Run | None = run
            while piece is not None:
                if piece.last.get(slot) == then:
                    kept.append(use)
                    break
                piece = piece.rest
        holder.uses = kept
        holder.compact_at = 256 + 2 * len(kept)
