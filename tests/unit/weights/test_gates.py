"""Gates: two thresholds, what they do, and that they never empty a pool."""

from __future__ import annotations

import msgspec
import pytest

from tests.unit.weights.build import item, once, weights
from xds_control.policy.weights import Gate, Gates, WeightsPolicy
from xds_control.weights import EndpointInput, EndpointWeight, WeightEngine

GIB = 2.0**30


def first(signals: dict[str, float], policy: WeightsPolicy | None = None, **inputs: object) -> EndpointWeight:
    """The first of four endpoints, the only one with these signals."""
    quiet = {"running": 4.0, "waiting": 0.0, "kv_usage": 0.3}
    rows = [item(0, 0.0, {**quiet, **signals}, **inputs), *(item(i, 0.0, quiet) for i in (1, 2, 3))]  # type: ignore[arg-type]
    return once(policy or WeightsPolicy(), rows).endpoints[0]


def policy(**gates: object) -> WeightsPolicy:
    return WeightsPolicy(gates=msgspec.structs.replace(Gates(), **gates))


@pytest.mark.parametrize(
    ("signals", "inputs", "gate", "closed"),
    [
        ({"gpu_mem_free_bytes": 4.9 * GIB}, {"fields": {"gpu_memory_need_bytes": 4.0 * GIB}}, "gpu_memory", False),
        ({"gpu_mem_free_bytes": 4.7 * GIB}, {"fields": {"gpu_memory_need_bytes": 4.0 * GIB}}, "gpu_memory", True),
        ({"gpu_mem_free_bytes": 0.1 * GIB}, {}, "gpu_memory", False),
        ({"kv_usage": 0.96}, {}, "kv", False),
        ({"kv_usage": 0.96, "waiting": 1.0}, {}, "kv", True),
        ({"kv_usage": 0.96, "preemptions": 0.2}, {}, "kv", True),
        ({"kv_usage": 0.94, "waiting": 1.0}, {}, "kv", False),
        ({"waiting": 64.0}, {}, "waiting", True),
        ({"slo_attainment": 0.94}, {}, "slo_miss", True),
        ({"slo_attainment": 0.96}, {}, "slo_miss", False),
        ({"error_rate": 0.25}, {}, "error_rate", True),
        ({"gpu_throttled": 1.0}, {}, "throttled", True),
        ({"asleep": 1.0}, {}, "asleep", True),
        ({}, {"model_missing": True}, "model_missing", True),
    ],
)
def test_when_each_gate_closes(signals: dict[str, float], inputs: dict[str, object], gate: str, closed: bool) -> None:
    assert (gate in first(signals, None, **inputs).gates) is closed


def test_what_a_closed_gate_does() -> None:
    full = {"kv_usage": 0.97, "waiting": 3.0}
    got = first(full)
    assert (got.priority, got.health, got.pickable) == (1, "healthy", False)
    assert got.weight > 0
    assert got.why == "KV cache 97 % full: takes no new requests while others can"
    as_degraded = first(full, policy(spill_as="degraded"))
    assert (as_degraded.priority, as_degraded.health) == (0, "degraded")
    drained = first(full, policy(kv=Gate(enter=0.95, leave=0.85, action="drain")))
    assert (drained.weight, drained.health) == (0, "draining")
    removed = first(full, policy(kv=Gate(enter=0.95, leave=0.85, action="remove")))
    assert (removed.weight, removed.health) == (0, "removed")
    limited = first({"gpu_throttled": 1.0})
    assert (limited.priority, limited.pickable) == (0, True)
    assert limited.weight < 7_000
    assert limited.why.startswith("a gate limits it")


def test_the_second_threshold_keeps_it_from_flapping() -> None:
    engine = WeightEngine(WeightsPolicy())
    seen = []
    for now, kv in enumerate([0.9, 0.96, 0.94, 0.90, 0.86, 0.84, 0.90, 0.96]):
        rows = [
            item(0, now, {"kv_usage": kv, "waiting": 2.0}),
            *(item(i, now, {"kv_usage": 0.3, "waiting": 0.0}) for i in (1, 2, 3)),
        ]
        seen.append("kv" in engine.tick(rows, now).endpoints[0].gates)
    assert seen == [False, True, True, True, True, False, False, True]


def test_a_gate_whose_signal_lapses_opens() -> None:
    engine = WeightEngine(WeightsPolicy())
    rows = [item(0, 0.0, {"kv_usage": 0.97, "waiting": 2.0}), item(1, 0.0), item(2, 0.0)]
    assert engine.tick(rows, 0.0).endpoints[0].gates == ("kv",)
    assert engine.tick(rows, 60.0).endpoints[0].gates == ()


def test_one_that_comes_back_starts_low_and_climbs() -> None:
    engine = WeightEngine(WeightsPolicy())
    got = []
    for k in range(40):
        now = k * 0.5
        kv = 0.97 if now < 2.0 else 0.3
        rows = [
            item(0, now, {"kv_usage": kv, "waiting": 2.0 if now < 2.0 else 0.0}),
            *(item(i, now, {"kv_usage": 0.3, "waiting": 0.0}) for i in (1, 2, 3)),
        ]
        e = engine.tick(rows, now).endpoints
        if e[0].priority == 0:
            got.append(e[0].weight / e[1].weight)
    assert got[0] < 0.3
    assert got == sorted(got)
    assert got[-1] > 0.9


def pool(bad: int, total: int, signals: dict[str, float]) -> list[EndpointInput]:
    quiet = {"running": 4.0, "waiting": 0.0, "kv_usage": 0.3}
    return [
        item(i, 0.0, {**quiet, **{k: v + 0.001 * i for k, v in signals.items()}} if i < bad else quiet)
        for i in range(total)
    ]


@pytest.mark.parametrize(
    ("bad", "total", "out"), [(1, 4, 1), (2, 4, 2), (3, 4, 2), (4, 4, 2), (1, 1, 0), (2, 2, 1), (7, 7, 3)]
)
def test_at_most_half_of_a_pool_is_taken_out(bad: int, total: int, out: int) -> None:
    got = once(WeightsPolicy(), pool(bad, total, {"kv_usage": 0.96, "waiting": 2.0})).endpoints
    assert sum(e.priority == 1 for e in got) == out
    assert sum(e.pickable for e in got) == total - out


def test_the_least_bad_stay() -> None:
    got = once(WeightsPolicy(), pool(4, 4, {"kv_usage": 0.96, "waiting": 2.0})).endpoints
    assert [e.priority for e in got] == [0, 0, 1, 1]


def test_those_that_stayed_keep_their_place_against_small_changes() -> None:
    engine = WeightEngine(WeightsPolicy())
    engine.tick(pool(4, 4, {"kv_usage": 0.96, "waiting": 2.0}), 0.0)
    turned = [item(i, 1.0, {"running": 4.0, "waiting": 2.0, "kv_usage": 0.9633 - 0.001 * i}) for i in range(4)]
    assert [e.priority for e in engine.tick(turned, 1.0).endpoints] == [0, 0, 1, 1]


def test_engines_that_cannot_serve_stay_out_longest() -> None:
    rows = [
        item(0, 0.0, {"asleep": 1.0}),
        item(1, 0.0, {"kv_usage": 0.99, "waiting": 9.0}),
        item(2, 0.0, {"asleep": 1.0}),
        item(3, 0.0, {"kv_usage": 0.99, "waiting": 9.0}),
    ]
    assert [e.pickable for e in once(WeightsPolicy(), rows).endpoints] == [False, True, False, True]


def test_a_limit_that_holds_for_most_of_the_pool_holds_for_nobody() -> None:
    got = once(WeightsPolicy(), pool(4, 4, {"gpu_throttled": 1.0}))
    assert weights(got) == [10_000] * 4
    assert all(e.gates == ("throttled",) for e in got.endpoints)


def test_gates_can_be_switched_off() -> None:
    off = policy(kv=Gate(enabled=False, enter=0.95, leave=0.85))
    assert first({"kv_usage": 0.99, "waiting": 5.0}, off).priority == 0
