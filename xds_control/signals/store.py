"""Every endpoint's signals from all sources: each with its age; the freshest trusted one counts. Pure and bounded."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from xds_control.fleet.readings import Reading, Readings
from xds_control.signals.catalogue import SignalSpec, admit, freshness, goodness, source_kind, spec_of

MAX_ENDPOINTS = 100_000
MAX_SIGNALS = 256
MAX_SOURCES = 16
CLOCK_SLACK_S = 1.0


@dataclass(frozen=True, slots=True)
class RawSignal:
    """One value from one source, as `endpoints show --signals` shows it.

    age_s: since it was measured. fresh: 1 counts fully, 0 is past its limit. chosen: whether it is the one in
    use. normalised: on 0 (worst) to 1 (best) of the signal's range, None where the range is open.
    disagrees: it differs from the value in use by more than the two may.
    """

    name: str
    source: str
    value: float
    unit: str
    age_s: float
    age_limit_s: float
    fresh: float
    chosen: bool
    normalised: float | None
    disagrees: bool


class _Signal:
    """One signal of one endpoint: a reading for each source."""

    __slots__ = ("best", "disagree", "limit", "readings", "spec")

    def __init__(self, spec: SignalSpec, limit: float) -> None:
        self.spec = spec
        self.limit = limit
        self.readings: dict[str, Reading] = {}
        self.best: Reading | None = None
        self.disagree: set[str] = set()


class _Entry:
    __slots__ = ("expires", "out", "signals")

    def __init__(self) -> None:
        self.signals: dict[str, _Signal] = {}
        self.out: dict[str, Reading] | None = None
        self.expires = math.inf


class SignalStore:
    """Signals by endpoint address. Times are monotonic seconds of this process.

    age_limits: signal → seconds, where they differ from the catalogue. ignore: kinds of source not to trust.
    counts: reason → values that were not taken in ("unknown_signal", "untrusted", "impossible", "backward",
    "future", "full"), and "disagreement" between sources.
    """

    def __init__(
        self,
        age_limits: Mapping[str, float] | None = None,
        ignore: Iterable[str] = (),
        max_endpoints: int = MAX_ENDPOINTS,
    ) -> None:
        self._limits = dict(age_limits or {})
        self._ignore = frozenset(ignore)
        self._max = max_endpoints
        self._entries: dict[str, _Entry] = {}
        self._trust: dict[tuple[str, str], int | None] = {}
        self.counts: dict[str, int] = {}
        self.disagreements: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, address: object) -> bool:
        return address in self._entries

    def addresses(self) -> list[str]:
        """Endpoints that have values."""
        return list(self._entries)

    def put(self, address: str, name: str, value: float, at: float, source: str) -> bool:
        """Takes in one value. False, and counted, when it cannot be used: then what is held stays as it is."""
        entry = self._entries.get(address)
        if entry is None:
            if len(self._entries) >= self._max:
                return self._refuse("full")
            entry = self._entries[address] = _Entry()
        signal = entry.signals.get(name)
        if signal is None:
            spec = spec_of(name)
            if spec is None:
                return self._refuse("unknown_signal")
            if len(entry.signals) >= MAX_SIGNALS:
                return self._refuse("full")
            limit = self._limits.get(name, self._limits.get(spec.name, spec.age_limit_s))
            signal = _Signal(spec, limit)
        spec = signal.spec
        if not spec.low <= value <= spec.high or value == math.inf:
            allowed = admit(name, value)
            if allowed is None:
                return self._refuse("impossible")
            value = allowed
        held = signal.readings.get(source)
        if held is None:
            if self._rank(spec, source) is None:
                return self._refuse("untrusted")
            if len(signal.readings) >= MAX_SOURCES:
                return self._refuse("full")
        elif at < held.at:
            return self._refuse("backward")
        entry.signals[name] = signal
        reading = Reading(value, at, source)
        signal.readings[source] = reading
        if len(signal.readings) == 1:
            signal.best = reading
        else:
            self._choose(signal)
            self._compare(signal, reading)
        entry.out = None
        expires = at + signal.limit
        if expires < entry.expires:
            entry.expires = expires
        return True

    def put_all(self, address: str, values: Mapping[str, float], at: float, source: str) -> int:
        """Takes in several values of one source; how many were used."""
        return sum(self.put(address, name, value, at, source) for name, value in values.items())

    def forget(self, address: str) -> None:
        """Drops everything about an endpoint: it is gone, or it restarted and is a newcomer."""
        self._entries.pop(address, None)

    def retain(self, addresses: Iterable[str]) -> None:
        """Drops all endpoints but these."""
        keep = set(addresses)
        for address in [known for known in self._entries if known not in keep]:
            del self._entries[address]

    def forget_source(self, address: str, source: str) -> None:
        """Drops what one source said about an endpoint."""
        entry = self._entries.get(address)
        if entry is None:
            return
        for name in [name for name, signal in entry.signals.items() if source in signal.readings]:
            signal = entry.signals[name]
            del signal.readings[source]
            signal.disagree.discard(source)
            if signal.readings:
                self._choose(signal)
            else:
                del entry.signals[name]
        entry.out = None

    def readings(self, address: str, now: float) -> Readings:
        """Signal → the freshest trusted reading that is within its age limit. Empty for a newcomer.

        The mapping is never changed afterwards: a snapshot may keep it.
        """
        entry = self._entries.get(address)
        if entry is None:
            return {}
        if entry.out is None or now >= entry.expires:
            self._refresh(entry, now)
        assert entry.out is not None
        return entry.out

    def raw(self, address: str, now: float) -> list[RawSignal]:
        """Everything that is held about an endpoint, by signal and then in order of trust; stale values too."""
        entry = self._entries.get(address)
        if entry is None:
            return []
        current = self.readings(address, now)
        out: list[RawSignal] = []
        for name in sorted(entry.signals):
            signal = entry.signals[name]
            best = current.get(name)
            for source in sorted(signal.readings, key=lambda one: (self._rank(signal.spec, one) or 0, one)):
                reading = signal.readings[source]
                age = max(0.0, now - reading.at)
                out.append(
                    RawSignal(
                        name,
                        source,
                        reading.value,
                        signal.spec.unit,
                        age,
                        signal.limit,
                        freshness(age, signal.limit),
                        best is not None and best.source == source,
                        goodness(signal.spec, reading.value),
                        source in signal.disagree,
                    )
                )
        return out

    def age_limit(self, name: str) -> float | None:
        """From which age on a signal says nothing; None for a name that the catalogue does not have."""
        spec = spec_of(name)
        if spec is None:
            return None
        return self._limits.get(name, self._limits.get(spec.name, spec.age_limit_s))

    def _refresh(self, entry: _Entry, now: float) -> None:
        out: dict[str, Reading] = {}
        expires = math.inf
        latest = now + CLOCK_SLACK_S
        for name, signal in entry.signals.items():
            best = signal.best
            if best is not None and (best.at > latest or now - best.at >= signal.limit):
                best = self._best(signal, now)
                signal.best = best
            if best is None:
                continue
            out[name] = best
            end = best.at + signal.limit
            if end < expires:
                expires = end
        entry.out = out
        entry.expires = expires

    def _best(self, signal: _Signal, now: float) -> Reading | None:
        """The choice among the readings of which none is over its limit or ahead of the clock."""
        for source, reading in list(signal.readings.items()):
            if reading.at > now + CLOCK_SLACK_S:
                del signal.readings[source]
                signal.disagree.discard(source)
                self._refuse("future")
        fresh = {source: held for source, held in signal.readings.items() if now - held.at < signal.limit}
        return self._pick(signal, fresh)

    def _choose(self, signal: _Signal) -> None:
        signal.best = self._pick(signal, signal.readings)

    def _pick(self, signal: _Signal, readings: Mapping[str, Reading]) -> Reading | None:
        """The most trusted of those about as fresh as the freshest: sources that take turns do not alternate."""
        if not readings:
            return None
        newest = max(reading.at for reading in readings.values())
        oldest = newest - signal.limit / 3
        return min(
            (reading for reading in readings.values() if reading.at >= oldest),
            key=lambda reading: (self._rank(signal.spec, reading.source) or 0, -reading.at, reading.source),
        )

    def _compare(self, signal: _Signal, reading: Reading) -> None:
        """Counts each time that a source begins to disagree with the one in use."""
        best = signal.best
        if best is None:
            return
        for other in list(signal.readings.values()):
            differs = (
                other.source != best.source
                and best.at - other.at < signal.limit
                and abs(other.value - best.value)
                > signal.spec.tolerance + 0.25 * max(abs(other.value), abs(best.value))
            )
            if not differs:
                signal.disagree.discard(other.source)
            elif other.source not in signal.disagree:
                signal.disagree.add(other.source)
                self._refuse("disagreement")
                name = signal.spec.name
                self.disagreements[name] = self.disagreements.get(name, 0) + 1

    def _rank(self, spec: SignalSpec, source: str) -> int | None:
        """Place in the order of trust, None for a source that may not speak about this signal."""
        key = (spec.name, source)
        try:
            return self._trust[key]
        except KeyError:
            kind = source_kind(source)
            rank = spec.sources.index(kind) if kind in spec.sources and kind not in self._ignore else None
            if len(self._trust) < 100_000:
                self._trust[key] = rank
            return rank

    def _refuse(self, reason: str) -> bool:
        self.counts[reason] = self.counts.get(reason, 0) + 1
        return False
