"""How the demo shows the fleet: a live table on a terminal, plain lines elsewhere. Works on what /api/v1/state says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

from rich import box
from rich.console import Console, Group, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from xds_control.demo.load import Summary

STYLES: Final = {"ready": "green", "warming": "cyan", "probing": "cyan", "new": "cyan", "draining": "magenta"}
WIDE: Final = 112


def milliseconds(value: float | None) -> str:
    """`184 ms`, `2.3 s`, or a dash."""
    if value is None:
        return "–"
    return f"{value * 1e3:.0f} ms" if value < 1.0 else f"{value:.1f} s"


def headline(at: float, seconds: float | None, title: str, summary: Summary, in_flight: int) -> str:
    """The line above the table."""
    end = "" if seconds is None else f" of {seconds:.0f}"
    failed = f", {summary.failed} failed" if summary.failed else ""
    return f"{at:.0f}{end} s · {title} · {summary.answered} answered{failed}, {in_flight} open"


def table(state: Mapping[str, Any], head: str, width: int = WIDE) -> RenderableType:
    """Everything about every endpoint in one table; less of it where it would not fit into `width` columns."""
    forms = ((True, 10, True), (False, 4, True), (False, 4, False), (False, 0, False))
    for wide, size, ages in forms:
        grid = _grid(state, wide, size, ages)
        if _width(grid) <= width:
            break
    foot = [Text("after each signal, dim: its age in seconds", style="dim")] if ages else []
    return Group(Text(head, style="bold"), grid, *foot)


def _width(grid: Table) -> int:
    console = Console(width=10_000)
    return Measurement.get(console, console.options, grid).maximum


def _grid(state: Mapping[str, Any], wide: bool, size: int, ages: bool) -> Table:
    """wide: all columns. size: cells of the bars. ages: those of the signals."""
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    left = (
        ["pool", "endpoint", "state", "weight", "share of requests"]
        if wide
        else ["endpoint", "state", "weight", "share"]
    )
    right = ["running", "waiting", "KV cache", "prefix hits", "TTFT p50", "p90"]
    if not wide:
        right = ["run", "wait", "KV", "p50", "p90"]
    for name in left:
        grid.add_column(name, no_wrap=True)
    for name in right:
        grid.add_column(name, justify="right", no_wrap=True)
    for pool in state.get("pools", ()):
        parts = _parts(pool)
        members = _by_name(pool)
        for index, one in enumerate(members):
            part = parts[one["address"]] if one["priority"] == 0 else 0.0
            weight = str(one["weight"]) if one["priority"] == 0 else f"spill {one['priority']}"
            cells: list[str | Text] = [
                one["name"] or one["address"],
                _state(one),
                _bar(part, "blue", weight, size),
                _bar(one["share"] or 0.0, "green", f"{one['share'] or 0.0:.0%}", size),
                _signal(one, "running", "{:.0f}", ages),
                _signal(one, "waiting", "{:.0f}", ages),
                _signal(one, "kv_usage", "{:.0%}", ages),
            ]
            if wide:
                cells.insert(0, pool["name"] if index == 0 else "")
                cells.append(_signal(one, "kv_hit_ratio", "{:.0%}"))
            cells += [milliseconds(one["ttft_p50_s"]), milliseconds(one["ttft_p90_s"])]
            grid.add_row(*cells, end_section=index == len(members) - 1)
    return grid


def lines(state: Mapping[str, Any], head: str) -> Iterator[str]:
    """The same without colours: the headline, then a line for each endpoint."""
    yield head
    for pool in state.get("pools", ()):
        parts = _parts(pool)
        for one in _by_name(pool):
            signals = " ".join(
                f"{label}={text}"
                for label, name, form in (
                    ("run", "running", "{:.0f}"),
                    ("wait", "waiting", "{:.0f}"),
                    ("kv", "kv_usage", "{:.0%}"),
                    ("hits", "kv_hit_ratio", "{:.0%}"),
                )
                if (text := _signal(one, name, form).plain) != "–"
            )
            gates = f" gates={','.join(one['gates'])}" if one["gates"] else ""
            level = f" of level {one['priority']}" if one["priority"] else ""
            yield (
                f"  {pool['name']}/{one['name'] or one['address']} {one['state']} weight={one['weight']}"
                f" ({parts[one['address']]:.0%}{level})"
                f" share={one['share'] or 0.0:.0%} {signals}"
                f" ttft={milliseconds(one['ttft_p50_s'])}/{milliseconds(one['ttft_p90_s'])}{gates}"
            )


def closing(seconds: float, summary: Summary, moved: list[str]) -> str:
    """The last line."""
    hits = summary.cached_tokens / summary.prompt_tokens if summary.prompt_tokens else 0.0
    failed = f"{summary.failed} failed"
    if summary.errors:
        failed += f" ({', '.join(f'{name} {count}' for name, count in sorted(summary.errors.items()))})"
    parts = [
        f"demo: {seconds:.0f} s, {summary.answered} requests answered, {failed}",
        f"TTFT p50 {milliseconds(summary.ttft_p50_s)} p90 {milliseconds(summary.ttft_p90_s)}",
        f"{hits:.0%} of prompt tokens from cache",
        *moved,
    ]
    return "; ".join(parts)


def _by_name(pool: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return sorted(pool["endpoints"], key=lambda one: (one["name"] or one["address"], one["address"]))


def _parts(pool: Mapping[str, Any]) -> dict[str, float]:
    """Address → its part of the weights of its priority level."""
    sums: Counter[int] = Counter()
    for one in pool["endpoints"]:
        sums[one["priority"]] += int(one["weight"])
    return {
        one["address"]: one["weight"] / sums[one["priority"]] if sums[one["priority"]] else 0.0
        for one in pool["endpoints"]
    }


def _state(one: Mapping[str, Any]) -> Text:
    text = Text(one["state"], style=STYLES.get(one["state"], "red"))
    if one["gates"]:
        text.append(f" {','.join(one['gates'])}", style="yellow")
    return text


def _bar(part: float, style: str, label: str, size: int) -> Text:
    filled = min(size, round(part * size))
    text = Text()
    text.append("█" * filled, style=style)
    text.append("·" * (size - filled), style="dim")
    text.append(f" {label}" if size else label)
    return text


def _signal(one: Mapping[str, Any], name: str, form: str, age: bool = True) -> Text:
    """Value and, small, its age; a dash when the signal is unknown."""
    reading = one["signals"].get(name)
    if reading is None:
        return Text("–")
    text = Text(form.format(reading["value"]))
    if age:
        text.append(f"·{reading['age_s']:.1f}", style="dim")
    return text
