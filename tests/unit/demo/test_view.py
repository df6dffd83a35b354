from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from xds_control.demo import view
from xds_control.demo.load import Summary


def endpoint(name: str, **changes: Any) -> dict[str, Any]:
    return {
        "address": "127.0.0.1:1",
        "name": name,
        "state": "ready",
        "weight": 100,
        "priority": 0,
        "gates": [],
        "share": 0.25,
        "signals": {"running": {"value": 3.0, "age_s": 0.42, "source": "vllm"}},
        "ttft_p50_s": 0.05,
        "ttft_p90_s": 1.5,
    } | changes


STATE = {
    "pools": [
        {
            "name": "chat",
            "endpoints": [endpoint("b", weight=300), endpoint("a", address="127.0.0.1:2", priority=1, gates=["kv"])],
        },
        {"name": "other", "endpoints": [endpoint("c", state="suspect", ttft_p50_s=None, share=0.0)]},
    ]
}


@pytest.mark.parametrize("width", [80, 140])
def test_table_shows_every_endpoint_within_the_width(width: int) -> None:
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(view.table(STATE, "head", width))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert all(len(line) <= width for line in text.splitlines())
    assert "…" not in text
    rows = [line for line in text.splitlines() if "ready" in line or "suspect" in line]
    assert len(rows) == 3
    assert "spill 1" in rows[0]
    assert "kv" in rows[0]
    assert "300" in rows[1]
    assert "3·0.4" in rows[1]
    assert "25%" in rows[1]


@pytest.mark.parametrize("width", [66, 80, 100, 140])
def test_nothing_is_cut_whatever_the_numbers(width: int) -> None:
    readings = {
        "running": {"value": 128.0, "age_s": 12.5, "source": "vllm"},
        "waiting": {"value": 1044.0, "age_s": 12.5, "source": "vllm"},
        "kv_usage": {"value": 1.0, "age_s": 12.5, "source": "vllm"},
    }
    members = [
        endpoint(
            f"engine-{i}", address=f"127.0.0.1:{i}", weight=10_000 + i, share=1.0, signals=readings, ttft_p50_s=0.184
        )
        for i in range(3)
    ]
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(view.table({"pools": [{"name": "chat", "endpoints": members}]}, "head", width))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "…" not in text
    assert all(len(line) <= width for line in text.splitlines())
    for i in range(3):
        (row,) = [line for line in text.splitlines() if f"engine-{i}" in line]
        assert all(part in row for part in (str(10_000 + i), "100%", "128", "1044", "184 ms", "1.5 s"))


def test_plain_lines_name_each_endpoint_in_order() -> None:
    head, *rows = view.lines(STATE, "head")
    assert head == "head"
    assert [row.split()[0] for row in rows] == ["chat/a", "chat/b", "other/c"]
    assert "weight=100 (100% of level 1)" in rows[0]
    assert "gates=kv" in rows[0]
    assert "weight=300 (100%) share=25% run=3·0.4 ttft=50 ms/1.5 s" in rows[1]


def test_empty_state_is_shown_too() -> None:
    assert list(view.lines({}, "head")) == ["head"]
    Console(file=io.StringIO()).print(view.table({}, "head"))


def test_headline_and_closing_say_failures() -> None:
    summary = Summary(answered=10, errors={"http-503": 2}, prompt_tokens=100, cached_tokens=50, ttft_p50_s=0.1)
    assert "2 failed" in view.headline(3.0, 40.0, "title", summary, 4)
    assert view.headline(3.0, None, "title", Summary(), 4).startswith("3 s · title · 0 answered, 4 open")
    closing = view.closing(40.0, summary, ["a slowed: x"])
    assert closing.startswith("demo: 40 s, 10 requests answered, 2 failed (http-503 2); TTFT p50 100 ms p90 –")
    assert "50% of prompt tokens from cache; a slowed: x" in closing
