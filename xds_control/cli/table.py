"""Tables that fit the terminal: what matters less is left out where all of it has no room, and named below."""

from __future__ import annotations

from typing import Final, Literal

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

Justify = Literal["left", "right"]

GAP: Final = 2
LEAST_FOLDED: Final = 24
"""Columns that text of a column that folds needs, if it has so many."""


def bare(*, headed: bool = True) -> Table:
    """A table without lines."""
    return Table(box=None, pad_edge=False, show_header=headed, header_style="bold", padding=(0, GAP, 0, 0))


class Grid(Table):
    """A table with columns `NAME|>NAME|~NAME|?NAME`: `>` holds numbers, `~` may fold, `?` may be left out where the
    terminal is too narrow (`??` before `?`, of equal ones the last first); the others are never left out.

    noted: whether a line below names what is left out.
    """

    def __init__(self, columns: str, *, noted: bool = True) -> None:
        super().__init__(box=None, pad_edge=False, header_style="bold", padding=(0, GAP, 0, 0))
        self.noted = noted
        self._spare: list[tuple[int, int]] = []
        for index, marked in enumerate(columns.split("|")):
            name = marked.lstrip("?")
            if name != marked:
                self._spare.append((len(marked) - len(name), index))
            justify: Justify = "right" if name.startswith(">") else "left"
            fold = name.startswith("~")
            overflow: Literal["fold", "ellipsis"] = "fold" if fold else "ellipsis"
            self.add_column(name.lstrip(">~"), justify=justify, no_wrap=not fold, overflow=overflow)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The table with as many columns as fit."""
        natural = [self._natural_width(console, options, index) for index in range(len(self.columns))]
        if sum(natural) + GAP * (len(natural) - 1) <= options.max_width:
            yield from super().__rich_console__(console, options)
            return
        least = [self._least_width(width, index) for index, width in enumerate(natural)]
        kept, left_out = self._fitting(least, options.max_width)
        folding = [index for index in kept if not self.columns[index].no_wrap]
        room = options.max_width - GAP * (len(kept) - 1) - sum(natural[i] for i in kept if i not in folding)
        widths = _shared(room, [natural[index] for index in folding])
        table = bare()
        for index in kept:
            column = self.columns[index]
            width = widths[folding.index(index)] if index in folding else None
            table.add_column(
                column.header, justify=column.justify, no_wrap=column.no_wrap, overflow=column.overflow, width=width
            )
        cells = [list(self.columns[index].cells) for index in kept]
        for at, row in enumerate(self.rows):
            table.add_row(*(column[at] for column in cells), style=row.style)
        yield table
        if left_out and self.noted:
            yield Text(f"too narrow for {', '.join(left_out)}", style="dim")

    def _fitting(self, least: list[int], room: int) -> tuple[list[int], list[str]]:
        """The columns that fit, and the names of those left out for it. Empty ones go first, and unnamed."""
        kept = list(range(len(self.columns)))

        def too_wide() -> bool:
            return sum(least[index] for index in kept) + GAP * (len(kept) - 1) > room

        for index in [index for index in kept if self._is_empty(index)]:
            if too_wide():
                kept.remove(index)
        left_out: list[int] = []
        for _, index in sorted(self._spare, reverse=True):
            if index in kept and too_wide():
                kept.remove(index)
                left_out.append(index)
        return kept, [str(self.columns[index].header) for index in sorted(left_out)]

    def _natural_width(self, console: Console, options: ConsoleOptions, index: int) -> int:
        column, wide = self.columns[index], options.update(max_width=100_000)
        return max(Measurement.get(console, wide, cell).maximum for cell in (column.header, *column.cells))

    def _least_width(self, natural: int, index: int) -> int:
        return natural if self.columns[index].no_wrap else min(natural, LEAST_FOLDED)

    def _is_empty(self, index: int) -> bool:
        return bool(self.rows) and all(str(cell) == "" for cell in self.columns[index].cells)


def _shared(room: int, natural: list[int]) -> list[int]:
    """Widths of columns that fold: the narrow ones have theirs, the others what is left in equal parts."""
    widths = [0] * len(natural)
    for done, index in enumerate(sorted(range(len(natural)), key=natural.__getitem__)):
        widths[index] = max(8, min(natural[index], room // (len(natural) - done)))
        room -= widths[index]
    return widths
