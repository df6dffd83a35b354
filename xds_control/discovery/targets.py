"""Endpoints out of the policy: what discovery yields, whatever it was that found them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from urllib.parse import urlsplit

from xds_control.fleet.endpoint import Endpoint, Locality
from xds_control.policy.address import canonical_address, is_ip, join_address, split_address
from xds_control.policy.pools import EndpointPolicy, PoolPolicy


def names_to_resolve(pools: Sequence[PoolPolicy]) -> frozenset[str]:
    """Host names among the addresses: Envoy's EDS takes IP addresses only."""
    hosts = (split_address(canonical_address(e.address))[0] for pool in pools for e in pool.endpoints)
    return frozenset(host for host in hosts if not is_ip(host))


def endpoints(
    pools: Sequence[PoolPolicy],
    resolved: Mapping[str, Sequence[str]] = MappingProxyType({}),
    metrics_path: Callable[[str], str] = lambda engine: "/metrics",
) -> tuple[Endpoint, ...]:
    """Every endpoint of the policy, in its order.

    resolved: host name → IP addresses; a name with several gives one endpoint for each, one with none gives
    no endpoint. metrics_path: the usual path of an engine's metrics page.
    """
    found: dict[tuple[str, str], Endpoint] = {}
    for pool in pools:
        for spec in pool.endpoints:
            host, port = split_address(canonical_address(spec.address))
            hosts = [host] if is_ip(host) else sorted(resolved.get(host, ()))
            for one in hosts:
                address = join_address(one, port)
                name = spec.name or (spec.address if len(hosts) == 1 else f"{spec.address}/{one}")
                found.setdefault((pool.name, address), _endpoint(pool, spec, address, name, metrics_path))
    return tuple(found.values())


def _endpoint(
    pool: PoolPolicy, spec: EndpointPolicy, address: str, name: str, metrics_path: Callable[[str], str]
) -> Endpoint:
    engine = spec.engine or pool.engine
    return Endpoint(
        address=address,
        pool=pool.name,
        engine=engine,
        capacity=spec.capacity,
        role=spec.role,
        locality=Locality(spec.locality.region, spec.locality.zone, spec.locality.rack),
        labels=MappingProxyType({**pool.labels, **spec.labels}),
        metrics_url=spec.metrics_url or f"{pool.scheme}://{address}{pool.metrics_path or metrics_path(engine)}",
        gpus=tuple(spec.gpus),
        gpu_model=spec.gpu_model,
        gpu_memory_need_bytes=spec.gpu_memory_need_bytes,
        name=name,
    )


def check_url(text: str) -> None:
    """Raises ValueError when `text` is not an absolute http(s) URL."""
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{text!r} is not an http:// or https:// URL")
