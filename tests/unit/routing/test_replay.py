"""A public trace through the picker: affinity without a hot spot."""

from __future__ import annotations

import random

import pytest

from tests.shared import shared_path
from tests.unit.routing.replay import Request, read, replay
from xds_control.policy.picker import PickerPolicy, ProfileChoice
from xds_control.routing.picker import Picker

CAP = 5859  # blocks of 512 tokens: 3 M tokens


def picker(profile: str = "default") -> Picker:
    return Picker(PickerPolicy(record_share=0.0, use=(ProfileChoice(profile=profile),)), seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("rate", [5e-5, 1e-4])
def test_conversation_trace(rate: float) -> None:
    """Round robin gets 0.11 of the blocks; ungated longest prefix 0.14, with everything on one of eight."""
    result = replay(picker(), read(shared_path("traces/mooncake_conversation_trace.jsonl")), 8, CAP, rate)
    assert result.requests == 12_031
    assert result.hit >= 0.33
    assert result.spread <= 1.10


@pytest.mark.slow
def test_synthetic_trace_and_the_affinity_profile() -> None:
    path = shared_path("traces/mooncake_synthetic_trace.jsonl")
    result = replay(picker(), read(path), 8, CAP)
    assert result.hit >= 0.61
    assert result.spread <= 1.25
    sticky = replay(picker("affinity"), read(path), 8, CAP)
    assert sticky.hit >= 0.61
    assert result.ttft_mean <= 1.05 * sticky.ttft_mean


def test_a_block_that_all_prompts_share_draws_nobody_together() -> None:
    rng = random.Random(1)
    requests = []
    for number in range(600):
        group = rng.randrange(60)
        blocks = (0, *(1000 * (group + 1) + i for i in range(6)), 10_000_000 + number)
        requests.append(Request(number * 0.1, len(blocks) * 512, 100, blocks))
    result = replay(picker(), iter(requests), 8, CAP)
    assert result.spread <= 1.5
    assert result.hit >= 0.5
