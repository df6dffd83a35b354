"""A pick's trail says of its candidates what the picker's own explanation would have said just before the pick."""

from __future__ import annotations

import dataclasses
import random

import pytest

from tests.unit.routing.fleet import address, endpoint, facts, pool
from xds_control.policy.picker import PickerPolicy, ProfilePolicy
from xds_control.routing.explain import Candidate
from xds_control.routing.picker import Picker
from xds_control.routing.trail import candidates


def same(one: Candidate, other: Candidate) -> bool:
    left, right = dataclasses.asdict(one), dataclasses.asdict(other)
    left.pop("score")
    right.pop("score")
    return all(
        value == pytest.approx(right[name]) if isinstance(value, float) else value == right[name]
        for name, value in left.items()
    )


@pytest.mark.parametrize("affinity", ["least-cost", "scored"])
@pytest.mark.parametrize("seed", range(4))
def test_it_agrees_with_the_explanation(seed: int, affinity: str) -> None:
    rng = random.Random(seed)
    profile = ProfilePolicy() if affinity == "least-cost" else ProfilePolicy(scorers={"queue": 1.0, "kv": 1.0})
    picker = Picker(PickerPolicy(profiles={"default": profile}), seed)
    picker.keeps_trails = True
    now = 100.0
    keys = [rng.getrandbits(64) for _ in range(12)]
    for step in range(60):
        if step % 10 == 0:
            rows = [
                endpoint(
                    i,
                    running=rng.randrange(12),
                    waiting=rng.choice((0, 0, 5)),
                    kv_usage=rng.uniform(0.1, 0.97),
                    at=now,
                    num_blocks=4000,
                    capacity=rng.choice((1.0, 2.0)),
                    lora_max=2,
                    lora_running=("la",) if i % 2 else (),
                )
                for i in range(7)
            ]
            picker.update({"p": pool("p", rows)}, now)
        now += 0.01
        wanted = facts(
            keys=keys[: rng.randrange(13)], prompt=rng.randrange(100, 9000), output=50, lora=rng.choice(("", "la"))
        )
        before = {one.address: one for one in picker.explain(wanted, "p", now).candidates}
        found = picker.pick(wanted, "p", now)
        assert found.addresses
        assert found.trail
        told = candidates(found)
        assert tuple(one.address for one in told) == found.addresses
        for one in told:
            assert same(one, before[one.address]), (one, before[one.address])
        assert told[0].cost_s == pytest.approx(found.cost_s)
        assert told[0].expected_ttft_s == pytest.approx(found.expected_ttft_s)


def test_what_happens_later_does_not_change_it() -> None:
    picker = Picker(PickerPolicy(), 1)
    picker.keeps_trails = True
    picker.update({"p": pool("p", [endpoint(i, running=i, waiting=0, at=0.0) for i in range(3)])}, 0.0)
    first = picker.pick(facts(prompt=4000), "p", 0.0)
    assert first.trail
    then = candidates(first)
    for step in range(200):
        picker.pick(facts(prompt=8000), "p", 0.01 * step)
    picker.update({"p": pool("p", [endpoint(9, running=0, waiting=0, at=3.0)])}, 3.0)
    assert candidates(first) == then
    assert address(9) not in {one.address for one in then}


def test_it_can_be_left_out() -> None:
    picker = Picker(PickerPolicy(), 1)
    picker.update({"p": pool("p", [endpoint(0, running=0, waiting=0, at=0.0)])}, 0.0)
    assert picker.pick(facts(), "p", 0.0).trail == b""
