"""Small fleets for the picker's tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xds_control.fleet.endpoint import Endpoint, Locality
from xds_control.fleet.readings import ModelInfo, Reading
from xds_control.fleet.snapshot import EndpointSnapshot, PoolSnapshot, State
from xds_control.inspect.facts import RequestFacts

SIGNALS = ("running", "waiting", "kv_usage", "waiting_tokens", "decode_tps", "prefill_tps", "kv_hit_ratio")


def address(number: int) -> str:
    """Address of endpoint `number`."""
    return f"10.9.{number // 250}.{number % 250 + 1}:8000"


def endpoint(
    number: int,
    *,
    at: float | None = 0.0,
    pickable: bool = True,
    capacity: float = 1.0,
    role: str = "both",
    labels: dict[str, str] | None = None,
    locality: Locality | None = None,
    name: str = "",
    at_address: str = "",
    pool: str = "p",
    state: State = State.READY,
    **values: Any,
) -> EndpointSnapshot:
    """One endpoint. Signals by name (running, waiting, kv_usage, ...), the rest of `values` is its ModelInfo."""
    readings = {}
    for signal in SIGNALS:
        value = values.pop(signal, None)
        if value is not None and at is not None:
            readings[signal] = Reading(float(value), at, "vllm")
    if "num_blocks" in values:
        values.setdefault("block_size", 16)
    one = Endpoint(
        address=at_address or address(number),
        pool=pool,
        role=role,
        labels=labels or {},
        locality=locality or Locality(),
        name=name or f"e{number}",
    )
    return EndpointSnapshot(one, state, 100, 0, pickable, capacity, readings, ModelInfo(**values))


def pool(name: str, endpoints: Sequence[EndpointSnapshot], models: tuple[str, ...] = ("m",)) -> PoolSnapshot:
    """A pool of these endpoints, sorted by address as snapshots are."""
    return PoolSnapshot(name, models, tuple(sorted(endpoints, key=lambda one: one.endpoint.address)))


def facts(
    *,
    keys: Sequence[int] = (),
    totals: Sequence[int] = (),
    prompt: int = 1000,
    output: int = 100,
    **rest: Any,
) -> RequestFacts:
    """A request with these prefix blocks (256 tokens each unless `totals` says otherwise)."""
    if keys and not totals:
        totals = [(i + 1) * 256 for i in range(len(keys))]
        prompt = max(prompt, totals[-1])
    return RequestFacts(
        model=rest.pop("model", "m"),
        prompt_tokens=prompt,
        expected_output_tokens=output,
        prefix_keys=tuple(keys),
        prefix_tokens=tuple(totals),
        **rest,
    )
