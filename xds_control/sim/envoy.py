"""Envoy's own balancing as one Envoy does it: by its own view of active requests and the weights that reached it."""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence
from typing import Literal

Algorithm = Literal["round_robin", "least_request", "random", "maglev"]

_BALANCE_FACTOR = 1.25
_MASK = (1 << 64) - 1


def mix(key: int, place: int) -> int:
    """A 64-bit hash of a key and a host (splitmix64)."""
    x = (key * 0x9E3779B97F4A7C15 + place * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


class Envoy:
    """One Envoy and one cluster. `active`: its own requests by host.

    least_request: power of two choices while all weights are equal, else earliest deadline first by weight ÷
    (active + 1). round_robin: earliest deadline first by weight. maglev: the key's host, and the next ones in the
    key's order while a host has more than 1.25 times the mean (bounded load).
    """

    def __init__(self, hosts: int, algorithm: Algorithm, rng: random.Random) -> None:
        self.active = [0] * hosts
        self.algorithm = algorithm
        self._rng = rng
        self._weights = [1] * hosts
        self._hosts = list(range(hosts))
        self._spill: list[int] = []
        self._equal = True
        self._heap: list[tuple[float, int, int]] = []
        self._order = 0
        self._clock = 0.0
        self._rebuild()

    def update(self, weights: Sequence[int], spill: Sequence[int] = ()) -> None:
        """New weights by host; 0 = takes nothing. spill: hosts of the next priority, used when no other is left."""
        self._weights = list(weights)
        self._hosts = [i for i, w in enumerate(weights) if w > 0 and i not in spill]
        self._spill = [i for i in spill if weights[i] > 0]
        self._rebuild()

    def has(self, host: int) -> bool:
        """Whether the host is in the cluster: override_host asks for no more."""
        return self._weights[host] > 0

    def _rebuild(self) -> None:
        hosts = self._hosts = self._hosts or self._spill or [i for i, w in enumerate(self._weights) if w > 0]
        self._equal = len({self._weights[i] for i in hosts}) <= 1
        self._clock = 0.0
        self._heap = []
        for i in hosts:
            self._order += 1
            # Envoy starts each schedule at a random place, or all Envoys would begin with the same host.
            self._heap.append((self._rng.random() / self._weights[i], self._order, i))
        heapq.heapify(self._heap)

    def choose(self, key: int = 0, exclude: Sequence[int] = ()) -> int:
        """A host for one request, −1 when the cluster is empty. exclude: hosts that this request tried already."""
        hosts = self._hosts
        if not hosts:
            return -1
        for _ in range(3):
            found = self._one(hosts, key, exclude)
            if found not in exclude:
                return found
        rest = [i for i in hosts if i not in exclude]
        return rest[self._rng.randrange(len(rest))] if rest else self._one(hosts, key, ())

    def _one(self, hosts: list[int], key: int, exclude: Sequence[int]) -> int:
        rng, active = self._rng, self.active
        if self.algorithm == "random":
            return hosts[int(rng.random() * len(hosts))]
        if self.algorithm == "maglev":
            bound = max(1.0, _BALANCE_FACTOR * (sum(active[i] for i in hosts) + 1) / len(hosts))
            order = sorted(hosts, key=lambda i: mix(key, i), reverse=True)
            return next((i for i in order if active[i] + 1 <= bound and i not in exclude), order[0])
        if self.algorithm == "least_request" and self._equal:
            one, other = hosts[int(rng.random() * len(hosts))], hosts[int(rng.random() * len(hosts))]
            return one if active[one] <= active[other] else other
        deadline, _, host = heapq.heappop(self._heap)
        self._clock = deadline
        weight = float(self._weights[host])
        if self.algorithm == "least_request":
            weight /= active[host] + 1
        self._order += 1
        heapq.heappush(self._heap, (deadline + 1.0 / weight, self._order, host))
        return host
