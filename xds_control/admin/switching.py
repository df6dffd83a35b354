"""Switches the running control process to another policy without a request noticing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from xds_control.admin.dry_run import Effect, try_policy
from xds_control.admin.extras import pair
from xds_control.discovery.dns import look_up
from xds_control.discovery.targets import endpoints, names_to_resolve
from xds_control.policy.load import encode_policy
from xds_control.policy.schema import Policy
from xds_control.routing.forwarded import forwarded_headers
from xds_control.signals.engines import default_path
from xds_control.xds import CDS
from xds_control.xds.resources.endpoints import Host, load_assignment
from xds_control.xds.resources.world import WorldBuilder

if TYPE_CHECKING:
    from xds_control.admin.control import Control

ACK_S = 2.0
"""How long a push waits for Envoys to take in the clusters of new pools."""
ANNOUNCED_S = 60.0


@dataclass(frozen=True, slots=True)
class Switch:
    """A policy that can be put into force at once. added: pools that are new with it."""

    policy: Policy
    version: str
    builder: WorldBuilder
    addresses: Mapping[str, tuple[str, ...]]
    added: tuple[str, ...]


class Switching:
    """See `Live`."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._built: tuple[Policy, WorldBuilder] | None = None

    @property
    def policy(self) -> Policy:
        """The policy in force."""
        return self._control.policy

    async def try_policy(self, policy: Policy) -> Effect:
        """What a policy would change. Raises PolicyError when it does not compile."""
        control = self._control
        self._build(policy)
        addresses = await self._resolved(policy)
        found = endpoints(policy.pools, addresses, default_path)
        return try_policy(control.core, policy, found, time.monotonic())

    async def prepare(self, policy: Policy, version: str) -> Switch:
        """Makes what the policy needs, and tells every Envoy of new pools before anything is sent to them."""
        control = self._control
        builder = self._build(policy)
        addresses = await self._resolved(policy)
        if control.scraper is not None:
            control.scraper.use_policy(policy.signals.scrape, policy.signals.engines)
        known = {pool.name for pool in control.policy.pools}
        added = tuple(pool.name for pool in policy.pools if pool.name not in known)
        if added:
            now = time.monotonic()
            found = endpoints(policy.pools, addresses, default_path)
            for name in added:
                hosts = [Host(one.address, 1, 0, one.locality) for one in found if one.pool == name]
                cluster = builder.fixed[CDS.type_url][name]
                control.extras.keep(name, cluster, load_assignment(name, hosts), now + ANNOUNCED_S)
            control.publish_world()
            await self._until_acked()
        return Switch(policy, version, builder, addresses, added)

    def switch(self, prepared: Switch) -> None:
        """Puts a policy into force. Nothing waits in here, so it falls between two ticks."""
        control = self._control
        now = time.monotonic()
        old, policy = control.policy, prepared.policy
        before = control.world.world(control.core.snapshot, control.hub.addresses()) if control.core.snapshot else {}
        stay = {pool.name for pool in policy.pools}
        for name in [pool.name for pool in old.pools if pool.name not in stay]:
            kept = pair(before, name)
            if kept is not None:
                control.extras.keep(name, *kept, now + old.lifecycle.draining.timeout_s)
        control.policy, control.version, control.world = policy, prepared.version, prepared.builder
        control.core.use_policy(policy, prepared.version, now)
        if names_to_resolve(policy.pools) != names_to_resolve(old.pools):
            control.resolver.addresses.update(prepared.addresses)
            control.resolver.watch(names_to_resolve(policy.pools))
        control.on_names()
        control.hub.publish_policy(prepared.version, encode_policy(policy))
        if old.signals != policy.signals and (old.signals.gpu, old.signals.scrape) != (
            policy.signals.gpu,
            policy.signals.scrape,
        ):
            control.exporters.use_policy(policy.signals)
        if old.log.level != policy.log.level:
            control.backend.use_policy_level()
        control.try_tick()
        control.publish_world()

    def abandon(self, prepared: Switch) -> None:
        """Takes back what `prepare` did."""
        control = self._control
        control.extras.drop(prepared.added)
        if control.scraper is not None:
            control.scraper.use_policy(control.policy.signals.scrape, control.policy.signals.engines)
        control.publish_world()

    def _build(self, policy: Policy) -> WorldBuilder:
        """Envoy's resources of a policy; the last ones are kept, because a push tries before it prepares."""
        if self._built is None or self._built[0] is not policy:
            builder = WorldBuilder()
            builder.use_policy(policy, forwarded_headers(policy), self._control.world)
            self._built = (policy, builder)
        return self._built[1]

    async def _resolved(self, policy: Policy) -> dict[str, tuple[str, ...]]:
        """Addresses of all host names of a policy; those that are new are looked up."""
        control = self._control
        known = control.resolver.addresses
        names = names_to_resolve(policy.pools)
        found = {name: known[name] for name in names if name in known}
        return {**found, **await look_up(names - found.keys())}

    async def _until_acked(self) -> None:
        """Waits until every Envoy has taken in what it was sent; a slow one is not waited for long."""
        control = self._control
        loop = asyncio.get_running_loop()
        deadline = loop.time() + ACK_S
        while loop.time() < deadline:
            await asyncio.sleep(0.02)
            if not any(one.outstanding or one.lag_s > 0 for c in control.xds.clients() for one in c.types):
                return
