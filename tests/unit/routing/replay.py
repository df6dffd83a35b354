"""Replays a trace of block hashes through a picker against replicas with real LRU caches.

Each replica reads prompts one after the other at a fixed speed and keeps an LRU cache of blocks; answers come
back as access-log outcomes, load as scrapes. Enough to see who gets what and what was cached; not a simulator.
"""

from __future__ import annotations

import heapq
import json
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import xxhash

from tests.unit.routing.fleet import address, endpoint, facts, pool
from xds_control.routing.outcome import Finished
from xds_control.routing.picker import Picker

BLOCK = 512


@dataclass(frozen=True)
class Request:
    """One row of a trace: arrival in seconds, prompt and output tokens, block ids."""

    at: float
    prompt: int
    output: int
    blocks: tuple[int, ...]


def read(path: Path, limit: int | None = None) -> Iterator[Request]:
    """Rows of a Mooncake trace. Rows of one time step are spread over it evenly, in order."""
    rows = [json.loads(line) for line in path.read_text().splitlines()[:limit]]
    times = sorted({row["timestamp"] for row in rows})
    after = dict(zip(times, [*times[1:], times[-1] + 3000], strict=True))
    count: dict[int, int] = {}
    for row in rows:
        count[row["timestamp"]] = count.get(row["timestamp"], 0) + 1
    seen: dict[int, int] = {}
    for row in rows:
        step = row["timestamp"]
        place = seen[step] = seen.get(step, -1) + 1
        at = step + (after[step] - step) * place / count[step]
        yield Request(at / 1000.0, row["input_length"], row["output_length"], tuple(row["hash_ids"]))


class Replica:
    """An engine: a queue of prefills at `rate` seconds per token, an LRU cache of `cap` blocks."""

    def __init__(self, cap: int, rate: float) -> None:
        self.cap = cap
        self.rate = rate
        self.cache: OrderedDict[int, None] = OrderedDict()
        self.free_at = 0.0
        self.load = 0
        self.open = 0

    def serve(self, request: Request, now: float) -> tuple[int, float, float]:
        """Cached blocks, time to first token, and seconds until the answer's end."""
        cache = self.cache
        hit = 0
        for block in request.blocks:
            if block not in cache:
                break
            hit += 1
        for block in request.blocks:
            if block in cache:
                cache.move_to_end(block)
            else:
                cache[block] = None
        while len(cache) > self.cap:
            cache.popitem(last=False)
        missed = len(request.blocks) - hit
        self.load += missed
        self.open += 1
        self.free_at = max(now, self.free_at) + missed * BLOCK * self.rate
        ttft = self.free_at - now + 0.02
        return hit, ttft, ttft + request.output * 0.02


@dataclass
class Result:
    """hit: cached blocks ÷ blocks. spread: busiest replica ÷ mean, by blocks that had to be read."""

    hit: float
    spread: float
    requests: int
    shares: list[int]
    ttft_mean: float


def replay(picker: Picker, requests: Iterator[Request], replicas: int, cap: int, rate: float = 1e-4) -> Result:
    """Runs the trace. Load is scraped once a second."""
    engines = {address(i): Replica(cap, rate) for i in range(replicas)}
    tokens = cap * BLOCK

    def scrape(now: float) -> None:
        rows = [
            endpoint(
                i,
                running=engines[address(i)].open,
                waiting=0,
                kv_usage=min(0.9, engines[address(i)].open * 12_000 / tokens),
                at=now,
                num_blocks=tokens // 16,
            )
            for i in range(replicas)
        ]
        picker.update({"p": pool("p", rows)}, now)

    scrape(0.0)
    next_scrape = 1.0
    ends: list[tuple[float, int, str, Finished]] = []
    hits = blocks = count = 0
    waited = 0.0
    keys = {}
    for request in requests:
        while next_scrape <= request.at or (ends and ends[0][0] <= request.at):
            if ends and ends[0][0] <= next_scrape:
                at, _, where, outcome = heapq.heappop(ends)
                engines[where].open -= 1
                picker.finished(outcome, at)
            else:
                scrape(next_scrape)
                next_scrape += 1.0
        for block in request.blocks:
            if block not in keys:
                keys[block] = xxhash.xxh3_64_intdigest(block.to_bytes(8, "little"))
        totals = [min((i + 1) * BLOCK, request.prompt) for i in range(len(request.blocks))]
        found = picker.pick(
            facts(keys=[keys[b] for b in request.blocks], totals=totals, prompt=request.prompt, output=350),
            "p",
            request.at,
        )
        where = found.address
        hit, ttft, lasts = engines[where].serve(request, request.at)
        waited += ttft
        hits += hit
        blocks += len(request.blocks)
        count += 1
        outcome = Finished(
            "p",
            where,
            where,
            matched_tokens=found.matched_tokens,
            prompt_tokens=request.prompt,
            completion_tokens=request.output,
            cached_tokens=min(hit * BLOCK, request.prompt),
            ttft_s=ttft,
            decode_s=lasts - ttft,
            e2e_s=lasts,
        )
        heapq.heappush(ends, (request.at + lasts, count, where, outcome))
    loads = [engine.load for engine in engines.values()]
    return Result(hits / blocks, max(loads) / (sum(loads) / len(loads)), count, loads, waited / count)
