"""What routing sees of the fleet: pools, who serves which model, and the state of a pool in a few numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from xds_control.fleet.readings import Readings
from xds_control.fleet.snapshot import EndpointSnapshot, PoolSnapshot, State

_SERVING = (State.READY, State.WARMING)


def takes_traffic(endpoint: EndpointSnapshot) -> bool:
    """Whether new requests may go to this endpoint, by weight or by pick."""
    return endpoint.pickable or (endpoint.weight > 0 and endpoint.state in _SERVING)


def _values(readings: list[Readings], name: str) -> list[float]:
    return [reading.value for one in readings if (reading := one.get(name)) is not None]


@dataclass(frozen=True)
class PoolView:
    """One pool. `endpoints` are all of it, sorted by address; `serving` those that take new requests."""

    name: str
    models: tuple[str, ...] = ()
    endpoints: tuple[EndpointSnapshot, ...] = ()
    slo_target: float = 0.95

    @cached_property
    def serving(self) -> tuple[EndpointSnapshot, ...]:
        """Endpoints that take new requests."""
        return tuple(endpoint for endpoint in self.endpoints if takes_traffic(endpoint))

    @cached_property
    def available(self) -> bool:
        """False when the pool is out: nothing in it takes new requests."""
        return any(takes_traffic(endpoint) for endpoint in self.endpoints)

    @cached_property
    def state(self) -> dict[str, Any]:
        """The numbers that rules may ask for, over the serving endpoints. Unknown signals are neutral."""
        known = [endpoint.readings for endpoint in self.serving]
        waiting, running = _values(known, "waiting"), _values(known, "running")
        kv, memory = _values(known, "kv_usage"), _values(known, "gpu_mem_used_ratio")
        attained = _values(known, "slo_attainment")
        serving = len(self.serving)
        headroom = sum(attained) / len(attained) - self.slo_target if attained else 1.0 - self.slo_target
        return {
            "available": serving > 0,
            "endpoints": len(self.endpoints),
            "serving": serving,
            "waiting": sum(waiting),
            "running": sum(running),
            "waiting_mean": sum(waiting) / len(waiting) if waiting else 0.0,
            "running_mean": sum(running) / len(running) if running else 0.0,
            "kv_usage": sum(kv) / len(kv) if kv else 0.0,
            "kv_usage_max": max(kv, default=0.0),
            "gpu_mem_used_ratio": sum(memory) / len(memory) if memory else 0.0,
            "slo_headroom": headroom,
        }


@dataclass(frozen=True)
class RoutingView:
    """The fleet at one version. Built once per change, never per request.

    models: model or adapter name → pools that serve it, those that declare it first, else in pool order.
    """

    pools: Mapping[str, PoolView] = field(default_factory=dict)
    models: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    version: int = 0

    @classmethod
    def build(cls, pools: Mapping[str, PoolSnapshot], version: int = 0, slo_target: float = 0.95) -> RoutingView:
        """The view of a snapshot's pools. A model counts as served by a pool that declares it, or of which an
        endpoint reports it as a model or as a resident LoRA adapter."""
        views: dict[str, PoolView] = {}
        declared: dict[str, dict[str, None]] = {}
        reported: dict[str, dict[str, None]] = {}
        for name, pool in pools.items():
            views[name] = PoolView(name, pool.models, pool.endpoints, slo_target)
            for model in pool.models:
                declared.setdefault(model, {})[name] = None
            for endpoint in pool.endpoints:
                info = endpoint.info
                for model in (*info.models, *info.lora_running, *info.lora_waiting):
                    reported.setdefault(model, {})[name] = None
        names = declared.keys() | reported.keys()
        models = {model: tuple({**declared.get(model, {}), **reported.get(model, {})}) for model in names}
        return cls(views, models, version)

    @cached_property
    def pool_states(self) -> dict[str, dict[str, Any]]:
        """Every pool's state, for rules that loop over `pools`."""
        return {name: pool.state for name, pool in self.pools.items()}

    @cached_property
    def only_pool(self) -> str:
        """The name of the only pool; "" when there are none or several."""
        return next(iter(self.pools)) if len(self.pools) == 1 else ""

    def is_available(self, pool: str) -> bool:
        """Whether the pool exists and takes new requests."""
        view = self.pools.get(pool)
        return view is not None and view.available
