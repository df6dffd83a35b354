"""How the demo shows the fleet: a live table on a terminal, plain lines elsewhere. Works on what /api/v1/state says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from rich import box
from rich.console import Group, RenderableType
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
    """Everything about every endpoint in one table; less of it where the terminal is narrower than `WIDE` columns."""
    wide = width >= WIDE
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
    size = 10 if wide else 4
    for pool in state.get("pools", ()):
        total = _weight_sum(pool)
        members = _by_name(pool)
        for index, one in enumerate(members):
            counts = one["priority"] == 0 and total > 0
            part = one["weight"] / total if counts else 0.0
            weight = str(one["weight"]) if one["priority"] == 0 else f"spill {one['priority']}"
            cells: list[str | Text] = [
                one["name"] or one["address"],
                _state(one),
                _bar(part, "blue", weight, size),
                _bar(one["share"] or 0.0, "green", f"{one['share'] or 0.0:.0%}", size),
                _signal(one, "running", "{:.0f}"),
                _signal(one, "waiting", "{:.0f}"),
                _signal(one, "kv_usage", "{:.0%}"),
            ]
            if wide:
                cells.insert(0, pool["name"] if index == 0 else "")
                cells.append(_signal(one, "kv_hit_ratio", "{:.0%}"))
            cells += [milliseconds(one["ttft_p50_s"]), milliseconds(one["ttft_p90_s"])]
            grid.add_row(*cells, end_section=index == len(members) - 1)
    return Group(Text(head, style="bold"), grid, Text("after each signal, dim: its age in seconds", style="dim"))


def lines(state: Mapping[str, Any], head: str) -> Iterator[str]:
    """The same without colours: the headline, then a line for each endpoint."""
    yield head
    for pool in state.get("pools", ()):
        total = _weight_sum(pool)
        for one in _by_name(pool):
            part = one["weight"] / total if one["priority"] == 0 and total > 0 else 0.0
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
            spill = f" spill={one['priority']}" if one["priority"] else ""
            yield (
                f"  {pool['name']}/{one['name'] or one['address']} {one['state']} weight={one['weight']} ({part:.0%})"
                f" share={one['share'] or 0.0:.0%} {signals}"
                f" ttft={milliseconds(one['ttft_p50_s'])}/{milliseconds(one['ttft_p90_s'])}{gates}{spill}"
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


def _weight_sum(pool: Mapping[str, Any]) -> int:
    return sum(int(one["weight"]) for one in pool["endpoints"] if one["priority"] == 0)


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
    text.append(f" {label}")
    return text


def _signal(one: Mapping[str, Any], name: str, form: str) -> Text:
    """Value and, small, its age; a dash when the signal is unknown."""
    reading = one["signals"].get(name)
    if reading is None:
        return Text("–")
    text = Text(form.format(reading["value"]))
    text.append(f"·{reading['age_s']:.1f}", style="dim")
    return text
