"""Control's core, driven by hand: observations and windows in, snapshots out."""

from __future__ import annotations

from typing import Any

import pytest

from xds_control.admin.core import ControlCore
from xds_control.admin.state_view import state_view
from xds_control.discovery.targets import endpoints
from xds_control.fleet.override import Override
from xds_control.fleet.readings import ModelInfo
from xds_control.fleet.snapshot import EndpointSnapshot, State
from xds_control.policy.load import parse_policy
from xds_control.proto import fleet_pb2 as pb
from xds_control.signals.reader import Observations
from xds_control.xds import EDS, SnapshotCache
from xds_control.xds.resources.world import WorldBuilder

A, B = "10.0.0.1:80", "10.0.0.2:80"
POLICY = f"""
version: xds-control/v1
pools:
- name: chat
  models: [m]
  engine: vllm
  endpoints: [{{address: "{A}", gpus: [GPU-1, GPU-2]}}, {{address: "{B}"}}]
weights: {{half_life: {{worsen_s: 0.1, recover_s: 0.1}}, stabilise: {{push_interval_s: 0.2, max_step: 20}}}}
"""


def core(text: str = POLICY) -> ControlCore:
    policy = parse_policy(text)
    made = ControlCore(policy, "v1", "epoch")
    made.set_endpoints(endpoints(policy.pools), 0.0)
    return made


def see(made: ControlCore, address: str, now: float, **values: float) -> None:
    (endpoint,) = [e for e in made.endpoints if e.address == address]
    base = {"running": 0.0, "waiting": 0.0, "kv_usage": 0.1}
    made.on_observations(endpoint, Observations(now, "vllm", {**base, **values}, recognised=True), now)


def members(made: ControlCore) -> dict[str, EndpointSnapshot]:
    assert made.snapshot is not None
    return {e.endpoint.address: e for e in made.snapshot.pools["chat"].endpoints}


def run(made: ControlCore, start: float, seconds: float, **values: dict[str, float]) -> float:
    """Ticks and scrapes at 5 Hz; values by "a" and "b"."""
    now = start
    while now < start + seconds:
        for key, address in (("a", A), ("b", B)):
            if values.get(key) is not None:
                see(made, address, now, **values[key])
        made.tick(now)
        now += 0.2
    return now


def test_an_idle_pool_has_exactly_equal_weights() -> None:
    made = core()
    run(made, 0.0, 3.0, a={}, b={})
    found = members(made)
    assert {e.state for e in found.values()} == {State.READY}
    assert found[A].weight == found[B].weight > 0
    assert all(e.pickable for e in found.values())


def test_nothing_changes_when_nothing_changes() -> None:
    made = core()
    now = run(made, 0.0, 5.0, a={}, b={})
    before = made.snapshot
    tick = made.tick(now)
    assert not tick.changed
    assert made.snapshot is before


def test_a_full_cache_loses_weight_and_gets_it_back() -> None:
    made = core()
    now = run(made, 0.0, 3.0, a={}, b={})
    now = run(made, now, 3.0, a={"kv_usage": 0.97}, b={})
    found = members(made)
    assert found[A].weight < found[B].weight / 2 or found[A].priority > 0
    assert "KV" in found[A].why
    run(made, now, 40.0, a={}, b={})
    found = members(made)
    assert found[A].weight > 0.85 * found[B].weight


def test_an_endpoint_that_refuses_is_out_and_the_other_serves() -> None:
    made = core()
    now = run(made, 0.0, 3.0, a={}, b={})
    (endpoint,) = [e for e in made.endpoints if e.address == A]
    for _ in range(3):
        made.on_scrape_failure(endpoint, "connect", "refused", now)
        now += 0.2
    run(made, now, 1.0, b={})
    found = members(made)
    assert found[A].state is State.EJECTED
    assert not found[A].pickable
    assert found[B].weight > 0
    assert any(e.to_state is State.EJECTED for e in made.events)


def test_windows_feed_signals_and_statistics() -> None:
    made = core()
    now = run(made, 0.0, 2.0, a={}, b={})
    row = pb.Outcomes(pool="chat", endpoint=A, service_class="medium", requests=20, ok=20)
    row.slo_known, row.slo_met, row.usage_known, row.prompt_tokens, row.cached_tokens = 20, 15, 20, 1000, 400
    row.cached_known = 1000
    picked = pb.Decisions(pool="chat", reason="picked", count=3)
    made.on_window(pb.Window(period_s=0.1, outcomes=[row], decisions=[picked]), now)
    made.tick(now)
    signals = members(made)[A].readings
    assert signals["slo_attainment"].value == pytest.approx(0.75)
    assert signals["kv_hit_ratio"].value == pytest.approx(0.4)
    view: dict[str, Any] = state_view(made, now)
    (pool,) = view["pools"]
    assert pool["totals"]["prompt_tokens"] == 1000
    assert pool["endpoints"][0]["share"] == 1.0
    assert made.decisions == {("chat", "", "picked"): 3}


def test_operators_orders_hold_and_outrank_everything() -> None:
    made = core()
    now = run(made, 0.0, 3.0, a={}, b={})
    made.override(A, Override("drain", reason="maintenance", by="ann"), now)
    now = run(made, now, 1.0, a={"running": 2.0}, b={})
    assert members(made)[A].state is State.DRAINING
    assert members(made)[A].health == "draining"
    assert not members(made)[A].pickable
    made.override(A, None, now)
    run(made, now, 5.0, a={}, b={})
    assert members(made)[A].state is State.READY
    made.override(B, Override("pin", weight=77, by="ann"), now)
    run(made, now + 5.0, 1.0, a={}, b={})
    assert members(made)[B].weight == 77


def test_an_endpoint_that_leaves_discovery_drains_first() -> None:
    made = core()
    now = run(made, 0.0, 3.0, a={}, b={})
    made.set_endpoints([e for e in made.endpoints if e.address == B], now)
    made.tick(now)
    assert members(made)[A].state is State.DRAINING
    assert A in [e.address for e in made.members()], "it is scraped to its end"
    now = drain(made, now, running=1.0)
    assert A in members(made), "a request is still running there"
    drain(made, now, running=0.0)
    assert set(members(made)) == {B}


def drain(made: ControlCore, now: float, running: float) -> float:
    """Ten seconds of scrapes of an endpoint that is leaving."""
    for _ in range(50):
        now += 0.2
        leaving = [e for e in made.members() if e.address == A]
        for endpoint in leaving:
            seen = Observations(now, "vllm", {"running": running, "waiting": 0.0}, recognised=True)
            made.on_observations(endpoint, seen, now)
        see(made, B, now)
        made.tick(now)
    return now


def test_a_lost_gpu_takes_the_whole_endpoint_out() -> None:
    made = core()
    now = run(made, 0.0, 3.0, a={}, b={})
    healthy = [pb.GpuState(uuid=f"GPU-{n}", mem_total_bytes=80, mem_used_bytes=40, mem_free_bytes=40) for n in (1, 2)]
    made.on_gpus(pb.GpuReport(node="n", full=True, gpus=healthy), "agent", now)
    made.tick(now)
    assert members(made)[A].readings["gpu_mem_used_ratio"].value == 0.5
    made.on_gpus(pb.GpuReport(node="n", gpus=[pb.GpuState(uuid="GPU-2", lost=True)]), "agent", now + 1)
    made.tick(now + 1)
    assert members(made)[A].state is State.EJECTED
    assert "GPU-2" in next(e.reason for e in made.events if e.to_state is State.EJECTED)


def test_an_engine_may_push_its_own_signals_but_only_for_itself() -> None:
    made = core()
    now = run(made, 0.0, 1.0, a={}, b={})
    made.on_signals(pb.Signals(endpoint=B, values={"waiting": 9.0}), now + 5, 1000.0)
    made.tick(now + 5)
    assert members(made)[B].readings["waiting"].source == "push"
    with pytest.raises(ValueError, match="no endpoint"):
        made.on_signals(pb.Signals(endpoint="10.9.9.9:1", values={"waiting": 9.0}), now, 1000.0)


def test_a_model_is_missing_only_where_others_have_it() -> None:
    made = core()
    for endpoint in made.endpoints:
        seen = Observations(0.0, "vllm", {"running": 0.0}, ModelInfo(models=("other-name",)), recognised=True)
        made.on_observations(endpoint, seen, 0.0)
    made.tick(0.2)
    assert all("model_missing" not in e.gates for e in members(made).values())
    first = made.endpoints[0]
    seen = Observations(0.3, "vllm", {"running": 0.0}, ModelInfo(models=("m",)), recognised=True)
    made.on_observations(first, seen, 0.3)
    made.tick(0.6)
    assert "model_missing" in members(made)[B].gates


def test_a_new_policy_keeps_what_is_known() -> None:
    made = core()
    now = run(made, 0.0, 3.0, a={}, b={})
    new = parse_policy(POLICY + "signals: {age_limits_s: {waiting: 3}}\n")
    made.use_policy(new, "v2", now)
    made.set_endpoints(endpoints(new.pools), now)
    tick = made.tick(now)
    assert tick.snapshot.policy_version == "v2"
    found = members(made)
    assert {e.state for e in found.values()} == {State.READY}
    assert found[A].readings["kv_usage"].value == 0.1


def test_unchanged_pools_keep_their_very_bytes() -> None:
    made = core()
    now = run(made, 0.0, 3.0, a={}, b={})
    world = WorldBuilder()
    world.use_policy(made.policy, None)
    assert made.snapshot is not None
    first = world.world(made.snapshot, ["127.0.0.1:1"])
    run(made, now, 1.0, a={"running": 1.0}, b={"running": 1.0})
    second = world.world(made.snapshot, ["127.0.0.1:1"])
    assert first[EDS.type_url]["chat"] is second[EDS.type_url]["chat"]
    cache = SnapshotCache()
    assert cache.set("", first)
    assert not cache.set("", second)
