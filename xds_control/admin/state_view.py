"""The state as plain values: what `/api/v1/state` answers and the live views show."""

from __future__ import annotations

from typing import Any

from xds_control.admin.core import ControlCore


def state_view(core: ControlCore, now: float) -> dict[str, Any]:
    """Pools and endpoints with weights, states, signals with age, and what Envoy saw of their traffic."""
    snapshot = core.snapshot
    if snapshot is None:
        return {"version": 0, "policy_version": core.policy_version, "pools": []}
    pools: list[dict[str, Any]] = []
    for pool in snapshot.pools.values():
        members: list[dict[str, Any]] = []
        for one in pool.endpoints:
            address = one.endpoint.address
            short = core.outcomes.stats(address, now)
            entry: dict[str, Any] = {
                "address": address,
                "name": one.endpoint.name,
                "state": one.state.value,
                "health": one.health,
                "weight": one.weight,
                "priority": one.priority,
                "pickable": one.pickable,
                "capacity": one.capacity,
                "gates": list(one.gates),
                "why": one.why,
                "models": list(one.info.models),
                "signals": {
                    name: {"value": r.value, "age_s": max(now - r.at, 0.0), "source": r.source}
                    for name, r in sorted(one.readings.items())
                },
                "share": 0.0,
                "requests": 0,
                "ttft_p50_s": None,
                "ttft_p90_s": None,
            }
            if short is not None:
                entry["share"] = short.share or 0.0
                entry["requests"] = short.requests
                entry["requests_per_s"] = short.requests_per_s
                entry["errors"] = dict(short.errors)
                entry["slo_attainment"] = short.slo_attainment
                entry["kv_hit_ratio"] = short.kv_hit_ratio
                if short.ttft is not None:
                    entry["ttft_p50_s"] = short.ttft.p50
                    entry["ttft_p90_s"] = short.ttft.p90
                if short.tpot is not None:
                    entry["tpot_p50_s"] = short.tpot.p50
            members.append(entry)
        total = core.outcomes.pool_stats(pool.name, now, long=True)
        pools.append(
            {
                "name": pool.name,
                "models": list(pool.models),
                "endpoints": members,
                "totals": _totals(core, pool.name),
                "requests_per_s": 0.0 if total is None else total.requests_per_s,
                "slo_attainment": None if total is None else total.slo_attainment,
            }
        )
    return {"version": snapshot.version, "policy_version": snapshot.policy_version, "pools": pools}


def _totals(core: ControlCore, pool: str) -> dict[str, float]:
    """Sums since control started, over all classes of a pool."""
    sums: dict[str, float] = {}
    for (name, _class), values in core.outcomes.totals().items():
        if name == pool:
            for field, value in values.items():
                if not field.endswith((".sum", ".count")):
                    sums[field] = sums.get(field, 0.0) + value
    return sums
