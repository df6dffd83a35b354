"""How commands print: tables for people, JSON or YAML for programs; and the option types that they share."""

from __future__ import annotations

import json
import math
import re
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

import click
import yaml
from google.protobuf.message import Message
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from xds_control.admin.plain import plain
from xds_control.cli.table import Grid, bare

PIPED_WIDTH = 10_000
STATE_STYLES = {
    "ready": "green",
    "warming": "cyan",
    "probing": "cyan",
    "new": "cyan",
    "suspect": "yellow",
    "draining": "magenta",
    "ejected": "bold red",
    "gone": "dim",
}

output_option = click.option(
    "--output",
    "-o",
    type=click.Choice(["table", "json", "yaml"]),
    default="table",
    show_default=True,
    help="How to print.",
)


def limit_option(default: int) -> Callable[[Any], Any]:
    """--limit of a listing."""
    return click.option(
        "--limit", "-n", type=click.IntRange(1, 10_000), default=default, show_default=True, help="The newest so many."
    )


class Duration(click.ParamType):  # type: ignore[type-arg]  # generic only in newer versions of click
    """Seconds from `90`, `90s`, `1.5m`, `2h`, `1d` or `1h30m`."""

    name = "duration"
    _PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
    _UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Fails with what was found and what is allowed."""
        if isinstance(value, int | float):
            return float(value)
        text = str(value).strip().lower()
        if re.fullmatch(r"\d+(\.\d+)?", text):
            return float(text)
        parts = self._PART.findall(text)
        if not parts or "".join(number + unit for number, unit in parts) != text:
            self.fail(f"{value!r} is not a duration such as 90s, 10m, 2h or 1h30m", param, ctx)
        return sum(float(number) * self._UNITS[unit] for number, unit in parts)


def emit(output: str, value: Any, table: Callable[[], Iterable[RenderableType]]) -> None:
    """Prints a message, or plain values, in the chosen form; `table` makes what people see."""
    if output == "table":
        _print(table())
        return
    emit_document(output, value)


def _print(parts: Iterable[RenderableType]) -> None:
    screen = console()
    if sys.stdout.isatty():
        for part in parts:
            screen.print(part)
        return
    with screen.capture() as captured:
        for part in parts:
            screen.print(part)
    for line in captured.get().splitlines():
        click.echo(line.rstrip())  # tables fill their last column with blanks


def emit_document(output: str, value: Any, *, line: bool = False) -> None:
    """Prints one document. line: as one of many, one JSON object a line or one YAML document."""
    data = plain(value)
    if output == "json":
        click.echo(json.dumps(data, indent=None if line else 2, ensure_ascii=False))
    else:
        text = yaml.safe_dump(data, sort_keys=False, allow_unicode=True, default_flow_style=False)
        click.echo(("---\n" if line else "") + text, nl=False)


def console() -> Console:
    """Where tables go. On a terminal they adapt to its width; in a pipe nothing is cut and nothing coloured. Texts are
    shown as they are: `[red]` and `:tiger:` are good names of models."""
    if sys.stdout.isatty():
        return Console(highlight=False, markup=False, emoji=False)
    return Console(highlight=False, markup=False, emoji=False, width=PIPED_WIDTH, no_color=True, soft_wrap=True)


def grid(columns: str) -> Grid:
    """An empty table; its columns are written as `Grid` says."""
    return Grid(columns)


def facts(rows: Iterable[tuple[str, RenderableType | str]]) -> Table:
    """Names and values, one a line; empty values are left out."""
    table = bare(headed=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        if value != "":
            table.add_row(name, value)
    return table


def state(name: str) -> Text:
    """A state in its colour."""
    return Text(name, style=STATE_STYLES.get(name, ""))


def endpoint_state(endpoint: Any) -> Text:
    """An endpoint's state. One that an operator's drain has emptied is drained: it is not gone from the fleet."""
    if endpoint.state == "gone" and endpoint.HasField("override") and endpoint.override.kind == "drain":
        return Text("drained", style=STATE_STYLES["draining"])
    return state(endpoint.state)


def heading(text: str) -> Text:
    """A title above a part."""
    return Text(text, style="bold underline")


def counted(number_of: int, name: str) -> str:
    """`1 block`, `2 blocks`."""
    return f"{number_of} {name}{'' if number_of == 1 else 's'}"


def percent(value: float | None, digits: int = 0) -> str:
    """A ratio; `-` when it is unknown."""
    return "-" if value is None or not math.isfinite(value) else f"{100 * value:.{digits}f}%"


def number(value: float | None) -> str:
    """A number to three figures; `-` when it is unknown."""
    if value is None or not math.isfinite(value):
        return "-"
    if value != 0 and abs(value) < 0.001:
        return f"{value:.1e}"
    if abs(value) >= 1e6:
        return f"{value:.3g}"
    return f"{value:.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def seconds(value: float | None) -> str:
    """A time span as people say it: `340 ms`, `12 s`, `3m20s`, `2h`, `5d`; `-` when it is unknown."""
    if value is None or not math.isfinite(value):
        return "-"
    if value < 0.001:
        return f"{round(value * 1000, 2):g} ms"
    if value < 0.0995:
        return f"{value * 1000:.3g} ms"
    if value < 1:
        return f"{value * 1000:.0f} ms"
    if value < 10:
        return f"{value:.1f} s"
    if value < 120:
        return f"{value:.0f} s"
    minutes, rest = divmod(round(value), 60)
    if minutes < 60:
        return f"{minutes}m{rest:02d}s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours}h{minutes:02d}m"
    return f"{hours // 24}d{hours % 24:02d}h"


def size(value: float) -> str:
    """Bytes: `80 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024 or unit == "GiB":
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return ""


def clock(unix_s: float) -> str:
    """A moment in local time, with the date when it is not today; `-` when there is no such moment."""
    try:
        moment = time.localtime(unix_s)
    except (ValueError, OverflowError, OSError):
        return "-"
    today = time.localtime()
    form = "%H:%M:%S" if moment[:3] == today[:3] else "%Y-%m-%d %H:%M:%S"
    return time.strftime(form, moment)


def optional(message: Message, field: str) -> float | None:
    """The value of an optional field; None when it is unknown."""
    return getattr(message, field) if message.HasField(field) else None
