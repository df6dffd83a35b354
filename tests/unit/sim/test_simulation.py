"""The whole: conservation, determinism, laws of balancing, faults, several Envoys and processors."""

from __future__ import annotations

import random

import pytest

from xds_control.policy.picker import PickerPolicy, ProfilePolicy, ShedPolicy
from xds_control.sim.engine import EngineSpec
from xds_control.sim.faults import Fault, parse
from xds_control.sim.metrics import Figures, figures
from xds_control.sim.ours import OurPolicy, Ours
from xds_control.sim.policies import POLICIES, make
from xds_control.sim.presets import preset
from xds_control.sim.request import Request
from xds_control.sim.simulation import FleetSpec, Run, Simulation
from xds_control.sim.workloads import WORKLOADS

ENGINE = preset("h100-llama-8b")


def simulate(policy: str, fleet: FleetSpec, workload: str, count: int, rate: float, seed: int = 1) -> Run:
    return Simulation(fleet, WORKLOADS[workload](count, rate, seed).requests, make(policy), seed, workload).run()


def figures_of(policy: str, fleet: FleetSpec, workload: str, count: int, rate: float, seed: int = 1) -> Figures:
    return figures(simulate(policy, fleet, workload, count, rate, seed), 2.0, 0.1)


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_answers_everything_and_loses_no_token(policy: str) -> None:
    requests = WORKLOADS["multi-turn"](600, 60, 2).requests
    run = Simulation(FleetSpec([ENGINE] * 4, envoys=2, processors=3), requests, make(policy), 2).run()
    assert len(run.outcomes) == len(requests)
    assert all(o.ok and o.done >= o.first > o.arrived for o in run.outcomes)
    assert sum(run.output_tokens) == sum(r.output for r in requests)
    assert sum(run.prompt_tokens) == sum(r.prompt for r in requests)
    assert sum(run.picks) == len(requests)


@pytest.mark.parametrize("policy", ["ours", "weights", "epp-default", "dynamo-cost"])
def test_the_same_seed_gives_the_same_run_and_another_one_another(policy: str) -> None:
    fleet = FleetSpec([ENGINE] * 3, processors=2, envoys=2)
    one, two, other = (figures_of(policy, fleet, "zipf-prefix", 300, 40, seed) for seed in (1, 1, 2))
    assert one == two
    assert one != other


def _slots(policy: str, seed: int) -> float:
    """Mean time in the system on 8 single servers at load 0.9, with fresh information."""
    rng = random.Random(seed)
    step, mean_steps = 0.002, 100
    spec = EngineSpec(prefill_s=1e-9, decode_s=step, sequence_s=0.0, kv_tokens=10**9, max_seqs=1, caching=False)
    at, requests = 0.0, []
    for i in range(6000):
        at += rng.expovariate(8 * 0.9 / (step * mean_steps))
        requests.append(Request(i, at, 1, 1 + max(1, round(rng.expovariate(1.0 / mean_steps)))))
    run = Simulation(FleetSpec([spec] * 8), requests, make(policy), seed).run()
    return sum(o.done - o.arrived for o in run.outcomes) / len(run.outcomes) / (step * mean_steps)


def test_shortest_queue_beats_two_choices_beats_random() -> None:
    jsq, p2c, chance = (sum(_slots(p, seed) for seed in (1, 2)) / 2 for p in ("jsq", "p2c", "random"))
    assert 1.0 < jsq < p2c < chance
    assert p2c < 0.6 * chance


def test_prefixes_are_found_where_random_placement_finds_few() -> None:
    # 200 groups of 4,000 tokens do not fit into one cache.
    fleet = FleetSpec([ENGINE] * 4)
    ours = figures_of("ours", fleet, "zipf-prefix", 1500, 40)
    blind = figures_of("round_robin", fleet, "zipf-prefix", 1500, 40)
    assert ours.hit_ratio > blind.hit_ratio + 0.1
    assert ours.ttft_p90 < 0.5 * blind.ttft_p90


def test_weights_learn_that_replicas_are_unequal() -> None:
    fleet = FleetSpec([ENGINE.scaled(3.0), ENGINE.scaled(3.0), ENGINE, ENGINE])
    run = simulate("weights", fleet, "uniform", 2500, 60)
    last = run.weight_log[-1][1]
    assert min(last[:2]) > 1.5 * max(last[2:])
    assert figures(run, 2, 0.1).e2e_p50 < figures_of("round_robin", fleet, "uniform", 2500, 60).e2e_p50


def test_a_dead_replica_costs_retries_and_no_answers_that_had_not_begun() -> None:
    fleet = FleetSpec([ENGINE] * 4, faults=(Fault("death", 5.0, 10.0, 1),))
    run = simulate("ours", fleet, "uniform", 1200, 40)
    lost = [o for o in run.outcomes if not o.ok]
    assert all(o.status == 502 and o.first >= 0 and abs(o.done - 5.0) < 1e-9 for o in lost)
    # The endpoint rests after a failure, so few requests try it again.
    assert sum(o.attempts > 1 for o in run.outcomes) < 60
    assert any(o.endpoint == 1 for o in run.outcomes if o.arrived > 16.0), "it must be used again"
    assert not any(o.endpoint == 1 and 5.01 < o.arrived < 14.9 for o in run.outcomes if o.ok)


def test_a_slow_replica_gets_less() -> None:
    fleet = FleetSpec([ENGINE] * 4, faults=(Fault("slow", 0.0, 1e6, 2),))
    run = simulate("ours", fleet, "uniform", 2000, 40)
    assert run.picks[2] < 0.75 * sum(run.picks) / 4


def test_without_a_processor_envoy_goes_on_by_weights() -> None:
    fleet = FleetSpec([ENGINE] * 4, faults=(Fault("processor", 5.0, 5.0, 0),))
    run = simulate("ours", fleet, "shared-prefix", 800, 40)
    assert all(o.ok for o in run.outcomes)
    assert all(o.matched == 0 for o in run.outcomes if 5.01 < o.arrived < 9.99)
    assert any(o.matched > 0 for o in run.outcomes if o.arrived > 10.1)


def test_a_blackout_of_pages_does_not_stop_the_replica() -> None:
    fleet = FleetSpec([ENGINE] * 4, faults=(Fault("blackout", 2.0, 1e6, 0),))
    run = simulate("ours", fleet, "uniform", 800, 40)
    assert all(o.ok for o in run.outcomes)
    assert run.picks[0] > 20


def test_a_cold_replica_is_used_once_it_is_there() -> None:
    fleet = FleetSpec([ENGINE] * 3, faults=(Fault("cold", 0.0, 8.0, 1),))
    run = simulate("ours", fleet, "uniform", 1800, 40)
    assert not any(o.endpoint == 1 for o in run.outcomes if o.arrived < 7.9)
    assert any(o.endpoint == 1 for o in run.outcomes)


def test_refusing_by_prediction_counts_as_rejected() -> None:
    picker = PickerPolicy(profiles={"default": ProfilePolicy(shed=ShedPolicy(enabled=True))})
    requests = WORKLOADS["uniform"](1500, 400, 1).requests
    run = Simulation(
        FleetSpec([ENGINE] * 2), requests, Ours(OurPolicy(picker=picker)), 1
    ).run()  # fmt: skip
    found = figures(run, 2.0, 0.1)
    assert 0.05 < found.rejected < 0.9
    assert found.failed == 0.0
    assert found.ttft_p90 < figures_of("ours", FleetSpec([ENGINE] * 2), "uniform", 1500, 400).ttft_p90


def test_ranks_share_an_endpoint() -> None:
    one = figures_of("least_request", FleetSpec([ENGINE] * 2, ranks=2), "uniform", 500, 30)
    assert one.failed == 0.0
    assert one.goodput == 1.0


@pytest.mark.parametrize("text", ["slow:1", "flood:1:2", "slow:x:2", "slow:1:0", "death:-1:2"])
def test_faults_that_cannot_be_read_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=text.split(":", maxsplit=1)[0]):
        parse(text)


def test_fleets_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        FleetSpec([])
    with pytest.raises(ValueError, match="target 4"):
        FleetSpec([ENGINE] * 2, faults=(parse("slow:1:2:4"),))
