"""ClusterLoadAssignments from a pool's snapshot: the only resource that changes with the load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from envoy.config.core.v3 import health_check_pb2
from envoy.config.endpoint.v3 import endpoint_pb2

from xds_control.fleet.endpoint import Locality
from xds_control.fleet.snapshot import EndpointSnapshot, PoolSnapshot
from xds_control.policy.address import split_address

_STATUS = {
    "healthy": health_check_pb2.UNKNOWN,
    "draining": health_check_pb2.DRAINING,
    "degraded": health_check_pb2.DEGRADED,
}


NOWHERE = Locality()


@dataclass(frozen=True, slots=True)
class Host:
    """One host of an assignment. weight 0 = takes no new requests (sent as DRAINING: Envoy rejects weight 0).

    health: healthy, draining or degraded.
    """

    address: str
    weight: int
    priority: int = 0
    locality: Locality = NOWHERE
    health: str = "healthy"


STILL: Final = 1_000
"""Weight of an endpoint of capacity 1 where weights keep still."""


def pool_hosts(pool: PoolSnapshot, still: bool = False) -> list[Host]:
    """The hosts of a pool in address order; removed ones are left out.

    still: weights are the declared capacities and follow no load: a consistent hash moves keys with every change of a
    weight. Those who may get nothing get nothing there too.
    Where others decode, hosts that only prefill are draining to Envoy: picks may name them, which nothing else does.
    """
    mixed = any(e.endpoint.role != "prefill" for e in pool.endpoints)
    return [
        Host(
            e.endpoint.address,
            _weight(e, still),
            e.priority,
            e.endpoint.locality,
            "draining" if mixed and e.endpoint.role == "prefill" else e.health,
        )
        for e in pool.endpoints
        if e.health != "removed"
    ]


def _weight(one: EndpointSnapshot, still: bool) -> int:
    if not still or one.weight <= 0:
        return one.weight
    return max(1, round(STILL * (one.endpoint.capacity or 1.0)))


def load_assignment(cluster: str, hosts: Sequence[Host]) -> bytes:
    """A serialised ClusterLoadAssignment: the same hosts always give the same bytes.

    Priorities are made gapless, because Envoy rejects gaps. Localities are sorted and carry the sum
    of their hosts' weights, so that locality-weighted balancing follows the hosts.
    """
    assignment = endpoint_pb2.ClusterLoadAssignment(cluster_name=cluster)
    levels = {level: index for index, level in enumerate(sorted({host.priority for host in hosts}))}
    groups: dict[tuple[int, str, str, str], list[Host]] = {}
    for host in hosts:
        where = host.locality
        groups.setdefault((levels[host.priority], where.region, where.zone, where.sub_zone), []).append(host)
    for (priority, region, zone, sub_zone), members in sorted(groups.items()):
        group = assignment.endpoints.add(priority=priority)
        group.locality.region = region
        group.locality.zone = zone
        group.locality.sub_zone = sub_zone
        total = 0
        for host in members:
            name, port = split_address(host.address)
            entry = group.lb_endpoints.add()
            address = entry.endpoint.address.socket_address
            address.address = name
            address.port_value = port
            entry.load_balancing_weight.value = max(host.weight, 1)
            health = "draining" if host.weight <= 0 else host.health
            entry.health_status = _STATUS[health]
            if health != "draining":
                total += host.weight
        group.load_balancing_weight.value = max(total, 1)
    data: bytes = assignment.SerializeToString(deterministic=True)
    return data
