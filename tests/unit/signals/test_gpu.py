from __future__ import annotations

from dataclasses import replace

import pytest

from xds_control.fleet.endpoint import Endpoint
from xds_control.signals.gpu import XID_FELL_OFF, GpuFleet, GpuState, gpu_signals, with_parent
from xds_control.signals.gpu_wire import from_proto, report, take_report, to_proto
from xds_control.signals.store import SignalStore

GIB = 1 << 30
A = GpuState(
    "GPU-a",
    index=0,
    mem_total_bytes=80 * GIB,
    mem_used_bytes=40 * GIB,
    mem_free_bytes=39 * GIB,
    util=0.2,
    temp_c=50.0,
    power_w=300.0,
    power_limit_w=700.0,
    throttle_reasons=0x1,
    xid_last=0,
    xid_count=0,
    ecc_uncorrected=0,
    pids=(10, 11),
)
B = replace(
    A,
    uuid="GPU-b",
    index=1,
    mem_used_bytes=72 * GIB,
    mem_free_bytes=7 * GIB,
    temp_c=91.0,
    throttle_reasons=0x40,
    xid_last=48,
    xid_count=2,
    ecc_uncorrected=1,
    pids=(12,),
)


def test_the_worst_gpu_of_an_endpoint_counts() -> None:
    assert gpu_signals([A, B]) == pytest.approx(
        {
            "gpu_mem_used_ratio": 0.9,
            "gpu_mem_free_bytes": 7 * GIB,
            "gpu_util": 0.2,
            "gpu_temp": 91.0,
            "gpu_power_ratio": 3 / 7,
            "gpu_throttled": 1.0,
            "xid": 48.0,
            "xid_count": 2.0,
            "ecc_uncorrected": 1.0,
        }
    )


def test_what_no_gpu_tells_is_absent() -> None:
    assert gpu_signals([]) == {}
    assert gpu_signals([GpuState("GPU-x")]) == {}
    assert gpu_signals([GpuState("GPU-x", mem_total_bytes=10, mem_used_bytes=4)])["gpu_mem_free_bytes"] == 6


def test_a_lost_gpu_is_a_fatal_xid() -> None:
    signals = gpu_signals([A, GpuState("GPU-b", lost=True)])
    assert (signals["xid"], signals["xid_count"]) == (XID_FELL_OFF, 1)


def test_a_mig_device_takes_heat_from_its_gpu_and_keeps_its_memory() -> None:
    device = GpuState(
        "MIG-1", parent_uuid="GPU-b", mem_total_bytes=10 * GIB, mem_used_bytes=GIB, xid_count=0, xid_last=0
    )
    whole = with_parent(device, B)
    assert (whole.mem_used_bytes, whole.temp_c, whole.xid_count) == (GIB, 91.0, 0)
    assert whole.util is None
    assert with_parent(device, None) is device


def endpoint(**more: object) -> Endpoint:
    return Endpoint("10.0.0.1:8000", "p", **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("one", "found"),
    [
        (endpoint(gpus=("GPU-b",)), ["GPU-b"]),
        (endpoint(gpus=("GPU-a", "GPU-nowhere", "GPU-b")), ["GPU-a", "GPU-b"]),
        (endpoint(labels={"gpu.node": "n1"}), ["GPU-a", "GPU-b"]),
        (endpoint(labels={"gpu.node": "n1", "gpu.index": "1"}), ["GPU-b"]),
        (endpoint(labels={"gpu.node": "n1", "gpu.index": "0, 1"}), ["GPU-a", "GPU-b"]),
        (endpoint(labels={"gpu.node": "n1", "gpu.pid": "11"}), ["GPU-a"]),
        (endpoint(labels={"gpu.node": "n1", "gpu.pid": "99"}), []),
        (endpoint(labels={"gpu.node": "other"}), []),
        (endpoint(), []),
    ],
)
def test_gpus_are_found_by_uuid_labels_or_process(one: Endpoint, found: list[str]) -> None:
    fleet = GpuFleet()
    fleet.report("n1", [A, B], 1.0, "nvml")
    fleet.report("n2", [replace(A, uuid="GPU-z")], 1.0, "nvml")
    assert [state.uuid for state in fleet.of(one)] == found


def test_pods_are_found_by_what_the_exporter_knows() -> None:
    fleet = GpuFleet()
    pod = {"pod": "llm-0", "namespace": "prod"}
    fleet.report("n1", [replace(A, labels=pod), replace(B, labels={"pod": "llm-0", "namespace": "dev"})], 1.0, "dcgm")
    labels = {"gpu.pod": "llm-0", "gpu.namespace": "prod"}
    assert [state.uuid for state in fleet.of(endpoint(labels=labels))] == ["GPU-a"]


def test_signals_reach_the_store_as_old_as_the_nodes_last_word() -> None:
    fleet, store = GpuFleet(), SignalStore()
    one = endpoint(gpus=("GPU-a", "GPU-b"))
    fleet.report("n1", [A, B], 1.0, "nvml")
    assert fleet.fill(store, [one]) == [one]
    assert fleet.fill(store, [one]) == [], "nothing new was heard"
    assert store.readings(one.address, 1.0)["gpu_temp"] == (91.0, 1.0, "nvml")
    fleet.report("n1", [], 5.0, "nvml")  # a sign of life: nothing changed
    fleet.fill(store, [one])
    assert store.readings(one.address, 5.0)["gpu_temp"].at == 5.0
    fleet.report("n1", [replace(B, temp_c=60.0)], 6.0, "nvml")
    fleet.fill(store, [one])
    assert store.readings(one.address, 6.0)["gpu_temp"].value == 60.0


def test_only_endpoints_of_nodes_that_were_heard_of_are_filled() -> None:
    fleet, store = GpuFleet(), SignalStore()
    endpoints = tuple(Endpoint(f"10.0.0.{n}:80", "p", gpus=(f"GPU-{n}",)) for n in range(5))
    for n in range(5):
        fleet.report(f"node-{n}", [replace(A, uuid=f"GPU-{n}")], 1.0, "nvml")
    assert fleet.fill(store, endpoints) == list(endpoints)
    fleet.report("node-3", [], 2.0, "nvml")
    assert fleet.fill(store, endpoints) == [endpoints[3]]
    moved = (*endpoints[:4], replace(endpoints[4], gpus=("GPU-0",)))
    assert fleet.fill(store, moved) == list(moved), "another mapping concerns all"
    assert store.readings("10.0.0.4:80", 2.0)["gpu_temp"].value == 50.0


def test_agent_and_exporter_may_both_tell_of_a_gpu() -> None:
    fleet, store = GpuFleet(), SignalStore()
    one = endpoint(gpus=("GPU-a",))
    fleet.report("n1", [A], 1.0, "nvml")
    fleet.report("host-of-exporter", [replace(A, temp_c=55.0)], 1.0, "dcgm")
    fleet.fill(store, [one])
    assert store.readings(one.address, 1.0)["gpu_temp"] == (50.0, 1.0, "nvml")
    assert {raw.source for raw in store.raw(one.address, 1.0) if raw.name == "gpu_temp"} == {"nvml", "dcgm"}


def test_gpus_that_go_and_nodes_that_fall_silent() -> None:
    fleet = GpuFleet()
    fleet.report("n1", [A, B], 1.0, "nvml")
    fleet.report("n1", [], 2.0, "nvml", lost=["GPU-a", "GPU-never"])
    assert [state.uuid for state in fleet.states()] == ["GPU-b"]
    assert fleet.counts == {"unknown_lost": 1}
    fleet.report("n1", [A], 3.0, "nvml", full=True)
    assert [state.uuid for state in fleet.states()] == ["GPU-a"]
    fleet.report("n2", [replace(A, uuid="GPU-c")], 100.0, "nvml")
    fleet.forget_before(50.0)
    assert [state.uuid for state in fleet.states()] == ["GPU-c"]


def test_backward_time_and_too_many_gpus_are_counted() -> None:
    fleet = GpuFleet(max_gpus=3)
    fleet.report("n1", [A], 10.0, "nvml")
    fleet.report("n1", [replace(A, temp_c=99.0)], 9.0, "nvml")
    assert fleet.states()[0].temp_c == 50.0
    fleet.report("n1", [replace(A, uuid=f"GPU-{n}") for n in range(10)], 11.0, "nvml")
    for n in range(10):
        fleet.report(f"m{n}", [], 11.0, "nvml")
    assert len(fleet) == 3
    assert fleet.counts["backward"] == 1
    assert fleet.counts["full"] == 8 + 8


def test_gpus_of_no_endpoint_are_named() -> None:
    fleet = GpuFleet()
    mig = GpuState("MIG-1", parent_uuid="GPU-a")
    fleet.report("n1", [A, B, mig], 1.0, "nvml")
    assert fleet.unmapped([endpoint(gpus=("MIG-1",))]) == ["GPU-b"]


def test_states_survive_the_wire() -> None:
    for state in (
        A,
        B,
        GpuState("GPU-x"),
        GpuState("MIG-1", parent_uuid="GPU-a", lost=True, error="gone", unified_memory=True),
    ):
        assert from_proto(to_proto(state)) == state
    assert not to_proto(GpuState("GPU-x")).HasField("util")
    assert to_proto(replace(A, util=0.0)).HasField("util")


def test_a_flood_of_reports_costs_no_memory() -> None:
    fleet = GpuFleet()
    message = report("n1", "580", [A, B], [], False)
    for step in range(5_000):
        take_report(fleet, message, "agent/n1", float(step))
    assert len(fleet) == 2
