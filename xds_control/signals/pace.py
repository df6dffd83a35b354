"""When an endpoint is scraped next: often while its load moves, seldom while it stands or fails. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from xds_control.policy.signals import ScrapePolicy

FAST = 0.25
"""A movement from here on halves the interval; one below a fifth of it lengthens the interval by a quarter."""


READ_SHARE = 0.05
"""Largest share of control's time that reading one endpoint's pages may take."""


def rest(pause: float, took: float, reading: float) -> float:
    """Seconds to sleep. pause: from the start of one scrape to the next; took: since that start; reading: of it, our
    own work. An engine that is slow to answer gets a rest too, and one whose pages are long to read is read less."""
    return max(pause - took, pause / 4, reading / READ_SHARE)


class Pace:
    """The interval of one endpoint."""

    def __init__(self, policy: ScrapePolicy) -> None:
        self._policy = policy
        self._queue: float | None = None
        self._kv: float | None = None
        self.interval_s = policy.min_interval_s
        self.failures = 0

    def succeeded(self, values: Mapping[str, float], noise: float) -> float:
        """Seconds to wait after a page with these signals. noise: -1 to 1, spreads endpoints over time."""
        self.failures = 0
        moved = self._movement(values)
        policy = self._policy
        if moved >= FAST:
            self.interval_s /= 2
        elif moved < FAST / 5:
            self.interval_s *= 1.25
        self.interval_s = min(policy.max_interval_s, max(policy.min_interval_s, self.interval_s))
        return self._jittered(self.interval_s, noise)

    def failed(self, noise: float) -> float:
        """Seconds to wait after a failure."""
        self.failures += 1
        longest = max(self._policy.max_backoff_s, self._policy.min_interval_s)
        pause = self._policy.min_interval_s * 2.0 ** min(self.failures - 1, 30)
        return self._jittered(min(longest, pause), noise)

    def _movement(self, values: Mapping[str, float]) -> float:
        """How far load moved since the page before: 1 is a queue that doubled or a tenth of the KV cache."""
        queue = values.get("running", 0.0) + values.get("waiting", 0.0)
        kv = values.get("kv_usage")
        moved = 0.0
        if self._queue is not None:
            moved = abs(queue - self._queue) / max(queue, self._queue, 4.0)
        if kv is not None and self._kv is not None:
            moved = max(moved, abs(kv - self._kv) / 0.1)
        self._queue, self._kv = queue, kv
        return moved

    def _jittered(self, seconds: float, noise: float) -> float:
        return seconds * (1.0 + self._policy.jitter * noise)
