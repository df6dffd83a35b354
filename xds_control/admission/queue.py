"""Requests that wait until an endpoint has room: bounded, by priority, fair among tenants, never longer than allowed.

Nothing is held but the answer: the body stays in the stream that waits. Time is passed in; whoever waits is told by
the callback that it left.
"""

from __future__ import annotations

import enum
import heapq
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Final

_LEFT: Final = 64  # deadlines of those who left that are not worth an effort


class Outcome(enum.Enum):
    """How a wait ended, or why there was none."""

    ADMITTED = "admitted"
    FULL = "queue-full"
    EVICTED = "queue-evicted"
    EXPIRED = "queue-expired"
    STOPPED = "stopping"


@dataclass(slots=True, eq=False)
class Waiting:
    """One request. priority: higher goes first. size: bytes that it keeps in memory. until: when it is refused.

    outcome: None while it waits. told: called once with the outcome; set it before or after, it is called either way.
    """

    pool: str
    priority: int
    tenant: str
    size: int
    until: float
    outcome: Outcome | None = None
    told: Callable[[Outcome], None] | None = None

    def end(self, outcome: Outcome) -> None:
        """It waits no more."""
        self.outcome = outcome
        if self.told is not None:
            self.told(outcome)

    def listen(self, told: Callable[[Outcome], None]) -> None:
        """Says who is to be told."""
        self.told = told
        if self.outcome is not None:
            told(self.outcome)


@dataclass(slots=True)
class _Level:
    """Those of one priority in one pool: tenants in turn, each in the order of arrival."""

    tenants: OrderedDict[str, OrderedDict[Waiting, None]] = field(default_factory=OrderedDict)

    def put(self, one: Waiting) -> None:
        self.tenants.setdefault(one.tenant, OrderedDict())[one] = None

    def first(self) -> Waiting:
        """The next one: the first of the tenant whose turn it is, which is then another's."""
        tenant, line = next(iter(self.tenants.items()))
        self.tenants.move_to_end(tenant)
        return next(iter(line))

    def newest(self) -> Waiting:
        """The last that came, of the tenant that has most waiting."""
        longest = max(self.tenants.values(), key=lambda line: len(line))
        return next(reversed(longest))

    def remove(self, one: Waiting) -> None:
        line = self.tenants[one.tenant]
        del line[one]
        if not line:
            del self.tenants[one.tenant]


class Queue:
    """Everything that waits in one processor. max_requests, max_bytes: its bounds."""

    def __init__(self, max_requests: int, max_bytes: int) -> None:
        self.max_requests = max_requests
        self.max_bytes = max_bytes
        self.bytes = 0
        self._waiting: Counter[str] = Counter()  # by pool
        self._all = 0
        self._levels: dict[str, dict[int, _Level]] = {}  # neither pools nor levels are empty
        self._deadlines: list[tuple[float, int, Waiting]] = []
        self._numbers = count()

    def __len__(self) -> int:
        return self._all

    def waiting(self, pool: str) -> int:
        """How many wait for a pool."""
        return self._waiting[pool]

    @property
    def pools(self) -> list[str]:
        """Pools for which somebody waits."""
        return list(self._levels)

    def ahead(self, pool: str, priority: int) -> bool:
        """Whether somebody waits for the pool whom a new request of this priority may not overtake."""
        levels = self._levels.get(pool)
        return levels is not None and max(levels) >= priority

    def offer(self, one: Waiting, now: float) -> Outcome | None:
        """Puts a request in line: None, or why not. Lower priorities give way, the newest first."""
        if one.until <= now or one.size > self.max_bytes or not self.max_requests:
            return Outcome.FULL
        while self._all >= self.max_requests or self.bytes + one.size > self.max_bytes:
            victim = self._lowest(one.priority)
            if victim is None:
                return Outcome.FULL
            self._end(victim, Outcome.EVICTED)
        self._waiting[one.pool] += 1
        self._all += 1
        self.bytes += one.size
        self._levels.setdefault(one.pool, {}).setdefault(one.priority, _Level()).put(one)
        heapq.heappush(self._deadlines, (one.until, next(self._numbers), one))
        self._tidy()
        return None

    def release(self, pool: str, room: int) -> list[Waiting]:
        """Lets up to `room` requests of a pool in, the most important first; those."""
        found: list[Waiting] = []
        while (levels := self._levels.get(pool)) is not None and len(found) < room:
            one = levels[max(levels)].first()
            self._end(one, Outcome.ADMITTED)
            found.append(one)
        return found

    def leave(self, one: Waiting) -> None:
        """A client went away."""
        if one.outcome is None:
            self._forget(one)
            one.outcome = Outcome.STOPPED
            self._tidy()

    def expire(self, now: float) -> float | None:
        """Refuses those whose time is over; when the next one's is, None when nobody waits."""
        deadlines = self._deadlines
        while deadlines and (deadlines[0][2].outcome is not None or deadlines[0][0] <= now):
            one = heapq.heappop(deadlines)[2]
            if one.outcome is None:
                self._end(one, Outcome.EXPIRED)
        return deadlines[0][0] if deadlines else None

    def stop(self) -> None:
        """Refuses everybody."""
        for _, _, one in sorted(self._deadlines):
            if one.outcome is None:
                self._end(one, Outcome.STOPPED)

    def _lowest(self, below: int) -> Waiting | None:
        lowest = min((min(levels) for levels in self._levels.values()), default=below)
        if lowest >= below:
            return None
        found = [levels[lowest].newest() for levels in self._levels.values() if lowest in levels]
        return max(found, key=lambda one: one.until)

    def _end(self, one: Waiting, outcome: Outcome) -> None:
        self._forget(one)
        one.end(outcome)

    def _forget(self, one: Waiting) -> None:
        self._waiting[one.pool] -= 1
        self._all -= 1
        self.bytes -= one.size
        levels = self._levels[one.pool]
        level = levels[one.priority]
        level.remove(one)
        if not level.tenants:
            del levels[one.priority]
        if not levels:
            del self._levels[one.pool]
            del self._waiting[one.pool]
        if not self._all:
            self._deadlines.clear()

    def _tidy(self) -> None:
        """Those who wait no more leave no more behind than there are others who do."""
        if len(self._deadlines) > 2 * self._all + _LEFT:
            self._deadlines = [entry for entry in self._deadlines if entry[2].outcome is None]
            heapq.heapify(self._deadlines)
