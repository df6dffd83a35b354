"""Plots as SVG text: bars, lines and bands, readable without any script or network."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

COLOURS = (
    *("#1f6feb", "#d1242f", "#2da44e", "#bf8700", "#8250df", "#0a7ea4"),
    *("#bc4c00", "#57606a", "#e85aad", "#4d2d00", "#6fdd8b", "#a475f9"),
)
_W, _H = 640, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 14, 14, 34


def number(value: float) -> str:
    """Three significant digits."""
    if not math.isfinite(value):
        return "–"
    if value == 0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{min(digits, 4)}f}"


def bars(names: Sequence[str], values: Sequence[float], unit: str, log: bool = False) -> str:
    """Horizontal bars, one for each name, with their values."""
    row, left, width = 24, 190, 640
    finite = [v for v in values if math.isfinite(v) and v > 0]
    top = max(finite, default=1.0)
    low = min(finite, default=1.0) / 2
    parts = [f'<svg viewBox="0 0 {width} {row * len(names) + 6}" role="img">']
    for i, (name, value) in enumerate(zip(names, values, strict=True)):
        share = 0.0
        if math.isfinite(value) and value > 0:
            share = math.log(value / low) / math.log(top / low) if log and top > low else value / top
        y = i * row + 4
        parts.append(f'<text x="{left - 8}" y="{y + 13}" text-anchor="end">{html.escape(name)}</text>')
        bar = max(1.0, share * (width - left - 100))
        colour = COLOURS[i % len(COLOURS)]
        parts.append(f'<rect x="{left}" y="{y}" width="{bar:.1f}" height="16" rx="2" fill="{colour}"/>')
        parts.append(f'<text x="{left + bar + 6:.1f}" y="{y + 13}">{number(value)} {html.escape(unit)}</text>')
    return "".join([*parts, "</svg>"])


def lines(
    series: Sequence[tuple[str, Sequence[float], Sequence[float]]],
    x_label: str,
    y_label: str,
    log_x: bool = False,
    legend: bool = True,
) -> str:
    """Curves of (name, xs, ys) in one frame."""
    xs = [x for _, values, _ in series for x in values if not log_x or x > 0]
    ys = [y for _, _, values in series for y in values]
    if not xs or not ys:
        return "<p>Nothing to show.</p>"
    x0, x1 = min(xs), max(xs)
    y0, y1 = min(0.0, min(ys)), max(ys)
    if x1 <= x0:
        x1 = x0 + 1.0
    if y1 <= y0:
        y1 = y0 + 1.0

    def px(x: float) -> float:
        share = math.log(x / x0) / math.log(x1 / x0) if log_x else (x - x0) / (x1 - x0)
        return _LEFT + share * (_W - _LEFT - _RIGHT)

    def py(y: float) -> float:
        return _H - _BOTTOM - (y - y0) / (y1 - y0) * (_H - _TOP - _BOTTOM)

    parts = [f'<svg viewBox="0 0 {_W} {_H + (20 * math.ceil(len(series) / 4) if legend else 0)}" role="img">']
    for i in range(5):
        y = y0 + (y1 - y0) * i / 4
        parts.append(f'<line x1="{_LEFT}" x2="{_W - _RIGHT}" y1="{py(y):.1f}" y2="{py(y):.1f}" class="grid"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{py(y) + 4:.1f}" text-anchor="end">{number(y)}</text>')
        x = x0 * (x1 / x0) ** (i / 4) if log_x else x0 + (x1 - x0) * i / 4
        parts.append(f'<text x="{px(x):.1f}" y="{_H - _BOTTOM + 16}" text-anchor="middle">{number(x)}</text>')
    parts.append(f'<text x="{_W / 2}" y="{_H - 3}" text-anchor="middle">{html.escape(x_label)}</text>')
    parts.append(
        f'<text transform="translate(12 {_H / 2}) rotate(-90)" text-anchor="middle">{html.escape(y_label)}</text>'
    )
    for i, (name, values, heights) in enumerate(series):
        colour = COLOURS[i % len(COLOURS)]
        points = " ".join(
            f"{px(x):.1f},{py(y):.1f}" for x, y in zip(values, heights, strict=True) if not log_x or x > 0
        )
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
        if legend:
            x, y = _LEFT + (i % 4) * 145, _H + 14 + 20 * (i // 4)
            parts.append(f'<rect x="{x}" y="{y - 9}" width="10" height="10" fill="{colour}"/>')
            parts.append(f'<text x="{x + 14}" y="{y}">{html.escape(name)}</text>')
    return "".join([*parts, "</svg>"])


def band(times: Sequence[float], low: Sequence[float], mean: Sequence[float], high: Sequence[float], what: str) -> str:
    """A mean with the range around it, over time."""
    return lines([("least", times, low), ("mean", times, mean), ("most", times, high)], "time, s", what)
