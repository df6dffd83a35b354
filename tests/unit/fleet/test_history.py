"""The ring of snapshots."""

from __future__ import annotations

import gc
import weakref

import pytest

from xds_control.fleet.endpoint import Endpoint
from xds_control.fleet.history import History
from xds_control.fleet.readings import ModelInfo, Reading
from xds_control.fleet.snapshot import EndpointSnapshot, PoolSnapshot, Snapshot, State


def snapshot(version: int, weights: dict[str, int], *, epoch: str = "e", **states: State) -> Snapshot:
    made = tuple(
        EndpointSnapshot(
            Endpoint(a, "p"), states.get(a, State.READY), w, 0, w > 0, 1.0, {}, ModelInfo(), why=f"{a} weighs {w}"
        )
        for a, w in sorted(weights.items())
    )
    return Snapshot(epoch, version, float(version), {"p": PoolSnapshot("p", (), made)}, "1")


def test_what_moved_and_why() -> None:
    history = History()
    history.record(snapshot(1, {"a": 100, "b": 100}))
    entry = history.record(snapshot(2, {"a": 50, "b": 150}, b=State.SUSPECT))
    assert entry is not None
    assert [(m.address, m.weight_before, m.weight, m.why) for m in entry.moves] == [
        ("a", 100, 50, "a weighs 50"),
        ("b", 100, 150, "b weighs 150"),
    ]
    assert (entry.moves[1].state_before, entry.moves[1].state) == (State.READY, State.SUSPECT)
    assert entry.moved == {"p": pytest.approx(0.25)}


def test_the_same_snapshot_is_kept_once() -> None:
    history = History()
    assert history.record(snapshot(1, {"a": 1})) is not None
    assert history.record(snapshot(1, {"a": 1})) is None
    assert history.record(snapshot(1, {"a": 1}, epoch="other")) is not None
    assert len(history) == 2


def test_endpoints_that_come_and_go() -> None:
    history = History()
    history.record(snapshot(1, {"a": 100, "b": 100}))
    entry = history.record(snapshot(2, {"b": 100, "c": 100}))
    assert entry is not None
    assert [(m.address, m.weight_before, m.weight) for m in entry.moves] == [("a", 100, None), ("c", None, 100)]
    assert entry.moves[0].why == "no longer there"


def test_only_the_last_ones_are_kept() -> None:
    history = History(3)
    for version in range(1, 8):
        history.record(snapshot(version, {"a": version, "b": 10}))
    assert [e.version for e in history.entries()] == [5, 6, 7]
    assert [e.version for e in history.entries(since=5, limit=1)] == [7]
    assert history.get(4) is None
    assert [m.weight for _, m in history.of("a")] == [5, 6, 7]
    moves = history.between(5, 7)
    assert [(m.address, m.weight_before, m.weight) for m in moves] == [("a", 5, 7)]
    with pytest.raises(KeyError, match="4"):
        history.between(4, 7)
    with pytest.raises(ValueError, match="at least one"):
        History(0)


def test_moves_between_versions_add_up_and_what_came_back_has_not_moved() -> None:
    history = History()
    for version, weights in enumerate(
        ({"a": 1, "b": 1}, {"a": 2, "b": 2, "c": 5}, {"a": 3, "b": 1}, {"b": 1, "c": 7, "a": 3}), start=1
    ):
        history.record(snapshot(version, weights))
    net = {m.address: (m.weight_before, m.weight, m.why) for m in history.between(1, 4)}
    assert net == {"a": (1, 3, "a weighs 3"), "c": (None, 7, "c weighs 7")}
    assert history.between(4, 1) == history.between(1, 4)
    assert [(m.address, m.weight_before, m.weight) for m in history.between(2, 4)] == [
        ("a", 2, 3),
        ("b", 2, 1),
        ("c", 5, 7),
    ]
    assert history.between(2, 2) == ()


def test_a_large_fleet_in_motion_keeps_fewer_entries() -> None:
    history = History(size=50, max_moves=300)
    for version in range(1, 20):
        history.record(snapshot(version, {f"e{n}": version for n in range(100)}))
    assert [e.version for e in history.entries()] == [17, 18, 19]
    history.record(snapshot(20, {f"e{n}": 20 for n in range(1000)}))
    assert [e.version for e in history.entries()] == [20]


def test_the_signals_of_the_past_are_let_go() -> None:
    class Signals(dict[str, Reading]):
        """Readings that can be watched."""

    history, signals = History(), Signals()
    past = weakref.ref(signals)
    one = EndpointSnapshot(Endpoint("a", "p"), State.READY, 1, 0, True, 1.0, signals, ModelInfo())
    history.record(Snapshot("e", 1, 1.0, {"p": PoolSnapshot("p", (), (one,))}, "1"))
    del one, signals
    assert past() is not None
    history.record(snapshot(2, {"a": 2}))
    gc.collect()
    assert past() is None
    assert len(history) == 2
