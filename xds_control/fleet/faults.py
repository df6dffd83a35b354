"""Memory of what went wrong with one endpoint: errors in a row and in a window, Xid, ECC and OOM counters."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from xds_control.fleet.readings import Readings
from xds_control.policy.lifecycle import Ejection


@dataclass(frozen=True, slots=True)
class Outcomes:
    """How requests to one endpoint ended in one report. 4xx, 429 and clients that left are `neutral`, never sickness.

    ok: answered. connect: could not be reached. timeout: no answer in time. server: 5xx or a broken connection.
    """

    ok: int = 0
    connect: int = 0
    timeout: int = 0
    server: int = 0
    neutral: int = 0

    @property
    def errors(self) -> int:
        """Failures by the endpoint's fault."""
        return self.connect + self.timeout + self.server


@dataclass(slots=True)
class Faults:
    """What one endpoint has done wrong lately."""

    in_a_row: int = 0
    window: deque[tuple[float, int, int]] = field(default_factory=deque)
    ooms: deque[float] = field(default_factory=deque)
    xid: tuple[float, float] | None = None
    counters: dict[str, float] = field(default_factory=dict)

    def outcomes(self, seen: Outcomes, now: float, policy: Ejection) -> str | None:
        """Takes in one report; the reason for an ejection, or None."""
        # A report has counts and no order. Any answer may have ended the row, so only reports without one add up.
        self.in_a_row = self.in_a_row + seen.errors if seen.ok == 0 else 0
        if seen.ok or seen.errors:
            self.window.append((now, seen.ok, seen.errors))
        while self.window and now - self.window[0][0] > policy.error_window_s:
            self.window.popleft()
        if self.in_a_row >= policy.consecutive_errors:
            kinds = [
                f"{count} {name}"
                for count, name in ((seen.connect, "connect"), (seen.timeout, "timeout"), (seen.server, "5xx"))
                if count
            ]
            return f"{self.in_a_row} failed requests in a row (last report: {', '.join(kinds)})"
        failed = sum(e for _, _, e in self.window)
        total = failed + sum(ok for _, ok, _ in self.window)
        if total >= policy.error_requests and failed / total >= policy.error_share:
            return f"{failed} of {total} requests failed in {policy.error_window_s:g} s"
        return None

    def xid_event(self, code: int, count: float, policy: Ejection) -> str | None:
        """Takes in the last Xid and how many there were; a code already seen with the same count is no news."""
        if code <= 0 or self.xid == (code, count):
            return None
        self.xid = (code, count)
        return f"Xid {code}: the GPU needs a reset" if code in policy.fatal_xids else None

    def ecc_event(self, total: float, policy: Ejection) -> str | None:
        """Takes in the count of uncorrected ECC errors since driver load; more than before is a reason."""
        before = self.counters.get("ecc")
        self.counters["ecc"] = total
        if not policy.ecc or before is None or total <= before:
            return None
        return f"{total - before:g} uncorrected ECC errors"

    def oom_event(self, total: float, now: float, policy: Ejection) -> str | None:
        """Takes in the count of out-of-memory failures since the engine's start; repeated ones are a reason."""
        before = self.counters.get("oom")
        self.counters["oom"] = total
        if before is None or total == before:
            return None
        # A smaller count is a restarted engine: everything it counts is new.
        new = total - before if total > before else total
        self.ooms.extend([now] * min(int(new), policy.oom_count))
        while self.ooms and now - self.ooms[0] > policy.oom_window_s:
            self.ooms.popleft()
        if len(self.ooms) >= policy.oom_count:
            return f"out of memory {len(self.ooms)} times in {policy.oom_window_s:g} s"
        return None

    def readings(self, readings: Readings, now: float, policy: Ejection) -> str | None:
        """The first reason among an endpoint's signals, or None."""
        found: list[str | None] = []
        xid = readings.get("xid")
        if xid is not None and math.isfinite(xid.value):
            count = readings.get("xid_count")
            found.append(self.xid_event(int(xid.value), count.value if count is not None else 0.0, policy))
        ecc = readings.get("ecc_uncorrected")
        if ecc is not None and math.isfinite(ecc.value):
            found.append(self.ecc_event(ecc.value, policy))
        oom = readings.get("oom_count")
        if oom is not None and math.isfinite(oom.value):
            found.append(self.oom_event(oom.value, now, policy))
        return next((reason for reason in found if reason is not None), None)

    def forgive(self) -> None:
        """Starts the request errors over; hardware counters stay, or the same old error would count again."""
        self.in_a_row = 0
        self.window.clear()
        self.ooms.clear()
