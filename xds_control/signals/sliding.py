"""Sums and sketches over the last 10 and 60 seconds, in slots: old observations fall out by themselves.

Time is monotonic seconds. The last 10 s lie in five slots of 2 s; what leaves them is folded into slots of 10 s.
A clock that goes back is taken as standing still.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from xds_control.signals.sketch import Sketch

FINE_S: Final = 2.0
FINE: Final = 5
COARSE_S: Final = 10.0
COARSE: Final = 5
SHORT_S: Final = FINE_S * FINE
_RATIO: Final = 5  # fine slots in a coarse one

Vector = NDArray[np.float64]


class SlidingTable:
    """Rows of named sums. All rows turn together, so that turning is one operation on the whole table.

    ever: sums since a row was made. last: when each field last grew, 0.0 for never.
    """

    def __init__(self, fields: Sequence[str]) -> None:
        self.fields = tuple(fields)
        self._width = len(self.fields)
        self._free: list[int] = []
        self._used = 0
        self._tick = -1  # number of the newest fine slot
        self._fine = np.zeros((0, FINE, self._width))
        self._coarse = np.zeros((0, COARSE, self._width))
        self.ever = np.zeros((0, self._width))
        self.last = np.zeros((0, self._width))
        self._made = np.zeros(0)

    def __len__(self) -> int:
        """Rows in use."""
        return self._used - len(self._free)

    def make(self, now: float) -> int:
        """A new row of zeros; its number."""
        if self._free:
            row = self._free.pop()
        else:
            if self._used == len(self.ever):
                self._grow()
            row = self._used
            self._used += 1
        self._made[row] = now
        return row

    def free(self, row: int) -> None:
        """Gives a row back."""
        for table in (self._fine, self._coarse, self.ever, self.last):
            table[row] = 0.0
        self._free.append(row)

    def add(self, now: float, rows: Collection[int], values: Vector) -> None:
        """Adds a matrix of one line per entry of `rows` (which may repeat), columns as `fields`."""
        self._turn(now)
        where = np.asarray(list(rows), dtype=np.intp)
        np.add.at(self._fine[:, self._tick % FINE, :], where, values)
        np.add.at(self.ever, where, values)
        line, column = np.nonzero(values)
        self.last[where[line], column] = now

    def short(self, rows: Collection[int], now: float) -> dict[str, float]:
        """Sums of these rows together over the last 10 s, by field."""
        self._turn(now)
        return self.named(self._fine[list(rows)].sum(axis=(0, 1)))

    def long(self, rows: Collection[int], now: float) -> dict[str, float]:
        """The same over the last 60 s."""
        self._turn(now)
        chosen = list(rows)
        return self.named(self._fine[chosen].sum(axis=(0, 1)) + self._coarse[chosen].sum(axis=(0, 1)))

    def windows(self, rows: Collection[int], now: float) -> tuple[Vector, Vector]:
        """Sums over the last 10 s and over the last 60 s, a line for each row, columns as `fields`."""
        self._turn(now)
        chosen = list(rows)
        short = self._fine[chosen].sum(axis=1)
        return short, short + self._coarse[chosen].sum(axis=1)

    def short_column(self, field: str, now: float) -> list[float]:
        """One field's sums over the last 10 s, for every row by its number."""
        self._turn(now)
        sums: list[float] = self._fine[: self._used, :, self.fields.index(field)].sum(axis=1).tolist()
        return sums

    def total(self, rows: Collection[int]) -> dict[str, float]:
        """The same since the rows were made."""
        return self.named(self.ever[list(rows)].sum(axis=0))

    def last_of(self, rows: Collection[int]) -> dict[str, float]:
        """When each field last grew in any of these rows, 0.0 for never."""
        return self.named(self.last[list(rows)].max(axis=0))

    def covered_s(self, rows: Collection[int], now: float, *, long: bool = False) -> float:
        """Seconds that the window covers: less than its length when the rows began within it; at least 1."""
        self._turn(now)
        if long:
            start = ((self._tick - FINE) // _RATIO - COARSE + 1) * COARSE_S
        else:
            start = (self._tick - FINE + 1) * FINE_S
        began = float(self._made[list(rows)].min()) if len(rows) else now
        return max(1.0, now - max(start, began))

    def named(self, sums: Vector) -> dict[str, float]:
        """One line of sums by field."""
        values: list[float] = sums.tolist()
        return dict(zip(self.fields, values, strict=True))

    def _grow(self) -> None:
        more = max(64, self._used)

        def longer(table: NDArray[Any]) -> NDArray[Any]:
            return np.concatenate([table, np.zeros((more, *table.shape[1:]))])

        self._fine, self._coarse = longer(self._fine), longer(self._coarse)
        self.ever, self.last, self._made = longer(self.ever), longer(self.last), longer(self._made)

    def _turn(self, now: float) -> None:
        tick = int(now / FINE_S)
        if tick <= self._tick:
            return
        if self._tick < 0 or tick - self._tick > FINE + _RATIO * COARSE:
            self._fine[:] = 0.0
            self._coarse[:] = 0.0
            self._tick = tick
            return
        for new in range(self._tick + 1, tick + 1):
            leaving = new - FINE  # its slot is needed again
            slot = (leaving // _RATIO) % COARSE
            if leaving % _RATIO == 0:
                self._coarse[:, slot, :] = 0.0
            self._coarse[:, slot, :] += self._fine[:, new % FINE, :]
            self._fine[:, new % FINE, :] = 0.0
        self._tick = tick


class SlidingSketches:
    """Named sketches over the last 10 and 60 seconds."""

    __slots__ = ("_coarse", "_fine")

    def __init__(self) -> None:
        self._fine: deque[tuple[int, dict[str, Sketch]]] = deque()
        self._coarse: deque[tuple[int, dict[str, Sketch]]] = deque()

    def add(self, now: float, sketches: Mapping[str, Sketch]) -> None:
        """Merges each sketch into the one of its name."""
        tick = int(now / FINE_S)
        fine = self._fine
        if not fine or tick > fine[-1][0]:
            self._turn(now)
            fine.append((tick, {}))
        _merge(fine[-1][1], sketches)

    def short(self, now: float) -> dict[str, Sketch]:
        """One sketch per name over the last 10 s."""
        self._turn(now)
        whole: dict[str, Sketch] = {}
        for _, slot in self._fine:
            _merge(whole, slot)
        return whole

    def long(self, now: float) -> dict[str, Sketch]:
        """One sketch per name over the last 60 s."""
        whole = self.short(now)
        for _, slot in self._coarse:
            _merge(whole, slot)
        return whole

    def _turn(self, now: float) -> None:
        fine, coarse = self._fine, self._coarse
        tick = int(now / FINE_S)
        while fine and fine[0][0] <= tick - FINE:
            left, slot = fine.popleft()
            if not coarse or coarse[-1][0] != left // _RATIO:
                coarse.append((left // _RATIO, {}))
            _merge(coarse[-1][1], slot)
        while coarse and coarse[0][0] <= (tick - FINE) // _RATIO - COARSE:
            coarse.popleft()


def _merge(into: dict[str, Sketch], sketches: Mapping[str, Sketch]) -> None:
    for name, sketch in sketches.items():
        held = into.get(name)
        if held is None:
            held = into[name] = Sketch()
        held.merge(sketch)
