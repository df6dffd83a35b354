"""An endpoint: one replica that can take a request, however many GPUs lie behind it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

EMPTY: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Locality:
    """Where an endpoint stands; empty strings when unknown. `zone` and `sub_zone` (rack) go to Envoy as they are."""

    region: str = ""
    zone: str = ""
    sub_zone: str = ""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One replica as discovery names it. Identity is `address`; everything else may change over its life.

    address: `ip:port`, IPv6 in brackets, as Envoy dials it and as picks name it.
    pool: name of the pool (one Envoy cluster, one ClusterLoadAssignment).
    engine: key of the adapter that reads its metrics ("auto", "vllm", "llamacpp", ...).
    capacity: declared relative capacity, > 0; None when the policy declares none.
    role: "both", "prefill" or "decode".
    metrics_url: absolute URL of its metrics page; None when it has none.
    gpus: UUIDs (`GPU-...`, `MIG-...`) that belong to it, on whatever nodes.
    """

    address: str
    pool: str
    engine: str = "auto"
    capacity: float | None = None
    role: str = "both"
    locality: Locality = Locality()
    labels: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    metrics_url: str | None = None
    gpus: tuple[str, ...] = ()
    gpu_model: str | None = None
    gpu_memory_need_bytes: float | None = None
    name: str = field(default="")
