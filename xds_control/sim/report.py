"""A comparison as JSON, as a table of text cells, and as one HTML file that needs nothing else."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from xds_control.sim import svg
from xds_control.sim.metrics import Figures
from xds_control.sim.simulation import Run

COLUMNS: tuple[tuple[str, str, float, int], ...] = (
    ("TTFT mean s", "ttft_mean", 1, 3),
    ("p50 s", "ttft_p50", 1, 3),
    ("p90 s", "ttft_p90", 1, 3),
    ("p99 s", "ttft_p99", 1, 3),
    ("TPOT p90 ms", "tpot_p90", 1e3, 1),
    ("goodput %", "goodput", 100, 1),
    ("out tok/s", "output_tps", 1, 0),
    ("hit %", "hit_ratio", 100, 1),
    ("imbalance", "imbalance", 1, 2),
    ("moved/push %", "moved_per_push", 100, 1),
    ("fallback %", "fallback", 100, 2),
    ("rejected %", "rejected", 100, 2),
    ("failed %", "failed", 100, 2),
)
"""(heading, field of `Figures`, factor, digits)."""


def cell(figures: Figures, field: str, factor: float, digits: int) -> str:
    """A figure as text; a dash for what is not known."""
    value = float(getattr(figures, field))
    return f"{value * factor:,.{digits}f}" if math.isfinite(value) else "–"


def as_json(settings: Mapping[str, Any], rows: Sequence[Figures]) -> dict[str, Any]:
    """Settings and figures as plain values; unknown numbers are null."""

    def clean(value: Any) -> Any:
        return None if isinstance(value, float) and not math.isfinite(value) else value

    return {**settings, "policies": [{k: clean(v) for k, v in asdict(row).items()} for row in rows]}


def verdict(rows: Sequence[Figures]) -> str:
    """One paragraph for somebody who reads no tables."""
    first, rest = rows[0], rows[1:]
    text = (
        f"With {first.policy}, half of the users see the first token within {svg.number(first.ttft_p50)} s and nine of "
        f"ten within {svg.number(first.ttft_p90)} s; {first.goodput * 100:.1f} % of the requests meet both targets. "
    )
    if not rest:
        return text
    best = max(rest, key=lambda r: (round(r.goodput, 3), -r.ttft_p90))
    worst = min(rest, key=lambda r: (round(r.goodput, 3), -r.ttft_p90))
    text += (
        f"The best of the others, {best.policy}, has {svg.number(best.ttft_p90)} s and {best.goodput * 100:.1f} %; "
        f"the worst, {worst.policy}, {svg.number(worst.ttft_p90)} s and {worst.goodput * 100:.1f} %. "
    )
    better = first.ttft_p90 <= 1.03 * best.ttft_p90 and first.goodput >= best.goodput - 0.005
    if better:
        return text + f"{first.policy} is at least as good as each of them here, within noise."
    return text + f"{best.policy} does better than {first.policy} here."


def as_html(settings: Mapping[str, Any], runs: Sequence[Run], rows: Sequence[Figures]) -> str:
    """The page."""
    names = [row.policy for row in rows]
    cdf: list[tuple[str, list[float], list[float]]] = []
    for run in runs:
        values = sorted(o.ttft for o in run.outcomes if o.ok)
        if values:
            parts_of = [float(s) for s in np.linspace(0, 1, min(200, len(values)))]
            times = [max(1e-4, float(np.quantile(values, s))) for s in parts_of]
            cdf.append((run.policy, times, [100 * s for s in parts_of]))
    head = "".join(f"<th>{html.escape(h)}</th>" for h, *_ in COLUMNS)
    body = "".join(
        f"<tr><th>{html.escape(row.policy)}</th>"
        + "".join(f"<td>{cell(row, field, factor, digits)}</td>" for _, field, factor, digits in COLUMNS)
        + "</tr>"
        for row in rows
    )
    known = "".join(f"<li>{html.escape(str(k))}: {html.escape(str(v))}</li>" for k, v in settings.items())
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><title>xds-control simulate</title><style>",
        "body{font:15px/1.5 system-ui,sans-serif;max-width:1080px;margin:2rem auto;padding:0 1rem;color:#1f2328}",
        "table{border-collapse:collapse;font-size:13px}td,th{padding:.25rem .5rem;border-bottom:1px solid #d0d7de;",
        "text-align:right}th:first-child{text-align:left}svg{max-width:680px;width:100%;font-size:11px}",
        ".grid{stroke:#d8dee4}figure{margin:1.5rem 0}figcaption{font-weight:600}.lead{font-size:17px}</style>",
        f"<h1>{html.escape(str(settings.get('workload', '')))}</h1><p class=lead>{html.escape(verdict(rows))}</p>",
        f"<table><thead><tr><th>policy</th>{head}</tr></thead><tbody>{body}</tbody></table>",
        _figure("Time to first token that nine of ten users stay under (shorter is better)",
                svg.bars(names, [r.ttft_p90 for r in rows], "s", log=True)),
        _figure("Requests that meet both targets (longer is better)",
                svg.bars(names, [100 * r.goodput for r in rows], "%")),
        _figure("Share of requests by time to first token",
                svg.lines(cdf, "time to first token, s", "share of requests, %", log_x=True)),
        _figure("Prompt tokens found in the engines' caches", svg.bars(names, [100 * r.hit_ratio for r in rows], "%")),
    ]  # fmt: skip
    for run in runs:
        times = [t for t, _ in run.samples]
        if times:
            inside = [values for _, values in run.samples]
            low, high = [float(min(v)) for v in inside], [float(max(v)) for v in inside]
            mean = [sum(v) / len(v) for v in inside]
            parts.append(
                _figure(f"Requests inside a replica, {run.policy}", svg.band(times, low, mean, high, "requests"))
            )
    for run in runs:
        if len(run.weight_log) > 1:
            shares = []
            for host in range(min(run.hosts, 12)):
                xs = [t for t, _ in run.weight_log]
                shares.append((f"replica {host}", xs, [100 * w[host] / max(1, sum(w)) for _, w in run.weight_log]))
            parts.append(_figure(f"Share of the weights, {run.policy}", svg.lines(shares, "time, s", "share, %")))
    parts.append(f"<h2>Settings</h2><ul>{known}</ul></html>")
    return "".join(parts)


def _figure(title: str, picture: str) -> str:
    return f"<figure><figcaption>{html.escape(title)}</figcaption>{picture}</figure>"
