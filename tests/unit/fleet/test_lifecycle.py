"""The life of an endpoint, event by event."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xds_control.fleet.advice import warnings
from xds_control.fleet.endpoint import Endpoint
from xds_control.fleet.lifecycle import Action, Event, Lifecycle, LifeView, Outcomes
from xds_control.fleet.override import Override
from xds_control.fleet.readings import Reading
from xds_control.fleet.snapshot import State
from xds_control.policy.lifecycle import Draining, Ejection, LifecyclePolicy, Probing, Suspicion, WarmUp

A, B, C, D = (f"10.0.0.{i}:8000" for i in range(1, 5))


def endpoints(*addresses: str, pool: str = "p") -> list[Endpoint]:
    return [Endpoint(a, pool) for a in addresses]


def view(life: Lifecycle, address: str = A) -> LifeView:
    found = life.view(address)
    assert found is not None
    return found


def state(life: Lifecycle, address: str = A) -> State:
    return view(life, address).state


def ready(*addresses: str, policy: LifecyclePolicy | None = None) -> Lifecycle:
    """Endpoints that are ready at second 1."""
    life = Lifecycle(policy or LifecyclePolicy())
    life.sync(endpoints(*addresses), 0.0)
    life.tick(0.5)
    for address in addresses:
        life.on_scrape(address, True, 1.0)
        assert state(life, address) is State.READY
    return life


def alive(life: Lifecycle, now: float, *addresses: str) -> None:
    for address in addresses:
        life.on_scrape(address, True, now)


def text(events: list[Event]) -> list[str]:
    return [f"{e.from_state} → {e.to_state}: {e.reason}" for e in events]


def test_a_new_endpoint_warms_up_before_traffic() -> None:
    policy = LifecyclePolicy(trust_at_start=False, warm_up=WarmUp(prompts=("one", "two")))
    life = Lifecycle(policy)
    events = life.sync(endpoints(A), 0.0)
    events += life.tick(0.1)
    assert life.actions(0.1) == [Action("probe", A)]
    assert life.actions(0.2) == []  # asked already
    events += life.on_probe(A, True, 0.3)
    asked = []
    now = 0.4
    while state(life) is State.WARMING:
        (action,) = life.actions(now)
        asked.append((action.kind, action.prompt))
        events += life.on_warmup(A, True, 0.2, now + 0.2)
        now += 0.3
    assert asked == [("warmup", p) for p in ("one", "two", "one", "two", "one")]
    assert [(e.from_state.value, e.to_state.value) for e in events] == [
        ("gone", "new"),
        ("new", "probing"),
        ("probing", "warming"),
        ("warming", "ready"),
    ]
    assert events[-1].reason == "5 good warm-up answers"
    assert view(life).ramp_since == view(life).since  # the ramp begins now


def test_a_slow_or_failed_answer_starts_the_count_again_and_too_many_end_it() -> None:
    policy = LifecyclePolicy(trust_at_start=False, warm_up=WarmUp(prompts=("hi",), max_failures=3, max_latency_s=1.0))
    life = Lifecycle(policy)
    life.sync(endpoints(A), 0.0)
    life.tick(0.0)
    life.on_scrape(A, True, 0.5)
    now = 1.0
    for ok, latency in [(True, 0.1)] * 4 + [(True, 5.0)] + [(True, 0.1)] * 4 + [(False, 0.1)]:
        (action,) = life.actions(now)
        assert action.kind == "warmup"
        assert life.on_warmup(A, ok, latency, now) == []
        now += 1.5
    (action,) = life.actions(now)
    assert text(life.on_warmup(A, False, 0.0, now, "HTTP 500")) == [
        "warming → probing: 3 bad warm-up answers, last: HTTP 500"
    ]


def test_calibration_comes_before_traffic_but_a_failed_one_does_not_keep_it_out() -> None:
    life = Lifecycle(LifecyclePolicy(trust_at_start=False), calibrate=True)
    life.sync(endpoints(A), 0.0)
    life.tick(0.0)
    life.on_scrape(A, True, 0.5)
    assert state(life) is State.WARMING
    (action,) = life.actions(0.6)
    assert action.kind == "calibrate"
    assert text(life.on_calibrated(A, False, 9.0, "timeout")) == ["warming → ready: calibration failed: timeout"]


def test_control_that_starts_trusts_what_is_there() -> None:
    policy = LifecyclePolicy(warm_up=WarmUp(prompts=("hi",)))
    life = Lifecycle(policy, calibrate=True)
    life.sync(endpoints(A), 0.0)
    life.tick(0.1)
    life.on_scrape(A, True, 0.2)
    assert state(life) is State.READY
    assert view(life).ramp_since == -math.inf
    life.sync(endpoints(A, B), 1.0)
    life.tick(1.1)
    life.on_scrape(B, True, 1.2)
    assert state(life, B) is State.WARMING  # only the first look trusts


def test_probes_of_a_silent_endpoint_get_rarer() -> None:
    life = Lifecycle(LifecyclePolicy(probing=Probing(interval_s=1.0, max_interval_s=8.0)))
    life.sync(endpoints(A), 0.0)
    times = []
    for k in range(600):
        now = k * 0.1
        life.tick(now)
        if life.actions(now):
            times.append(now)
            life.on_probe(A, False, now, "refused")
    gaps = [round(b - a) for a, b in itertools.pairwise(times)]
    assert gaps[:4] == [2, 4, 8, 8]
    assert view(life).reason == "probe failed: refused"


def test_silence_makes_suspect_and_two_good_scrapes_clear_it() -> None:
    life = ready(A)
    assert life.tick(15.9) == []
    assert text(life.tick(16.0)) == ["ready → suspect: no sign of life for 15 s"]
    assert life.on_scrape(A, True, 17.0) == []
    assert text(life.on_scrape(A, True, 18.0)) == ["suspect → ready: scrape answered again"]
    assert view(life).ramp_since == -math.inf  # a hiccup is no cold start


def test_long_silence_ejects() -> None:
    life = ready(A, B, C)
    alive(life, 10.0, B, C)
    events = []
    for k in range(12, 120):
        alive(life, float(k), B, C)
        events += life.tick(float(k))
    assert text(events)[:2] == [
        "ready → suspect: no sign of life for 15 s",
        "suspect → ejected: no sign of life for 75 s",
    ]


def test_failed_scrapes_make_suspect_and_a_closed_port_ejects() -> None:
    life = ready(A, B, C)
    assert life.on_scrape(A, False, 2.0, refused=True) == []
    assert text(life.on_scrape(A, False, 3.0, refused=True)) == [
        "ready → suspect: 2 failed scrapes in a row: nobody listens"
    ]
    assert text(life.on_scrape(A, False, 4.0, refused=True)) == [
        "suspect → ejected: 3 scrapes in a row found nobody listening"
    ]


def test_a_broken_metrics_page_is_no_broken_engine() -> None:
    life = ready(A)
    for k in range(2, 60):
        life.on_scrape(A, False, float(k), detail="HTTP 500")
        life.on_outcomes(A, Outcomes(ok=3), k + 0.5)
        life.tick(k + 0.6)
        # The first failure may be followed by a second before an answer has come; here answers always come.
        assert state(life) is State.READY


def test_idle_endpoints_with_a_broken_page_are_probed_and_stay() -> None:
    life = ready(A)
    for k in range(20, 600):
        now = k * 0.1
        if k % 10 == 0:
            life.on_scrape(A, False, now, detail="HTTP 404")
        life.tick(now)
        for action in life.actions(now):
            assert action.kind == "probe"
            life.on_probe(A, True, now + 0.01)
        assert state(life) is State.READY


def test_endpoints_without_any_page_live_by_probes() -> None:
    life = Lifecycle(LifecyclePolicy())
    life.sync(endpoints(A), 0.0)
    probes = 0
    for k in range(1, 601):
        now = k * 0.1
        life.tick(now)
        for _ in life.actions(now):
            probes += 1
            life.on_probe(A, True, now + 0.01)
    assert state(life) is State.READY
    assert probes <= 15


@pytest.mark.parametrize(("code", "out"), [(79, True), (48, True), (13, False), (31, False), (43, False), (0, False)])
def test_fatal_xids_eject_and_application_xids_do_not(code: int, out: bool) -> None:
    life = ready(A, B)
    readings = {"xid": Reading(float(code), 2.0, "nvml"), "xid_count": Reading(1.0, 2.0, "nvml")}
    events = life.on_readings(A, readings, 2.0)
    assert (state(life) is State.EJECTED) is out
    assert bool(events) is out


def test_an_old_xid_ejects_once() -> None:
    policy = LifecyclePolicy(ejection=Ejection(jitter=0.0, base_s=10.0))
    life = ready(A, B, policy=policy)
    old = {"xid": Reading(79.0, 2.0, "dcgm")}
    assert text(life.on_readings(A, old, 2.0)) == ["ready → ejected: Xid 79: the GPU needs a reset"]
    life.tick(12.1)
    life.on_scrape(A, True, 12.5)
    assert state(life) is State.READY
    assert life.on_readings(A, old, 13.0) == []
    again = {"xid": Reading(79.0, 20.0, "dcgm"), "xid_count": Reading(2.0, 20.0, "dcgm")}
    assert len(life.on_readings(A, again, 20.0)) == 1
    assert view(life).ejections == 2


def test_ecc_and_repeated_oom_eject() -> None:
    life = ready(A, B)
    assert life.on_readings(A, {"ecc_uncorrected": Reading(4.0, 2.0, "nvml")}, 2.0) == []
    assert text(life.on_readings(A, {"ecc_uncorrected": Reading(5.0, 3.0, "nvml")}, 3.0)) == [
        "ready → ejected: 1 uncorrected ECC errors"
    ]
    life = ready(A, B)

    def oom(count: float, now: float) -> list[Event]:
        return life.on_readings(A, {"oom_count": Reading(count, now, "vllm")}, now)

    assert oom(7.0, 2.0) == []  # a count from before we looked
    assert oom(8.0, 3.0) == []  # one is bad luck
    assert oom(8.0, 300.0) == []
    assert oom(9.0, 310.0) == []  # the first is too long ago
    assert text(oom(1.0, 320.0)) == ["ready → ejected: out of memory 2 times in 300 s"]  # the engine restarted


def test_errors_in_a_row_eject_and_an_answer_ends_the_row() -> None:
    life = ready(A, B)
    for k in range(10):
        life.on_outcomes(A, Outcomes(server=2), 2.0 + k)
        life.on_outcomes(A, Outcomes(ok=5), 2.5 + k)
    assert state(life) is State.READY
    life.on_outcomes(A, Outcomes(server=2, timeout=1), 20.0)
    assert text(life.on_outcomes(A, Outcomes(connect=2), 20.1)) == [
        "ready → ejected: 5 failed requests in a row (last report: 2 connect)"
    ]


def test_half_of_many_requests_failing_ejects() -> None:
    life = ready(A, B)
    assert life.on_outcomes(A, Outcomes(ok=6, server=4), 2.0) == []
    assert text(life.on_outcomes(A, Outcomes(ok=4, server=6), 3.0)) == [
        "ready → ejected: 10 of 20 requests failed in 10 s"
    ]


def test_client_errors_are_never_sickness() -> None:
    life = ready(A, B)
    for k in range(100):
        life.on_outcomes(A, Outcomes(neutral=50), 2.0 + k / 100)
    assert state(life) is State.READY


def test_back_off_grows_and_is_forgiven() -> None:
    policy = LifecyclePolicy(ejection=Ejection(jitter=0.0, base_s=10.0, factor=2.0, max_s=50.0, forgive_s=100.0))
    life = ready(A, B, policy=policy)
    now, lengths = 2.0, []
    for _ in range(5):
        life.on_outcomes(A, Outcomes(connect=5), now)
        until = view(life).until
        assert until is not None
        lengths.append(until - now)
        now = until
        life.tick(now)
        assert state(life) is State.PROBING
        life.on_scrape(A, True, now + 0.1)
        now += 1.0
    assert lengths == pytest.approx([10.0, 20.0, 40.0, 50.0, 50.0])
    assert view(life).ramp_since == now - 0.9  # each return ramps
    end = now + 350.0
    while now < end:
        now += 1.0
        alive(life, now, A, B)
        life.tick(now)
    assert view(life).ejections == 2


def test_back_offs_of_a_fleet_are_spread() -> None:
    names = [f"10.1.0.{i}:1" for i in range(1, 41)]
    life = ready(*names)
    for name in names[:20]:
        life.on_outcomes(name, Outcomes(connect=5), 2.0)
    ends = {round(view(life, name).until or 0.0, 3) for name in names[:20]}
    assert len(ends) > 15
    assert min(ends) >= 2.0 + 9.0
    assert max(ends) <= 2.0 + 11.0


def test_no_more_than_half_of_a_pool_is_ejected() -> None:
    life = ready(A, B, C, D)
    reasons = [text(life.on_outcomes(x, Outcomes(connect=5), 2.0 + 2 * k))[0] for k, x in enumerate((A, B, C, D))]
    assert [state(life, x) for x in (A, B, C, D)] == [State.EJECTED, State.EJECTED, State.SUSPECT, State.SUSPECT]
    assert reasons[2].endswith("not ejected: 50 % of the pool is out already")
    assert view(life, C).held
    # It takes the place of one that comes back.
    life.tick(13.0)
    life.on_scrape(A, True, 13.1)
    assert state(life, A) is State.READY
    life.tick(13.2)
    assert [state(life, x) for x in (A, B, C, D)] == [State.READY, State.EJECTED, State.EJECTED, State.SUSPECT]


def test_the_guard_counts_each_pool_for_itself() -> None:
    life = Lifecycle(LifecyclePolicy())
    life.sync([*endpoints(A, B, pool="one"), *endpoints(C, D, pool="two")], 0.0)
    life.tick(0.1)
    alive(life, 1.0, A, B, C, D)
    for x in (A, C):
        life.on_outcomes(x, Outcomes(connect=5), 2.0)
    assert [state(life, x) for x in (A, C)] == [State.EJECTED, State.EJECTED]


def test_one_that_was_held_back_comes_back_after_its_time() -> None:
    policy = LifecyclePolicy(ejection=Ejection(jitter=0.0))
    life = ready(A, policy=policy)  # the only one is never ejected
    life.on_outcomes(A, Outcomes(connect=5), 2.0)
    assert state(life) is State.SUSPECT
    for k in range(3, 12):
        life.on_scrape(A, True, float(k))
        life.tick(float(k))
        assert state(life) is State.SUSPECT
    for k in range(12, 16):
        life.tick(float(k))
        life.on_scrape(A, True, float(k))
    assert state(life) is State.READY


def test_losing_one_gpu_takes_the_endpoint_out_until_it_is_back() -> None:
    life = ready(A, B)
    life.on_gpus(A, "GPU GPU-1 lost: 7 of 8 left", 2.0)
    assert state(life) is State.EJECTED
    life.tick(14.0)
    life.on_scrape(A, True, 14.1)
    assert state(life) is State.PROBING  # it answers, but a GPU is missing
    life.on_gpus(A, None, 20.0)
    life.on_scrape(A, True, 20.1)
    assert state(life) is State.READY


def test_removed_endpoints_drain_until_nothing_runs() -> None:
    life = ready(A, B)
    life.on_in_flight(A, 0, 4.0)
    assert text(life.sync(endpoints(B), 5.0)) == ["ready → draining: no longer discovered"]
    life.tick(5.1)
    assert state(life) is State.DRAINING  # the count of before says nothing
    life.on_in_flight(A, 0, 5.2, at=4.9)
    life.on_in_flight(A, 3, 6.0, at=6.0)
    assert state(life) is State.DRAINING
    assert text(life.on_in_flight(A, 0, 20.0, at=20.0)) == ["draining → gone: drained: no requests left"]
    life.tick(20.1)
    assert life.view(A) is None


def test_draining_ends_after_its_time() -> None:
    life = ready(A, B)
    life.sync(endpoints(B), 5.0)
    life.on_in_flight(A, 3, 6.0)
    assert life.tick(124.9) == [] or state(life) is State.DRAINING
    assert "draining → gone: drained: 120 s are over" in text(life.tick(125.0))
    assert life.view(A) is None


def test_one_that_is_discovered_again_while_draining_returns_without_a_ramp() -> None:
    life = ready(A, B)
    life.sync(endpoints(B), 5.0)
    life.sync(endpoints(A, B), 6.0)
    life.on_scrape(A, True, 6.5)
    assert state(life) is State.READY
    assert view(life).ramp_since == -math.inf


def test_endpoints_that_never_served_leave_at_once() -> None:
    life = Lifecycle(LifecyclePolicy())
    life.sync(endpoints(A), 0.0)
    life.tick(0.1)
    assert [e.to_state for e in life.sync([], 1.0)] == [State.GONE]
    assert life.view(A) is None


def test_drain_and_undrain_by_operator() -> None:
    life = ready(A, B)
    assert text(life.override(A, Override("drain", reason="kernel", by="ann"), 2.0)) == [
        "ready → draining: drained by ann: kernel"
    ]
    assert text(life.override(A, None, 3.0)) == ["draining → ready: drain by ann lifted"]
    assert view(life).ramp_since == -math.inf
    life.override(A, Override("drain", by="ann"), 4.0)
    life.on_in_flight(A, 0, 8.0)
    assert state(life) is State.GONE
    life.on_scrape(A, True, 9.0)
    life.sync(endpoints(A, B), 9.5)
    life.tick(10.0)
    assert state(life) is State.GONE  # still discovered, still drained
    life.override(A, None, 11.0)
    life.on_scrape(A, True, 11.5)
    assert state(life) is State.READY


def test_ejection_by_operator_holds_until_it_is_cleared_or_lapses() -> None:
    life = ready(A, B)
    life.override(A, Override("eject", until=100.0, by="ann"), 2.0)
    life.override(B, Override("eject", by="bob"), 2.0)  # an operator may take out everything
    for k in range(3, 99):
        alive(life, float(k), A, B)
        life.tick(float(k))
    assert state(life, A) is State.EJECTED
    life.tick(100.0)
    alive(life, 101.0, A, B)
    assert state(life, A) is State.READY
    assert state(life, B) is State.EJECTED
    assert set(life.overrides()) == {B}


def test_orders_outlive_a_restart() -> None:
    before = ready(A, B)
    before.override(A, Override("drain", until=1000.0, reason="r", by="ann"), 10.0)
    before.override(B, Override("pin", weight=7), 10.0)
    kept = {a: o.to_record(10.0, wall=5_000_010.0) for a, o in before.overrides().items()}
    after = Lifecycle(LifecyclePolicy())  # another process, another clock
    for address, record in kept.items():
        after.override(address, Override.from_record(record, 3.0, wall=5_000_060.0), 3.0)
    after.sync(endpoints(A, B), 3.0)
    after.tick(3.1)
    alive(after, 4.0, A, B)
    assert state(after, A) is State.DRAINING
    order = view(after, A).override
    assert order is not None
    assert order.until == pytest.approx(3.0 + 990.0 - 50.0)
    pinned = view(after, B).override
    assert pinned is not None
    assert pinned.weight == 7


def test_records_that_are_none_are_refused() -> None:
    with pytest.raises(ValueError, match="not an override"):
        Override.from_record({"kind": "dance"}, 0.0, 0.0)
    with pytest.raises(ValueError, match="needs a weight"):
        Override("pin")
    with pytest.raises(ValueError, match="takes no weight"):
        Override("drain", weight=3)


def test_a_restarted_engine_warms_up_and_ramps_again() -> None:
    policy = LifecyclePolicy(warm_up=WarmUp(prompts=("hi",), answers=1))
    life = ready(A, B, policy=policy)
    life.on_restart(A, 50.0)
    life.on_scrape(A, True, 50.5)
    assert state(life) is State.WARMING
    life.actions(50.6)
    life.on_warmup(A, True, 0.1, 51.0)
    assert view(life).ramp_since == 51.0


def test_a_stuck_warm_up_goes_back_to_probing() -> None:
    policy = LifecyclePolicy(trust_at_start=False, warm_up=WarmUp(prompts=("hi",), timeout_s=60.0))
    life = Lifecycle(policy)
    life.sync(endpoints(A), 0.0)
    life.tick(0.0)
    life.on_scrape(A, True, 1.0)
    assert text(life.tick(61.0)) == ["warming → probing: not warm after 60 s"]


def test_a_lost_answer_is_asked_for_again() -> None:
    life = Lifecycle(LifecyclePolicy())
    life.sync(endpoints(A), 0.0)
    life.tick(0.0)
    assert len(life.actions(0.0)) == 1
    assert life.actions(5.0) == []
    assert len(life.actions(10.5)) == 1


def test_reports_about_strangers_change_nothing() -> None:
    life = ready(A)
    stranger = "10.9.9.9:1"
    assert life.on_scrape(stranger, True, 2.0) == []
    assert life.on_outcomes(stranger, Outcomes(connect=9), 2.0) == []
    assert life.on_readings(stranger, {}, 2.0) == []
    assert life.on_probe(stranger, True, 2.0) == []
    assert life.on_xid(stranger, 79, 1.0, 2.0) == []
    assert life.view(stranger) is None


STEPS = st.sampled_from(
    ["scrape", "fail", "refused", "ok", "errors", "xid", "tick", "long", "drain", "eject", "clear", "sync", "gone",
     "probe", "warm", "flight", "restart", "gpu", "gpuok"]
)  # fmt: skip


@given(steps=st.lists(st.tuples(STEPS, st.sampled_from([A, B, C])), max_size=60), warm=st.booleans())
@settings(max_examples=150, deadline=None)
def test_any_course_of_events_keeps_the_rules(steps: list[tuple[str, str]], warm: bool) -> None:
    policy = LifecyclePolicy(warm_up=WarmUp(prompts=("hi",) if warm else ()), suspicion=Suspicion(recover=1))
    life = Lifecycle(policy)
    life.sync(endpoints(A, B, C), 0.0)
    now, count = 0.0, 0.0
    seen: list[Event] = []
    present = {A, B, C}
    for step, x in steps:
        now += 30.0 if step == "long" else 0.7
        count += 1
        got: list[Event] = []
        match step:
            case "scrape":
                got = life.on_scrape(x, True, now)
            case "fail" | "refused":
                got = life.on_scrape(x, False, now, refused=step == "refused")
            case "ok" | "errors":
                got = life.on_outcomes(x, Outcomes(ok=3) if step == "ok" else Outcomes(connect=3), now)
            case "xid":
                got = life.on_xid(x, 79, count, now)
            case "drain" | "eject":
                got = life.override(x, Override("drain" if step == "drain" else "eject"), now)
            case "clear":
                got = life.override(x, None, now)
            case "sync" | "gone":
                present = present | {x} if step == "sync" else present - {x}
                got = life.sync(endpoints(*sorted(present)), now)
            case "probe":
                life.actions(now)
                got = life.on_probe(x, True, now)
            case "warm":
                life.actions(now)
                got = life.on_warmup(x, True, 0.1, now)
            case "flight":
                got = life.on_in_flight(x, 0, now)
            case "restart":
                got = life.on_restart(x, now)
            case "gpu" | "gpuok":
                got = life.on_gpus(x, "GPU lost" if step == "gpu" else None, now)
            case _:
                got = life.tick(now)
        seen += got
        views = life.views()
        automatic = [v for v in views if v.state is State.EJECTED and v.until is not None]
        assert len(automatic) <= len(views) * 0.5 + 1e-9 or len(views) < 3
        for v in views:
            if v.state is State.READY:
                order = life.overrides().get(v.address)
                assert order is None or order.kind == "pin"
    # Events of one endpoint form an unbroken chain.
    last: dict[str, State] = {}
    for e in seen:
        if e.address in last and e.to_state is not State.NEW:
            assert e.from_state is last[e.address]
        last[e.address] = e.to_state


def test_the_default_carries_no_warning_and_hasty_settings_do() -> None:
    assert warnings(LifecyclePolicy()) == []
    hasty = LifecyclePolicy(
        ejection=Ejection(max_share=1.0, consecutive_errors=1, base_s=1.0),
        suspicion=Suspicion(heartbeat_s=2.0),
        draining=Draining(timeout_s=5.0),
        warm_up=WarmUp(prompts=("hi",)),
        trust_at_start=False,
    )
    assert len(warnings(hasty)) == 6
    assert "nothing is ever ejected" in warnings(LifecyclePolicy(ejection=Ejection(max_share=0.0)))[0]
