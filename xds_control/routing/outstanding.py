"""Requests in flight on one endpoint: anchored at the engine's own count, never drifting.

    in flight = running + waiting at the last scrape + picks since − ends since   (ours and the peers')

Every scrape starts the count anew, so a lost end, a doubled one or a processor that died with its counts is
wrong for one scrape interval at most. Where an engine tells nothing, picks count until their end is reported
or for a lease, and an end counts against the pick by its *start* time, so both leave the window together and
a lost end is forgotten with its pick.
"""

from __future__ import annotations

import math
from collections import deque

_Pick = tuple[float, float, float, float]
"""When, uncached tokens, KV tokens, and when its prefill is expected to be done."""


_WAY_S = 0.05
"""A pick this shortly before a scrape may not have reached the engine when it counted."""
_KEPT_S = 2.0
"""Picks are remembered this long beyond their prefill, because scrapes tell of the past."""


class InFlight:
    """Events of one endpoint since its anchor. `neutral`: what to assume at least while its load is not known."""

    __slots__ = (
        "_base",
        "_ends",
        "_own",
        "_picks",
        "_reading",
        "anchored_at",
        "count",
        "neutral",
        "open_since",
        "peers",
        "unseen",
    )

    def __init__(self) -> None:
        self._base = 0.0
        self._own = 0.0
        self.peers = 0.0
        self.anchored_at = -math.inf
        self._picks: deque[_Pick] = deque()
        self._reading: deque[_Pick] = deque()  # own picks whose prefill is not expected to be done
        self._ends: deque[tuple[float, float]] = deque()  # (start, end)
        self.neutral = 0.0
        self.count = 0.0
        self.unseen = 0
        """Picks that the last scrape may have missed."""
        self.open_since: float | None = None

    @property
    def own(self) -> int:
        """This processor's picks minus the ends it saw, since the anchor: what it tells its peers."""
        return int(self._own)

    @property
    def taken(self) -> float:
        """Places that count against a limit: also of picks that the last scrape may have missed."""
        return self.count + self.unseen

    def _sum(self) -> None:
        self.count = max(0.0, self._base + self._own + self.peers, self.neutral)

    def assume(self, neutral: float) -> None:
        """What to assume at least, as long as the engine's own count is not known."""
        self.neutral = neutral
        self._sum()

    def set_peers(self, requests: float) -> None:
        """The other processors' picks minus ends since the anchor."""
        self.peers = requests
        self._sum()

    def pick(self, at: float, uncached: float, need: float, ready: float) -> None:
        """Counts a pick at once."""
        pick = (at, uncached, need, ready)
        self._picks.append(pick)
        reading = self._reading
        while reading and reading[0][3] <= at - _KEPT_S:
            reading.popleft()
        reading.append(pick)
        self._own += 1.0
        if self.open_since is None:
            self.open_since = at
        self.count = max(0.0, self._base + self._own + self.peers, self.neutral)

    def end(self, started: float, ended: float) -> None:
        """Counts the end of a request that was served here. One that ended before the scrape is not in it any more."""
        if ended <= self.anchored_at:
            return
        self._ends.append((started, ended))
        self._own -= 1.0
        self._sum()
        if self.count < 1.0:
            self.open_since = None

    def moved(self, started: float) -> None:
        """A pick that another endpoint served in the end: it does not count here, unless a scrape has settled it."""
        if started > self.anchored_at:
            self._ends.append((started, started))
            self._own -= 1.0
            self._sum()

    def anchor(self, requests: float, at: float) -> None:
        """The engine's own count at time `at` replaces everything up to then."""
        self.anchored_at = at
        self._base = requests
        picks, ends = self._picks, self._ends
        self.unseen = 0
        while picks and picks[0][0] <= at:
            self.unseen += picks.popleft()[0] > at - _WAY_S
        self._ends = deque(end for end in ends if end[1] > at)
        self._own = float(len(picks) - len(self._ends))
        self.peers = 0.0  # theirs were counted from the scrape before; the next word of theirs counts from this one
        if requests < 1.0 and not picks:
            self.open_since = None
        self._sum()

    def expire(self, now: float, lease_s: float) -> None:
        """Lets leases run out where no scrape does it."""
        if self.anchored_at > now - lease_s:
            return
        before = now - lease_s
        if (self._picks and self._picks[0][0] <= before) or len(self._ends) > 2 * len(self._picks) + 64:
            while self._picks and self._picks[0][0] <= before:
                self._picks.popleft()
            self._ends = deque(end for end in self._ends if end[0] > before)
            self._own = float(len(self._picks) - len(self._ends))
            self._base = 0.0
            self._sum()

    def prefill_since(self, at: float) -> float:
        """Uncached tokens of own picks after `at`."""
        total = 0.0
        for pick in reversed(self._picks):
            if pick[0] <= at:
                break
            total += pick[1]
        return total

    def need_since(self, at: float) -> float:
        """KV tokens that own picks after `at` will take."""
        total = 0.0
        for pick in reversed(self._picks):
            if pick[0] <= at:
                break
            total += pick[2]
        return total

    def largest_unread(self, at: float) -> float:
        """Uncached tokens of the largest own pick from before `at` that was not expected to be read by then."""
        return max((p[1] for p in self._reading if p[0] <= at < p[3]), default=0.0)

    def unread(self, now: float, rate: float) -> float:
        """Uncached tokens of own picks that are not expected to be read yet."""
        total = 0.0
        for pick in reversed(self._reading):
            if pick[3] <= now:
                break
            total += min(pick[1], (pick[3] - now) / rate)
        return total

    def forget(self) -> None:
        """The engine restarted: nothing from before runs on it."""
        self._base = self._own = self.peers = 0.0
        self.unseen = 0
        self._picks.clear()
        self._reading.clear()
        self._ends.clear()
        self.open_since = None
        self._sum()
