"""Pages over time: resets, restarts, gaps, torn and contradictory pages. Never a wrong value, always a count."""

from __future__ import annotations

import random

import pytest

from tests.unit.signals.pages import PageBuilder, vllm_page
from xds_control.signals.catalogue import CATALOGUE
from xds_control.signals.exposition import parse
from xds_control.signals.reader import PageReader, SloTargets


def tokens(count: float, started: float | None = None, running: float = 1) -> bytes:
    page = PageBuilder(model_name="m", engine="0").counter("vllm:generation_tokens_total", count)
    page.value("vllm:num_requests_running", running)
    text = bytes(page)
    return text if started is None else text + f"process_start_time_seconds {started}\n".encode()


def ttft(n: float, fast: float, seconds: float) -> bytes:
    page = PageBuilder(model_name="m", engine="0")
    page.histogram("vllm:time_to_first_token_seconds", {0.1: fast, 1.0: n}, n, seconds)
    return bytes(page)


def test_a_newcomer_has_no_rates_not_zeros() -> None:
    seen = PageReader("vllm").feed(tokens(5000), 1.0)
    assert seen.values == {"running": 1}


def test_a_rate_is_of_the_window() -> None:
    reader = PageReader("vllm", rate_window_s=10.0)
    count = 0.0
    for second in range(60):
        count += 100 if second < 30 else 300
        seen = reader.feed(tokens(count), float(second))
        if second == 29:
            assert seen.values["decode_tps"] == pytest.approx(100)
    assert seen.values["decode_tps"] == pytest.approx(300)


def test_a_counter_that_went_back_gives_no_value_until_it_is_known_again() -> None:
    reader = PageReader("vllm")
    reader.feed(tokens(1000), 1.0)
    assert reader.feed(tokens(2000), 2.0).values["decode_tps"] == 1000
    reset = reader.feed(tokens(50), 3.0)
    assert "decode_tps" not in reset.values
    assert reset.dropped == {"reset": 1}
    assert reader.feed(tokens(150), 4.0).values["decode_tps"] == 100
    assert reader.counts == {"reset": 1}


def test_a_restart_that_the_counter_does_not_show_is_seen_by_the_start_time() -> None:
    reader = PageReader("vllm")
    reader.feed(tokens(1000, started=1.7e9), 1.0)
    reader.feed(tokens(2000, started=1.7e9), 2.0)
    restarted = reader.feed(tokens(9000, started=1.7e9 + 60), 3.0)
    assert "decode_tps" not in restarted.values
    assert restarted.dropped == {"restart": 1}
    assert restarted.restarted
    assert restarted.info is not None
    assert restarted.info.started_at == 1.7e9 + 60
    assert reader.feed(tokens(9010, started=1.7e9 + 60), 4.0).values["decode_tps"] == 10


@pytest.mark.parametrize("again", [1.0, 2.0, 0.5, -100.0])
def test_a_clock_that_does_not_go_on_ends_the_windows(again: float) -> None:
    reader = PageReader("vllm")
    reader.feed(tokens(1000), 1.0)
    reader.feed(tokens(2000), 2.0)
    seen = reader.feed(tokens(3000), again)
    assert "decode_tps" not in seen.values
    assert seen.values["running"] == 1
    assert seen.dropped == {"clock": 1}
    assert reader.feed(tokens(3500), again + 1.0).values["decode_tps"] == 500


def test_a_long_gap_is_not_averaged_over() -> None:
    reader = PageReader("vllm", rate_window_s=10.0)
    reader.feed(tokens(1000), 1.0)
    assert "decode_tps" not in reader.feed(tokens(900_000), 500.0).values
    assert reader.feed(tokens(900_100), 501.0).values["decode_tps"] == 100


def test_a_page_that_was_cut_says_nothing() -> None:
    whole = vllm_page(step=3, size=4_000)
    reader = PageReader("vllm")
    reader.feed(whole, 1.0)
    for cut in range(1, len(whole), 101):
        if whole[cut - 1 : cut] == b"\n":
            continue
        seen = reader.feed(whole[:cut], 2.0)
        assert (seen.values, seen.recognised, seen.dropped) == ({}, False, {"partial": 1})
    assert reader.feed(b"", 3.0).dropped == {"empty": 1}


def test_a_page_cut_between_lines_never_gives_a_wrong_sum() -> None:
    page = PageBuilder(model_name="m")
    for rank in range(4):
        page.value("vllm:num_requests_running", 10, engine=str(rank))
    page.value("vllm:kv_cache_usage_perc", 0.5, engine="0")
    whole = bytes(page)
    ends = [index + 1 for index, byte in enumerate(whole) if byte == 10]
    for end in ends[:-1]:
        reader = PageReader("vllm")
        assert reader.feed(whole, 1.0).values == {"running": 40, "kv_usage": 0.5}
        cut = reader.feed(whole[:end], 2.0)
        assert cut.values.get("running", 40) == 40
        assert reader.feed(whole, 3.0).values == {"running": 40, "kv_usage": 0.5}


def test_series_that_are_gone_twice_are_really_gone() -> None:
    def page(ranks: int) -> bytes:
        built = PageBuilder(model_name="m")
        for rank in range(ranks):
            built.value("vllm:num_requests_running", 10, engine=str(rank))
        return bytes(built)

    reader = PageReader("vllm")
    reader.feed(page(4), 1.0)
    first = reader.feed(page(2), 2.0)
    assert (first.values, first.dropped) == ({}, {"vanished": 1})
    assert reader.feed(page(2), 3.0).values == {"running": 20}
    assert reader.feed(page(4), 4.0).values == {"running": 40}


@pytest.mark.parametrize("bad", ["NaN", "+Inf", "-Inf", "-1", "-7", "9223372036854775794", "1e999", "x"])
def test_one_unusable_rank_makes_the_sum_absent(bad: str) -> None:
    page = PageBuilder(model_name="m").value("vllm:num_requests_running", 5, engine="0")
    page.more("vllm:num_requests_running", bad, engine="1").value("vllm:num_requests_waiting", 2, engine="0")
    seen = PageReader("vllm").feed(bytes(page), 1.0)
    assert seen.values == {"waiting": 2}
    assert sum(seen.dropped.values()) == 1


def test_contradicting_duplicates_make_the_value_absent_and_equal_ones_do_not() -> None:
    page = bytes(
        PageBuilder(model_name="m").value("vllm:num_requests_running", 5).value("vllm:num_requests_waiting", 2)
    )
    twice = page + b'vllm:num_requests_running{model_name="m"} 5.0\nvllm_num_requests_waiting{model_name="m"} 3\n'
    seen = PageReader("vllm").feed(twice, 1.0)
    assert seen.values == {"running": 5}
    assert seen.dropped == {"duplicate": 1, "conflict": 1}


def test_a_ratio_over_one_is_rounding_or_impossible() -> None:
    def usage(value: float) -> dict[str, float]:
        page = bytes(PageBuilder(model_name="m").value("vllm:kv_cache_usage_perc", value))
        return PageReader("vllm").feed(page, 1.0).values

    assert usage(1.0004) == {"kv_usage": 1.0}
    assert usage(87.0) == {}


def test_means_and_shares_are_of_the_window() -> None:
    reader = PageReader("vllm", targets=SloTargets(ttft_s=0.1), window_s=30.0)
    reader.feed(ttft(1000, 1000, 50.0), 0.0)
    seen = reader.feed(ttft(1100, 1020, 100.0), 1.0)
    assert seen.values["ttft"] == pytest.approx(0.5)
    assert seen.values["ttft_attainment"] == pytest.approx(0.2)
    assert seen.values["slo_attainment"] == pytest.approx(0.2)
    assert reader.feed(ttft(1100, 1020, 100.0), 2.0).values == {}, "no new observation: the old value grows old"
    for second in range(3, 80):
        seen = reader.feed(ttft(1100 + second, 1020 + second, 100.0 + second * 0.05), float(second))
    assert seen.values["ttft"] == pytest.approx(0.05)
    assert seen.values["ttft_attainment"] == pytest.approx(1.0)


def test_a_share_of_few_observations_is_not_given() -> None:
    reader = PageReader("vllm", targets=SloTargets(ttft_s=0.1), min_observations=20)
    reader.feed(ttft(1000, 500, 50.0), 0.0)
    assert "ttft_attainment" not in reader.feed(ttft(1019, 519, 51.0), 1.0).values
    assert reader.feed(ttft(1020, 520, 51.0), 2.0).values["ttft_attainment"] == 1.0


def test_a_histogram_that_went_back_starts_over() -> None:
    reader = PageReader("vllm", targets=SloTargets(ttft_s=0.1))
    reader.feed(ttft(1000, 500, 50.0), 0.0)
    reader.feed(ttft(1100, 600, 60.0), 1.0)
    back = reader.feed(ttft(30, 30, 1.0), 2.0)
    assert back.values == {}
    assert back.dropped == {"reset": 1}
    assert reader.feed(ttft(60, 30, 16.0), 3.0).values["ttft"] == pytest.approx(0.5)


def test_a_histogram_without_sums_gives_its_median() -> None:
    def page(n: float) -> bytes:
        page = PageBuilder(model_name="m")
        return bytes(page.histogram("vllm:time_to_first_token_seconds", {0.1: n / 2, 0.3: n}, n))

    reader = PageReader("vllm")
    reader.feed(page(0), 0.0)
    assert reader.feed(page(100), 1.0).values["ttft"] == pytest.approx(0.1)


def test_a_new_model_on_the_page_does_not_look_like_a_burst() -> None:
    first = ttft(1000, 500, 50.0)
    other = bytes(
        PageBuilder(model_name="other", engine="0").histogram(
            "vllm:time_to_first_token_seconds", {0.1: 0.0, 1.0: 1e6}, 1e6, 9e5
        )
    )
    reader = PageReader("vllm")
    reader.feed(first, 0.0)
    assert reader.feed(first + other, 1.0).values == {}
    seen = reader.feed(ttft(1010, 510, 51.0) + other, 2.0)
    assert seen.values["ttft"] == pytest.approx(0.1)


def test_a_full_page_gives_every_signal_that_vllm_has() -> None:
    reader = PageReader("vllm", targets=SloTargets(0.5, 0.05))
    for step in range(40):
        seen = reader.feed(vllm_page(step, size=20_000), step + 1.0)
    assert seen.dropped == {}
    assert seen.values == pytest.approx(
        {
            "running": 4,
            "waiting": 0,
            "kv_usage": 0.7,
            "kv_hit_ratio": 0.75,
            "preemptions": 200,
            "prefill_tps": 100,
            "decode_tps": 800,
            "ttft": 1.7 / 19,
            "tpot": 1.7 / 19,
            "queue_time": 1.7 / 19,
            "ttft_attainment": 10 / 19,
            "tpot_attainment": 5.5 / 19,
            "slo_attainment": 5.5 / 19,
            "error_rate": 0.1,
            "asleep": 0,
            "block_size": 16,
            "num_blocks": 27000,
            "kv_capacity_tokens": 432000,
        }
    )
    assert seen.info is not None
    assert (seen.info.block_size, seen.info.num_blocks, seen.info.started_at) == (16, 27000, 1.7e9)


@pytest.mark.parametrize("seed", range(4))
def test_faults_at_random_never_give_a_value_that_no_page_supports(seed: int) -> None:
    """Lines are dropped, doubled, reordered, their values broken; what comes out stays within what the pages say."""
    rng = random.Random(seed)
    reader = PageReader("vllm", targets=SloTargets(0.5, 0.05))
    now = 0.0
    for step in range(1, 120):
        lines = vllm_page(step, size=6_000).splitlines(keepends=True)
        running = {sample.value for sample in parse(b"".join(lines)) if sample.name == "vllm:num_requests_running"}
        for _ in range(rng.randrange(4)):
            index = rng.randrange(len(lines))
            fault = rng.randrange(5)
            if fault == 0:
                del lines[index]
            elif fault == 1:
                lines.insert(rng.randrange(len(lines)), lines[index])
            elif fault == 2:
                value = rng.choice([b"NaN", b"-1", b"+Inf", b"9223372036854775794", b"", b"1_0"])
                lines[index] = lines[index].rpartition(b" ")[0] + b" " + value + b"\n"
            elif fault == 3:
                rng.shuffle(lines)
            else:
                lines[index] = lines[index][: rng.randrange(len(lines[index]) + 1)]
        now += rng.choice([0.1, 1.0, 1.0, 1.0, -3.0])
        seen = reader.feed(b"".join(lines), now)
        if "running" in seen.values:
            assert seen.values["running"] in running
        for name, got in seen.values.items():
            spec = CATALOGUE[name]
            assert spec.low <= got <= spec.high
        assert seen.values.get("kv_hit_ratio", 0.75) == pytest.approx(0.75, abs=0.25)
