"""The life of endpoints: a pure state machine with events, asking for probes and warm-up prompts as actions.

new → probing → warming → ready ⇄ suspect → ejected → (back-off) → probing, and draining → gone.
Every call takes `now` in monotonic seconds and returns the events that it caused.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Mapping

from xds_control.fleet.endpoint import Endpoint
from xds_control.fleet.faults import Outcomes
from xds_control.fleet.life import NOT_SERVING, Action, ActionKind, Event, Life, LifeView
from xds_control.fleet.override import Override
from xds_control.fleet.readings import Readings
from xds_control.fleet.snapshot import State
from xds_control.policy.lifecycle import LifecyclePolicy

__all__ = ["Action", "Event", "LifeView", "Lifecycle", "Outcomes"]


class Lifecycle:
    """Lives of all endpoints. calibrate: whether new endpoints run the standard load before they take traffic."""

    def __init__(self, policy: LifecyclePolicy, *, calibrate: bool = False) -> None:
        self.policy = policy
        self.calibrate = calibrate
        self._lives: dict[str, Life] = {}
        self._overrides: dict[str, Override] = {}
        self._synced = False

    # What exists.

    def sync(self, endpoints: Iterable[Endpoint], now: float) -> list[Event]:
        """All endpoints that discovery knows now. New ones begin their life, missing ones leave it in order."""
        events: list[Event] = []
        trusted = self.policy.trust_at_start and not self._synced
        self._synced = True
        present: set[str] = set()
        for endpoint in endpoints:
            address = endpoint.address
            present.add(address)
            life = self._lives.get(address)
            if life is None:
                self._lives[address] = Life(endpoint, State.NEW, now, "discovered", trusted)
                events.append(Event(address, State.GONE, State.NEW, now, "discovered"))
                continue
            life.endpoint = endpoint
            if not life.listed:
                life.listed = True
                life.trusted = True
                if life.state in (State.DRAINING, State.GONE) and not self._ordered(address, "drain"):
                    events += self._go(life, State.PROBING, "discovered again", now)
        for address, life in list(self._lives.items()):
            if address in present:
                continue
            if life.listed:
                life.listed = False
                if life.state in NOT_SERVING:
                    events += self._go(life, State.GONE, "no longer discovered", now)
                elif life.state is not State.DRAINING:
                    events += self._go(life, State.DRAINING, "no longer discovered", now)
            if life.state is State.GONE:
                del self._lives[address]
        return events

    # What is seen.

    def on_scrape(self, address: str, ok: bool, now: float, *, refused: bool = False, detail: str = "") -> list[Event]:
        """One scrape ended. refused: nobody was listening. detail: what went wrong."""
        life = self._lives.get(address)
        if life is None:
            return []
        if ok:
            life.failures = life.refused = 0
            life.failing_since = math.inf
            return self._sign_of_life(life, "scrape answered", now)
        if life.failures == 0:
            life.failing_since = now
        life.failures += 1
        life.refused = life.refused + 1 if refused else 0
        life.good_signs = 0
        # A broken metrics page is no broken engine: whoever showed life since the first failure is not suspected.
        if life.last_seen > life.failing_since:
            return []
        policy = self.policy
        why = detail or ("nobody listens" if refused else "no answer")
        if life.refused >= policy.ejection.refused_scrapes and life.state in (State.READY, State.SUSPECT):
            return self._eject(life, f"{life.refused} scrapes in a row found nobody listening", now)
        if life.failures >= policy.suspicion.scrape_failures and life.state is State.READY:
            return self._go(life, State.SUSPECT, f"{life.failures} failed scrapes in a row: {why}", now)
        return []

    def on_readings(self, address: str, readings: Readings, now: float) -> list[Event]:
        """Newest signals; looks at `xid`, `xid_count`, `ecc_uncorrected` and `oom_count`."""
        life = self._lives.get(address)
        if life is None:
            return []
        reason = life.faults.readings(readings, now, self.policy.ejection)
        return self._eject(life, reason, now) if reason else []

    def on_xid(self, address: str, code: int, count: float, now: float) -> list[Event]:
        """An Xid of one of its GPUs, and how many there were."""
        life = self._lives.get(address)
        reason = life.faults.xid_event(code, count, self.policy.ejection) if life else None
        return self._eject(life, reason, now) if life and reason else []

    def on_gpus(self, address: str, problem: str | None, now: float) -> list[Event]:
        """Whether its GPUs are all there: a replica that lost one GPU is out as a whole. None = all is well."""
        life = self._lives.get(address)
        if life is None:
            return []
        life.gpu_problem = problem or ""
        return self._eject(life, problem, now) if problem else []

    def on_outcomes(self, address: str, outcomes: Outcomes, now: float) -> list[Event]:
        """How requests ended since the last report."""
        life = self._lives.get(address)
        if life is None:
            return []
        reason = life.faults.outcomes(outcomes, now, self.policy.ejection)
        events: list[Event] = []
        if outcomes.ok and life.state in (State.READY, State.SUSPECT):
            events += self._sign_of_life(life, "requests answered", now)
        if reason and life.state in (State.READY, State.SUSPECT):
            events += self._eject(life, reason, now)
        return events

    def on_in_flight(self, address: str, requests: int, now: float, *, at: float | None = None) -> list[Event]:
        """Requests that run there, for draining. at: when they were counted, `now` when absent; a count from
        before the drain began says nothing about it and is ignored."""
        life = self._lives.get(address)
        if life is None or (life.state is State.DRAINING and at is not None and at <= life.since):
            return []
        life.in_flight = requests
        return self._drained(life, now)

    def on_restart(self, address: str, now: float) -> list[Event]:
        """The engine process started anew: its caches are cold, so it warms up and ramps again."""
        life = self._lives.get(address)
        if life is None or life.state not in (State.READY, State.SUSPECT):
            return []
        life.trusted = False
        life.faults.forgive()
        return self._go(life, State.PROBING, "engine restarted", now)

    # Answers to actions.

    def on_probe(self, address: str, ok: bool, now: float, detail: str = "") -> list[Event]:
        """A probe ended."""
        life = self._answered(address, "probe")
        if life is None:
            return []
        if ok:
            return self._sign_of_life(life, "probe answered", now)
        life.good_signs = 0
        if life.state is State.PROBING:
            life.reason = f"probe failed: {detail or 'no answer'}"
            life.ask_interval = min(
                max(life.ask_interval, self.policy.probing.interval_s) * 2.0, self.policy.probing.max_interval_s
            )
            life.next_ask = now + life.ask_interval
        return []

    def on_warmup(self, address: str, ok: bool, latency_s: float, now: float, detail: str = "") -> list[Event]:
        """A warm-up prompt was answered or not. An answer slower than the policy allows is a bad one."""
        life = self._answered(address, "warmup")
        if life is None or life.state is not State.WARMING:
            return []
        policy = self.policy.warm_up
        life.next_ask = now
        if ok and latency_s <= policy.max_latency_s:
            life.last_seen = now
            life.good_answers += 1
            return self._warmed(life, now)
        life.good_answers = 0
        life.bad_answers += 1
        why = (
            (detail or "no answer") if not ok else f"answer took {latency_s:.1f} s, {policy.max_latency_s:g} s allowed"
        )
        life.reason = f"warm-up: {why}"
        if life.bad_answers >= policy.max_failures:
            return self._go(life, State.PROBING, f"{life.bad_answers} bad warm-up answers, last: {why}", now)
        life.next_ask = now + self.policy.probing.interval_s
        return []

    def on_calibrated(self, address: str, ok: bool, now: float, detail: str = "") -> list[Event]:
        """The standard load ended. A failed one does not keep the endpoint out: traffic teaches its capacity."""
        life = self._answered(address, "calibrate")
        if life is None or life.state is not State.WARMING:
            return []
        life.calibrated = True
        life.reason = "calibrated" if ok else f"calibration failed: {detail}"
        return self._warmed(life, now)

    # Orders.

    def override(self, address: str, order: Override | None, now: float) -> list[Event]:
        """An operator's order, or None to clear it. It holds for addresses that are not known yet, too."""
        before = self._overrides.pop(address, None)
        if order is not None and not order.lapsed(now):
            self._overrides[address] = order
        life = self._lives.get(address)
        if life is None:
            return []
        current = self._overrides.get(address)
        who = (current or before or Override("drain")).by or "operator"
        if current is not None and current.kind == "drain":
            if life.state in (State.DRAINING, State.GONE):
                return []
            return self._go(life, State.DRAINING, f"drained by {who}{_because(current)}", now)
        if current is not None and current.kind == "eject":
            if life.state is State.EJECTED and life.until is None:
                return []
            return self._go(life, State.EJECTED, f"ejected by {who}{_because(current)}", now)
        return self._released(life, before, now)

    def overrides(self) -> Mapping[str, Override]:
        """The orders in force, to be kept across restarts."""
        return dict(self._overrides)

    # Time.

    def tick(self, now: float) -> list[Event]:
        """What time alone brings about. Call it several times a second."""
        events: list[Event] = []
        for address, order in list(self._overrides.items()):
            if order.lapsed(now):
                events += self.override(address, None, now)
        for life in list(self._lives.values()):
            events += self._advance(life, now)
            if life.state is State.GONE and not life.listed:
                del self._lives[life.endpoint.address]
        return events

    def actions(self, now: float) -> list[Action]:
        """What the edge should do now. Each is asked once; one without an answer is asked again after its time."""
        wanted = []
        for life in self._lives.values():
            action = self._wants(life, now)
            if action is not None:
                life.asked, life.asked_at = action.kind, now
                wanted.append(action)
        return wanted

    # Views.

    def view(self, address: str) -> LifeView | None:
        """One endpoint's life; None when it is not known."""
        life = self._lives.get(address)
        if life is None:
            return None
        return LifeView(
            address,
            life.state,
            life.since,
            life.ramp_since,
            life.reason,
            life.ejections,
            life.until,
            self._overrides.get(address),
            life.held,
        )

    def views(self) -> list[LifeView]:
        """All lives, sorted by address."""
        return [view for view in map(self.view, sorted(self._lives)) if view is not None]

    # Inside.

    def _go(self, life: Life, to: State, reason: str, now: float) -> list[Event]:
        before = life.state
        life.state, life.since, life.reason = to, now, reason
        life.asked, life.next_ask, life.ask_interval = None, now, 0.0
        life.good_signs = 0
        life.held = ""
        life.until = None
        address = life.endpoint.address
        if to is State.PROBING:
            life.failures = life.refused = 0
            life.failing_since = math.inf
        elif to is State.WARMING:
            life.good_answers = life.bad_answers = 0
        elif to is State.READY:
            life.last_seen = now
            life.forgiven_at = now
            if before is not State.SUSPECT:
                life.ramp_since = -math.inf if life.trusted else now
            life.trusted = False
        elif to is State.DRAINING:
            life.until = now + self.policy.draining.timeout_s
            life.in_flight = None  # only a count made from now on can say that nothing runs
        return [Event(address, before, to, now, reason)]

    def _sign_of_life(self, life: Life, what: str, now: float) -> list[Event]:
        life.last_seen = now
        life.good_signs += 1
        if life.state in (State.NEW, State.PROBING):
            if life.gpu_problem or life.good_signs < self.policy.probing.successes:
                return []
            if life.trusted or not (self.policy.warm_up.prompts or (self.calibrate and not life.calibrated)):
                return self._go(life, State.READY, what, now)
            return self._go(life, State.WARMING, what, now)
        if life.state is State.SUSPECT and not life.held and life.good_signs >= self.policy.suspicion.recover:
            return self._go(life, State.READY, f"{what} again", now)
        return []

    def _warmed(self, life: Life, now: float) -> list[Event]:
        policy = self.policy.warm_up
        if policy.prompts and life.good_answers < policy.answers:
            return []
        if self.calibrate and not life.calibrated:
            return []
        reason = f"{life.good_answers} good warm-up answers" if policy.prompts else life.reason
        return self._go(life, State.READY, reason, now)

    def _eject(self, life: Life, reason: str, now: float) -> list[Event]:
        if life.state in (State.EJECTED, State.DRAINING, State.GONE):
            return []
        policy = self.policy.ejection
        length = min(policy.base_s * policy.factor ** min(life.ejections, 60), policy.max_s)
        spread = 2.0 * zlib.crc32(f"{life.endpoint.address}#{life.ejections}".encode()) / 2**32 - 1.0
        until = now + length * (1.0 + policy.jitter * spread)
        if not self._may_eject(life):
            if life.held:
                return []
            note = f"{reason}; not ejected: {self.policy.ejection.max_share:.0%} of the pool is out already"
            note = note.replace("%", " %")
            events = self._go(life, State.SUSPECT, note, now) if life.state is not State.SUSPECT else []
            life.held, life.until = reason, until
            return events or [Event(life.endpoint.address, life.state, life.state, now, note)]
        life.ejections += 1
        events = self._go(life, State.EJECTED, reason, now)
        life.until = until
        life.faults.forgive()
        life.trusted = False
        return events

    def _may_eject(self, life: Life) -> bool:
        peers = [x for x in self._lives.values() if x.endpoint.pool == life.endpoint.pool]
        members = [x for x in peers if x.state not in (State.DRAINING, State.GONE)]
        out = [x for x in members if x.ejections and x.state in NOT_SERVING and x is not life]
        return len(out) + 1 <= math.floor(self.policy.ejection.max_share * len(members) + 1e-9)

    def _advance(self, life: Life, now: float) -> list[Event]:
        policy = self.policy
        address = life.endpoint.address
        if life.state is State.NEW:
            order = self._overrides.get(address)
            if order is not None and order.kind != "pin":
                return self.override(address, order, now)
            return self._go(life, State.PROBING, "first probe", now)
        if life.state is State.WARMING and now - life.since >= policy.warm_up.timeout_s:
            return self._go(life, State.PROBING, f"not warm after {policy.warm_up.timeout_s:g} s", now)
        if life.state is State.READY:
            if now - life.last_seen >= policy.suspicion.heartbeat_s:
                return self._go(life, State.SUSPECT, f"no sign of life for {now - life.last_seen:.0f} s", now)
            if life.ejections and now - life.forgiven_at >= policy.ejection.forgive_s:
                life.ejections -= 1
                life.forgiven_at = now
        if life.state is State.SUSPECT:
            if life.held and (life.until is None or now < life.until):
                return self._eject(life, life.held, now) if self._may_eject(life) else []
            if life.held:  # it has been aside for as long as an ejection would have lasted
                life.held, life.until, life.good_signs = "", None, 0
            silent = now - max(life.last_seen, life.since)
            if silent >= policy.suspicion.eject_after_s:
                return self._eject(life, f"no sign of life for {now - life.last_seen:.0f} s", now)
        if life.state is State.EJECTED and life.until is not None and now >= life.until:
            return self._go(life, State.PROBING, "back-off over", now)
        return self._drained(life, now)

    def _drained(self, life: Life, now: float) -> list[Event]:
        if life.state is not State.DRAINING or life.until is None:
            return []
        if life.in_flight == 0 and now - life.since >= self.policy.draining.settle_s:
            return self._go(life, State.GONE, "drained: no requests left", now)
        if now >= life.until:
            return self._go(life, State.GONE, f"drained: {self.policy.draining.timeout_s:g} s are over", now)
        return []

    def _released(self, life: Life, before: Override | None, now: float) -> list[Event]:
        if before is None or before.kind == "pin" or not life.listed:
            return []
        who = before.by or "operator"
        if before.kind == "drain" and life.state is State.DRAINING:
            life.trusted = True
            return self._go(life, State.READY, f"drain by {who} lifted", now)
        if life.state in (State.GONE, State.EJECTED):
            life.trusted = before.kind == "drain"
            return self._go(life, State.PROBING, f"{before.kind} by {who} lifted", now)
        return []

    def _wants(self, life: Life, now: float) -> Action | None:
        policy = self.policy
        address = life.endpoint.address
        if life.asked is not None:
            allowed = {"probe": 5.0, "warmup": policy.warm_up.max_latency_s, "calibrate": policy.warm_up.timeout_s}
            if now - life.asked_at < allowed[life.asked] * 2.0:
                return None
        if now < life.next_ask:
            return None
        if life.state is State.PROBING:
            life.next_ask = now + max(life.ask_interval, policy.probing.interval_s)
            return Action("probe", address)
        if life.state is State.WARMING:
            prompts = policy.warm_up.prompts
            if prompts and life.good_answers < policy.warm_up.answers:
                prompt = prompts[life.prompt % len(prompts)]
                life.prompt += 1
                limit = policy.warm_up
                return Action("warmup", address, prompt, limit.max_tokens, limit.max_latency_s * 2.0)
            return Action("calibrate", address, timeout_s=policy.warm_up.timeout_s)
        quiet = now - life.last_seen >= policy.suspicion.heartbeat_s / 3.0 or life.failures > 0
        if life.state in (State.READY, State.SUSPECT) and quiet:
            life.next_ask = now + policy.probing.interval_s
            return Action("probe", address)
        return None

    def _answered(self, address: str, kind: ActionKind) -> Life | None:
        life = self._lives.get(address)
        if life is not None and life.asked == kind:
            life.asked = None
        return life

    def _ordered(self, address: str, kind: str) -> bool:
        order = self._overrides.get(address)
        return order is not None and order.kind == kind


def _because(order: Override) -> str:
    return f": {order.reason}" if order.reason else ""
