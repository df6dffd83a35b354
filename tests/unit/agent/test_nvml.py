from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.agent.conftest import GIB, Machine
from xds_control.agent.nvml import ENUMERATE_S, SLOW_S, DriverUnavailable, NvmlReader
from xds_control.signals.gpu import GpuFleet, GpuState, gpu_signals


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def reader(machine: Machine, clock: Clock) -> Iterator[NvmlReader]:
    one = NvmlReader(clock=clock)
    yield one
    machine.set(driver=None)
    one.close()


def test_a_healthy_gpu_is_read_in_the_units_of_the_catalogue(machine: Machine, reader: NvmlReader) -> None:
    machine.gpu(0, pid=4711)
    reader.open()
    (state,) = reader.read()
    assert state == GpuState(
        uuid="GPU-00000000",
        name="NVIDIA H100",
        index=0,
        mem_total_bytes=80 * GIB,
        mem_used_bytes=70 * GIB,
        mem_free_bytes=10 * GIB,
        util=0.55,
        mem_bw_util=0.40,
        temp_c=61.0,
        power_w=350.0,
        power_limit_w=700.0,
        throttle_reasons=0x4,
        xid_last=0,
        xid_count=0,
        ecc_uncorrected=0,
        remap_failures=0,
        pcie_rx_bytes_s=2000 * 1024.0,
        pcie_tx_bytes_s=1000 * 1024.0,
        pids=(4711,),
    )
    assert gpu_signals([state])["gpu_throttled"] == 0.0  # the power cap is no trouble


def test_what_is_not_supported_is_absent_and_never_zero(machine: Machine, reader: NvmlReader) -> None:
    machine.set(count=1, gpu0__uuid="GPU-a")
    reader.open()
    (state,) = reader.read()
    assert state == GpuState(uuid="GPU-a", index=0)
    assert gpu_signals([state]) == {}


def test_unsupported_calls_are_not_tried_again_but_failures_are(
    machine: Machine, reader: NvmlReader, clock: Clock
) -> None:
    machine.gpu(0, temp=None)
    machine.set(gpu0__power__error=10)
    reader.open()
    (state,) = reader.read()
    assert (state.temp_c, state.power_w) == (None, None)
    machine.set(gpu0__temp=50, gpu0__power__error=None)
    clock.now += 1
    (state,) = reader.read()
    assert (state.temp_c, state.power_w) == (None, 350.0)


def test_old_drivers_have_no_second_memory_call(machine: Machine, reader: NvmlReader) -> None:
    machine.gpu(0)
    machine.set(no_v2=1)
    reader.open()
    assert reader.read()[0].mem_used_bytes == 70 * GIB


def test_a_total_of_zero_is_unified_memory_not_a_full_gpu(machine: Machine, reader: NvmlReader) -> None:
    machine.gpu(0, mem_total=0, mem_used=0)
    reader.open()
    (state,) = reader.read()
    assert state.unified_memory
    assert state.mem_total_bytes is None
    assert state.mem_free_bytes is None
    assert "gpu_mem_used_ratio" not in gpu_signals([state])


def test_an_xid_ends_the_wait_and_is_counted(machine: Machine, reader: NvmlReader) -> None:
    machine.gpu(0)
    machine.gpu(1)
    reader.open()
    reader.read()
    assert reader.wait(0.01) is False
    machine.xid(1, 63)
    assert reader.wait(5.0) is True
    machine.xid(1, 48)
    assert reader.wait(5.0) is True
    first, second = reader.read()
    assert (first.xid_last, first.xid_count) == (0, 0)
    assert (second.xid_last, second.xid_count) == (48, 2)


def test_an_ecc_event_ends_the_wait_and_the_counter_is_read(machine: Machine, reader: NvmlReader) -> None:
    machine.gpu(0)
    reader.open()
    reader.read()
    machine.set(gpu0__ecc=3)
    machine.xid(0, 0)
    assert reader.wait(5.0) is True
    (state,) = reader.read()
    assert (state.ecc_uncorrected, state.xid_count) == (3, 0)


def test_a_lost_gpu_is_lost_alone_and_may_come_back(machine: Machine, reader: NvmlReader, clock: Clock) -> None:
    machine.gpu(0)
    machine.gpu(1)
    reader.open()
    reader.read()
    machine.set(gpu1__lost=15)
    clock.now += 1
    first, second = reader.read()
    assert not first.lost
    assert first.temp_c == 61.0
    assert second.lost
    assert second.temp_c is None
    assert gpu_signals([first, second])["xid"] == 79.0
    clock.now += ENUMERATE_S
    assert [state.lost for state in reader.read()] == [False, True]
    machine.set(gpu1__lost=None)
    clock.now += ENUMERATE_S
    assert [state.lost for state in reader.read()] == [False, False]


def test_an_unknown_error_is_told_and_hides_only_its_value(machine: Machine, reader: NvmlReader) -> None:
    machine.gpu(0)
    machine.set(gpu0__temp__error=999)
    reader.open()
    (state,) = reader.read()
    assert state.temp_c is None
    assert state.power_w == 350.0
    assert "temperature" in state.error


def test_mig_devices_have_their_own_memory_and_their_gpus_heat(machine: Machine, reader: NvmlReader) -> None:
    machine.gpu(0, mig=1, mig_max=3, util=0)
    machine.set(
        gpu0__mig0__uuid="MIG-a",
        gpu0__mig0__mem_total=20 * GIB,
        gpu0__mig0__mem_used=5 * GIB,
        gpu0__mig0__instance=3,
        gpu0__mig2__uuid="MIG-c",
        gpu0__mig2__mem_total=20 * GIB,
        gpu0__mig2__mem_used=19 * GIB,
        gpu0__mig2__instance=5,
    )
    reader.open()
    gpu, a, c = reader.read()
    assert (gpu.uuid, a.uuid, c.uuid) == ("GPU-00000000", "MIG-a", "MIG-c")
    assert gpu.util is None, "a GPU in MIG mode answers zero for not known"
    assert (a.parent_uuid, a.mem_used_bytes, a.temp_c) == ("GPU-00000000", 5 * GIB, None)
    fleet = GpuFleet()
    fleet.report("n", (gpu, a, c), 1.0, "nvml")
    from xds_control.fleet.endpoint import Endpoint

    (whole,) = fleet.of(Endpoint("h:1", "p", gpus=("MIG-c",)))
    assert (whole.mem_used_bytes, whole.temp_c, whole.util) == (19 * GIB, 61.0, None)


def test_an_xid_of_one_instance_is_not_its_neighbours(machine: Machine, reader: NvmlReader) -> None:
    machine.gpu(0, mig=1, mig_max=2)
    for place, instance in ((0, 3), (1, 5)):
        machine.set(**{f"gpu0__mig{place}__uuid": f"MIG-{place}", f"gpu0__mig{place}__instance": instance})
    reader.open()
    reader.read()
    machine.xid(0, 31, instance=5)
    assert reader.wait(5.0)
    assert [state.xid_count for state in reader.read()] == [0, 0, 1]
    machine.xid(0, 79)
    assert reader.wait(5.0)
    assert [state.xid_count for state in reader.read()] == [1, 1, 2]


def test_nvlink_counters_become_rates(machine: Machine, reader: NvmlReader, clock: Clock) -> None:
    machine.gpu(0, nvlink_rx=1000, nvlink_tx=2000)
    reader.open()
    (state,) = reader.read()
    assert state.nvlink_rx_bytes_s is None
    clock.now += SLOW_S
    machine.set(gpu0__nvlink_rx=3000, gpu0__nvlink_tx=2000)
    (state,) = reader.read()
    assert state.nvlink_rx_bytes_s == 2000 * 1024 / SLOW_S
    assert state.nvlink_tx_bytes_s == 0.0
    clock.now += SLOW_S
    machine.set(gpu0__nvlink_rx=5)
    (state,) = reader.read()
    assert state.nvlink_rx_bytes_s is None, "a counter that went back gives no rate"


@pytest.mark.parametrize("error", [1, 9, 18])
def test_a_driver_that_goes_away_and_comes_back(machine: Machine, reader: NvmlReader, error: int) -> None:
    machine.gpu(0)
    reader.open()
    reader.read()
    machine.set(driver=error)
    with pytest.raises(DriverUnavailable):
        reader.read()
    with pytest.raises(DriverUnavailable):
        reader.open()
    machine.set(driver=None, version="580.1")
    reader.open()
    assert reader.driver == "580.1"
    assert reader.read()[0].temp_c == 61.0


def test_gpus_that_are_added_and_removed_are_noticed(machine: Machine, reader: NvmlReader, clock: Clock) -> None:
    machine.gpu(0)
    reader.open()
    assert len(reader.read()) == 1
    machine.gpu(1)
    assert [state.uuid for state in reader.read()] == ["GPU-00000000", "GPU-00000001"]
    machine.set(count=1)
    assert len(reader.read()) == 1


def test_without_events_the_xid_is_unknown(machine: Machine, reader: NvmlReader) -> None:
    machine.gpu(0, events=None)
    reader.open()
    (state,) = reader.read()
    assert (state.xid_last, state.xid_count) == (None, None)
    assert reader.wait(0.001) is False


COMMAND = "from xds_control.cli.agent import agent; agent()"


def test_once_prints_what_the_gpus_say(machine: Machine, nvml_library: Path) -> None:
    machine.gpu(0)
    env = {**os.environ, "LD_LIBRARY_PATH": str(nvml_library.parent), "NVML_STUB": str(machine.path)}
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, "--once"], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert printed["uuid"] == "GPU-00000000"
    assert printed["power_limit_w"] == 700.0
    assert "nvlink_rx_bytes_s" not in printed


def test_once_without_a_driver_says_so(tmp_path: Path) -> None:
    (tmp_path / "libnvidia-ml.so.1").write_text("this is no library")
    env = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, "--once"], env=env, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert "NVML cannot be started" in done.stderr
