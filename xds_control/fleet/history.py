"""What moved from one snapshot to the next and why. The snapshots themselves, with all their signals, are not kept."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import Final

from xds_control.fleet.snapshot import EndpointSnapshot, PoolSnapshot, Snapshot, State

MAX_MOVES: Final = 50_000
"""Moves kept over all entries, some 400 bytes each; where many endpoints move each time, fewer entries are kept."""


@dataclass(frozen=True, slots=True)
class Move:
    """One endpoint that differs from the snapshot before. A weight of None: it was not there.

    why: the newer snapshot's sentence; for one that left, what it was.
    """

    pool: str
    address: str
    weight_before: int | None
    weight: int | None
    state_before: State | None
    state: State | None
    gates_before: tuple[str, ...]
    gates: tuple[str, ...]
    why: str
    priority_before: int | None = None
    priority: int | None = None
    pickable_before: bool = False
    pickable: bool = False

    @property
    def stays(self) -> bool:
        """Whether it is after it as it was before."""
        before = (self.weight_before, self.state_before, self.gates_before, self.priority_before, self.pickable_before)
        return before == (self.weight, self.state, self.gates, self.priority, self.pickable)


@dataclass(frozen=True, slots=True)
class Entry:
    """The difference of one snapshot to the one before.

    at: monotonic seconds when it was computed. moved: per pool, share of traffic (0..1) that moved.
    """

    epoch: str
    version: int
    at: float
    policy_version: str
    moves: tuple[Move, ...]
    moved: dict[str, float]


class History:
    """A ring of differences. size: how many are kept, 1 or more. max_moves: most moves in all of them, but the newest
    entry is always kept."""

    def __init__(self, size: int = 256, max_moves: int = MAX_MOVES) -> None:
        if size < 1:
            raise ValueError("a history keeps at least one snapshot")
        self._entries: deque[Entry] = deque()
        self._size = size
        self._max_moves = max_moves
        self._moves = 0
        self._last: Snapshot | None = None

    def record(self, snapshot: Snapshot) -> Entry | None:
        """Keeps how a snapshot differs unless it is the one recorded last; returns what moved."""
        last = self._last
        if last is not None and (last.epoch, last.version) == (snapshot.epoch, snapshot.version):
            return None
        moves, moved = compare(last, snapshot)
        entry = Entry(snapshot.epoch, snapshot.version, snapshot.at, snapshot.policy_version, moves, moved)
        self._last = snapshot
        self._entries.append(entry)
        self._moves += len(moves)
        while len(self._entries) > self._size or (self._moves > self._max_moves and len(self._entries) > 1):
            self._moves -= len(self._entries.popleft().moves)
        return entry

    def entries(self, *, since: int = 0, limit: int | None = None) -> list[Entry]:
        """Entries with a version above `since`, oldest first; the newest `limit` of them."""
        found = [e for e in self._entries if e.version > since]
        return found if limit is None else found[max(0, len(found) - limit) :]

    def get(self, version: int) -> Entry | None:
        """The entry of a version; None when it is not kept (any more)."""
        return next((e for e in reversed(self._entries) if e.version == version), None)

    def of(self, address: str, limit: int = 50) -> list[tuple[float, Move]]:
        """The newest moves of one endpoint with their times, oldest first."""
        found = [(e.at, m) for e in self._entries for m in e.moves if m.address == address]
        return found[max(0, len(found) - limit) :]

    def between(self, older: int, newer: int) -> tuple[Move, ...]:
        """What moved from one kept version to another, in the order of time however they are given.

        Raises KeyError with the version that is not kept.
        """
        older, newer = min(older, newer), max(older, newer)
        for version in (older, newer):
            if self.get(version) is None:
                raise KeyError(version)
        net: dict[tuple[str, str], Move] = {}
        for entry in self._entries:
            if older < entry.version <= newer:
                for move in entry.moves:
                    key = (move.pool, move.address)
                    first = net.get(key)
                    net[key] = move if first is None else _joined(first, move)
        return tuple(net[key] for key in sorted(net) if not net[key].stays)

    def __len__(self) -> int:
        return len(self._entries)


def _joined(first: Move, then: Move) -> Move:
    return replace(
        then,
        weight_before=first.weight_before,
        state_before=first.state_before,
        gates_before=first.gates_before,
        priority_before=first.priority_before,
        pickable_before=first.pickable_before,
    )


def compare(before: Snapshot | None, after: Snapshot) -> tuple[tuple[Move, ...], dict[str, float]]:
    """(what moved, share of traffic that moved per pool)."""
    moves: list[Move] = []
    shares: dict[str, float] = {}
    old_pools = before.pools if before is not None else {}
    for name in sorted({*old_pools, *after.pools}):
        old, new = old_pools.get(name), after.pools.get(name)
        if old is new:
            continue
        moves.extend(_moves(name, old, new))
        share = _moved(old, new)
        if share > 0.0:
            shares[name] = share
    return tuple(moves), shares


def _moves(pool: str, old: PoolSnapshot | None, new: PoolSnapshot | None) -> list[Move]:
    before = {e.endpoint.address: e for e in old.endpoints} if old else {}
    after = {e.endpoint.address: e for e in new.endpoints} if new else {}
    moves = []
    for address in sorted({*before, *after}):
        a, b = before.get(address), after.get(address)
        if a is b or (a is not None and b is not None and _same(a, b)):
            continue
        moves.append(
            Move(
                pool,
                address,
                a.weight if a else None,
                b.weight if b else None,
                a.state if a else None,
                b.state if b else None,
                a.gates if a else (),
                b.gates if b else (),
                b.why if b else "no longer there",
                a.priority if a else None,
                b.priority if b else None,
                a.pickable if a else False,
                b.pickable if b else False,
            )
        )
    return moves


def _same(a: EndpointSnapshot, b: EndpointSnapshot) -> bool:
    return (a.weight, a.priority, a.state, a.pickable, a.gates) == (b.weight, b.priority, b.state, b.pickable, b.gates)


def _moved(old: PoolSnapshot | None, new: PoolSnapshot | None) -> float:
    a = _shares(old)
    b = _shares(new)
    if not a and not b:
        return 0.0
    return sum(abs(a.get(k, 0.0) - b.get(k, 0.0)) for k in {*a, *b}) / (2.0 if a and b else 1.0)


def _shares(pool: PoolSnapshot | None) -> dict[str, float]:
    weights = {e.endpoint.address: e.weight for e in pool.endpoints if e.priority == 0} if pool else {}
    total = sum(weights.values())
    return {k: w / total for k, w in weights.items() if w} if total else {}
