"""Checks a ClusterLoadAssignment against what Envoy and gRPC clients reject (pure).

Written by hand and in one pass over the endpoints: it runs with every push.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

from envoy.config.core.v3 import health_check_pb2
from envoy.config.endpoint.v3 import endpoint_pb2

MAX_WEIGHT_SUM: Final = 4_294_967_295
MAX_PRIORITY: Final = 128
_HEALTH: Final = frozenset(health_check_pb2.HealthStatus.values())
_DENOMINATORS: Final = frozenset((0, 1, 2))


def check_assignment(assignment: endpoint_pb2.ClusterLoadAssignment, *, names: bool = False) -> Iterator[str]:
    """Sentences on what is wrong. names: host names are allowed where otherwise only IP addresses are."""
    seen: set[tuple[str, int]] = set()
    localities: dict[tuple[int, str, str, str], int] = {}
    weights: dict[int, int] = {}
    priorities: set[int] = set()
    for locality in assignment.endpoints:
        priority = locality.priority
        priorities.add(priority)
        where = locality.locality
        key = (priority, where.region, where.zone, where.sub_zone)
        if priority > MAX_PRIORITY:
            yield f"priority {priority} is over {MAX_PRIORITY}"
        if key in localities:
            yield f"locality {'/'.join(key[1:])!r} occurs twice in priority {priority}"
        localities[key] = 1
        if locality.HasField("load_balancing_weight"):
            weight = locality.load_balancing_weight.value
            if weight == 0:
                yield f"locality {'/'.join(key[1:])!r} has weight 0; weights start at 1"
            weights[priority] = weights.get(priority, 0) + weight
        total = 0
        for endpoint in locality.lb_endpoints:
            kind = endpoint.WhichOneof("host_identifier")
            if kind == "endpoint_name":
                total += endpoint.load_balancing_weight.value or 1
                continue
            address = endpoint.endpoint.address
            problem, host = _address(address, names)
            if problem is not None:
                yield problem
            elif host in seen:
                yield f"address {_shown(host)} occurs twice"
            seen.add(host)
            if endpoint.HasField("load_balancing_weight"):
                weight = endpoint.load_balancing_weight.value
                if weight == 0:
                    yield f"endpoint {_shown(host)} has weight 0; weights start at 1"
                total += weight
            else:
                total += 1
            if endpoint.health_status not in _HEALTH:
                yield f"endpoint {_shown(host)} has health status {endpoint.health_status}, which is not known"
        if total > MAX_WEIGHT_SUM:
            yield f"the weights of locality {'/'.join(key[1:])!r} sum to {total}, over {MAX_WEIGHT_SUM}"
    for priority, total in weights.items():
        if total > MAX_WEIGHT_SUM:
            yield f"the locality weights of priority {priority} sum to {total}, over {MAX_WEIGHT_SUM}"
    if priorities and max(priorities) + 1 != len(priorities):
        missing = next(p for p in range(max(priorities)) if p not in priorities)
        yield f"priorities have a gap: {missing} is missing below {max(priorities)}"
    if assignment.HasField("policy"):
        yield from _policy(assignment.policy)


def _policy(policy: Any) -> Iterator[str]:
    if policy.HasField("overprovisioning_factor") and policy.overprovisioning_factor.value == 0:
        yield "overprovisioning_factor must be over 0"
    if policy.HasField("endpoint_stale_after"):
        stale = policy.endpoint_stale_after
        if stale.seconds < 0 or (stale.seconds == 0 and stale.nanos <= 0):
            yield "endpoint_stale_after must be over 0"
    if len(policy.drop_overloads) > 1:
        yield "more than one drop_overloads category"
    for drop in policy.drop_overloads:
        if not drop.category:
            yield "a drop_overloads category is empty"
        if drop.drop_percentage.denominator not in _DENOMINATORS:
            yield f"drop denominator {drop.drop_percentage.denominator} is not known"


def _address(address: Any, names: bool) -> tuple[str | None, tuple[str, int]]:
    kind = address.WhichOneof("address")
    if kind == "socket_address":
        socket = address.socket_address
        host, port = socket.address, socket.port_value
        place = (host, port)
        if not host:
            return "an endpoint has an empty address", place
        address_text = _canonical_ip(host)
        if address_text is not None:
            host, place = address_text, (address_text, port)
        elif not names and not socket.resolver_name:
            return f"address {host!r} is not an IP address", place
        if socket.named_port:
            return None, (f"{host}:{socket.named_port}", 0)
        if not 1 <= port <= 65535:
            return f"port {port} of {host} is not in 1 to 65535", place
        return None, place
    if kind == "pipe":
        path = address.pipe.path
        return (None if path else "a pipe address has an empty path"), (path, 0)
    if kind == "envoy_internal_address":
        internal = address.envoy_internal_address
        name = f"envoy://{internal.server_listener_name}/{internal.endpoint_id}"
        return (None if internal.server_listener_name else "an internal address names no listener"), (name, 0)
    return "an endpoint has no address", ("", 0)


@lru_cache(maxsize=65536)
def _canonical_ip(host: str) -> str | None:
    """One spelling for each IP address, None for what is none."""
    try:
        parsed = ipaddress.ip_address(host)
    except ValueError:
        return None
    return str(parsed)


def _shown(host: tuple[str, int]) -> str:
    address, port = host
    if not port:
        return address
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
