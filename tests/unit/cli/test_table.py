"""Tables at the widths of terminals."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from xds_control.cli.output import counted, seconds
from xds_control.cli.table import Grid

WIDE = "POOL|ENDPOINT|>WEIGHT|?>SHARE|??>KV HITS|NOTE|~WHY"


def lines(table: Grid, width: int) -> list[str]:
    screen = Console(file=io.StringIO(), width=width, highlight=False, no_color=True)
    screen.print(table)
    assert isinstance(screen.file, io.StringIO)
    return [line.rstrip() for line in screen.file.getvalue().splitlines()]


def weights(note: str = "") -> Grid:
    table = Grid(WIDE)
    for name, why in (("10.0.0.11:8000", "as its capacity: weight 10000"), ("10.0.0.12:8000", "short")):
        table.add_row("chat", name, "10000", "50%", "87%", note, why)
    return table


def test_all_columns_where_there_is_room() -> None:
    found = lines(weights(), 120)
    assert found[0].split() == ["POOL", "ENDPOINT", "WEIGHT", "SHARE", "KV", "HITS", "NOTE", "WHY"]
    assert len(found) == 3


@pytest.mark.parametrize("width", range(52, 100))
def test_names_and_numbers_are_whole_at_every_width(width: int) -> None:
    found = lines(weights("kv"), width)
    assert all(len(line) <= width for line in found)
    assert "…" not in "".join(found)
    assert sum("10.0.0.1" in line and "10000" in line for line in found) == 2
    head = found[0]
    for name in ("POOL", "ENDPOINT", "WEIGHT", "NOTE", "WHY"):
        assert name in head
    left_out = [name for name in ("SHARE", "KV HITS") if name not in head]
    assert (found[-1] == f"too narrow for {', '.join(left_out)}") if left_out else "narrow" not in found[-1]


def test_what_goes_first() -> None:
    assert "NOTE" not in lines(weights(), 70)[0], "a column with nothing in it goes before all others"
    assert "NOTE" in lines(weights("kv"), 70)[0]
    some = lines(weights("kv"), 72)
    assert "SHARE" in some[0]
    assert some[-1] == "too narrow for KV HITS"


def test_text_that_folds_has_the_room_that_is_left() -> None:
    found = lines(weights(), 60)
    assert max(len(line) for line in found) > 52
    assert "as its capacity: weight" in found[1]


def test_a_screen_without_a_line_to_spare_has_no_note() -> None:
    table = weights("kv")
    table.noted = False
    assert not any("narrow" in line for line in lines(table, 60))


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0 ms"), (3.6e-13, "0 ms"), (7.2e-6, "0.01 ms"), (4.1e-5, "0.04 ms"), (0.0016, "1.6 ms")]
)
def test_times_below_a_millisecond(value: float, text: str) -> None:
    assert seconds(value) == text


def test_counted() -> None:
    assert [counted(number, "block") for number in (0, 1, 2)] == ["0 blocks", "1 block", "2 blocks"]
