"""Who watches and reports, and what each watcher has still to hear (pure: no gRPC, no clock).

A watcher that reads slowly costs one snapshot reference and a bounded list of prefixes: what it is sent is
made when it is sent, from the newest state.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from xds_control.fleet.snapshot import Snapshot
from xds_control.proto import fleet_pb2 as pb
from xds_control.proto import snapshots

MAX_PREFIXES = 20_000
"""Additions kept for one watcher; the oldest go first (an index without them only matches less)."""

MAX_RATES = 5_000
"""Increments of learned speeds kept for one watcher; lost ones only slow its learning down."""


@dataclass(slots=True)
class Watcher:
    """One processor's Watch stream."""

    processor: str
    ext_proc_address: str
    version: str
    since: float
    sent: Snapshot | None = None
    sent_policy: str = ""
    sent_shadow: str = ""
    sent_estimates: bytes = b""
    sent_outstanding: int = -1
    prefixes: deque[pb.PrefixAdd] = field(default_factory=lambda: deque(maxlen=MAX_PREFIXES))
    rates: deque[pb.RateState] = field(default_factory=lambda: deque(maxlen=MAX_RATES))


@dataclass(slots=True)
class Reporter:
    """What is known of one processor from its reports."""

    last_at: float
    outstanding: dict[str, pb.Outstanding] = field(default_factory=dict)
    load: pb.ProcessorLoad = field(default_factory=pb.ProcessorLoad)
    tokens: bytes = b""


class Hub:
    """Joins the reports of all processors into what each of them should hear of the others."""

    def __init__(self, stale_s: float = 5.0, secret: str = "") -> None:
        self.secret = secret
        self._stale_s = stale_s
        self._snapshot: Snapshot | None = None
        self._policy = pb.Policy()
        self._shadow = pb.Policy()
        self._estimates: dict[str, bytes] = {}
        self._outstanding_version = 0
        self._deltas: tuple[tuple[str, int, int], bytes] | None = None
        self.watchers: dict[int, Watcher] = {}
        self.reporters: dict[str, Reporter] = {}
        self._next = 0

    def publish(self, snapshot: Snapshot) -> None:
        """The newest snapshot."""
        self._snapshot = snapshot

    def publish_policy(self, version: str, json: bytes) -> None:
        """The policy that processors compile."""
        self._policy = pb.Policy(version=version, json=json)

    def publish_shadow(self, version: str, json: bytes) -> None:
        """The policy that processors try on a sample of their requests; an empty version for none."""
        self._shadow = pb.Policy(version=version, json=json)

    def publish_estimates(self, processor: str, state: bytes) -> None:
        """Token estimates that all the others than `processor` learned."""
        self._estimates[processor] = state

    def watch(self, processor: str, ext_proc_address: str, version: str, now: float) -> int:
        """Begins a watcher; its key."""
        self._next += 1
        self.watchers[self._next] = Watcher(processor, ext_proc_address, version, now)
        return self._next

    def unwatch(self, key: int) -> None:
        """Ends a watcher. The processor's outstanding work goes with its last stream: nobody will finish it."""
        watcher = self.watchers.pop(key, None)
        if watcher and not any(w.processor == watcher.processor for w in self.watchers.values()):
            self._estimates.pop(watcher.processor, None)
            reporter = self.reporters.pop(watcher.processor, None)
            if reporter is not None and reporter.outstanding:
                self._outstanding_version += 1

    def addresses(self) -> list[str]:
        """Where Envoy reaches the processors that watch, sorted, without repeats."""
        return sorted({w.ext_proc_address for w in self.watchers.values() if w.ext_proc_address})

    def report(self, processor: str, window: pb.Window, now: float) -> None:
        """Takes in one window of a processor."""
        reporter = self.reporters.get(processor)
        if reporter is None:
            reporter = self.reporters[processor] = Reporter(now)
        reporter.last_at = now
        if window.outstanding or reporter.outstanding:
            fresh = {entry.endpoint: entry for entry in window.outstanding}
            # Work that is being read is news also where it is as much as before: what was told of it grows old.
            if fresh.keys() != reporter.outstanding.keys() or any(
                entry.prefill_tokens > 0 or reporter.outstanding[name] != entry for name, entry in fresh.items()
            ):
                reporter.outstanding = fresh
                self._outstanding_version += 1
        if window.HasField("load"):
            reporter.load = window.load
        if window.tokens:
            reporter.tokens = window.tokens
        for watcher in self.watchers.values():
            if watcher.processor == processor:
                continue
            watcher.prefixes.extend(window.prefixes)
            watcher.rates.extend(window.rates)

    def expire(self, now: float) -> None:
        """Forgets the outstanding work of processors that went silent, and reporters that do not watch any more."""
        watching = {watcher.processor for watcher in self.watchers.values()}
        for reporter in self.reporters.values():
            if reporter.outstanding and now - reporter.last_at > self._stale_s:
                reporter.outstanding = {}
                self._outstanding_version += 1
        for name in [
            one for one, known in self.reporters.items() if one not in watching and now - known.last_at > self._stale_s
        ]:
            del self.reporters[name]

    def next_message(self, key: int, now: float) -> bytes | None:
        """The serialised WatchResponse that the watcher lacks, or None when it has everything."""
        watcher = self.watchers.get(key)
        snapshot = self._snapshot
        if watcher is None or snapshot is None:
            return None
        extra = pb.WatchResponse()
        if watcher.sent is None:
            extra.secret = self.secret
        if watcher.sent_policy != self._policy.version:
            extra.policy.CopyFrom(self._policy)
        if watcher.sent_shadow != self._shadow.version:
            extra.shadow.CopyFrom(self._shadow)
        estimates = self._estimates.get(watcher.processor, b"")
        if watcher.sent_estimates != estimates:
            extra.estimates.tokens = estimates
        self._peers(watcher, extra, now)
        body = self._changes(watcher, snapshot, now)
        rest = extra.SerializeToString()
        if body is None and not rest:
            return None
        watcher.sent = snapshot
        watcher.sent_policy = self._policy.version
        watcher.sent_shadow = self._shadow.version
        watcher.sent_estimates = estimates
        if body is None:
            body = pb.WatchResponse(epoch=snapshot.epoch, version=snapshot.version).SerializeToString()
        # Concatenating serialised messages merges them (protobuf encoding, "last one wins / repeated append").
        return body + rest

    def _changes(self, watcher: Watcher, snapshot: Snapshot, now: float) -> bytes | None:
        old = watcher.sent
        if old is None or old.epoch != snapshot.epoch:
            return snapshots.full(snapshot, now).SerializeToString()
        if old is snapshot:
            return None
        key = (snapshot.epoch, old.version, snapshot.version)
        if self._deltas is None or self._deltas[0] != key:
            message = snapshots.delta(old, snapshot, now)
            self._deltas = (key, message.SerializeToString() if message is not None else b"")
        return self._deltas[1] or None

    def _peers(self, watcher: Watcher, extra: pb.WatchResponse, now: float) -> None:
        if watcher.prefixes:
            extra.peers.prefixes.extend(watcher.prefixes)
            watcher.prefixes.clear()
        if watcher.rates:
            extra.peers.rates.extend(watcher.rates)
            watcher.rates.clear()
        if watcher.sent_outstanding != self._outstanding_version:
            sums: dict[str, _Sum] = {}
            for name, reporter in self.reporters.items():
                if name == watcher.processor:
                    continue
                for entry in reporter.outstanding.values():
                    sums.setdefault(entry.endpoint, _Sum()).add(entry, now - reporter.last_at)
            if sums or watcher.sent_outstanding >= 0:
                # an entry without an endpoint says that this list is complete, so an empty one clears
                extra.peers.outstanding.append(pb.Outstanding())
                extra.peers.outstanding.extend(total.message(endpoint) for endpoint, total in sums.items())
            watcher.sent_outstanding = self._outstanding_version


class _Sum:
    """Outstanding work at one endpoint over processors."""

    __slots__ = ("aged", "decode_tokens", "prefill_tokens", "requests")

    def __init__(self) -> None:
        self.requests = self.prefill_tokens = self.decode_tokens = 0
        self.aged = 0.0

    def add(self, entry: pb.Outstanding, age_s: float) -> None:
        """One processor's, told so long ago."""
        self.requests += entry.requests
        self.prefill_tokens += entry.prefill_tokens
        self.decode_tokens += entry.decode_tokens
        self.aged += age_s * entry.prefill_tokens

    def message(self, endpoint: str) -> pb.Outstanding:
        """The sum, within what the message holds: nonsense of one must not end the streams of all."""
        return pb.Outstanding(
            endpoint=endpoint,
            requests=min(max(self.requests, -(2**31)), 2**31 - 1),
            prefill_tokens=min(max(self.prefill_tokens, -(2**63)), 2**63 - 1),
            decode_tokens=min(max(self.decode_tokens, -(2**63)), 2**63 - 1),
            age_s=max(0.0, self.aged / self.prefill_tokens) if self.prefill_tokens > 0 else 0.0,
        )
