"""Workloads from files: Mooncake, Azure, Vidur's arxiv lengths, VTC, ServeGen rates, own CSV or JSON lines.

The format is found from the columns. Files of lengths without arrival times get Poisson arrivals; times of a trace are
stretched to the rate asked for.
"""

from __future__ import annotations

import csv
import datetime
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from xds_control.errors import XdsControlError
from xds_control.sim.request import Request
from xds_control.sim.workloads import BLOCK, Keys, Workload, poisson

_MOONCAKE_BLOCK = 512
_MOONCAKE_STEP_S = 3.0


class TraceError(XdsControlError):
    """A trace that cannot be read. Says file and line."""

    code = "bad-trace"


def load_trace(path: Path, n: int | None = None, rate: float | None = None, seed: int = 0) -> Workload:
    """The first `n` requests of a file at `rate` requests per second; None = as in the file.

    Raises TraceError.
    """
    try:
        rows = _rows(path)
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"{path}: cannot be read: {error}") from error
    if not rows:
        raise TraceError(f"{path}: no requests in it")
    rng = np.random.default_rng(seed)
    first = rows[0][1]
    try:
        if "hash_ids" in first:
            requests = _mooncake(rows, n, rng)
        elif "ContextTokens" in first:
            requests = _azure(rows, n)
        elif "num_prefill_tokens" in first:
            requests = _lengths(rows, n, rng, rate or 1.0, "num_prefill_tokens", "num_decode_tokens")
        elif "rate_rps" in first:
            requests = _servegen(path, rows, n or 5000, rng)
        else:
            requests = _own(rows, n, rng, rate or 1.0)
    except (KeyError, ValueError, TypeError) as error:
        raise TraceError(f"{path}: {type(error).__name__}: {error}") from error
    if not requests:
        raise TraceError(f"{path}: no requests in it")
    if rate is not None:
        stretch(requests, rate)
    return Workload(path.stem, f"{len(requests)} requests of {path.name}", requests)


def stretch(requests: Sequence[Request], rate: float) -> None:
    """Moves arrivals so that their mean rate is `rate`; their pattern stays."""
    start = min(r.at for r in requests)
    span = max(r.at for r in requests) - start
    factor = len(requests) / rate / span if span > 0 else 1.0
    for request in requests:
        request.at = (request.at - start) * factor
        request.think_s *= factor


def _rows(path: Path) -> list[tuple[int, Mapping[str, Any]]]:
    rows: list[tuple[int, Mapping[str, Any]]] = []
    with path.open(encoding="utf-8", newline="") as file:
        if path.suffix in (".jsonl", ".json", ".ndjson"):
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                try:
                    row = json.loads(line)
                except json.JSONDecodeError as error:
                    raise TraceError(f"{path}:{number}: not JSON: {error.msg}") from error
                if not isinstance(row, dict):
                    raise TraceError(f"{path}:{number}: not an object")
                if "schema" not in row or "request_id" in row:
                    rows.append((number, row))
        else:
            rows.extend(enumerate(csv.DictReader(file), 2))
    return rows


def _some(rows: Iterable[tuple[int, Mapping[str, Any]]], n: int | None) -> list[Mapping[str, Any]]:
    found: list[Mapping[str, Any]] = []
    for _, row in rows:
        if n is not None and len(found) >= n:
            break
        found.append(row)
    return found


def _mooncake(rows: Sequence[tuple[int, Mapping[str, Any]]], n: int | None, rng: np.random.Generator) -> list[Request]:
    """Hash ids of 512-token blocks. Rows that share a time are spread over the step that the recording rounded to."""
    some = _some(rows, n)
    times = [float(row.get("timestamp", row.get("not_before_ms", 0.0))) / 1000.0 for row in some]
    batched = len(set(times)) < 0.5 * len(times)
    requests = []
    for i, row in enumerate(some):
        prompt = max(1, int(row["input_length"]))
        ids = [int(k) + 1 for k in row["hash_ids"]]
        block = int(row.get("block_size", _MOONCAKE_BLOCK))
        at = times[i] + (float(rng.uniform(0.0, _MOONCAKE_STEP_S)) if batched else 0.0)
        requests.append(Request(i, at, prompt, max(1, int(row["output_length"])), ids[: prompt // block], block))
    requests.sort(key=lambda r: r.at)
    for i, request in enumerate(requests):
        request.index = i
    return requests


def _azure(rows: Sequence[tuple[int, Mapping[str, Any]]], n: int | None) -> list[Request]:
    keys = Keys()
    start: float | None = None
    requests = []
    for i, row in enumerate(_some(rows, n)):
        text = str(row["TIMESTAMP"])
        whole, _, fraction = text.partition(".")
        at = datetime.datetime.fromisoformat(whole).replace(tzinfo=datetime.UTC).timestamp()
        at += float(f"0.{fraction[:9]}") if fraction else 0.0
        start = at if start is None else start
        prompt = max(1, int(row["ContextTokens"]))
        requests.append(Request(i, at - start, prompt, max(1, int(row["GeneratedTokens"])), keys.fresh(prompt), BLOCK))
    return requests


def _lengths(
    rows: Sequence[tuple[int, Mapping[str, Any]]],
    n: int | None,
    rng: np.random.Generator,
    rate: float,
    prompt: str,
    output: str,
) -> list[Request]:
    keys = Keys()
    some = _some(rows, n)
    return [
        Request(i, at, max(1, int(row[prompt])), max(1, int(row[output])), keys.fresh(int(row[prompt])), BLOCK)
        for i, (at, row) in enumerate(zip(poisson(rng, rate, len(some)), some, strict=True))
    ]


def _servegen(
    path: Path, rows: Sequence[tuple[int, Mapping[str, Any]]], n: int, rng: np.random.Generator
) -> list[Request]:
    """Rates and burstiness by client and window, a second of each standing for ten minutes; lengths from the file of
    quantiles beside it, by client, log-linear between them."""
    quantiles = _quantiles(path.with_name(path.name.replace("rates_48h", "length_quantiles")))
    squeeze = 1.0 / 600.0
    total = sum(float(row["rate_rps"]) for _, row in rows) or 1.0
    arrivals: list[tuple[float, str]] = []
    for _, row in rows:
        share = float(row["rate_rps"]) / total
        count = int(rng.poisson(share * n))
        if not count:
            continue
        start = float(row["window_start_s"]) * squeeze
        shape = max(0.05, 1.0 / max(0.1, float(row["cv"])) ** 2)
        gaps = rng.gamma(shape, 1.0, count + 1)
        places = np.cumsum(gaps)[:-1] / gaps.sum()
        arrivals.extend((start + float(place), str(row["client"])) for place in places)
    arrivals.sort()
    keys = Keys()
    requests = []
    known = sorted(quantiles)
    for i, (at, client) in enumerate(arrivals[:n]):
        fields = quantiles.get(client) or (quantiles[known[hash_of(client) % len(known)]] if known else {})
        prompt = _draw(fields.get("input_tokens"), rng, 512)
        output = _draw(fields.get("output_tokens"), rng, 128)
        requests.append(Request(i, at, prompt, output, keys.fresh(prompt), BLOCK, client=client))
    return requests


def hash_of(text: str) -> int:
    """A small hash that is the same in every process."""
    value = 0
    for byte in text.encode():
        value = (value * 131 + byte) & 0xFFFFFFFF
    return value


def _quantiles(path: Path) -> dict[str, dict[str, list[float]]]:
    found: dict[str, dict[str, list[float]]] = {}
    if not path.exists():
        return found
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            points = [float(row[name]) for name in ("p10", "p50", "p90", "p99", "max")]
            found.setdefault(row["client"], {}).setdefault(row["field"], points)
    return found


def _draw(points: list[float] | None, rng: np.random.Generator, usual: int) -> int:
    if not points:
        return max(1, int(rng.lognormal(math.log(usual), 0.8)))
    u = float(rng.random())
    value = np.interp(u, [0.1, 0.5, 0.9, 0.99, 1.0], [math.log(max(1.0, p)) for p in points])
    return max(1, int(math.exp(float(value))))


_AT = ("arrival_s", "at_s", "at", "timestamp_s")
_PROMPT = ("prompt_tokens", "input_tokens", "input_length", "prompt_tokens_est")
_OUTPUT = ("output_tokens", "completion_tokens", "output_length", "output_tokens_est")
_CLIENT = ("client", "tenant")


def _own(
    rows: Sequence[tuple[int, Mapping[str, Any]]], n: int | None, rng: np.random.Generator, rate: float
) -> list[Request]:
    """A user's file: prompt_tokens and output_tokens, and where there are any arrival_s (or ended_unix_s and e2e_s of
    recorded decisions), client, session, prefix (a name of what the prompt begins with) and prefix_tokens."""
    some = _some(rows, n)
    keys = Keys()
    heads: dict[str, list[int]] = {}
    sessions: dict[str, int] = {}
    times = [_time(row) for row in some]
    drawn = poisson(rng, rate, len(some)) if any(t is None for t in times) else []
    start = min((t for t in times if t is not None), default=0.0)
    requests = []
    for i, row in enumerate(some):
        prompt, output = int(float(_field(row, _PROMPT))), int(float(_field(row, _OUTPUT)))
        if prompt < 0 or output < 0:
            raise ValueError("token counts must not be negative")
        prompt, output = max(1, prompt), max(1, output)
        given = times[i]
        at = drawn[i] if given is None or drawn else given - start
        head: list[int] = []
        name = str(row.get("prefix") or "")
        if name:
            shared = min(prompt, int(float(row.get("prefix_tokens") or prompt)))
            known = heads.setdefault(name, [])
            if len(known) < shared // BLOCK:
                known.extend(keys.fresh(shared - len(known) * BLOCK))
            head = known[: shared // BLOCK]
        session = str(row.get("session") or "")
        number = sessions.setdefault(session, len(sessions) + 1) if session else 0
        client = next((str(row[c]) for c in _CLIENT if row.get(c)), "")
        own = keys.fresh(prompt - len(head) * BLOCK)
        requests.append(
            Request(i, at, prompt, output, [*head, *own], BLOCK, len(head) * BLOCK, session=number, client=client)
        )
    requests.sort(key=lambda r: r.at)
    for i, request in enumerate(requests):
        request.index = i
    return requests


def _time(row: Mapping[str, Any]) -> float | None:
    for name in _AT:
        if row.get(name) not in (None, ""):
            return float(row[name])
    if row.get("ended_unix_s") not in (None, ""):
        return float(row["ended_unix_s"]) - float(row.get("e2e_s") or 0.0)
    if row.get("timestamp") not in (None, ""):
        return float(row["timestamp"]) / 1000.0
    return None


def _field(row: Mapping[str, Any], names: Sequence[str]) -> Any:
    for name in names:
        if row.get(name) not in (None, ""):
            return row[name]
    raise KeyError(f"none of the columns {', '.join(names)}")
