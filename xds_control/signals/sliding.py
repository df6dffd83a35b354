"""Sliding windows of sums and sketches over the last seconds, in slots: old observations fall out by themselves."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from xds_control.signals.sketch import Sketch


class SlidingSums:
    """Named sums over the last `slots × width_s` seconds. Times are monotonic seconds; one that goes back is taken
    as the newest seen."""

    __slots__ = ("_began", "_ring", "_slots", "_total", "_width")

    def __init__(self, width_s: float, slots: int) -> None:
        self._width = width_s
        self._slots = slots
        self._ring: deque[tuple[int, dict[str, float]]] = deque()
        self._total: dict[str, float] | None = None
        self._began: float | None = None

    def add(self, now: float, values: Mapping[str, float]) -> None:
        """Adds each value to its sum."""
        if self._began is None:
            self._began = now
        ring = self._ring
        index = int(now / self._width)
        if not ring or index > ring[-1][0]:
            ring.append((index, dict(values)))
            while ring[0][0] <= index - self._slots:
                ring.popleft()
            self._total = None
            return
        slot = ring[-1][1]
        for name, value in values.items():
            slot[name] = slot.get(name, 0.0) + value
        total = self._total
        if total is not None:
            for name, value in values.items():
                total[name] = total.get(name, 0.0) + value

    def totals(self, now: float) -> Mapping[str, float]:
        """The sums over the window that ends now; empty when nothing fell into it."""
        ring = self._ring
        oldest = int(now / self._width) - self._slots
        while ring and ring[0][0] <= oldest:
            ring.popleft()
            self._total = None
        total = self._total
        if total is None:
            total = {}
            for _, slot in ring:
                for name, value in slot.items():
                    total[name] = total.get(name, 0.0) + value
            self._total = total
        return total

    def covered_s(self, now: float) -> float:
        """Seconds that the window covers: less than its length when observation began within it; at least 1."""
        start = (int(now / self._width) - self._slots + 1) * self._width
        if self._began is not None and self._began > start:
            start = self._began
        return max(1.0, now - start)


class SlidingSketches:
    """Named sketches over the last `slots × width_s` seconds."""

    __slots__ = ("_ring", "_slots", "_width")

    def __init__(self, width_s: float, slots: int) -> None:
        self._width = width_s
        self._slots = slots
        self._ring: deque[tuple[int, dict[str, Sketch]]] = deque()

    def add(self, now: float, sketches: Mapping[str, Sketch]) -> None:
        """Merges each sketch into the one of its name."""
        ring = self._ring
        index = int(now / self._width)
        if not ring or index > ring[-1][0]:
            ring.append((index, {}))
            while ring[0][0] <= index - self._slots:
                ring.popleft()
        slot = ring[-1][1]
        for name, sketch in sketches.items():
            held = slot.get(name)
            if held is None:
                held = slot[name] = Sketch()
            held.merge(sketch)

    def merged(self, now: float) -> dict[str, Sketch]:
        """One sketch per name over the window that ends now."""
        ring = self._ring
        oldest = int(now / self._width) - self._slots
        while ring and ring[0][0] <= oldest:
            ring.popleft()
        whole: dict[str, Sketch] = {}
        for _, slot in ring:
            for name, sketch in slot.items():
                held = whole.get(name)
                if held is None:
                    held = whole[name] = Sketch()
                held.merge(sketch)
        return whole
