"""What control keeps beside the fleet: events, lingering clusters, operators' orders across restarts, load reports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.admin.test_core import POLICY, A, B, core, members, run, see
from xds_control.admin.events import EventLog
from xds_control.admin.extras import Extras, pair
from xds_control.admin.load_rows import load_rows
from xds_control.admin.orders import Orders
from xds_control.admin.views import unserved
from xds_control.fleet.override import Override
from xds_control.fleet.snapshot import State
from xds_control.policy.load import parse_policy
from xds_control.policy.store import StoreError
from xds_control.policy.store.sqlite import SqliteStore
from xds_control.signals.reader import Observations
from xds_control.xds.lrs import LoadReport
from xds_control.xds.types import CDS, EDS


def test_events_count_up_and_the_oldest_go() -> None:
    log = EventLog(3)
    for number in range(5):
        log.add(float(number), "state", endpoint=str(number))
    assert [event.sequence for event in log.since(0, 100)] == [3, 4, 5]
    assert [event.sequence for event in log.since(3, 100)] == [4, 5]
    assert [event.sequence for event in log.since(0, 1)] == [5]
    assert log.since(5, 100) == []
    assert log.since(99, 100) == []


def test_clusters_linger_until_their_time_or_until_they_are_back() -> None:
    world = {CDS.type_url: {"a": b"A"}, EDS.type_url: {"a": b"EA"}}
    extras = Extras()
    assert extras.added_to(world, 0.0) is world
    extras.keep("b", b"B", b"EB", 10.0)
    made = extras.added_to(world, 5.0)
    assert made[CDS.type_url] == {"a": b"A", "b": b"B"}
    assert made[EDS.type_url] == {"a": b"EA", "b": b"EB"}
    assert world[CDS.type_url] == {"a": b"A"}
    own = {CDS.type_url: {"b": b"own"}, EDS.type_url: {"b": b"own"}}
    assert extras.added_to(own, 5.0) is own
    assert not extras.due(9.9)
    assert extras.due(10.0)
    assert extras.added_to(world, 10.0) is world
    assert len(extras) == 0
    assert pair(world, "a") == (b"A", b"EA")
    assert pair(world, "b") is None


def test_orders_are_back_before_the_first_tick(tmp_path: Path) -> None:
    made = core()
    orders = Orders(made, SqliteStore(tmp_path / "s.db"))
    now = run(made, 0.0, 3.0, a={}, b={})
    orders.put(A, Override("drain", by="ann", reason="driver"), "ann", "driver", now, 1000.0)
    orders.put(B, Override("pin", 7, now + 60.0, by="ann"), "ann", "", now, 1000.0)
    made.tick(now)
    assert members(made)[A].state is State.DRAINING

    again = core()
    restored = Orders(again, SqliteStore(tmp_path / "s.db"))
    # another process: its monotonic clock stands elsewhere, and 20 s of the pin went by
    restored.restore(5.0, 1020.0)
    again.tick(5.0)
    assert members(again)[A].state is State.DRAINING
    assert members(again)[A].weight == 0
    pin = again.lifecycle.overrides()[B]
    assert (pin.kind, pin.weight, pin.by) == ("pin", 7, "ann")
    assert pin.until == pytest.approx(45.0)


def test_a_pool_that_nobody_serves_is_a_problem(tmp_path: Path) -> None:
    made = core()
    assert unserved(made.snapshot) == []
    now = run(made, 0.0, 3.0, a={}, b={})
    assert unserved(made.snapshot) == []
    orders = Orders(made, SqliteStore(tmp_path / "s.db"))
    for address in (A, B):
        orders.put(address, Override("drain", by="ann"), "ann", "", now, 1000.0)
    made.tick(now)
    assert made.snapshot is not None
    (pool,) = made.snapshot.pools
    assert unserved(made.snapshot) == [f"pool {pool}: no endpoint serves, its requests fail"]


def test_orders_that_lapsed_are_dropped_and_said_so(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "s.db")
    made = core()
    orders = Orders(made, store)
    orders.put(A, Override("drain", until=10.0), "ann", "", 0.0, 1000.0)
    made.tick(5.0)
    orders.drop_lapsed(1005.0)
    assert set(store.orders()) == {A}
    made.tick(10.0)
    orders.drop_lapsed(1010.0)
    assert store.orders() == {}
    assert store.audit(1)[0].action == "lapse"

    orders.put(B, Override("drain", until=20.0), "ann", "", 15.0, 1015.0)
    late = core()
    Orders(late, store).restore(0.0, 2000.0)
    assert late.lifecycle.overrides() == {}
    assert store.orders() == {}


def test_a_lapse_that_cannot_be_kept_is_tried_again_and_stops_no_tick(tmp_path: Path) -> None:
    class Full(SqliteStore):
        full, tries = False, 0

        def put_order(self, *arguments: Any) -> None:
            self.tries += 1
            if self.full:
                raise StoreError("no space is left")
            super().put_order(*arguments)

    store = Full(tmp_path / "s.db")
    made = core()
    orders = Orders(made, store)
    orders.put(A, Override("drain", until=10.0), "ann", "", 0.0, 1000.0)
    made.tick(11.0)
    store.full = True
    for wall in range(1011, 1030):
        orders.drop_lapsed(float(wall))
    assert store.tries == 2  # waiting for a store may take seconds each time
    assert made.lifecycle.overrides() == {}
    late = core()
    Orders(late, store).restore(0.0, 2000.0)
    assert late.lifecycle.overrides() == {}
    store.full = False
    orders.drop_lapsed(500.0)  # a clock that was set back holds nothing up
    assert store.orders() == {}


def test_clearing_tells_what_was_in_force(tmp_path: Path) -> None:
    made = core()
    orders = Orders(made, SqliteStore(tmp_path / "s.db"))
    assert orders.put(A, Override("pin", 3), "ann", "", 0.0, 0.0) == ""
    assert orders.put(A, None, "bob", "", 1.0, 1.0) == "pin"


def test_an_order_that_cannot_be_kept_is_not_carried_out(tmp_path: Path) -> None:
    made = core()
    store = SqliteStore(tmp_path / "s.db")
    orders = Orders(made, store)
    store.close()
    with pytest.raises(StoreError):
        orders.put(A, Override("drain"), "ann", "", 0.0, 0.0)
    assert made.lifecycle.overrides() == {}


def reports(address: str, ok: int, failed: int) -> list[LoadReport]:
    where = ("", "", "")
    row = LoadReport("envoy-1", "chat", "", where, 0, address, 1.0, ok + failed, ok, failed)
    total = LoadReport("envoy-1", "chat", "", where, 0, "", 1.0, ok + failed, ok, failed)
    return [row, total]


def test_load_reports_become_signals_of_known_endpoints() -> None:
    made = core()
    now = run(made, 0.0, 2.0, a={}, b={})
    made.on_load_reports(load_rows(reports(A, 60, 40)), now)
    made.on_load_reports(load_rows(reports("10.9.9.9:1", 60, 40)), now)
    raw = {one.name: one for one in made.store.raw(A, now) if one.source == "lrs"}
    assert raw["error_rate"].value == pytest.approx(0.4)
    assert "10.9.9.9:1" not in made.store


def test_a_restarted_engine_begins_without_its_old_values() -> None:
    made = core()
    now = run(made, 0.0, 2.0, a={"kv_hit_ratio": 0.9}, b={})
    assert "kv_hit_ratio" in made.store.readings(A, now)
    (endpoint,) = [one for one in made.endpoints if one.address == A]
    made.on_observations(
        endpoint, Observations(now, "vllm", {"running": 0.0}, dropped={"restart": 1}, recognised=True), now
    )
    kept = made.store.readings(A, now)
    assert "running" in kept
    assert "kv_hit_ratio" not in kept


def test_another_policy_keeps_the_engines_of_unchanged_pools() -> None:
    made = core()
    now = run(made, 0.0, 2.0, a={}, b={})
    before = made.engines["chat"]
    made.use_policy(parse_policy(POLICY + "log: {level: debug}\n"), "v2", now)
    assert made.engines["chat"] is before
    made.use_policy(parse_policy(POLICY + "signals: {age_limits_s: {waiting: 3}}\n"), "v3", now)
    assert made.engines["chat"] is not before
    see(made, A, now)
    tick = made.tick(now)
    assert tick.snapshot.policy_version == "v3"
