from __future__ import annotations

import asyncio

import pytest

from tests.shared import shared_path
from tests.unit.signals.servers import engine, plain
from xds_control.policy.signals import GpuPolicy, SignalsPolicy
from xds_control.signals.dcgm import MIB, GpuPage, read_dcgm
from xds_control.signals.gpu import GpuFleet, GpuState, gpu_signals
from xds_control.signals.gpu_scraper import DcgmScraper


def test_a_captured_page() -> None:
    page = read_dcgm(shared_path("samples/dcgm_t4_a10g.txt").read_bytes())
    assert page.recognised
    assert page.dropped == {}
    assert page.node == "424773df46e0"
    first, second, third = page.gpus
    assert first == GpuState(
        "GPU-20c56d28-0da5-6d26-a36a-e7af1ce2586e",
        name="Tesla T4",
        index=0,
        mem_total_bytes=15109 * MIB,
        mem_used_bytes=0,
        mem_free_bytes=15109 * MIB,
        util=0.0,
        temp_c=25.0,
        power_w=8.969,
        xid_last=0,
    )
    assert second.throttle_reasons == 1
    assert (third.mem_bw_util, dict(third.labels)) == (3e-06, {"pod": "ray-1111111", "namespace": "ray-llm"})


def test_the_readme_page_has_only_clocks_and_blanks() -> None:
    page = read_dcgm(shared_path("samples/dcgm_readme.txt").read_bytes())
    assert page.recognised
    assert page.gpus == []


def row(name: str, value: str, uuid: str = "GPU-a", more: str = "") -> str:
    return f'{name}{{gpu="2", UUID="{uuid}",modelName="H100",Hostname="n1"{more}}} {value}\n'


@pytest.mark.parametrize(
    "blank",
    ["9223372036854775792", "9223372036854775794", "140737488355328", "140737488355330.0", "2147483633", "NaN", "-1"],
)
def test_blanks_are_absent_and_counted(blank: str) -> None:
    page = read_dcgm((row("DCGM_FI_DEV_GPU_TEMP", blank) + row("DCGM_FI_DEV_GPU_UTIL", "50")).encode())
    (state,) = page.gpus
    assert (state.temp_c, state.util) == (None, 0.5)
    assert sum(page.dropped.values()) == 1


def test_new_field_names_and_units() -> None:
    text = row("DCGM_FI_DEV_GPU_TEMP_CELSIUS", "71") + row("DCGM_FI_DEV_BOARD_POWER_WATTS", "350.5")
    text += row("DCGM_FI_DEV_FB_TOTAL", "1000") + row("DCGM_FI_DEV_FB_USED_RATIO", "0.25")
    text += row("DCGM_FI_DEV_XID_ERROR", "48") + row("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "2")
    text += row("DCGM_EXP_XID_ERRORS_COUNT", "2", more=',xid="48"') + row(
        "DCGM_EXP_XID_ERRORS_COUNT", "1", more=',xid="31"'
    )
    text += row("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "64") + row("DCGM_FI_DEV_ENFORCED_POWER_LIMIT", "701")
    (state,) = read_dcgm(text.encode()).gpus
    assert (state.temp_c, state.power_w, state.mem_used_bytes) == (71.0, 350.5, 250 * MIB)
    assert (state.xid_last, state.xid_count, state.ecc_uncorrected, state.index) == (48, 3, 2, 2)
    signals = gpu_signals([state])
    assert signals["gpu_throttled"] == 1.0
    assert signals["gpu_power_ratio"] == pytest.approx(0.5)


def test_reserved_memory_belongs_to_the_total() -> None:
    text = row("DCGM_FI_DEV_FB_USED", "70") + row("DCGM_FI_DEV_FB_FREE", "20") + row("DCGM_FI_DEV_FB_RESERVED", "10")
    (state,) = read_dcgm(text.encode()).gpus
    assert state.mem_total_bytes == 100 * MIB


def test_a_total_of_zero_is_no_memory_to_speak_of() -> None:
    text = row("DCGM_FI_DEV_FB_USED", "0") + row("DCGM_FI_DEV_FB_FREE", "0") + row("DCGM_FI_DEV_GPU_TEMP", "40")
    (state,) = read_dcgm(text.encode()).gpus
    assert (state.mem_total_bytes, state.mem_used_bytes, state.mem_free_bytes) == (None, None, None)
    assert "gpu_mem_used_ratio" not in gpu_signals([state])


def test_instances_of_a_gpu_are_devices_of_their_own() -> None:
    instance = ',GPU_I_PROFILE="1g.10gb",GPU_I_ID="7"'
    text = row("DCGM_FI_DEV_GPU_TEMP", "60") + row("DCGM_FI_DEV_FB_USED", "5", more=instance)
    text += row("DCGM_FI_DEV_FB_FREE", "5", more=instance)
    gpu, mig = read_dcgm(text.encode()).gpus
    assert (gpu.uuid, mig.uuid, mig.parent_uuid) == ("GPU-a", "GPU-a/gi7", "GPU-a")
    assert (mig.mem_total_bytes, mig.temp_c) == (10 * MIB, None)


def test_the_same_gpu_with_and_without_a_pod_must_agree() -> None:
    pod = ',pod="llm-0",namespace="prod"'
    text = row("DCGM_FI_DEV_GPU_TEMP", "60") + row("DCGM_FI_DEV_GPU_TEMP", "60", more=pod)
    text += row("DCGM_FI_DEV_GPU_UTIL", "10") + row("DCGM_FI_DEV_GPU_UTIL", "90", more=pod)
    page = read_dcgm(text.encode())
    (state,) = page.gpus
    assert (state.temp_c, state.util, dict(state.labels)) == (60.0, None, {"pod": "llm-0", "namespace": "prod"})
    assert page.dropped == {"conflict": 1}


@pytest.mark.parametrize("body", [b"", b"<html></html>\n", b"vllm:num_requests_running 1\n", b"DCGM_FI_DEV_GPU_TEMP 5"])
def test_foreign_and_torn_pages(body: bytes) -> None:
    page = read_dcgm(body)
    assert not page.recognised
    assert page.gpus == []


def test_a_gpu_without_a_name_is_counted() -> None:
    page = read_dcgm(b"DCGM_FI_DEV_GPU_TEMP 5\n")
    assert page.gpus == []
    assert page.dropped == {"no_uuid": 1}


async def test_exporters_are_scraped_and_bad_ones_are_told() -> None:
    good_page = (row("DCGM_FI_DEV_GPU_TEMP", "60") + row("DCGM_FI_DEV_GPU_TEMP", "61", "GPU-b")).encode()
    async with engine(plain(good_page)) as good, engine(plain(b"a 1\n")) as bad:
        policy = SignalsPolicy(gpu=GpuPolicy(dcgm=[good.url(), bad.url()], dcgm_interval_s=0.1))
        fleet = GpuFleet()

        def take(node: str, page: GpuPage, at: float) -> None:
            fleet.report(node, page.gpus, at, "dcgm", full=True)

        scraper = DcgmScraper(policy, take, seed=1)
        scraper.start()
        try:
            async with asyncio.timeout(20):
                while scraper.stats[bad.url()].consecutive_failures < 2 or not len(fleet):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            assert {state.uuid: state.temp_c for state in fleet.states()} == {"GPU-a": 60.0, "GPU-b": 61.0}
            assert scraper.stats[bad.url()].errors.keys() == {"unrecognised"}
            good.answer = plain(row("DCGM_FI_DEV_GPU_TEMP", "62").encode())
            async with asyncio.timeout(20):
                while len(fleet) != 1:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            assert scraper.stats[good.url()].gpus == 1
        finally:
            await scraper.stop()
