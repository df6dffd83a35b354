"""The whole xDS world of a fleet: what is fixed by the policy, and the assignments that follow the snapshot."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from xds_control.fleet.snapshot import Snapshot
from xds_control.policy.schema import Policy
from xds_control.xds.resources.clusters import pool_cluster, processor_cluster
from xds_control.xds.resources.endpoints import Host, load_assignment, pool_hosts
from xds_control.xds.resources.gateway import gateway_listener
from xds_control.xds.resources.names import LISTENER, OTLP_CLUSTER, PROCESSOR_CLUSTER, ROUTES
from xds_control.xds.resources.routes import gateway_routes
from xds_control.xds.resources.tracing import collector_cluster
from xds_control.xds.types import CDS, EDS, LDS, RDS

World = dict[str, dict[str, bytes]]


class WorldBuilder:
    """Builds the world step by step; what did not change keeps its very bytes."""

    def __init__(self) -> None:
        self.fixed: World = {}
        """Resources that only the policy decides."""
        self.made: dict[str, tuple[object, bytes]] = {}
        """Resource → the fields that it was made from, its bytes."""
        self._assignments: dict[str, bytes] = {}
        self._hosts: dict[str, list[Host]] = {}
        self._pools: tuple[str, ...] = ()

    def use_policy(self, policy: Policy, forwarded: Sequence[str] | None, before: WorldBuilder | None = None) -> None:
        """Makes the resources that only the policy decides: listener, routes, clusters.

        before: a builder of an earlier policy; what it made from the same fields is taken from it.
        """
        known = before.made if before is not None else self.made
        made: dict[str, tuple[object, bytes]] = {}

        def resource(name: str, inputs: object, make: Callable[[], object]) -> bytes:
            held = known.get(name)
            made[name] = held if held is not None and held[0] == inputs else (inputs, bytes(make()))  # type: ignore[call-overload]
            return made[name][1]

        envoy = policy.envoy
        clusters = {
            pool.name: resource(
                f"cluster {pool.name}",
                (pool, envoy, policy.weights.locality),
                lambda pool=pool: pool_cluster(pool, envoy, policy.weights),  # type: ignore[misc]
            )
            for pool in policy.pools
        }
        if policy.processors.count:
            clusters[PROCESSOR_CLUSTER] = resource("processors", (), processor_cluster)
        tracing = policy.tracing
        if tracing is not None and tracing.envoy:
            clusters[OTLP_CLUSTER] = resource("collector", tracing, lambda: collector_cluster(tracing))
        filters = (envoy, policy.processors, policy.ext_proc, forwarded, tracing)
        wait_s = policy.longest_wait_s
        routes = (
            envoy,
            policy.pools,
            policy.default_pool(),
            policy.routing.mirrors,
            policy.ext_proc.emit_decision,
            policy.picker.token_header,
        )
        self.fixed = {
            CDS.type_url: clusters,
            LDS.type_url: {
                LISTENER: resource("listener", (filters, wait_s), lambda: gateway_listener(*filters, wait_s=wait_s))
            },
            RDS.type_url: {ROUTES: resource("routes", routes, lambda: gateway_routes(*routes))},
        }
        self.made = made
        self._pools = tuple(pool.name for pool in policy.pools)
        self._still = frozenset(pool.name for pool in policy.pools if pool.hashes)

    def world(self, snapshot: Snapshot, processors: Iterable[str]) -> World:
        """Everything, for a cache: {type_url: {name: bytes}}. processors: addresses of the live processors."""
        wanted: dict[str, list[Host]] = {name: [] for name in self._pools}
        for name in self._pools:
            pool = snapshot.pools.get(name)
            if pool is not None:
                wanted[name] = pool_hosts(pool, name in self._still)
        if PROCESSOR_CLUSTER in self.fixed.get(CDS.type_url, {}):
            wanted[PROCESSOR_CLUSTER] = [Host(address, 1) for address in sorted(processors)]
        self._assignments = {name: self._assignment(name, hosts) for name, hosts in wanted.items()}
        self._hosts = wanted
        return {**self.fixed, EDS.type_url: self._assignments}

    def _assignment(self, name: str, hosts: list[Host]) -> bytes:
        known = self._assignments.get(name)
        if known is not None and self._hosts.get(name) == hosts:
            return known
        return load_assignment(name, hosts)


def sizes(world: Mapping[str, Mapping[str, bytes]]) -> dict[str, int]:
    """Bytes of each type's resources, to see a world that grows too large for one message."""
    return {type_url: sum(map(len, resources.values())) for type_url, resources in world.items()}
