from __future__ import annotations

from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xds_control.fleet.endpoint import Endpoint, Locality
from xds_control.fleet.readings import ModelInfo, Reading
from xds_control.fleet.snapshot import EndpointSnapshot, PoolSnapshot, Snapshot, State
from xds_control.proto import fleet_pb2 as pb
from xds_control.proto import snapshots

small = st.integers(0, 3)


@st.composite
def endpoint(draw: st.DrawFn, pool: str, number: int) -> EndpointSnapshot:
    readings = {
        name: Reading(float(draw(small)), float(draw(st.integers(0, 9))), "vllm")
        for name in draw(st.sets(st.sampled_from(["running", "waiting", "kv_usage"])))
    }
    return EndpointSnapshot(
        endpoint=Endpoint(
            f"10.0.0.{number}:80",
            pool,
            engine="vllm",
            role=draw(st.sampled_from(["both", "prefill", "decode"])),
            locality=Locality("r", draw(st.sampled_from(["", "a"])), ""),
            labels=MappingProxyType(draw(st.dictionaries(st.sampled_from("ab"), st.sampled_from("xy")))),
            name=f"n{number}",
        ),
        state=draw(st.sampled_from(list(State))),
        weight=draw(st.integers(0, 1 << 31)),
        priority=draw(small),
        pickable=draw(st.booleans()),
        capacity=float(draw(st.integers(1, 9))),
        readings=MappingProxyType(readings),
        info=ModelInfo(
            models=tuple(draw(st.lists(st.sampled_from(["m", "n"]), max_size=2))),
            lora_max=draw(st.none() | small),
            started_at=draw(st.none() | st.just(12.5)),
        ),
        gates=tuple(draw(st.lists(st.sampled_from(["kv", "waiting"]), max_size=2, unique=True))),
        why=draw(st.sampled_from(["", "because"])),
        health=draw(st.sampled_from(["healthy", "draining", "degraded", "removed"])),
    )


@st.composite
def pools(draw: st.DrawFn) -> dict[str, PoolSnapshot]:
    found = {}
    for name in sorted(draw(st.sets(st.sampled_from("pqr")))):
        numbers = sorted(draw(st.sets(st.integers(1, 4))))
        found[name] = PoolSnapshot(
            name,
            tuple(draw(st.lists(st.sampled_from(["m", "n"]), max_size=2, unique=True))),
            tuple(draw(endpoint(name, number)) for number in numbers),
        )
    return found


def snapshot(version: int, made: dict[str, PoolSnapshot]) -> Snapshot:
    return Snapshot("epoch", version, 10.0, MappingProxyType(made), "policy")


def same(left: Snapshot, right: Snapshot) -> None:
    """Equal but for what does not travel: the declared capacity, and when it was computed."""
    assert left.version == right.version
    assert left.epoch == right.epoch
    assert dict(left.pools) == dict(right.pools)


def through(message: pb.WatchResponse) -> pb.WatchResponse:
    return pb.WatchResponse.FromString(message.SerializeToString())


@given(pools())
def test_a_full_message_carries_everything(made: dict[str, PoolSnapshot]) -> None:
    sent = snapshot(7, made)
    same(snapshots.apply(None, through(snapshots.full(sent, 10.0)), 10.0), sent)


@given(pools(), pools())
def test_a_delta_turns_the_old_into_the_new(before: dict[str, PoolSnapshot], after: dict[str, PoolSnapshot]) -> None:
    old, new = snapshot(1, before), snapshot(2, after)
    held = snapshots.apply(None, through(snapshots.full(old, 10.0)), 10.0)
    message = snapshots.delta(old, new, 10.0)
    if message is None:
        assert dict(held.pools) == dict(new.pools)
    else:
        same(snapshots.apply(held, through(message), 10.0), new)


def test_times_become_the_receivers_own() -> None:
    one = PoolSnapshot(
        "p",
        (),
        (
            EndpointSnapshot(
                Endpoint("10.0.0.1:80", "p"),
                State.READY,
                1,
                0,
                True,
                1.0,
                MappingProxyType({"running": Reading(3.0, 95.0, "vllm")}),
                ModelInfo(),
            ),
        ),
    )
    message = snapshots.full(snapshot(1, {"p": one}), 100.0)
    held = snapshots.apply(None, through(message), 5000.0)
    assert held.pools["p"].endpoints[0].readings["running"] == Reading(3.0, 4995.0, "vllm")


def test_a_delta_needs_what_it_builds_on() -> None:
    message = pb.WatchResponse(epoch="other", version=2, full=False)
    with pytest.raises(ValueError, match="without the snapshot"):
        snapshots.apply(None, message, 0.0)
    with pytest.raises(ValueError, match="without the snapshot"):
        snapshots.apply(snapshot(1, {}), message, 0.0)
