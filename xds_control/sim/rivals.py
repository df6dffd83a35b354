"""Models of the published rules of others. Each says what it is a model of; none is the program itself."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from xds_control.sim.engine import Gauges
from xds_control.sim.request import Request
from xds_control.sim.router import Processes, World


class ApproxIndex:
    """Which host was sent which block: a set of hosts per key, and a list of keys per host, oldest use evicted."""

    def __init__(self, capacities: Sequence[int]) -> None:
        self._holders: dict[int, int] = {}
        self._uses: list[OrderedDict[int, None]] = [OrderedDict() for _ in capacities]
        self._capacities = capacities

    def match(self, keys: Sequence[int], hosts: int) -> list[int]:
        """Leading blocks held by each host, without gaps."""
        found = [0] * hosts
        alive = (1 << hosts) - 1
        depth = 0
        for key in keys:
            holders = alive & self._holders.get(key, 0)
            if holders != alive:
                gone = alive & ~holders
                while gone:
                    low = gone & -gone
                    found[low.bit_length() - 1] = depth
                    gone ^= low
                alive = holders
                if not alive:
                    return found
            depth += 1
        while alive:
            low = alive & -alive
            found[low.bit_length() - 1] = depth
            alive ^= low
        return found

    def add(self, host: int, keys: Sequence[int]) -> None:
        """The host was sent these blocks."""
        uses, bit, holders = self._uses[host], 1 << host, self._holders
        for key in keys:
            if key in uses:
                uses.move_to_end(key)
            else:
                uses[key] = None
                holders[key] = holders.get(key, 0) | bit
        over = len(uses) - self._capacities[host]
        while over > 0:
            key, _ = uses.popitem(last=False)
            left = holders[key] & ~bit
            if left:
                holders[key] = left
            else:
                del holders[key]
            over -= 1

    def size(self, host: int) -> int:
        """Blocks listed for a host."""
        return len(self._uses[host])


class _Indexed(Processes):
    """A policy with an approximate prefix index in each process."""

    def start(self, world: World) -> None:
        """Sizes the index by the engines' own caches."""
        super().start(world)
        sizes = [max(1, tokens // world.block) for tokens in world.kv_tokens]
        self.indexes = [ApproxIndex(sizes) for _ in range(world.processors)]


class EppDefault(_Indexed):
    """Model of the Gateway API endpoint picker's default blend: queue 2, KV use 2, prefix 3, highest score, ties at
    random; pages every 50 ms; the prefix score is matched ÷ total blocks of its own approximate index."""

    name = "epp-default"
    scrape_s = 0.05
    stale_s = 2.0

    def start(self, world: World) -> None:
        """Nothing is known of any load."""
        super().start(world)
        self._queue = [0.0] * world.hosts
        self._kv = [0.0] * world.hosts

    def scraped(self, host: int, gauges: Gauges | None, at: float, now: float) -> None:
        """Waiting requests and KV use."""
        if gauges is not None:
            self._queue[host] = float(gauges.waiting)
            self._kv[host] = gauges.kv_usage

    def choose(self, request: Request, now: float, processor: int) -> int:
        """The highest sum of scores."""
        index = self.indexes[processor]
        matched = index.match(request.keys, self.hosts)
        total = max(1, len(request.keys))
        low, high = min(self._queue), max(self._queue)
        spread = high - low
        costs = []
        for i in range(self.hosts):
            queue = (high - self._queue[i]) / spread if spread > 0 else 1.0
            costs.append(-(2.0 * queue + 2.0 * (1.0 - self._kv[i]) + 3.0 * matched[i] / total))
        host = self.least(costs, processor)
        index.add(host, request.keys)
        return host


class StickyUntilSaturated(_Indexed):
    """Model of llm-d's default of 2026-08: hosts with at least 80 % of the prompt stay unless the best of them is
    18 s (at 15,928 tokens/s, or the fleet's own peak) behind the best other one; then the least uncached tokens in
    flight. Tokens are released at the first token."""

    name = "sticky-until-saturated"
    threshold = 0.8
    penalty_s = 18.0

    def start(self, world: World) -> None:
        """Nothing in flight. The peak rate is the first engine's: one measurement per model and GPU is usual."""
        super().start(world)
        self._peak = float(world.options.get("peak_prefill_tps", 15928.0))
        self._tokens = [[0.0] * world.hosts for _ in range(world.processors)]
        self._charged: dict[int, tuple[int, int, float]] = {}

    def choose(self, request: Request, now: float, processor: int) -> int:
        """Sticky, else the least tokens in flight with this request's own uncached ones."""
        index = self.indexes[processor]
        matched = index.match(request.keys, self.hosts)
        total = max(1, len(request.keys))
        tokens = self._tokens[processor]
        load = [tokens[i] + request.prompt - matched[i] * request.block for i in range(self.hosts)]
        warm = [i for i in range(self.hosts) if request.keys and matched[i] / total >= self.threshold]
        among: list[int] | None = None
        if warm:
            best = min(load)
            if (min(load[i] for i in warm) - best) / self._peak <= self.penalty_s:
                among = warm
        host = self.least(load, processor, among)
        uncached = float(request.prompt - matched[host] * request.block)
        tokens[host] += uncached
        self._charged[request.index] = (processor, host, uncached)
        index.add(host, request.keys)
        return host

    def first_token(self, request: Request, host: int, processor: int, now: float) -> None:
        """Its tokens are read."""
        self._release(request)

    def ended(self, request: Request, host: int, processor: int, now: float) -> None:
        """It ended, perhaps without a token."""
        super().ended(request, host, processor, now)
        self._release(request)

    def _release(self, request: Request) -> None:
        charged = self._charged.pop(request.index, None)
        if charged is not None:
            processor, host, tokens = charged
            self._tokens[processor][host] -= tokens


class SglangCacheAware(_Indexed):
    """Model of SGLang gateway's cache_aware (0.3, 64, 1.5): shortest queue when max − min > 64 and max > 1.5 min; else
    the longest match when it is over 30 % of the prompt, else the smallest tree. Trees forget with the caches."""

    name = "sglang-cache-aware"
    threshold = 0.3
    absolute = 64
    relative = 1.5

    def choose(self, request: Request, now: float, processor: int) -> int:
        """Balance, match, or the smallest tree."""
        index = self.indexes[processor]
        flight = self.flight[processor]
        most, fewest = max(flight), min(flight)
        if most - fewest > self.absolute and most > self.relative * fewest:
            host = self.least(flight, processor)
        else:
            matched = index.match(request.keys, self.hosts)
            best = max(matched)
            if request.keys and best / len(request.keys) > self.threshold:
                host = matched.index(best)
            else:
                host = self.least([float(index.size(i)) for i in range(self.hosts)], processor)
        index.add(host, request.keys)
        return host


class DynamoCost(_Indexed):
    """Model of Dynamo's KV router: cost = prefill blocks (active + incoming − overlap, at least 0) + decode blocks, the
    distinct blocks of what runs there with the request's own; the least wins. Prefill is released at the first
    token, decode blocks at the end. No replica sync."""

    name = "dynamo-cost"

    def start(self, world: World) -> None:
        """Nothing is active."""
        super().start(world)
        self._prefill = [[0.0] * world.hosts for _ in range(world.processors)]
        self._active: list[list[dict[int, int]]] = [[{} for _ in range(world.hosts)] for _ in range(world.processors)]
        self._charged: dict[int, tuple[int, int]] = {}
        self._work: dict[int, float] = {}

    def choose(self, request: Request, now: float, processor: int) -> int:
        """The least cost in blocks."""
        index = self.indexes[processor]
        keys = request.keys
        matched = index.match(keys, self.hosts)
        prefill, active = self._prefill[processor], self._active[processor]
        incoming = request.prompt / request.block
        costs = []
        for i in range(self.hosts):
            running = active[i]
            shared = 0
            for key in keys:
                if key not in running:
                    break
                shared += 1
            decode = len(running) + incoming - shared
            costs.append(max(0.0, prefill[i] + incoming - matched[i]) + decode)
        host = self.least(costs, processor)
        work = max(0.0, incoming - matched[host])
        prefill[host] += work
        running = active[host]
        for key in keys:
            running[key] = running.get(key, 0) + 1
        self._charged[request.index] = (processor, host)
        self._work[request.index] = work
        index.add(host, keys)
        return host

    def first_token(self, request: Request, host: int, processor: int, now: float) -> None:
        """Its prefill is done."""
        work = self._work.pop(request.index, 0.0)
        charged = self._charged.get(request.index)
        if charged is not None:
            self._prefill[charged[0]][charged[1]] -= work

    def ended(self, request: Request, host: int, processor: int, now: float) -> None:
        """Its blocks are free."""
        super().ended(request, host, processor, now)
        self.first_token(request, host, processor, now)
        charged = self._charged.pop(request.index, None)
        if charged is None:
            return
        running = self._active[charged[0]][charged[1]]
        for key in request.keys:
            count = running[key] - 1
            if count:
                running[key] = count
            else:
                del running[key]
