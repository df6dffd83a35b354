from __future__ import annotations

from types import MappingProxyType

import pytest

from xds_control.admin.hub import MAX_PREFIXES, Hub
from xds_control.fleet.endpoint import Endpoint
from xds_control.fleet.readings import ModelInfo
from xds_control.fleet.snapshot import EndpointSnapshot, PoolSnapshot, Snapshot, State
from xds_control.proto import fleet_pb2 as pb


def snapshot(version: int, weight: int, epoch: str = "e") -> Snapshot:
    one = EndpointSnapshot(
        Endpoint("10.0.0.1:80", "p"), State.READY, weight, 0, True, 1.0, MappingProxyType({}), ModelInfo()
    )
    return Snapshot(epoch, version, 0.0, MappingProxyType({"p": PoolSnapshot("p", (), (one,))}), "v1")


def read(data: bytes | None) -> pb.WatchResponse:
    assert data is not None
    return pb.WatchResponse.FromString(data)


def hub() -> Hub:
    made = Hub()
    made.publish(snapshot(1, 10))
    made.publish_policy("v1", b"{}")
    return made


def test_a_watcher_gets_everything_once_and_then_only_changes() -> None:
    made = hub()
    key = made.watch("p0", "127.0.0.1:1", "0", 0.0)
    first = read(made.next_message(key, 0.0))
    assert first.full
    assert first.policy.version == "v1"
    assert made.next_message(key, 0.0) is None
    made.publish(snapshot(2, 20))
    second = read(made.next_message(key, 0.0))
    assert not second.full
    assert not second.HasField("policy")
    assert [e.weight for e in second.pools[0].endpoints] == [20]
    made.publish_policy("v2", b"[]")
    third = read(made.next_message(key, 0.0))
    assert third.policy.version == "v2"
    assert third.version == 2


def test_changes_that_nobody_read_are_merged() -> None:
    made = hub()
    key = made.watch("p0", "", "0", 0.0)
    made.next_message(key, 0.0)
    for version in range(2, 50):
        made.publish(snapshot(version, version))
    message = read(made.next_message(key, 0.0))
    assert message.version == 49
    assert len(message.pools[0].endpoints) == 1


def test_a_restarted_control_sends_everything() -> None:
    made = hub()
    key = made.watch("p0", "", "0", 0.0)
    made.next_message(key, 0.0)
    made.publish(snapshot(1, 10, epoch="other"))
    assert read(made.next_message(key, 0.0)).full


def test_processors_hear_of_each_other_but_not_of_themselves() -> None:
    made = hub()
    keys = [made.watch(name, f"127.0.0.1:{n}", "0", 0.0) for n, name in enumerate(("p0", "p1", "p2"))]
    for key in keys:
        made.next_message(key, 0.0)
    window = pb.Window()
    window.prefixes.add(endpoint="a", keys=[1, 2], tokens=[10, 20])
    window.outstanding.add(endpoint="a", requests=3, prefill_tokens=100)
    window.rates.add(pool="p", endpoint="a", state=b"x")
    made.report("p0", window, 1.0)
    made.report("p1", pb.Window(outstanding=[pb.Outstanding(endpoint="a", requests=2)]), 1.0)
    to_self, to_one, to_two = (made.next_message(key, 1.0) for key in keys)
    assert not read(to_self).peers.prefixes
    assert {o.endpoint: o.requests for o in read(to_self).peers.outstanding if o.endpoint} == {"a": 2}
    assert list(read(to_one).peers.prefixes[0].keys) == [1, 2]
    assert {o.endpoint: o.requests for o in read(to_one).peers.outstanding if o.endpoint} == {"a": 3}
    assert {o.endpoint: o.requests for o in read(to_two).peers.outstanding if o.endpoint} == {"a": 5}
    assert [r.state for r in read(to_two).peers.rates] == [b"x"]
    assert all(made.next_message(key, 1.0) is None for key in keys)


def test_outstanding_work_is_told_with_its_age() -> None:
    made = hub()
    key = made.watch("p2", "", "0", 0.0)
    made.next_message(key, 0.0)

    def told(now: float) -> dict[str, tuple[int, float]]:
        message = made.next_message(key, now)
        found = read(message).peers.outstanding if message is not None else ()
        return {one.endpoint: (one.prefill_tokens, one.age_s) for one in found if one.endpoint}

    def work(tokens: int) -> pb.Window:
        return pb.Window(outstanding=[pb.Outstanding(endpoint="a", requests=1, prefill_tokens=tokens)])

    made.report("p0", work(300), 1.0)
    made.report("p1", work(100), 1.2)
    assert told(1.2) == {"a": (400, pytest.approx(0.15))}
    assert told(1.3) == {}
    made.report("p0", work(300), 1.4)  # as much as before, and so news: it was all read meanwhile, and came again
    assert told(1.4) == {"a": (400, pytest.approx(0.05))}
    made.report("p0", work(0), 1.5)
    made.report("p1", work(0), 1.5)
    assert told(1.6) == {"a": (0, 0.0)}
    made.report("p0", work(0), 1.7)
    assert told(1.8) == {}


def test_increments_of_rates_are_all_kept() -> None:
    made = hub()
    key = made.watch("p1", "", "0", 0.0)
    made.next_message(key, 0.0)
    for number in range(3):
        made.report("p0", pb.Window(rates=[pb.RateState(pool="p", endpoint="a", state=bytes([number]))]), 1.0)
    assert [r.state for r in read(made.next_message(key, 1.0)).peers.rates] == [b"\x00", b"\x01", b"\x02"]


def test_work_of_a_processor_that_is_gone_or_silent_is_forgotten() -> None:
    made = hub()
    keys = [made.watch(name, "", "0", 0.0) for name in ("p0", "p1")]
    for key in keys:
        made.next_message(key, 0.0)
    made.report("p0", pb.Window(outstanding=[pb.Outstanding(endpoint="a", requests=3)]), 1.0)
    assert read(made.next_message(keys[1], 1.0)).peers.outstanding[1].requests == 3
    made.unwatch(keys[0])
    cleared = read(made.next_message(keys[1], 1.0)).peers.outstanding
    assert [o.endpoint for o in cleared] == [""], "an empty list that says so"
    made.report("p2", pb.Window(outstanding=[pb.Outstanding(endpoint="a", requests=1)]), 2.0)
    made.next_message(keys[1], 2.0)
    made.expire(20.0)
    assert [o.endpoint for o in read(made.next_message(keys[1], 20.0)).peers.outstanding] == [""]


def test_a_watcher_that_never_reads_stays_bounded() -> None:
    made = hub()
    key = made.watch("p1", "", "0", 0.0)
    window = pb.Window()
    for number in range(1000):
        window.prefixes.add(endpoint="a", keys=[number], tokens=[1])
    for _ in range(30):
        made.report("p0", window, 1.0)
    assert len(made.watchers[key].prefixes) == MAX_PREFIXES


def test_addresses_follow_the_watchers() -> None:
    made = hub()
    first = made.watch("p0", "127.0.0.1:2", "0", 0.0)
    made.watch("p1", "127.0.0.1:1", "0", 0.0)
    again = made.watch("p0", "127.0.0.1:2", "0", 0.0)
    assert made.addresses() == ["127.0.0.1:1", "127.0.0.1:2"]
    made.unwatch(first)
    assert made.addresses() == ["127.0.0.1:1", "127.0.0.1:2"]
    made.unwatch(again)
    assert made.addresses() == ["127.0.0.1:1"]


def test_estimates_are_sent_when_they_change() -> None:
    made = hub()
    key = made.watch("p0", "", "0", 0.0)
    made.next_message(key, 0.0)
    made.publish_estimates("p0", b"one")
    assert read(made.next_message(key, 0.0)).estimates.tokens == b"one"
    made.publish_estimates("p0", b"one")
    assert made.next_message(key, 0.0) is None


def test_nonsense_of_one_processor_reaches_the_others_within_bounds() -> None:
    made = hub()
    key = made.watch("p2", "", "0", 0.0)
    for name in ("p0", "p1"):
        window = pb.Window()
        window.outstanding.add(endpoint="a", requests=-(2**31), prefill_tokens=2**63 - 1, decode_tokens=-(2**63))
        made.report(name, window, 1.0)
    (total,) = [one for one in read(made.next_message(key, 0.0)).peers.outstanding if one.endpoint]
    assert (total.requests, total.prefill_tokens, total.decode_tokens) == (-(2**31), 2**63 - 1, -(2**63))


def test_a_reporter_that_never_watched_is_forgotten() -> None:
    made = hub()
    made.watch("p0", "", "0", 0.0)
    made.report("p0", pb.Window(), 1.0)
    made.report("stranger", pb.Window(), 1.0)
    made.expire(1.5)
    assert set(made.reporters) == {"p0", "stranger"}
    made.expire(1e6)
    assert set(made.reporters) == {"p0"}
