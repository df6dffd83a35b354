"""Control tick of one pool with full signals: `python -m tests.bench.tick [--seconds N] [--endpoints N]`.

p50_ms and p99_ms are a whole tick: weights of all endpoints, the sentence of each, and the full explanation of each.
weights_p50_ms and weights_p99_ms are the weights alone, as a tick does when nobody asks why.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import time
import tracemalloc

from xds_control.fleet.endpoint import Endpoint, Locality
from xds_control.fleet.rates import LearnedRates
from xds_control.fleet.readings import Reading
from xds_control.fleet.snapshot import State
from xds_control.policy.weights import WeightsPolicy
from xds_control.weights import EndpointInput, PoolWeights, WeightEngine

_RATIOS = ("kv_usage", "kv_hit_ratio", "gpu_mem_used_ratio", "gpu_util", "gpu_mem_bw_util", "slo_attainment")
_OTHERS = {
    "running": 48.0,
    "waiting": 3.0,
    "waiting_tokens": 4000.0,
    "preemptions": 0.05,
    "prefill_tps": 9000.0,
    "decode_tps": 2200.0,
    "ttft": 0.4,
    "tpot": 0.03,
    "queue_time": 0.05,
    "gpu_mem_free_bytes": 12e9,
    "gpu_temp": 60.0,
    "gpu_power_ratio": 0.8,
    "gpu_throttled": 0.0,
    "error_rate": 0.004,
    "oom_count": 0.0,
    "xid": 0.0,
    "ecc_uncorrected": 0.0,
    "max_running": 256.0,
    "asleep": 0.0,
    "net_tx_ratio": 0.2,
}


def fleet(count: int, seed: int) -> list[Endpoint]:
    """Endpoints of three kinds in four zones."""
    rng = random.Random(seed)
    return [
        Endpoint(
            f"10.{i >> 8}.{i & 255}.7:8000",
            "chat",
            capacity=rng.choice([1.0, 1.0, 2.3]),
            locality=Locality("eu", f"eu-{i % 4}"),
            gpu_memory_need_bytes=4e9,
        )
        for i in range(count)
    ]


def moment(endpoints: list[Endpoint], now: float, rng: random.Random) -> list[EndpointInput]:
    """Fresh readings of every signal for every endpoint."""
    made = []
    for endpoint in endpoints:
        at = now - rng.random()
        readings = {name: Reading(rng.uniform(0.2, 0.9), at, "vllm") for name in _RATIOS}
        readings.update({name: Reading(value * rng.uniform(0.7, 1.3), at, "vllm") for name, value in _OTHERS.items()})
        made.append(
            EndpointInput(
                endpoint,
                State.READY,
                now - 1000.0,
                readings,
                LearnedRates(9000.0, 2200.0, rng.uniform(0.9, 1.1), 6.0, None, 1.0, now),
                request_rate=rng.uniform(3.0, 5.0),
            )
        )
    return made


def explain_all(result: PoolWeights) -> int:
    """Makes every explanation; returns how many factors they have, so that the work cannot be optimised away."""
    return sum(len(e.explanation.factors) for e in result.endpoints)


def quantile(values: list[float], q: float) -> float:
    """The q-quantile of measured values."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(q * len(ranked)))]


def main() -> None:
    """Runs the benchmark and prints one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--endpoints", type=int, default=1000)
    options = parser.parse_args()
    rng = random.Random(7)
    endpoints = fleet(options.endpoints, 7)
    moments = [moment(endpoints, 100.0 + 0.2 * k, rng) for k in range(8)]
    engine = WeightEngine(WeightsPolicy(), pool="chat")
    whole: list[float] = []
    weights: list[float] = []
    cpu: list[float] = []
    pushes = ticks = 0
    # As the long-running processes do it: what is there at the start is frozen, collections are rare.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    end = time.perf_counter() + options.seconds
    while time.perf_counter() < end or ticks < 20:
        now = 100.0 + 0.2 * ticks
        inputs = moments[ticks % len(moments)]
        shifted = [_at(item, now) for item in inputs]
        started, cpu_started = time.perf_counter(), time.process_time()
        result = engine.tick(shifted, now)
        weighed = time.perf_counter()
        explain_all(result)
        cpu.append((time.process_time() - cpu_started) * 1e3)
        whole.append((time.perf_counter() - started) * 1e3)
        weights.append((weighed - started) * 1e3)
        pushes += result.changed
        ticks += 1
    tracemalloc.start()
    engine.tick([_at(item, 1e6) for item in moments[0]], 1e6)
    before = tracemalloc.take_snapshot()
    tracemalloc.reset_peak()
    base = tracemalloc.get_traced_memory()[0]
    result = engine.tick(moments[1], 1e6 + 0.2)
    explain_all(result)
    peak = tracemalloc.get_traced_memory()[1] - base
    after = tracemalloc.take_snapshot()
    tracemalloc.stop()
    blocks = sum(s.count for s in after.statistics("filename")) - sum(s.count for s in before.statistics("filename"))
    print(
        json.dumps(
            {
                "p50_ms": round(quantile(whole, 0.5), 2),
                "p99_ms": round(quantile(whole, 0.99), 2),
                "cpu_p50_ms": round(quantile(cpu, 0.5), 2),
                "cpu_p99_ms": round(quantile(cpu, 0.99), 2),
                "weights_p50_ms": round(quantile(weights, 0.5), 2),
                "weights_p99_ms": round(quantile(weights, 0.99), 2),
                "peak_kb_per_tick": round(peak / 1024),
                "blocks_held_by_explanations": blocks,
                "endpoints": options.endpoints,
                "signals": len(_RATIOS) + len(_OTHERS),
                "ticks": ticks,
                "pushes": pushes,
            }
        )
    )


def _at(item: EndpointInput, now: float) -> EndpointInput:
    """The same readings, taken just now."""
    readings = {name: Reading(r.value, now - 0.1, r.source) for name, r in item.readings.items()}
    return EndpointInput(
        item.endpoint, item.state, item.state_since, readings, item.learned, request_rate=item.request_rate
    )


if __name__ == "__main__":
    main()
