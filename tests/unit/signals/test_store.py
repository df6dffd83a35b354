from __future__ import annotations

import math
import random

import pytest

from xds_control.fleet.readings import Reading
from xds_control.signals.catalogue import CATALOGUE
from xds_control.signals.store import MAX_SOURCES, SignalStore

E = "10.0.0.1:8000"


def test_a_newcomer_has_no_values() -> None:
    store = SignalStore()
    assert store.readings(E, 0.0) == {}
    assert store.raw(E, 0.0) == []


def test_every_value_has_its_own_age_and_source() -> None:
    store = SignalStore()
    store.put(E, "running", 3, 1.0, "vllm")
    store.put_all(E, {"waiting": 2, "ttft": 0.2}, 2.0, "vllm")
    assert store.readings(E, 2.5) == {
        "running": Reading(3, 1.0, "vllm"),
        "waiting": Reading(2, 2.0, "vllm"),
        "ttft": Reading(0.2, 2.0, "vllm"),
    }


def test_values_leave_at_their_own_limit() -> None:
    store = SignalStore()
    store.put_all(E, {"running": 3, "ttft": 0.2}, 0.0, "vllm")
    limit = CATALOGUE["running"].age_limit_s
    assert set(store.readings(E, limit - 0.01)) == {"running", "ttft"}
    assert set(store.readings(E, limit)) == {"ttft"}
    assert store.readings(E, 1e6) == {}
    assert {raw.name: raw.fresh for raw in store.raw(E, 1e6)} == {"running": 0.0, "ttft": 0.0}


def test_limits_of_the_policy() -> None:
    store = SignalStore({"running": 2.0, "slo_attainment": 3.0})
    store.put_all(E, {"running": 3, "slo_attainment": 1.0, "slo_attainment:high": 0.5}, 0.0, "push")
    assert set(store.readings(E, 2.5)) == {"slo_attainment", "slo_attainment:high"}
    assert store.readings(E, 3.0) == {}
    assert store.age_limit("slo_attainment:high") == 3.0


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1.0, 1.5])
def test_impossible_values_leave_the_old_one_and_are_counted(value: float) -> None:
    store = SignalStore()
    store.put(E, "kv_usage", 0.5, 0.0, "vllm")
    assert not store.put(E, "kv_usage", value, 1.0, "vllm")
    assert store.readings(E, 1.0)["kv_usage"] == Reading(0.5, 0.0, "vllm")
    assert store.counts == {"impossible": 1}


def test_names_and_sources_that_nobody_knows() -> None:
    store = SignalStore(ignore=["orca"])
    assert not store.put(E, "nonsense", 1, 0.0, "vllm")
    assert not store.put(E, "gpu_temp", 1, 0.0, "accesslog")
    assert not store.put(E, "running", 1, 0.0, "orca")
    assert store.counts == {"unknown_signal": 1, "untrusted": 2}
    assert store.readings(E, 0.0) == {}


def test_older_news_than_what_is_known_is_refused() -> None:
    store = SignalStore()
    store.put(E, "running", 5, 10.0, "vllm")
    assert not store.put(E, "running", 1, 9.0, "vllm")
    assert store.readings(E, 10.0)["running"].value == 5
    assert store.counts == {"backward": 1}


def test_a_value_from_the_future_is_not_used() -> None:
    store = SignalStore()
    store.put(E, "running", 5, 10.0, "vllm")
    store.put(E, "running", 9, 1000.0, "push")
    assert store.readings(E, 10.5)["running"] == Reading(5, 10.0, "vllm")
    assert store.counts["future"] == 1
    store.put(E, "running", 7, 11.0, "push")
    assert store.readings(E, 11.0)["running"] == Reading(7, 11.0, "push")


def test_among_fresh_sources_the_most_trusted_wins() -> None:
    store = SignalStore()
    for at in range(10):
        store.put(E, "ttft", 0.2, float(at), "accesslog")
        store.put(E, "ttft", 0.3, at + 0.5, "vllm")
        assert store.readings(E, at + 0.5)["ttft"].source == "accesslog", "no alternation"


def test_a_source_that_falls_behind_gives_way_and_comes_back() -> None:
    store = SignalStore()
    limit = CATALOGUE["gpu_util"].age_limit_s
    store.put(E, "gpu_util", 0.9, 0.0, "nvml")
    store.put(E, "gpu_util", 0.5, 1.0, "dcgm")
    assert store.readings(E, 1.0)["gpu_util"].source == "nvml"
    store.put(E, "gpu_util", 0.5, limit / 2, "dcgm")
    assert store.readings(E, limit / 2)["gpu_util"].source == "dcgm"
    store.put(E, "gpu_util", 0.8, limit / 2 + 1, "nvml")
    assert store.readings(E, limit / 2 + 1)["gpu_util"].source == "nvml"


def test_when_the_trusted_one_expires_the_other_is_used_without_a_new_value() -> None:
    store = SignalStore({"ttft": 30.0})
    store.put(E, "ttft", 0.2, 0.0, "accesslog")
    store.put(E, "ttft", 0.3, 5.0, "vllm")
    assert store.readings(E, 29.0)["ttft"].source == "accesslog"
    assert store.readings(E, 30.0)["ttft"].source == "vllm"
    assert store.readings(E, 35.0) == {}


def test_disagreement_is_counted_when_it_begins_and_shown() -> None:
    store = SignalStore()
    for at in range(5):
        store.put(E, "kv_usage", 0.9, float(at), "push")
        store.put(E, "kv_usage", 0.2, float(at), "vllm")
    assert store.counts == {"disagreement": 1}
    assert store.disagreements == {"kv_usage": 1}
    shown = {raw.source: raw for raw in store.raw(E, 5.0)}
    assert (shown["push"].chosen, shown["push"].disagrees) == (True, False)
    assert (shown["vllm"].chosen, shown["vllm"].disagrees) == (False, True)
    assert shown["vllm"].normalised == pytest.approx(0.8)
    store.put(E, "kv_usage", 0.85, 6.0, "vllm")
    assert not any(raw.disagrees for raw in store.raw(E, 6.0))
    store.put(E, "kv_usage", 0.2, 7.0, "vllm")
    assert store.counts == {"disagreement": 2}


def test_small_differences_are_no_disagreement() -> None:
    store = SignalStore()
    store.put(E, "running", 10, 0.0, "push")
    store.put(E, "running", 13, 0.0, "vllm")
    assert store.counts == {}


def test_a_snapshot_keeps_its_readings() -> None:
    store = SignalStore()
    store.put(E, "running", 1, 0.0, "vllm")
    before = store.readings(E, 0.0)
    assert store.readings(E, 0.5) is before
    store.put(E, "running", 2, 1.0, "vllm")
    assert before["running"].value == 1
    assert store.readings(E, 1.0)["running"].value == 2


def test_forgetting() -> None:
    store = SignalStore()
    store.put_all(E, {"running": 1, "gpu_temp": 50}, 0.0, "push")
    store.put(E, "running", 1, 0.0, "vllm")
    store.forget_source(E, "push")
    assert store.readings(E, 0.0) == {"running": Reading(1, 0.0, "vllm")}
    store.put("b:1", "running", 1, 0.0, "vllm")
    store.retain([E])
    assert store.addresses() == [E]
    store.forget(E)
    assert len(store) == 0
    assert store.readings(E, 0.0) == {}


def test_memory_is_bounded() -> None:
    store = SignalStore(max_endpoints=10)
    for index in range(100):
        store.put(f"e{index}:1", "running", 1, 0.0, "vllm")
    assert len(store) == 10
    for index in range(100):
        store.put("e0:1", "running", 1, 0.0, f"vllm:{index}")
        store.put("e0:1", f"slo_attainment:c{index * 100}", 1, 0.0, "push")
    for index in range(1000):
        store.put("e0:1", f"slo_attainment:x{index}", 1, 0.0, "push")
    assert len(store.raw("e0:1", 0.0)) <= 256 + MAX_SOURCES
    assert store.counts["full"] > 0


@pytest.mark.parametrize("seed", range(3))
def test_whatever_comes_readings_are_fresh_possible_and_from_trusted_sources(seed: int) -> None:
    rng = random.Random(seed)
    store = SignalStore()
    names = ["running", "kv_usage", "ttft", "gpu_util"]
    now = 0.0
    for _ in range(3000):
        now += rng.random()
        at = now - rng.choice([0.0, 0.0, 0.3, 20.0, -50.0])
        value = rng.choice([rng.random(), 3.0, -1.0, math.nan])
        store.put(E, rng.choice(names), value, at, rng.choice(["vllm", "push", "nvml", "accesslog", "dcgm"]))
        for name, reading in store.readings(E, now).items():
            spec = CATALOGUE[name]
            assert spec.low <= reading.value <= spec.high
            assert now - reading.at < spec.age_limit_s
            assert reading.at <= now + 1.0
            assert {"vllm": "engine"}.get(reading.source, reading.source) in spec.sources
