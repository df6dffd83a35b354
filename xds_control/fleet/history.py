"""The last snapshots, and what moved from one to the next and why."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from xds_control.fleet.snapshot import EndpointSnapshot, PoolSnapshot, Snapshot, State


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


@dataclass(frozen=True, slots=True)
class Entry:
    """One snapshot and its difference to the one before. moved: per pool, share of traffic (0..1) that moved."""

    snapshot: Snapshot
    moves: tuple[Move, ...]
    moved: dict[str, float]

    @property
    def version(self) -> int:
        """The snapshot's version."""
        return self.snapshot.version


class History:
    """A ring of snapshots. size: how many are kept, 1 or more."""

    def __init__(self, size: int = 256) -> None:
        if size < 1:
            raise ValueError("a history keeps at least one snapshot")
        self._entries: deque[Entry] = deque(maxlen=size)

    def record(self, snapshot: Snapshot) -> Entry | None:
        """Keeps a snapshot unless it is the one kept last; returns what moved."""
        last = self._entries[-1].snapshot if self._entries else None
        if last is not None and (last.epoch, last.version) == (snapshot.epoch, snapshot.version):
            return None
        entry = Entry(snapshot, *compare(last, snapshot))
        self._entries.append(entry)
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
        found = [(e.snapshot.at, m) for e in self._entries for m in e.moves if m.address == address]
        return found[max(0, len(found) - limit) :]

    def between(self, older: int, newer: int) -> tuple[Move, ...]:
        """What moved from one kept version to another. Raises KeyError with the version that is not kept."""
        first, second = self.get(older), self.get(newer)
        for version, entry in ((older, first), (newer, second)):
            if entry is None:
                raise KeyError(version)
        assert first is not None
        assert second is not None
        return compare(first.snapshot, second.snapshot)[0]

    def __len__(self) -> int:
        return len(self._entries)


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
