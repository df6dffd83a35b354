"""What outcomes over a window say, in numbers for people, metrics and the weight engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from xds_control.signals.sketch import Sketch

ERROR_KINDS: Mapping[str, tuple[str, str | None]] = {
    "connect": ("errors_connect", "attempts_connect"),
    "timeout": ("errors_timeout", "attempts_timeout"),
    "reset": ("errors_reset", "attempts_reset"),
    "5xx": ("errors_5xx", "attempts_5xx"),
    "4xx": ("errors_4xx", None),
    "backpressure": ("backpressure", "attempts_backpressure"),
    "aborted": ("aborted", None),
}
"""Kind → field of requests that ended so, and field of single attempts that did (None: not logged per attempt)."""

FAULTS = ("connect", "timeout", "reset", "5xx")
"""Kinds that are the endpoint's fault."""


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Seconds below which half, 90 % and 99 % of the observations lay, their mean and number."""

    p50: float
    p90: float
    p99: float
    mean: float
    count: int

    @classmethod
    def of(cls, sketch: Sketch | None) -> Quantiles | None:
        """Of a sketch; None when it is empty."""
        if sketch is None or not sketch.count:
            return None
        p50, p90, p99, mean = sketch.quantile(0.5), sketch.quantile(0.9), sketch.quantile(0.99), sketch.mean
        if p50 is None or p90 is None or p99 is None or mean is None:
            return None
        return cls(p50, p90, p99, mean, sketch.count)


@dataclass(frozen=True, slots=True)
class Stats:
    """Requests of an endpoint, a class or a pool that ended within a window. None: nothing is known.

    window_s: seconds that the window covers. errors: number by kind (see `ERROR_KINDS`); a failed attempt whose
    request succeeded elsewhere counts for the endpoint where it failed. retries: attempts beyond the first.
    share: of the pool's requests, 0..1. error_rate, slo_attainment, kv_hit_ratio: 0..1. prefill_tps, decode_tps:
    prompt and output tokens per second of all requests together. decode_speed: output tokens per second of one request
    while it streams. orca: newest values of the engine's load reports.
    """

    window_s: float
    requests: int = 0
    ok: int = 0
    streamed: int = 0
    retries: int = 0
    requests_per_s: float = 0.0
    share: float | None = None
    errors: Mapping[str, int] = field(default_factory=dict)
    error_rate: float | None = None
    slo_attainment: float | None = None
    ttft_attainment: float | None = None
    tpot_attainment: float | None = None
    kv_hit_ratio: float | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    prefill_tps: float = 0.0
    decode_tps: float = 0.0
    decode_speed: float | None = None
    ttft: Quantiles | None = None
    tpot: Quantiles | None = None
    queue: Quantiles | None = None
    e2e: Quantiles | None = None
    orca: Mapping[str, float] = field(default_factory=dict)
    classes: Mapping[str, Stats] = field(default_factory=dict)


def ratio(part: float, whole: float) -> float | None:
    """part ÷ whole, at most 1; None when there is no whole."""
    return min(1.0, part / whole) if whole > 0 else None


def errors_of(totals: Mapping[str, float]) -> dict[str, int]:
    """Errors by kind. Requests and attempts overlap (the last attempt of a failed request is in both): the larger."""
    found: dict[str, int] = {}
    for kind, (requests, attempts) in ERROR_KINDS.items():
        count = totals.get(requests, 0.0)
        if attempts is not None:
            count = max(count, totals.get(attempts, 0.0))
        if count:
            found[kind] = int(count)
    return found


def error_rate(totals: Mapping[str, float]) -> tuple[float | None, float]:
    """Share of attempts that failed by the endpoint's fault, and out of how many. The client's faults, refusals and
    aborts are in neither."""
    errors = errors_of(totals)
    faults = sum(errors.get(kind, 0) for kind in FAULTS)
    judged = totals.get("ok", 0.0) + faults
    return ratio(faults, judged), judged


def make_stats(
    totals: Mapping[str, float],
    covered_s: float,
    sketches: Mapping[str, Sketch] | None = None,
    *,
    pool_requests: float | None = None,
    orca: Mapping[str, float] | None = None,
    classes: Mapping[str, Stats] | None = None,
) -> Stats:
    """Stats from the sums of a window (fields of `Outcomes` by name) and its sketches."""
    get = totals.get
    sketches = sketches or {}
    requests = get("requests", 0.0)
    return Stats(
        window_s=covered_s,
        requests=int(requests),
        ok=int(get("ok", 0.0)),
        streamed=int(get("streamed", 0.0)),
        retries=int(get("retries", 0.0)),
        requests_per_s=requests / covered_s,
        share=None if pool_requests is None else ratio(requests, pool_requests),
        errors=errors_of(totals),
        error_rate=error_rate(totals)[0],
        slo_attainment=ratio(get("slo_met", 0.0), get("slo_known", 0.0)),
        ttft_attainment=ratio(get("ttft_met", 0.0), get("ttft_known", 0.0)),
        tpot_attainment=ratio(get("tpot_met", 0.0), get("tpot_known", 0.0)),
        kv_hit_ratio=ratio(get("cached_tokens", 0.0), get("cached_known", 0.0)),
        prompt_tokens=int(get("prompt_tokens", 0.0)),
        completion_tokens=int(get("completion_tokens", 0.0)),
        cached_tokens=int(get("cached_tokens", 0.0)),
        prefill_tps=get("prompt_tokens", 0.0) / covered_s,
        decode_tps=get("completion_tokens", 0.0) / covered_s,
        decode_speed=get("timed_decode_tokens", 0.0) / get("decode_seconds", 0.0) if get("decode_seconds") else None,
        ttft=Quantiles.of(sketches.get("ttft_s")),
        tpot=Quantiles.of(sketches.get("tpot_s")),
        queue=Quantiles.of(sketches.get("queue_s")),
        e2e=Quantiles.of(sketches.get("e2e_s")),
        orca=orca or {},
        classes=classes or {},
    )
