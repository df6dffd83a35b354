"""Admission at the edge: requests of a pool without room wait for a future, which room, time or the end resolves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from xds_control.admission.queue import Outcome, Queue, Waiting
from xds_control.extproc.decide import Refusal
from xds_control.extproc.decision import Decision, Hold
from xds_control.policy.schema import Policy

TICK_S: Final = 0.02
"""How often room is looked for beside the events that make some: ends of requests and snapshots."""
GOING_S: Final = 1.0
"""A request that was let in counts as gone in for at most so long; its pick counts from then on."""

_STATUS: Final = {
    Outcome.FULL: (429, "Too many requests wait; try again later.", "rejected-saturated"),
    Outcome.EVICTED: (429, "More important requests took its place in the queue; try again later.", "evicted-priority"),
    Outcome.EXPIRED: (429, "No endpoint had room in time; try again later.", "rejected-ttl-expired"),
    Outcome.STOPPED: (503, "The processor is stopping.", "rejected-shutting-down"),
}


class Gate:
    """Lets requests in while `room(pool)` finds some; others wait.

    room: how many more requests a pool's endpoints may have; None where there is nobody at all.
    """

    def __init__(self, policy: Policy, room: Callable[[str], int | None], clock: Callable[[], float]) -> None:
        self._room = room
        self._clock = clock
        self._queue = Queue(policy.admission.max_requests, policy.admission.max_bytes)
        self._going: dict[str, tuple[str, float]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False
        self.use_policy(policy)

    def use_policy(self, policy: Policy) -> None:
        """A new policy. Those who wait go on waiting."""
        self._classes = policy.classes.by_name()
        self._default = policy.classes.default
        self._retry_after_s = policy.admission.retry_after_s
        self._pools = frozenset(pool.name for pool in policy.pools if pool.picks)
        self._queue.max_requests = policy.admission.max_requests
        self._queue.max_bytes = policy.admission.max_bytes

    def __len__(self) -> int:
        return len(self._queue)

    def admit(self, decision: Decision, headers: Mapping[str, str], now: float) -> Refusal | Hold | None:
        """See `ports.Admission`."""
        pool = decision.pool
        if pool not in self._pools:
            return None
        service_class = self._classes.get(decision.service_class) or self._classes[self._default]
        room = self._free(pool, now)
        if room is None or (room > 0 and not self._queue.ahead(pool, service_class.priority)):
            return None
        if self._stopped:
            return self._refusal(Outcome.STOPPED)
        until = now + service_class.max_queue_s
        one = Waiting(pool, service_class.priority, decision.tenant, decision.facts.body_bytes, until)
        refused = self._queue.offer(one, now)
        if refused is not None:
            return self._refusal(refused)
        return Hold((one, decision.id), wait_s=service_class.max_queue_s)

    def wait(self, hold: Hold) -> asyncio.Future[Refusal | None]:
        """The future on which a held request waits. Cancelled, it leaves the queue."""
        one: Waiting
        one, identifier = hold.key
        future: asyncio.Future[Refusal | None] = asyncio.get_running_loop().create_future()

        def told(outcome: Outcome) -> None:
            if future.done():
                return
            if outcome is Outcome.ADMITTED:
                self._going[identifier] = (one.pool, self._clock() + GOING_S)
                future.set_result(None)
            else:
                future.set_result(self._refusal(outcome, one.pool))

        def left(_: object) -> None:
            if future.cancelled():
                self._queue.leave(one)
                self._going.pop(identifier, None)

        future.add_done_callback(left)
        one.listen(told)
        self._arm()
        return future

    def decided(self, identifier: str) -> None:
        """A request was picked for or refused: it counts by its pick from now on."""
        self._going.pop(identifier, None)

    def kick(self, now: float) -> None:
        """Room may have come about, or time run out."""
        queue = self._queue
        if not len(queue):
            return
        queue.expire(now)
        for pool in queue.pools:
            room = self._free(pool, now)
            if room is None or room > 0:
                # Without anybody there the picker says so at once: nothing is gained by waiting.
                queue.release(pool, queue.waiting(pool) if room is None else room)

    def stop(self) -> None:
        """Nobody waits any more."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._queue.stop()

    def _free(self, pool: str, now: float) -> int | None:
        room = self._room(pool)
        if room is None or not self._going:
            return room
        for identifier in [one for one, (_, until) in self._going.items() if until <= now]:
            del self._going[identifier]
        return max(0, room - sum(where == pool for where, _ in self._going.values()))

    def _refusal(self, outcome: Outcome, pool: str = "") -> Refusal:
        status, text, peer_reason = _STATUS[outcome]
        return Refusal(status, outcome.value, text, self._retry_after_s or None, peer_reason)

    def _arm(self) -> None:
        if self._timer is None and len(self._queue) and not self._stopped:
            self._timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.kick(self._clock())
        self._arm()
