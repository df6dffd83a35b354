"""GPUs behind one endpoint."""

from __future__ import annotations

import pytest

from xds_control.fleet.endpoint import Endpoint
from xds_control.fleet.readings import Reading
from xds_control.fleet.replica import GpuInfo, ReplicaError, missing_gpus, validate_fleet, validate_replica, worst_of

H0, H1 = "GPU-00000000-aaaa", "GPU-11111111-bbbb"
S0, S1, T0 = "MIG-0000-s0", "MIG-0000-s1", "MIG-1111-t0"
INVENTORY = {
    H0: GpuInfo(H0, "n1", "NVIDIA H100 80GB HBM3"),
    H1: GpuInfo(H1, "n2", "NVIDIA H100 80GB HBM3"),
    "GPU-a100": GpuInfo("GPU-a100", "n2", "NVIDIA A100-SXM4-80GB"),
    S0: GpuInfo(S0, "n1", "NVIDIA H100 80GB HBM3 MIG 3g.40gb", parent=H0),
    S1: GpuInfo(S1, "n1", "NVIDIA H100 80GB HBM3 MIG 3g.40gb", parent=H0),
    T0: GpuInfo(T0, "n2", "NVIDIA H100 80GB HBM3 MIG 3g.40gb", parent=H1),
}


def endpoint(*gpus: str, name: str = "r", **fields: object) -> Endpoint:
    return Endpoint(f"10.0.0.1:{8000 + len(name)}", "p", gpus=gpus, name=name, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("gpus", [(), (H0,), (H0, H1), (S0,), (S0, S1), ("GPU-unknown", H0)])
def test_replicas_that_work(gpus: tuple[str, ...]) -> None:
    validate_replica(endpoint(*gpus), INVENTORY)
    validate_replica(endpoint(*gpus))


@pytest.mark.parametrize(
    ("gpus", "message"),
    [
        ((S0, T0), f"MIG slices {S0} .of {H0}. and {T0} .of {H1}. belong to different cards"),
        ((S0, H1), "cannot be one replica: a slice has no NVLink"),
        ((H0, "GPU-a100"), "runs at the pace of its slowest GPU"),
        ((H0, H0), "is listed twice"),
        (("0",), "is no GPU UUID"),
    ],
)
def test_replicas_that_cannot_work(gpus: tuple[str, ...], message: str) -> None:
    with pytest.raises(ReplicaError, match=message) as caught:
        validate_replica(endpoint(*gpus), INVENTORY)
    assert caught.value.code == "replica-invalid"
    assert "endpoint r" in str(caught.value)


def test_old_slice_names_tell_their_card_without_an_agent() -> None:
    with pytest.raises(ReplicaError, match="different cards"):
        validate_replica(endpoint("MIG-GPU-aa/1/0", "MIG-GPU-bb/1/0"))
    validate_replica(endpoint("MIG-GPU-aa/1/0", "MIG-GPU-aa/2/0"))


def test_mixed_kinds_are_fine_when_said() -> None:
    validate_replica(endpoint(H0, "GPU-a100", labels={"mixed-gpus": "true"}), INVENTORY)


def test_conflicts_between_replicas() -> None:
    problems = validate_fleet(
        [endpoint(H0, name="whole"), endpoint(S0, name="slice"), endpoint(S0, name="other"), endpoint(T0, name="fine")],
        INVENTORY,
    )
    assert problems == [
        f"MIG slice {S0} is claimed by endpoints slice and other",
        f"GPU {H0} is used whole by endpoint whole and in slices by slice",
    ]


def test_one_lost_gpu_is_the_whole_replica() -> None:
    e = endpoint(H0, H1, "GPU-2", "GPU-3")
    assert missing_gpus(e, set()) is None
    assert missing_gpus(e, {"GPU-elsewhere"}) is None
    assert missing_gpus(e, {H1}) == f"GPU {H1} lost: 3 of 4 left, the replica cannot run"
    assert missing_gpus(e, {H1, "GPU-3"}) == f"GPU {H1} and 1 more lost: 2 of 4 left, the replica cannot run"
    assert missing_gpus(endpoint(), {H1}) is None


def test_the_worst_gpu_counts() -> None:
    merged = worst_of(
        [
            {
                "gpu_mem_free_bytes": Reading(9.0, 5.0, "nvml"),
                "gpu_temp": Reading(60.0, 5.0, "nvml"),
                "ecc_uncorrected": Reading(1.0, 4.0, "nvml"),
                "xid": Reading(79.0, 2.0, "nvml"),
                "gpu_throttled": Reading(0.0, 5.0, "nvml"),
            },
            {
                "gpu_mem_free_bytes": Reading(3.0, 4.5, "nvml"),
                "gpu_temp": Reading(81.0, 4.5, "nvml"),
                "ecc_uncorrected": Reading(2.0, 5.0, "nvml"),
                "xid": Reading(0.0, 5.0, "nvml"),
                "gpu_throttled": Reading(1.0, 4.5, "nvml"),
            },
        ]
    )
    assert {k: (v.value, v.at) for k, v in merged.items()} == {
        "gpu_mem_free_bytes": (3.0, 4.5),
        "gpu_temp": (81.0, 4.5),
        "ecc_uncorrected": (3.0, 4.0),
        "xid": (79.0, 2.0),
        "gpu_throttled": (1.0, 4.5),
    }
