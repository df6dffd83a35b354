"""The shadow policy in control: set, weighed on the live signals, audited, never applied."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.admin.test_policy_push import BASE, THIRD, World
from xds_control.admin.backend import BadRequest
from xds_control.admin.hub import Hub
from xds_control.admin.shadow import Shadow, ShadowWeights
from xds_control.proto import admin_pb2 as pb
from xds_control.proto import fleet_pb2

HEAVY = BASE.replace('{address: "10.0.0.2:80"}', '{address: "10.0.0.2:80", capacity: 3.0}').replace(
    '{address: "10.0.0.1:80"}', '{address: "10.0.0.1:80", capacity: 1.0}'
)


def shadow() -> tuple[Any, Shadow]:
    world = World()
    hub = Hub()
    control: Any = SimpleNamespace(
        core=world.live.core, store=world.store, hub=hub, resolver=SimpleNamespace(addresses={})
    )
    return control, Shadow(control, lambda: 7.0)


def request(text: str) -> pb.SetShadowRequest:
    return pb.SetShadowRequest(files=[pb.PolicyFile(name="s.yaml", text=text)], reason="trial")


def put(made: Shadow, asked: pb.SetShadowRequest, who: str) -> pb.GetShadowResponse:
    return asyncio.run(made.set(asked, who))


def test_its_weights_stand_beside_the_live_ones() -> None:
    control, made = shadow()
    before = control.core.snapshot
    answer = put(made, request(HEAVY), "eve")
    assert (answer.info.by, answer.info.source, made.version) == ("eve", "shadow", answer.info.version)
    shares = {one.endpoint: (one.share_before, one.share) for one in answer.weights}
    assert shares["10.0.0.1:80"][1] < shares["10.0.0.2:80"][1]
    assert sum(share for _, share in shares.values()) == pytest.approx(1.0)
    assert answer.moved["chat"] == pytest.approx(sum(max(0.0, b - a) for a, b in shares.values()))
    assert "chat.imbalance" in answer.predicted
    assert control.core.snapshot is before
    assert control.core.policy.pools[0].endpoints[1].capacity is None


def test_an_endpoint_that_only_it_has_is_shown() -> None:
    _control, made = shadow()
    weights = {one.endpoint: one for one in put(made, request(THIRD), "eve").weights}
    assert not weights["10.0.0.3:80"].HasField("weight_before")


def test_problems_change_nothing() -> None:
    _control, made = shadow()
    put(made, request(HEAVY), "eve")
    version = made.version
    answer = put(made, request(BASE + "nope: 1\n"), "eve")
    assert answer.problems[0].path == "nope"
    assert made.version == version
    with pytest.raises(BadRequest):
        put(made, pb.SetShadowRequest(), "eve")


def test_a_fault_of_the_trial_reaches_no_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    _control, made = shadow()
    put(made, request(HEAVY), "eve")

    def fail(*_: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(ShadowWeights, "tick", fail)
    made.tick(1e9)
    assert "broken" in made.get().problems[0].message


def test_processors_hear_of_it_and_answer() -> None:
    control, made = shadow()
    hub: Hub = control.hub
    hub.publish(control.core.snapshot)
    key = hub.watch("p0", "127.0.0.1:1", "0", 0.0)
    hub.next_message(key, 0.0)
    version = put(made, request(HEAVY), "eve").info.version
    told = fleet_pb2.WatchResponse.FromString(hub.next_message(key, 0.0) or b"")
    assert told.shadow.version == version
    assert hub.next_message(key, 0.0) is None
    window = fleet_pb2.ShadowWindow(version=version, requests=4, same_pool=3, picks=2, same_endpoint=1)
    window.ttft_live_s, window.ttft_shadow_s, window.refused_shadow = 2.0, 1.0, 1
    made.on_window(window)
    made.on_window(fleet_pb2.ShadowWindow(version="another", requests=100))
    answer = made.get()
    assert (answer.requests, answer.same_pool, answer.picks, answer.same_endpoint) == (4, 3, 2, 1)
    assert answer.predicted["expected_ttft_s"] == pytest.approx(-0.5)
    assert answer.predicted["refused"] == pytest.approx(0.25)

    made.clear(pb.ClearShadowRequest(reason="done"), "eve")
    assert not made.get().HasField("info")
    told = fleet_pb2.WatchResponse.FromString(hub.next_message(key, 0.0) or b"")
    assert told.HasField("shadow")
    assert not told.shadow.version
    actions = [(one.action, one.by, one.reason) for one in control.store.audit(10, "")]
    assert actions[:2] == [("shadow-clear", "eve", "done"), ("shadow", "eve", "trial")]


def after_a_restart(control: Any) -> tuple[Any, Shadow]:
    again: Any = SimpleNamespace(core=control.core, store=control.store, hub=Hub(), resolver=control.resolver)
    made = Shadow(again, lambda: 99.0)
    made.restore()
    return again, made


def test_it_goes_on_after_a_restart_until_it_is_cleared() -> None:
    control, made = shadow()
    set_ = put(made, request(HEAVY), "eve")
    again, restored = after_a_restart(control)
    answer = restored.get()
    assert answer.info == set_.info
    assert (answer.info.by, answer.info.at_unix_s, answer.info.reason) == ("eve", 7.0, "trial")
    assert {one.endpoint for one in answer.weights} == {one.endpoint for one in set_.weights}
    hub: Hub = again.hub
    hub.publish(again.core.snapshot)
    told = fleet_pb2.WatchResponse.FromString(hub.next_message(hub.watch("p0", "127.0.0.1:1", "0", 0.0), 0.0) or b"")
    assert told.shadow.version == set_.info.version

    restored.clear(pb.ClearShadowRequest(reason="done"), "ann")
    assert after_a_restart(control)[1].version == ""


def test_one_that_is_no_good_any_more_says_so_and_can_be_cleared(monkeypatch: pytest.MonkeyPatch) -> None:
    control, made = shadow()
    monkeypatch.setenv("SHADOW_URL", "http://127.0.0.1:4318/")
    put(made, request(HEAVY + 'tracing: {endpoint: "${env:SHADOW_URL}"}\n'), "eve")
    monkeypatch.delenv("SHADOW_URL")
    _again, restored = after_a_restart(control)
    answer = restored.get()
    assert answer.info.by == "eve"
    assert not answer.weights
    assert "SHADOW_URL is not set" in answer.problems[0].message
    assert restored.version == ""
    assert not restored.clear(pb.ClearShadowRequest(), "ann").HasField("info")
    assert control.store.shadow() is None
