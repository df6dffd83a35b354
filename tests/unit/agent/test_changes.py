from __future__ import annotations

from dataclasses import replace

from xds_control.agent.changes import Changes
from xds_control.signals.gpu import GpuState

MIB = 1 << 20
A = GpuState("GPU-a", index=0, mem_used_bytes=1000 * MIB, util=0.5, temp_c=60.0, xid_last=0, xid_count=0)
B = GpuState("GPU-b", index=1, mem_used_bytes=1000 * MIB)


def test_first_everything_then_only_what_changed() -> None:
    changes = Changes(heartbeat_s=1.0)
    changes.observe([A, B])
    first = changes.take(0.0)
    assert first is not None
    assert (first.changed, first.full) == ((A, B), True)
    changes.observe([A, B])
    assert changes.take(0.1) is None
    hotter = replace(A, temp_c=63.0)
    changes.observe([hotter, B])
    second = changes.take(0.2)
    assert second is not None
    assert (second.changed, second.gone, second.full) == ((hotter,), (), False)


def test_small_movements_are_not_sent_but_they_add_up() -> None:
    changes = Changes()
    changes.observe([A])
    changes.take(0.0)
    for step in range(1, 5):
        changes.observe([replace(A, util=0.5 + step * 0.004)])
        assert changes.take(step * 0.1) is None
    changes.observe([replace(A, util=0.521)])
    assert changes.take(0.6) is not None


def test_a_value_that_becomes_unknown_is_a_change() -> None:
    changes = Changes()
    changes.observe([A])
    changes.take(0.0)
    changes.observe([replace(A, util=None)])
    batch = changes.take(0.1)
    assert batch is not None
    assert batch.changed[0].util is None


def test_a_sign_of_life_when_nothing_happens() -> None:
    changes = Changes(heartbeat_s=1.0)
    changes.observe([A])
    changes.take(0.0)
    assert changes.take(0.9) is None
    batch = changes.take(1.0)
    assert batch is not None
    assert (batch.changed, batch.gone, batch.full) == ((), (), False)


def test_a_slow_receiver_gets_the_newest_state_only() -> None:
    changes = Changes()
    changes.observe([A])
    changes.take(0.0)
    for step in range(100_000):
        changes.observe([replace(A, mem_used_bytes=step * 100 * MIB, xid_count=step)])
    batch = changes.take(10.0)
    assert batch is not None
    (only,) = batch.changed
    assert only.xid_count == 99_999
    assert changes.take(10.1) is None


def test_gpus_that_go_are_told_once_and_may_return() -> None:
    changes = Changes()
    changes.observe([A, B])
    changes.take(0.0)
    changes.observe([A])
    batch = changes.take(0.1)
    assert batch is not None
    assert batch.gone == ("GPU-b",)
    assert changes.take(0.2) is None
    changes.observe([A, B])
    batch = changes.take(0.3)
    assert batch is not None
    assert (batch.changed, batch.gone) == ((B,), ())


def test_a_new_connection_gets_everything_again() -> None:
    changes = Changes()
    changes.observe([A, B])
    changes.take(0.0)
    changes.connected()
    batch = changes.take(0.1)
    assert batch is not None
    assert batch.full
    assert batch.changed == (A, B)


def test_while_the_driver_is_away_measurements_are_unknown_and_counts_stay() -> None:
    changes = Changes()
    changes.observe([replace(A, xid_last=48, xid_count=2)])
    changes.take(0.0)
    changes.unreadable("the driver went away")
    batch = changes.take(0.1)
    assert batch is not None
    (state,) = batch.changed
    assert (state.util, state.mem_used_bytes, state.xid_count) == (None, None, 2)
    assert state.error == "the driver went away"
