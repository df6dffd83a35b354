"""In-flight counts: anchored at scrapes, robust to whatever is lost."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.routing.fleet import address, endpoint, facts, pool
from xds_control.policy.picker import LimitPolicy, PickerPolicy
from xds_control.routing import pick as reasons
from xds_control.routing.outcome import Finished
from xds_control.routing.outstanding import InFlight
from xds_control.routing.picker import Picker
from xds_control.routing.share import Outstanding, Share


def test_a_pick_counts_at_once_and_its_end_takes_it_back() -> None:
    flight = InFlight()
    flight.pick(1.0, 100, 120, 1.1)
    flight.pick(2.0, 100, 120, 2.1)
    assert flight.count == 2
    flight.end(1.0, 3.0)
    assert flight.count == 1
    assert flight.own == 1


def test_a_scrape_replaces_what_came_before_it() -> None:
    flight = InFlight()
    for at in (1.0, 2.0, 3.0):
        flight.pick(at, 0, 0, at)
    flight.anchor(7.0, 2.5)  # the engine knows of seven, our first two among them
    assert flight.count == 8
    flight.end(1.0, 2.2)  # ended before the scrape: it is not among the seven
    assert flight.count == 8
    flight.end(2.0, 4.0)
    assert flight.count == 7


def test_a_limit_holds_though_a_scrape_came_before_the_request() -> None:
    def scraped(at: float, running: int) -> None:
        picker.update({"p": pool("p", [endpoint(0, at=at, running=running, waiting=0)])}, at)

    picker = Picker(PickerPolicy(limits=LimitPolicy(max_concurrency=1)))
    scraped(0.0, 0)
    assert picker.pick(facts(), "p", 1.0).ok
    scraped(1.01, 0)  # the engine has not seen it yet
    assert picker.pick(facts(), "p", 1.02).reason == reasons.SATURATED
    scraped(1.2, 1)
    assert not picker.pick(facts(), "p", 1.22).ok
    scraped(2.0, 0)  # it has ended, and nobody said so
    assert picker.pick(facts(), "p", 2.02).ok


def test_a_pick_that_went_elsewhere_does_not_count() -> None:
    flight = InFlight()
    flight.pick(1.0, 0, 0, 1.0)
    flight.moved(1.0)
    assert flight.count == 0
    flight.pick(2.0, 0, 0, 2.0)
    flight.anchor(0.0, 3.0)
    flight.moved(2.0)  # the scrape has settled it
    assert flight.count == 0


def test_lost_ends_are_forgotten_with_their_leases() -> None:
    flight = InFlight()
    for at in range(10):
        flight.pick(float(at), 0, 0, float(at))
    for at in range(5):
        flight.end(float(at), at + 5.0)  # the other five are lost
    assert flight.count == 5
    flight.expire(1000.0, 600.0)
    assert flight.count == 0
    flight.pick(1001.0, 0, 0, 1001.0)
    flight.expire(1002.0, 600.0)
    assert flight.count == 1


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 30), st.floats(0.0, 0.5), st.booleans())
def test_steady_traffic_without_scrapes_does_not_drift(seed: int, lost: float, shuffled: bool) -> None:
    """Requests of 5 s; some ends never come. What is believed stays near what is open plus a lease's losses."""
    rng = random.Random(seed)
    flight = InFlight()
    open_: list[tuple[float, float]] = []
    lease, rate = 60.0, 1.0
    for second in range(2000):
        now = float(second)
        flight.pick(now, 0, 0, now)
        open_.append((now, now + rng.uniform(1, 9)))
        if shuffled:
            rng.shuffle(open_)
        for one in [one for one in open_ if one[1] <= now]:
            open_.remove(one)
            if rng.random() >= lost:
                flight.end(*one)
        flight.expire(now, lease)
    assert flight.count >= len(open_) - 2
    assert flight.count <= len(open_) + 2 + lost * rate * lease * 1.6 + 3


def test_a_newcomer_counts_as_the_mean_until_it_is_scraped() -> None:
    flight = InFlight()
    flight.assume(6.0)
    assert flight.count == 6
    flight.assume(0.0)
    assert flight.count == 0


def test_four_processors_agree_with_the_engines_though_one_is_killed_every_minute() -> None:
    """Eight engines, four processors, ten minutes: nobody's count of an endpoint leaves the engine's own by more than
    what was picked or ended since the last exchange."""
    rng = random.Random(5)
    names = [address(i) for i in range(8)]
    engines: dict[str, list[tuple[float, float]]] = {name: [] for name in names}

    def fresh() -> Picker:
        return Picker(PickerPolicy(record_share=0.0), rng.getrandbits(30))

    pickers = [fresh() for _ in range(4)]
    logs = 0  # the processor to which Envoy sends its access log
    scraped = dict.fromkeys(names, 0.0)
    pending: list[tuple[float, Finished, float]] = []
    worst = 0.0
    moved: dict[str, int] = dict.fromkeys(names, 0)

    def tell(targets: list[Picker], now: float) -> None:
        rows = [
            endpoint(i, running=scraped[name], waiting=0.0, at=scrape_at, kv_usage=0.1) for i, name in enumerate(names)
        ]
        for picker in targets:
            picker.update({"p": pool("p", rows)}, now)

    scrape_at = 0.0
    tell(pickers, 0.0)
    tick = 0
    while tick < 6000:  # 0.1 s each
        tick += 1
        now = tick / 10.0
        if tick % 600 == 0:
            victim = (tick // 600) % 4
            pickers[victim] = fresh()
            tell([pickers[victim]], now)
            logs = (victim + 1) % 4
        if tick % 10 == 0:
            scrape_at = now - 0.05
            scraped = {name: float(sum(s <= scrape_at < e for s, e in rows)) for name, rows in engines.items()}
            tell(pickers, now)
            moved = dict.fromkeys(names, 0)
        for _ in range(rng.randrange(3, 9)):
            at = now - rng.random() * 0.1
            chosen = pickers[rng.randrange(4)].pick(facts(prompt=300, output=50), "p", now)
            lasts = rng.uniform(0.5, 4.0)
            engines[chosen.address].append((at, at + lasts))
            moved[chosen.address] += 1
            done = Finished("p", chosen.address, chosen.address, e2e_s=lasts, prompt_tokens=300, completion_tokens=50)
            pending.append((at + lasts, done, at + lasts))
        for item in [item for item in pending if item[0] <= now]:
            pending.remove(item)
            pickers[logs].finished(item[1], now, ended_at=item[2])
            moved[item[1].endpoint] += 1
        for name, rows in engines.items():
            engines[name] = [one for one in rows if one[1] > now - 1.0]
        shares = [picker.drain_share(now) for picker in pickers]
        for number, picker in enumerate(pickers):
            sums: dict[str, list[int]] = {}
            for other, share in enumerate(shares):
                if other != number:
                    for one in share.outstanding:
                        entry = sums.setdefault(one.endpoint, [0, 0, 0])
                        entry[0] += one.requests
                        entry[1] += one.prefill_tokens
            told = [Outstanding(name, *values) for name, values in sums.items()]
            picker.merge_peers(Share(outstanding=told), now)
            state = picker.pool("p")
            assert state is not None
            for name in names:
                true = sum(s <= now < e for s, e in engines[name])
                off = abs(state.by_address[name].flight.count - true)
                worst = max(worst, off - moved[name])
    assert worst <= 2.0
