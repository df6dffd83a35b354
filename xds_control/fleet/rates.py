"""What an endpoint has been seen to deliver: its learned rates."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LearnedRates:
    """Rates of one endpoint, comparable within its pool.

    prefill_tps: prompt tokens per second while it prefills, cached ones counted, so a better hit rate is a higher rate.
    decode_tps: output tokens per second at the pool's reference batch.
    capacity: requests of the pool's usual mix per second at saturation; None when too little is known.
    service_s: time one request of the usual mix takes at the present load, seconds; None when unknown.
    slots: requests it runs at once when it is full; None when unknown.
    confidence: 0 (nothing seen) to 1 (enough seen to trust).
    at: monotonic seconds of the newest observation.
    """

    prefill_tps: float | None = None
    decode_tps: float | None = None
    capacity: float | None = None
    service_s: float | None = None
    slots: float | None = None
    confidence: float = 1.0
    at: float = 0.0
