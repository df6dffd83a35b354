"""Time of one pick among 100 and 1000 endpoints: full cost, prefix match on 64 hashes, charge and remembering.

    python -m tests.bench.pick [--seconds N]

A third of the requests extend a known prompt, a third repeat one, a third are new behind a shared first block.
Scrapes arrive as they would, between the timed picks. `us_..._kept`: with what explanations of the pick need, which
processors keep of every one (`processors.requests.notable`).
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import time

from tests.unit.routing.fleet import endpoint, facts, pool
from xds_control.policy.picker import PickerPolicy
from xds_control.routing.picker import Picker

BLOCKS = 64
TOKENS = 64


def chain(rng: random.Random, head: tuple[int, ...], blocks: int) -> tuple[int, ...]:
    """`head` and further random hashes up to so many blocks."""
    return head[:blocks] + tuple(rng.getrandbits(64) for _ in range(blocks - len(head)))


def microseconds(endpoints: int, seconds: float, seed: int = 1, verbose: bool = False, trails: bool = False) -> float:
    """Median over batches of the mean time of one pick."""
    rng = random.Random(seed)
    picker = Picker(PickerPolicy(), seed)
    picker.keeps_trails = trails
    now = 1000.0
    shared = rng.getrandbits(64)
    totals = tuple((i + 1) * TOKENS for i in range(BLOCKS))
    known: list[tuple[int, ...]] = []

    def snapshot() -> None:
        rows = [
            endpoint(
                i,
                running=rng.randrange(16),
                waiting=rng.choice((0, 0, 0, 2)),
                kv_usage=rng.uniform(0.1, 0.55),
                at=now,
                num_blocks=60_000,
            )
            for i in range(endpoints)
        ]
        picker.update({"p": pool("p", rows)}, now)

    def request() -> tuple[int, ...]:
        kind = rng.random()
        if known and kind < 1 / 3:
            return rng.choice(known)
        if known and kind < 2 / 3:
            return chain(rng, rng.choice(known)[:48], BLOCKS)
        return chain(rng, (shared,), BLOCKS)

    snapshot()
    batches: list[float] = []
    until = time.perf_counter() + seconds
    warm = 0
    while time.perf_counter() < until or len(batches) < 3:
        now += 0.2
        snapshot()
        spent = 0.0
        for _ in range(20):
            # Few at a time: in a processor the hashes of a request have just been computed, and are in the cache.
            jobs = []
            for _ in range(10):
                keys = request()
                known.append(keys)
                jobs.append(facts(keys=tuple(key ^ 0 for key in keys), totals=totals, prompt=BLOCKS * TOKENS))
            begin = time.thread_time()
            for job in jobs:
                now += 0.0005
                picker.pick(job, "p", now)
            spent += time.thread_time() - begin
        del known[:-2000]
        warm += 1
        if warm > 3:
            batches.append(spent / 200)
    if verbose:
        best, median = min(batches) * 1e6, statistics.median(batches) * 1e6
        print(f"{endpoints} endpoints: best batch {best:.1f} us, median {median:.1f} us")
    return statistics.median(batches) * 1e6


def main() -> None:
    """Prints one JSON line."""
    gc.set_threshold(50_000, 20, 50)  # as in a processor
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=6.0)
    seconds = parser.parse_args().seconds / 4
    result = {}
    for endpoints in (100, 1000):
        result[f"us_{endpoints}"] = round(microseconds(endpoints, seconds, verbose=True), 1)
        result[f"us_{endpoints}_kept"] = round(microseconds(endpoints, seconds, trails=True), 1)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
