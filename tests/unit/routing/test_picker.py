"""The picker's choices."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.routing.fleet import address, endpoint, facts, pool
from xds_control.fleet.snapshot import EndpointSnapshot
from xds_control.policy.picker import (
    AffinityPolicy,
    CostPolicy,
    DisaggPolicy,
    LimitPolicy,
    PickerPolicy,
    ProfileChoice,
    ProfilePolicy,
    RatesPolicy,
    SessionPolicy,
    ShedPolicy,
)
from xds_control.routing import pick as reasons
from xds_control.routing.explain import Candidate, Record
from xds_control.routing.outcome import Finished
from xds_control.routing.pick import Pick
from xds_control.routing.picker import Picker
from xds_control.routing.sessions import make_token
from xds_control.routing.share import Outstanding, Peers


def picker_of(endpoints: list[EndpointSnapshot], now: float = 0.0, **policy: Any) -> Picker:
    """A picker over these endpoints; `profile` is the default profile."""
    profile = policy.pop("profile", None)
    if profile is not None:
        policy["profiles"] = {"default": profile, **policy.get("profiles", {})}
    picker = Picker(PickerPolicy(record_share=policy.pop("record_share", 0.0), **policy), seed=1)
    picker.update({"p": pool("p", endpoints)}, now)
    return picker


def idle(count: int, at: float = 0.0, **more: Any) -> list[EndpointSnapshot]:
    """So many idle endpoints, scraped at `at`."""
    return [endpoint(i, at=at, running=0, waiting=0, kv_usage=0.0, **more) for i in range(count)]


def end(pick: Pick, now: float, prompt: int = 1000, **more: Any) -> Finished:
    values: dict[str, Any] = {
        "e2e_s": 0.3,
        "prompt_tokens": prompt,
        "completion_tokens": 20,
        "cached_tokens": pick.matched_tokens,
        "matched_tokens": pick.matched_tokens,
        **more,
    }
    return Finished("p", pick.address, pick.address, **values)


# ---------- spreading, charging ----------
def test_sequential_unique_prompts_spread_evenly_over_idle_endpoints() -> None:
    picker = picker_of(idle(4))
    rng = random.Random(1)
    counts: Counter[str] = Counter()
    for number in range(100):
        now = 1.0 + number
        chosen = picker.pick(facts(keys=[rng.getrandbits(64) for _ in range(4)]), "p", now)
        counts[chosen.address] += 1
        picker.finished(end(chosen, now + 0.3), now + 0.3)
    assert sorted(counts) == [address(i) for i in range(4)]
    assert max(counts.values()) <= 30
    assert min(counts.values()) >= 20


def test_a_burst_between_two_scrapes_spreads_because_own_picks_count() -> None:
    picker = picker_of(idle(8))
    counts = Counter(picker.pick(facts(prompt=2000), "p", 1.0).address for _ in range(80))
    assert max(counts.values()) - min(counts.values()) <= 1


def test_a_burst_of_one_prompt_goes_where_the_first_went_until_that_is_dearer() -> None:
    picker = picker_of(idle(4))
    keys = list(range(1, 17))
    places = [picker.pick(facts(keys=keys), "p", 1.0).address for _ in range(4)]
    assert len(set(places)) == 1
    many = Counter(picker.pick(facts(keys=keys, output=2000), "p", 1.0).address for _ in range(200))
    assert len(many) > 1


def test_the_list_names_fallbacks_in_order_of_cost_and_without_repeats() -> None:
    rows = [endpoint(i, at=0.0, running=10 * i, waiting=0, kv_usage=0.1) for i in range(5)]
    chosen = picker_of(rows).pick(facts(prompt=4000), "p", 1.0)
    assert chosen.addresses == (address(0), address(1), address(2))
    assert picker_of(rows, fallbacks=1).pick(facts(), "p", 1.0).addresses == (address(0),)
    two = picker_of(rows[:2]).pick(facts(prompt=4000), "p", 1.0)
    assert two.addresses == (address(0), address(1))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1 << 30))
def test_same_seed_and_inputs_give_the_same_picks(seed: int) -> None:
    def run() -> list[tuple[str, ...]]:
        rng = random.Random(seed)
        picker = picker_of(idle(6))
        found = []
        for step in range(60):
            keys = [rng.randrange(50) for _ in range(rng.randrange(5))]
            found.append(picker.pick(facts(keys=keys, prompt=rng.randrange(1, 9000)), "p", 1 + step * 0.01).addresses)
        return found

    assert run() == run()


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_whatever_comes_the_pick_is_an_endpoint_that_may_be_picked(data: st.DataObject) -> None:
    rng = random.Random(data.draw(st.integers(0, 1 << 30)))
    picker = picker_of(idle(3))
    now = 0.0
    alive: dict[int, bool] = {}
    for _ in range(80):
        now += rng.random()
        action = rng.randrange(5)
        if action == 0:
            alive = {i: rng.random() < 0.8 for i in range(rng.randrange(1, 9))}
            rows = [
                endpoint(
                    i,
                    pickable=ok,
                    at=rng.choice([None, now, now - 100]),
                    running=rng.randrange(20),
                    waiting=rng.randrange(5),
                    kv_usage=rng.choice([None, rng.random()]),
                    num_blocks=rng.choice([None, 100, 100_000]),
                    capacity=rng.choice([0.5, 1.0, 4.0]),
                )
                for i, ok in alive.items()
            ]
            picker.update({"p": pool("p", rows)}, now)
        elif action == 1:
            picker.failed(address(rng.randrange(8)), now)
        elif action == 2:
            picker.finished(
                Finished(
                    "p",
                    address(rng.randrange(8)),
                    address(rng.randrange(8)),
                    kind=rng.choice(["ok", "5xx", "aborted", "connect"]),
                    attempts=rng.randrange(3),
                    e2e_s=rng.choice([None, rng.random()]),
                    prompt_tokens=rng.choice([None, rng.randrange(5000)]),
                    completion_tokens=rng.choice([None, rng.randrange(500)]),
                    cached_tokens=rng.choice([None, 0, 400]),
                    matched_tokens=rng.choice([None, 0, 4000]),
                    ttft_s=rng.choice([None, rng.random()]),
                    decode_s=rng.choice([None, rng.random()]),
                ),
                now,
            )
        else:
            keys = [rng.randrange(40) for _ in range(rng.randrange(6))]
            chosen = picker.pick(facts(keys=keys, prompt=rng.randrange(0, 200_000)), "p", now)
            if alive:
                able = {address(i) for i, ok in alive.items() if ok}
                assert set(chosen.addresses) <= able
                assert chosen.ok == bool(able)
            assert len(set(chosen.addresses)) == len(chosen.addresses)
            assert chosen.expected_ttft_s == chosen.expected_ttft_s  # no NaN
    state = picker.pool("p")
    assert state is not None
    assert all(slot.flight.count >= 0 for slot in state.each())


# ---------- cost ----------
def test_a_long_match_beats_a_short_queue_and_loses_to_a_long_one() -> None:
    keys = list(range(1, 33))  # 8192 tokens, 0.8 s of prefill by the prior
    for backlog, stays in ((2000, True), (40_000, False)):
        picker = picker_of(idle(2))
        home = picker.pick(facts(keys=keys), "p", 0.0)
        state = picker.pool("p")
        assert state is not None
        slot = state.by_address[home.address]
        slot.busy = 1.0 + backlog * 1e-4
        state.price(slot)
        again = picker.pick(facts(keys=keys), "p", 1.0)
        assert (again.address == home.address) is stays
        assert again.reason == (reasons.PREFIX if stays else reasons.LEAST_COST)


def test_the_delay_that_a_prefill_does_to_others_counts() -> None:
    rows = [
        endpoint(0, at=0.0, running=40, waiting=0, kv_usage=0.2),
        endpoint(1, at=0.0, running=0, waiting=0, kv_usage=0.2),
    ]
    keys = list(range(1, 17))
    cost = CostPolicy(decode=0.0)

    def where(policy: CostPolicy) -> str:
        picker = picker_of(rows, profile=ProfilePolicy(cost=policy))
        state = picker.pool("p")
        assert state is not None
        state.by_address[address(1)].busy = 0.05  # the idle one has a short queue of prefills
        state.price(state.by_address[address(1)])
        return picker.pick(facts(keys=keys), "p", 0.0).address

    assert where(CostPolicy(decode=0.0, interference=0.0)) == address(0)
    assert where(cost) == address(1)


def test_prompts_that_come_together_share_a_step_and_later_ones_wait_for_it() -> None:
    picker = picker_of(idle(1))
    state = picker.pool("p")
    assert state is not None
    slot = state.by_address[address(0)]
    slot.joins = slot.busy = 0.0
    read, step = state.rates.work(1000) * slot.rate, slot.step
    picker.pick(facts(prompt=1000), "p", 10.0)
    assert slot.busy == pytest.approx(10.0 + step + read)
    picker.pick(facts(prompt=1000), "p", 10.0 + 0.1 * step)  # before the step of the first begins
    assert slot.busy == pytest.approx(10.0 + step + 2 * read)
    before = slot.busy
    later = slot.step
    picker.pick(facts(prompt=1000), "p", 10.0 + step)  # while both are read
    assert slot.busy == pytest.approx(before + later + read)


def test_the_time_of_long_prompts_grows_faster_than_their_length() -> None:
    picker = picker_of(idle(1))
    state = picker.pool("p")
    assert state is not None
    state.bend = 0.5 * 5e-5
    short, long = (picker.explain(facts(prompt=prompt), "p", 0.0).candidates[0].prefill_s for prompt in (2000, 40_000))
    assert short == pytest.approx(2000 * 1.05 * 1e-4)
    assert long == pytest.approx(40_000 * 2.0 * 1e-4)
    keys = list(range(1, 33))
    picker.pick(facts(keys=keys), "p", 0.0)
    one = picker.explain(facts(keys=[*keys, *range(100, 120)]), "p", 0.0).candidates[0]
    total, held = 52 * 256, one.matched_tokens  # the last tokens have all that is cached before them
    assert held == 32 * 256
    assert one.prefill_s == pytest.approx((total - held) * (1 + 5e-5 * (held + total) / 2) * 1e-4)


def test_prompts_count_as_engines_count_them() -> None:
    picker = picker_of(idle(1))
    keys = list(range(1, 33))
    for number in range(60):
        now = 0.1 * number
        pick = picker.pick(facts(keys=keys), "p", now)  # estimated at 32 × 256
        done = Finished(
            "p", pick.address, pick.address, prompt_tokens_est=32 * 256, prompt_tokens=32 * 128,
            matched_tokens=pick.matched_tokens, cached_tokens=pick.matched_tokens and 31 * 128, completion_tokens=1,
        )  # fmt: skip
        picker.finished(done, now + 0.05)
        picker.update({"p": pool("p", idle(1, at=now))}, now + 0.06)
    last = picker.explain(facts(keys=keys), "p", 7.0)
    assert last.prompt_tokens == pytest.approx(32 * 128, rel=0.05)
    assert last.candidates[0].matched_tokens == pytest.approx(32 * 128, rel=0.05)


def test_memory_that_does_not_fit_is_waited_for_and_a_full_cache_costs() -> None:
    full = [
        endpoint(0, at=0.0, running=8, waiting=0, kv_usage=0.95, num_blocks=2000),
        endpoint(1, at=0.0, running=8, waiting=0, kv_usage=0.30, num_blocks=2000),
    ]
    picker = picker_of(full)
    record = picker.explain(facts(prompt=6000, output=500), "p", 0.0)
    parts = {one.address: one for one in record.candidates}
    assert parts[address(0)].kv_wait_s > 0
    assert parts[address(0)].memory_s > 0
    assert parts[address(1)].kv_wait_s == 0
    assert picker.pick(facts(prompt=6000, output=500), "p", 0.0).address == address(1)


def test_the_parts_of_the_cost_add_up() -> None:
    rng = random.Random(2)
    rows = [
        endpoint(i, at=0.0, running=rng.randrange(30), waiting=3, kv_usage=rng.uniform(0.5, 0.99), num_blocks=5000)
        for i in range(6)
    ]
    picker = picker_of(rows)
    keys = [rng.getrandbits(64) for _ in range(8)]
    for _ in range(5):
        picker.pick(facts(keys=keys, output=300), "p", 0.5)
    for one in picker.explain(facts(keys=[*keys, 5, 6], output=300), "p", 0.6).candidates:
        parts = (
            one.wait_s + one.prefill_s + one.kv_wait_s + one.interference_s + one.decode_s + one.memory_s + one.fixed_s
        )
        state = picker.pool("p")
        assert state is not None
        columns = next(iter(state.columns.values()))
        i = state.by_address[one.address].index
        # Interference and eviction come in one column; both are in `interference_s`.
        assert parts == pytest.approx(one.cost_s, rel=1e-6)
        assert columns.per_token[i] >= state.prefill[i]


def test_declared_capacity_counts_until_speeds_are_learned() -> None:
    rows = [
        endpoint(0, at=0.0, running=0, waiting=0, kv_usage=0.0, capacity=4.0),
        endpoint(1, at=0.0, running=0, waiting=0, kv_usage=0.0, capacity=1.0),
    ]
    picker = picker_of(rows)
    counts = Counter(picker.pick(facts(prompt=8000), "p", 0.0).address for _ in range(50))
    assert 2.0 < counts[address(0)] / counts[address(1)] < 6.0


def test_a_slow_endpoint_is_found_out_by_its_answers() -> None:
    picker = picker_of(idle(2))
    now = 0.0
    for _ in range(60):
        now += 1.0
        for i, tpot in ((0, 0.010), (1, 0.040)):
            done = Finished(
                "p", address(i), address(i), e2e_s=2.0, prompt_tokens=400, completion_tokens=101,
                cached_tokens=0, matched_tokens=0, ttft_s=0.05, decode_s=100 * tpot,
            )  # fmt: skip
            picker.finished(done, now, ahead_tokens=0, batch=1)
        picker.update({"p": pool("p", idle(2, at=now))}, now)
    state = picker.pool("p")
    assert state is not None
    speeds = {slot.address: slot.speed for slot in state.each()}
    assert speeds[address(1)] / speeds[address(0)] > 2.0
    counts = Counter(picker.pick(facts(prompt=8000), "p", now).address for _ in range(40))
    assert counts[address(0)] > 1.8 * counts[address(1)]


# ---------- staleness, newcomers, failures ----------
def ends_per_second(picker: Picker, rates: list[float], running: list[float], since: float, seconds: int) -> None:
    """Requests end at these rates, with so many running; nothing is told of how long they took."""
    owed = [0.0] * len(rates)
    for tick in range(2 * seconds):
        now = since + 0.5 * (tick + 1)
        for number, rate in enumerate(rates):
            owed[number] += 0.5 * rate
            while owed[number] >= 1.0:
                owed[number] -= 1.0
                picker.finished(Finished("p", address(number), "", e2e_s=4.0), now)
        rows = [endpoint(n, at=now, running=count, waiting=0, kv_usage=0.2) for n, count in enumerate(running)]
        picker.update({"p": pool("p", rows)}, now)


def test_an_endpoint_that_has_become_slow_is_found_out_before_its_answers_tell() -> None:
    picker = picker_of([endpoint(n, running=40, waiting=0, kv_usage=0.2) for n in range(4)])
    state = picker.pool("p")
    assert state is not None
    ends_per_second(picker, [10.0] * 4, [40.0] * 4, 0.0, 20)
    assert [state.by_address[address(n)].speed for n in range(4)] == [1.0] * 4
    ends_per_second(picker, [3.0, 10.0, 10.0, 10.0], [60.0, 40.0, 40.0, 40.0], 20.0, 8)
    assert state.by_address[address(0)].speed > 1.5
    assert [state.by_address[address(n)].speed for n in range(1, 4)] == [1.0] * 3
    ends_per_second(picker, [10.0] * 4, [40.0] * 4, 28.0, 10)
    assert state.by_address[address(0)].speed == 1.0


def test_an_endpoint_that_others_use_too_is_not_slow_for_long() -> None:
    picker = picker_of([endpoint(n, running=40, waiting=0, kv_usage=0.2) for n in range(4)])
    state = picker.pool("p")
    assert state is not None
    ends_per_second(picker, [4.0, 10.0, 10.0, 10.0], [40.0] * 4, 0.0, 120)
    assert state.by_address[address(0)].speed == 1.0


def test_an_endpoint_where_many_have_just_come_is_not_slow() -> None:
    picker = picker_of([endpoint(n, running=40 * (n > 0), waiting=0, kv_usage=0.2) for n in range(4)])
    state = picker.pool("p")
    assert state is not None
    ends_per_second(picker, [0.0, 10.0, 10.0, 10.0], [0.0, 40.0, 40.0, 40.0], 0.0, 20)
    ends_per_second(picker, [0.0, 10.0, 10.0, 10.0], [10.0, 40.0, 40.0, 40.0], 20.0, 1)
    ends_per_second(picker, [0.0, 10.0, 10.0, 10.0], [20.0, 40.0, 40.0, 40.0], 21.0, 1)
    ends_per_second(picker, [5.0, 10.0, 10.0, 10.0], [30.0, 40.0, 40.0, 40.0], 22.0, 2)
    assert state.by_address[address(0)].speed == 1.0


def test_a_stale_idle_reading_does_not_attract() -> None:
    rows = [
        endpoint(0, at=-60.0, running=0, waiting=0, kv_usage=0.0),
        endpoint(1, at=0.0, running=3, waiting=1, kv_usage=0.2),
    ]
    assert picker_of(rows).pick(facts(), "p", 0.1).address == address(1)


def test_a_newcomer_is_not_idle() -> None:
    rows = [endpoint(i, at=0.0, running=6, waiting=2, kv_usage=0.3) for i in range(2)] + [endpoint(2, at=None)]
    picker = picker_of(rows)
    counts = Counter(picker.pick(facts(prompt=500), "p", 0.01).address for _ in range(300))
    assert counts[address(2)] <= 180
    assert counts[address(2)] > 0


def test_without_any_scrape_own_counts_balance() -> None:
    picker = picker_of([endpoint(i, at=None) for i in range(5)])
    counts = Counter(picker.pick(facts(prompt=500), "p", 0.0).address for _ in range(100))
    assert max(counts.values()) - min(counts.values()) <= 2


def test_an_endpoint_that_failed_rests_doubling_and_comes_back() -> None:
    picker = picker_of(idle(2))
    picker.failed(address(0), 0.0)
    assert {picker.pick(facts(), "p", 0.5).address for _ in range(10)} == {address(1)}
    assert address(0) in {picker.pick(facts(), "p", 1.1).address for _ in range(10)}
    picker.failed(address(0), 2.0)
    picker.failed(address(0), 2.0)  # several at once are one
    state = picker.pool("p")
    assert state is not None
    assert state.by_address[address(0)].rest_until == 4.0
    for _ in range(10):
        picker.failed(address(0), state.by_address[address(0)].rest_until)
    assert state.by_address[address(0)].failures == 12
    last = state.by_address[address(0)].rest_until
    picker.failed(address(0), last)
    assert state.by_address[address(0)].rest_until == last + 10.0
    picker.finished(end(Pick(addresses=(address(0),)), last), last)
    assert state.by_address[address(0)].failures == 0


def test_when_everybody_rests_somebody_is_named_all_the_same() -> None:
    picker = picker_of(idle(2))
    picker.failed(address(0), 0.0)
    picker.failed(address(1), 0.0)
    assert picker.pick(facts(), "p", 0.1).ok


def test_a_retry_elsewhere_discharges_the_pick_and_rests_it() -> None:
    picker = picker_of(idle(2))
    chosen = picker.pick(facts(), "p", 1.0)
    other = chosen.addresses[1]
    state = picker.pool("p")
    assert state is not None
    assert state.by_address[chosen.address].flight.count == 1
    done = Finished("p", other, chosen.address, attempts=2, e2e_s=0.5, prompt_tokens=10, completion_tokens=5)
    picker.finished(done, 1.5)
    assert state.by_address[chosen.address].flight.count == 0
    assert state.by_address[other].flight.count == 0
    assert state.by_address[chosen.address].rest_until > 1.5


@pytest.mark.parametrize("kind", ["4xx", "aborted"])
def test_what_the_client_did_is_no_sickness(kind: str) -> None:
    picker = picker_of(idle(1))
    chosen = picker.pick(facts(), "p", 1.0)
    picker.finished(Finished("p", chosen.address, chosen.address, kind=kind, e2e_s=0.1), 1.1)
    state = picker.pool("p")
    assert state is not None
    assert state.by_address[address(0)].failures == 0
    assert state.by_address[address(0)].flight.count == 0


def test_an_engine_that_runs_requests_and_makes_no_tokens_is_doubted() -> None:
    def rows(at: float, decode: float) -> list[EndpointSnapshot]:
        one = endpoint(0, at=at, running=2, waiting=0, kv_usage=0.1, decode_tps=decode)
        return [one, endpoint(1, at=at, running=2, waiting=0, kv_usage=0.1, decode_tps=50.0)]

    picker = picker_of(rows(0.0, 50.0))
    for step in range(1, 40):
        picker.pick(facts(), "p", float(step))
        picker.update({"p": pool("p", rows(float(step), 0.0))}, float(step))
    assert {picker.pick(facts(), "p", 39.5).address for _ in range(5)} == {address(1)}


# ---------- prefix belief ----------
def test_cached_tokens_below_belief_shrink_it_and_nothing_cached_drops_it() -> None:
    picker = picker_of(idle(1, num_blocks=10_000))
    state = picker.pool("p")
    assert state is not None
    slot = state.by_address[address(0)]
    full = slot.belief
    keys = list(range(1, 33))
    picker.pick(facts(keys=keys), "p", 0.0)
    again = picker.pick(facts(keys=keys), "p", 1.0)
    assert again.matched_tokens == 32 * 256 - 1
    picker.finished(end(again, 1.1, cached_tokens=512), 1.1)
    assert slot.belief < full
    for _ in range(3):
        picker.finished(end(again, 1.2, cached_tokens=0), 1.2)
    assert picker.explain(facts(keys=keys), "p", 1.3).candidates[0].matched_tokens == 0


def test_a_restarted_engine_has_an_empty_cache() -> None:
    picker = picker_of(idle(1, started_at=1000.0))
    keys = list(range(1, 9))
    picker.pick(facts(keys=keys), "p", 0.0)
    picker.update({"p": pool("p", idle(1, at=1.0, started_at=1000.2))}, 1.0)  # the same process
    assert picker.explain(facts(keys=keys), "p", 1.0).candidates[0].matched_tokens > 0
    picker.update({"p": pool("p", idle(1, at=2.0, started_at=2000.0))}, 2.0)
    assert picker.explain(facts(keys=keys), "p", 2.0).candidates[0].matched_tokens == 0


def test_prefixes_of_an_endpoint_that_left_are_gone() -> None:
    picker = picker_of(idle(2))
    keys = list(range(1, 9))
    chosen = picker.pick(facts(keys=keys), "p", 0.0)
    rest = [one for one in idle(2, at=1.0) if one.endpoint.address != chosen.address]
    picker.update({"p": pool("p", rest)}, 1.0)
    assert picker.pick(facts(keys=keys), "p", 1.0).matched_tokens == 0


def test_peers_learn_of_prefixes_and_outstanding_work() -> None:
    one, other = picker_of(idle(4)), picker_of(idle(4))
    keys = list(range(1, 33))
    first = one.pick(facts(keys=keys), "p", 0.0)
    other.merge_peers(one.drain_share(0.05), 0.1)
    second = other.pick(facts(keys=keys), "p", 1.0)
    assert second.address == first.address
    assert second.matched_tokens > 0
    assert one.drain_share(0.1).prefixes == []
    loaded = picker_of(idle(4))
    for _ in range(6):
        one.pick(facts(prompt=9000), "p", 2.0)
    share = one.drain_share(2.0)
    loaded.merge_peers(share, 2.0)
    state, mine = loaded.pool("p"), one.pool("p")
    assert state is not None
    assert mine is not None
    for slot in mine.each():
        assert state.by_address[slot.address].flight.count == pytest.approx(slot.flight.count, abs=1e-9)
        assert state.by_address[slot.address].busy == pytest.approx(slot.busy, abs=0.01)


def test_work_that_peers_told_of_is_read_on_while_the_news_is_on_its_way() -> None:
    def backlog(age_s: float) -> tuple[float, float]:
        picker = picker_of(idle(1))
        state = picker.pool("p")
        assert state is not None
        slot = state.by_address[address(0)]
        told = Outstanding(address(0), 1, round(0.3 / slot.rate), 100, age_s)
        picker.merge_peers(Peers(outstanding=[told]), 2.0)
        return slot.busy - 2.0 - slot.step, slot.flight.count

    assert backlog(0.0) == (pytest.approx(0.3, abs=0.002), 1.0)
    assert backlog(0.1) == (pytest.approx(0.2, abs=0.002), 1.0)
    rest, count = backlog(0.4)  # it has been read, and is still decoded
    assert rest <= 0.0
    assert count == 1.0


def test_learned_speeds_travel() -> None:
    one, other = picker_of(idle(1)), picker_of(idle(1))
    now = 0.0
    for number in range(80):
        now += 0.5
        tokens = 1000 + 100 * (number % 20)
        done = Finished(
            "p", address(0), address(0), e2e_s=3.0, prompt_tokens=tokens, completion_tokens=50,
            cached_tokens=0, matched_tokens=0, ttft_s=0.02 + tokens * 3e-5, decode_s=0.5,
        )  # fmt: skip
        one.finished(done, now, ahead_tokens=0, batch=2)
    other.merge_peers(one.drain_share(now), now)
    for picker in (one, other):
        picker.update({"p": pool("p", idle(1, at=now))}, now)
        state = picker.pool("p")
        assert state is not None
        now_known = state.rates.now
        for tokens in (1000, 2000, 2900):
            expected = now_known.overhead + now_known.prefill * tokens
            assert expected == pytest.approx(0.02 + tokens * 3e-5, rel=0.35)
    assert one.drain_share(now).rates == []


# ---------- filters ----------
def test_subset_hint_narrows_and_an_empty_one_refuses() -> None:
    picker = picker_of(idle(3))
    assert picker.pick(facts(), "p", 0.0, subset=[address(1)]).addresses == (address(1),)
    assert picker.pick(facts(), "p", 0.0, subset=[address(1).split(":")[0]]).addresses == (address(1),)
    assert picker.pick(facts(), "p", 0.0, subset=[address(1).replace("8000", "9")]).status == 503
    nobody = picker.pick(facts(), "p", 0.0, subset=[])
    assert (nobody.status, nobody.reason, nobody.dropped_reason) == (503, "subset-empty", "rejected-no-endpoints")


def test_endpoints_that_may_not_be_picked_are_not() -> None:
    picker = picker_of([endpoint(0, pickable=False), endpoint(1)])
    assert picker.pick(facts(), "p", 0.0).addresses == (address(1),)
    assert picker_of([endpoint(0, pickable=False)]).pick(facts(), "p", 0.0).reason == reasons.NO_ENDPOINTS
    assert picker.pick(facts(), "nowhere", 0.0).status == 503


def test_a_prompt_goes_where_it_fits() -> None:
    rows = [
        endpoint(0, at=0.0, running=0, waiting=0, max_model_len=4096),
        endpoint(1, at=0.0, running=30, waiting=9, max_model_len=131072),
    ]
    picker = picker_of(rows)
    assert picker.pick(facts(prompt=5000), "p", 0.0).addresses == (address(1),)
    assert picker.pick(facts(prompt=4000, max_output_tokens=500), "p", 0.0).addresses == (address(1),)
    assert picker.pick(facts(prompt=500), "p", 0.0).address == address(0)
    assert picker.pick(facts(prompt=500_000), "p", 0.0).ok  # nobody can: the engine says so better than we


def test_context_length_label() -> None:
    rows = [
        endpoint(0, labels={"llm-d.ai/context-length-range": "0-4000"}),
        endpoint(1, labels={"llm-d.ai/context-length-range": "4001-100000"}),
    ]
    picker = picker_of(rows)
    assert picker.pick(facts(prompt=500), "p", 0.0).addresses == (address(0),)
    assert picker.pick(facts(prompt=50_000), "p", 0.0).addresses == (address(1),)


def test_lora_residents_first_then_free_slots_and_models_must_match() -> None:
    rows = [
        endpoint(0, at=0.0, running=0, waiting=0, lora_running=("b", "c"), lora_max=2, models=("m",)),
        endpoint(1, at=0.0, running=0, waiting=0, lora_running=("b",), lora_max=2, models=("m",)),
        endpoint(2, at=0.0, running=2, waiting=0, lora_running=("a",), lora_max=2, models=("m",)),
        endpoint(3, at=0.0, running=0, waiting=0, models=("other",)),
    ]
    picker = picker_of(rows)
    asked = picker.pick(facts(model="a", lora="a", prompt=100), "p", 0.0)
    assert asked.addresses == (address(2),)  # the only one that serves the name
    base = picker.pick(facts(model="m", lora="a", prompt=100), "p", 0.0)
    assert base.addresses == (address(2), address(1), address(0))
    assert address(3) not in base.addresses


def test_concurrency_limit_passes_over_and_then_refuses() -> None:
    picker = picker_of(idle(2), limits=LimitPolicy(max_concurrency=2))
    picks = [picker.pick(facts(), "p", 0.0) for _ in range(5)]
    assert Counter(one.address for one in picks[:4]) == {address(0): 2, address(1): 2}
    assert (picks[4].status, picks[4].reason) == (429, "saturated")
    assert picks[4].dropped_reason == "rejected-saturated"
    picker.finished(end(picks[0], 1.0), 1.0)
    assert picker.pick(facts(), "p", 1.0).address == picks[0].address


def test_cooldown_alternates_between_equals() -> None:
    picker = picker_of(idle(2), limits=LimitPolicy(cooldown_s=0.2))
    seen = []
    for step in range(6):
        chosen = picker.pick(facts(keys=[77], totals=[10], prompt=10), "p", step * 0.15)  # its key alone has one home
        seen.append(chosen.address)
        picker.finished(end(chosen, step * 0.15 + 0.01), step * 0.15 + 0.01)
    assert all(a != b for a, b in pairwise(seen))


def test_required_labels() -> None:
    rows = [endpoint(0, labels={"gpu": "l4"}), endpoint(1, labels={"gpu": "h200"})]
    picker = picker_of(rows, profile=ProfilePolicy(require_labels={"gpu": "h200"}))
    assert picker.pick(facts(), "p", 0.0).addresses == (address(1),)
    picker = picker_of(rows, profile=ProfilePolicy(require_labels={"gpu": "b300"}))
    refused = picker.pick(facts(), "p", 0.0)
    assert (refused.status, refused.reason) == (429, "filtered")


def test_only_cached_refuses_with_412() -> None:
    picker = picker_of(idle(2))
    keys = list(range(1, 9))
    assert picker.pick(facts(keys=keys), "p", 0.0, only_cached=True).status == 412
    home = picker.pick(facts(keys=keys), "p", 0.0)
    assert picker.pick(facts(keys=keys), "p", 1.0, only_cached=True).address == home.address


# ---------- shedding ----------
def test_shedding_refuses_when_even_the_best_would_be_late() -> None:
    picker = picker_of(idle(2), profile=ProfilePolicy(shed=ShedPolicy(enabled=True)))
    for _ in range(20):
        picker.pick(facts(prompt=10_000), "p", 0.0)
    refused = picker.pick(facts(prompt=1000), "p", 0.0, slo_ttft_s=2.0)
    assert refused.shed
    assert refused.status == 429
    assert refused.retry_after_s >= 1.0
    assert picker.pick(facts(prompt=1000), "p", 0.0, slo_ttft_s=60.0).ok
    assert picker.pick(facts(prompt=1000), "p", 0.0).ok  # a class without a target is not shed


def test_sheddable_classes_are_refused_while_the_pool_is_saturated() -> None:
    profile = ProfilePolicy(shed=ShedPolicy(classes=("batch",)))
    rows = [endpoint(i, at=0.0, running=9, waiting=9, kv_usage=0.5) for i in range(2)]
    picker = picker_of(rows, profile=profile)
    assert picker.pick(facts(service_class="batch"), "p", 0.0).status == 429
    assert picker.pick(facts(service_class="high"), "p", 0.0).ok
    assert picker_of(idle(2), profile=profile).pick(facts(service_class="batch"), "p", 0.0).ok


# ---------- affinity, sessions ----------
def test_affinity_is_a_switch_with_release() -> None:
    profile = ProfilePolicy(rule="affinity", affinity=AffinityPolicy(min_match_ratio=0.5, max_penalty_s=1.0))
    picker = picker_of(idle(3), profile=profile)
    keys = list(range(1, 9))
    home = picker.pick(facts(keys=keys), "p", 0.0)
    state = picker.pool("p")
    assert state is not None
    slot = state.by_address[home.address]
    slot.busy = 10.9
    state.price(slot)
    assert picker.pick(facts(keys=keys), "p", 10.0).address == home.address  # within the bound
    slot.busy = 21.5
    state.price(slot)
    away = picker.pick(facts(keys=keys), "p", 20.0)
    assert away.address != home.address
    unrelated = facts(keys=[*keys[:2], *range(500, 520)])  # a short match binds nobody
    slot.busy = 30.1
    state.price(slot)
    assert picker.pick(unrelated, "p", 30.0).address != home.address


def _session(mode: Any, **more: Any) -> ProfilePolicy:
    return ProfilePolicy(session=SessionPolicy(mode=mode, **more))


def test_sessions_are_found_without_a_table_by_every_processor() -> None:
    rng = random.Random(4)
    one, other = picker_of(idle(8), profile=_session("prefer")), picker_of(idle(8), profile=_session("prefer"))
    for _ in range(200):
        asked = facts(prompt=50, session_key=rng.getrandbits(64))
        first, second = one.pick(asked, "p", 0.0), other.pick(asked, "p", 0.0)
        assert first.address == second.address
        assert first.reason == reasons.SESSION
        one.finished(end(first, 0.0), 0.0)
        other.finished(end(second, 0.0), 0.0)


def test_sessions_move_only_when_their_endpoint_goes_and_come_home() -> None:
    rng = random.Random(9)
    picker = picker_of(idle(6), profile=_session("prefer"))
    keys = [rng.getrandbits(64) for _ in range(120)]

    def places(now: float) -> dict[int, str]:
        found = {}
        for key in keys:
            chosen = picker.pick(facts(prompt=20, session_key=key), "p", now)
            picker.finished(end(chosen, now), now)
            found[key] = chosen.address
        return found

    before = places(1.0)
    rows = [endpoint(i, at=2.0, running=0, waiting=0, pickable=i != 3) for i in range(6)]
    picker.update({"p": pool("p", rows)}, 2.0)
    during = places(2.0)
    assert {key for key in keys if before[key] != during[key]} == {k for k in keys if before[k] == address(3)}
    picker.update({"p": pool("p", idle(6, at=399.0))}, 400.0)
    assert places(400.0) == before


def test_bounded_load_moves_a_session_and_it_stays_where_it_went() -> None:
    picker = picker_of(idle(4), profile=_session("prefer", load_margin=2.0, load_bound=1.0))
    asked = facts(prompt=20, session_key=12345)
    home = picker.pick(asked, "p", 0.0)
    state = picker.pool("p")
    assert state is not None
    for _ in range(20):
        state.by_address[home.address].flight.pick(0.0, 0, 0, 0.0)
    state.price(state.by_address[home.address])
    away = picker.pick(asked, "p", 0.0)
    assert away.address != home.address
    picker.update({"p": pool("p", idle(4, at=1.0))}, 1.0)  # home is free again
    assert picker.pick(asked, "p", 1.0).address == away.address
    assert picker.pick(asked, "p", 1000.0).address == home.address  # forgotten after the TTL


def test_strict_sessions_stay_under_any_load() -> None:
    picker = picker_of(idle(3), profile=_session("strict"))
    asked = facts(prompt=4000, session_key=5)
    assert len({picker.pick(asked, "p", 0.0).address for _ in range(100)}) == 1


def test_a_session_token_pins_and_a_foreign_one_does_nothing() -> None:
    picker = picker_of(idle(4), profile=_session("off", token_header="x-session-token"))
    first = picker.pick(facts(prompt=50), "p", 0.0)
    assert first.token == make_token("p", first.address)
    for _ in range(20):
        assert picker.pick(facts(prompt=5000), "p", 0.0, token=first.token).address == first.address
    for token in ("", "!!", "bm8=", make_token("p", "10.1.1.1:1"), "x" * 10_000):
        assert picker.pick(facts(), "p", 0.0, token=token).ok


# ---------- profiles, scorers ----------
def test_profiles_by_name_class_model_and_pool() -> None:
    policy: dict[str, Any] = {
        "profiles": {"a": ProfilePolicy(), "b": ProfilePolicy(rule="affinity")},
        "use": (
            ProfileChoice(profile="a", model="llama-*", service_class="batch"),
            ProfileChoice(profile="b", pool="p", model="special"),
        ),
    }
    picker = picker_of(idle(2), **policy)
    assert picker.pick(facts(model="llama-8b", service_class="batch"), "p", 0.0).profile == "a"
    assert picker.pick(facts(model="llama-8b"), "p", 0.0).profile == "default"
    assert picker.pick(facts(model="special"), "p", 0.0).profile == "b"
    assert picker.pick(facts(), "p", 0.0, profile="b").profile == "b"
    assert picker.pick(facts(), "p", 0.0, profile="unknown").profile == "default"


def test_scorer_blend_and_its_scores() -> None:
    rows = [
        endpoint(0, at=0.0, running=0, waiting=3, kv_usage=0.2),
        endpoint(1, at=0.0, running=0, waiting=0, kv_usage=0.1),
        endpoint(2, at=0.0, running=0, waiting=10, kv_usage=0.2),
    ]
    profile = ProfilePolicy(rule="scorers", scorers={"queue": 1, "kv": 1})
    chosen = picker_of(rows, profile=profile).pick(facts(), "p", 0.0, want_scores=True)
    assert chosen.address == address(1)
    assert chosen.scores == pytest.approx({address(0): 0.7 + 0.8, address(1): 1.9, address(2): 0.8})


@pytest.mark.parametrize("kind", ["weighted-random", "power-of-two", "random"])
def test_random_pickers_use_every_endpoint_and_prefer_the_better(kind: Any) -> None:
    rows = [endpoint(i, at=0.0, running=0, waiting=0, kv_usage=0.1 if i else 0.9) for i in range(4)]
    profile = ProfilePolicy(rule="scorers", scorers={"kv": 1}, picker=kind)
    picker = picker_of(rows, profile=profile)
    counts = Counter(picker.pick(facts(prompt=1), "p", 0.0).address for _ in range(800))
    better = min(counts[address(i)] for i in (1, 2, 3))
    if kind == "random":
        assert counts[address(0)] > 120
    elif kind == "weighted-random":
        assert 0 < counts[address(0)] < 0.5 * better
    else:
        assert counts[address(0)] < better


@pytest.mark.parametrize(
    "name",
    ["queue", "queue-depth", "running", "kv", "load-aware", "lora", "prefix", "active-request", "token-load",
     "context-length", "session-affinity", "no-hit-lru", "least-latency", "lmetric", "topology"],
)  # fmt: skip
def test_every_scorer_is_there_and_gives_scores_in_range(name: str) -> None:
    rows = [
        endpoint(i, at=0.0, running=i, waiting=i, kv_usage=i / 5, lora_running=("a",), lora_max=2) for i in range(4)
    ]
    picker = picker_of(rows, profile=ProfilePolicy(rule="scorers", scorers={name: 1.0}))
    for step in range(5):
        chosen = picker.pick(facts(keys=[1, 2, 3], lora="a", session_key=9), "p", float(step), want_scores=True)
        assert chosen.scores is not None
        assert all(0.0 <= value <= 1.0 for value in chosen.scores.values())


# ---------- disaggregation ----------
def _pair(at: float = 0.0) -> list[EndpointSnapshot]:
    roles = ("prefill", "prefill", "decode", "decode")
    return [endpoint(i, at=at, running=0, waiting=0, kv_usage=0.0, role=role) for i, role in enumerate(roles)]


def test_a_long_prompt_is_split_and_a_short_or_cached_one_is_not() -> None:
    picker = picker_of(_pair(), profile=ProfilePolicy(disagg=DisaggPolicy(uncached_tokens=512)))
    keys = list(range(1, 17))
    long = picker.pick(facts(keys=keys), "p", 0.0)
    assert long.address in (address(2), address(3))
    assert long.prefill in (address(0), address(1))
    assert set(long.addresses) <= {address(2), address(3)}
    assert picker.pick(facts(prompt=100), "p", 0.0).prefill == ""
    again = picker.pick(facts(keys=keys), "p", 5.0)
    assert again.address == long.address
    assert again.prefill == ""  # its decode endpoint has it now


def test_split_charges_the_prefill_endpoint_and_spreads() -> None:
    picker = picker_of(_pair(), profile=ProfilePolicy(disagg=DisaggPolicy(mode="always")))
    rng = random.Random(1)
    counts: Counter[str] = Counter()
    for _ in range(40):
        counts[picker.pick(facts(keys=[rng.getrandbits(64) for _ in range(12)]), "p", 0.0).prefill] += 1
    assert counts == {address(0): 20, address(1): 20}
    state = picker.pool("p")
    assert state is not None
    assert state.by_address[address(0)].busy > 1.0
    assert state.by_address[address(2)].busy <= 0.001


def test_without_prefill_endpoints_or_with_the_split_off_decode_does_both() -> None:
    picker = picker_of(_pair()[2:])
    assert picker.pick(facts(prompt=9000), "p", 0.0).prefill == ""
    picker = picker_of(_pair(), profile=ProfilePolicy(disagg=DisaggPolicy(mode="off")))
    assert picker.pick(facts(prompt=9000), "p", 0.0).prefill == ""


# ---------- explanations ----------
def test_explain_changes_nothing_and_agrees_with_the_pick() -> None:
    picker = picker_of(idle(5))
    keys = list(range(1, 9))
    picker.pick(facts(keys=keys), "p", 0.0)
    asked = facts(keys=[*keys, 77])
    records = [picker.explain(asked, "p", 1.0) for _ in range(3)]
    chosen = picker.pick(asked, "p", 1.0)
    assert {one.pick.address for one in records} == {chosen.address}
    assert "believed cached" in records[0].why()
    assert records[0].to_dict()["candidates"][0]["address"] == chosen.address
    assert len(records[0].candidates) == 5


def test_records_are_sampled_and_found_by_id() -> None:
    picker = picker_of(idle(3), record_share=1.0, records=10)
    for number in range(25):
        picker.pick(facts(prompt=10), "p", float(number), request_id=f"r-{number}")
    assert [record.id for record in picker.records.newest(3)] == ["r-24", "r-23", "r-22"]
    assert picker.records.find("r-20") is not None
    assert picker.records.find("r-3") is None


def test_explain_says_why_an_endpoint_is_out() -> None:
    picker = picker_of([endpoint(0, pickable=False), endpoint(1), endpoint(2)])
    found = picker.explain(facts(), "p", 0.0, subset=[address(1)])
    out = {one.address: one.excluded for one in found.candidates}
    assert out[address(1)] == ""
    assert out[address(2)] == "filtered"
    assert out[address(0)]


# ---------- policy ----------
def test_policy_refuses_unknown_names() -> None:
    with pytest.raises(ValueError, match="unknown scorer 'queu'"):
        ProfilePolicy(rule="scorers", scorers={"queu": 1.0})
    with pytest.raises(ValueError, match="at least one scorer"):
        ProfilePolicy(rule="scorers")
    with pytest.raises(ValueError, match="names profile 'fast'"):
        PickerPolicy(use=(ProfileChoice(profile="fast"),))
    assert RatesPolicy().learn


@pytest.mark.parametrize(
    ("other", "words"),
    [(0.1, "b:1 costs the same"), (0.1031, "next best b:1 costs 3.1 ms more"), (0.05, "b:1 costs 50 ms less")],
)
def test_the_sentence_of_a_record_says_how_clear_the_choice_was(other: float, words: str) -> None:
    def candidate(name: str, cost: float) -> Candidate:
        return Candidate(name, cost, *(0.0,) * 8, 0, 0.0, 1.0)

    pick = Pick(("a:1",), reasons.LEAST_COST, cost_s=0.1)
    record = Record(0.0, "p", "", "m", 10, 10, 0, False, pick, [candidate("a:1", 0.1), candidate("b:1", other)])
    assert words in record.why()
