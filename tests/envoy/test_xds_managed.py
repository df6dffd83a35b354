"""Real Envoys that take listeners, routes, clusters and endpoints from the server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.envoy.harness import eventually
from tests.envoy.xds_harness import Backend, Envoy, Load, assignment, cluster, listener, routes
from xds_control.xds import CDS, EDS, LDS, RDS, SnapshotCache, Wrapped, XdsPolicy, XdsServer, by_metadata

both = pytest.mark.parametrize("delta", [False, True], ids=["sotw", "delta"])


class Plane:
    """A control plane of the test: a cache, a server that can be restarted on its port, Envoys, backends."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cache = SnapshotCache()
        self.server = self._new()
        self.port = 0
        self._envoys: list[Envoy] = []
        self._backends: list[Backend] = []

    def _new(self, **options: Any) -> XdsServer:
        return XdsServer(self.cache, XdsPolicy(**options), by_metadata("group"))

    async def start(self) -> None:
        self.port = await self.server.start(f"127.0.0.1:{self.port}")

    async def stop_server(self) -> None:
        await self.server.stop(1)

    async def restart_server(self) -> None:
        self.server = self._new()
        await self.start()

    def envoy(self, node: str, *, delta: bool, group: str = "", **more: Any) -> Envoy:
        made = Envoy(
            self.folder, self.port, node=node, delta=delta, metadata={"group": group} if group else None, **more
        )
        self._envoys.append(made)
        return made

    async def backend(self, name: str) -> Backend:
        made = Backend(name)
        await made.start()
        self._backends.append(made)
        return made

    def world(self, group: str, envoy: Envoy, target: str, backends: dict[str, list[tuple[Backend, int]]]) -> None:
        """One listener and route to `target`; a cluster per entry of `backends`, with weights."""
        self.cache.set(
            group,
            {
                CDS.type_url: {name: cluster(name) for name in backends},
                EDS.type_url: {
                    name: assignment(name, [("127.0.0.1", b.port, w) for b, w in weighted])
                    for name, weighted in backends.items()
                },
                LDS.type_url: {"main": listener("main", envoy.port, "route")},
                RDS.type_url: {"route": routes("route", target)},
            },
        )

    async def close(self) -> None:
        await asyncio.gather(*(e.stop() for e in self._envoys))
        await self.server.stop(0)
        await asyncio.gather(*(b.stop() for b in self._backends))


@pytest.fixture
async def plane(tmp_path: Path) -> AsyncIterator[Plane]:
    made = Plane(tmp_path)
    await made.start()
    yield made
    await made.close()


async def rejected(envoy: Envoy) -> dict[str, int]:
    """Counters of refused updates that are not zero."""
    return {n: v for n, v in (await envoy.stats("update_rejected$")).items() if v}


@both
async def test_two_envoys_in_different_groups_see_different_worlds(plane: Plane, delta: bool) -> None:
    red, blue, green = [await plane.backend(n) for n in ("red", "blue", "green")]
    one = plane.envoy("one", delta=delta, group="a")
    two = plane.envoy("two", delta=delta, group="b")
    plane.world("a", one, "pool", {"pool": [(red, 90), (blue, 10)]})
    plane.world("b", two, "pool", {"pool": [(green, 1)]})
    await asyncio.gather(one.start(), two.start())
    await eventually(lambda: two.serves("green"), 20, "the second Envoy serves")
    await eventually(lambda: one.serves("red"), 20, "the first Envoy serves")
    answers = await one.count(100)
    assert set(answers) == {"red", "blue"}
    assert 85 <= answers["red"] <= 95
    # Weights move alone, and the other group does not notice.
    before = await two.stats("cluster.pool.update_success")
    plane.cache.update(
        "a", {EDS.type_url: {"pool": assignment("pool", [("127.0.0.1", red.port, 10), ("127.0.0.1", blue.port, 90)])}}
    )

    async def moved() -> bool:
        return (await one.count(20))["blue"] >= 15

    await eventually(moved, 10, "the new weights rule")
    assert await two.stats("cluster.pool.update_success") == before
    assert await rejected(one) == {}
    assert await rejected(two) == {}
    groups = {c.node_id: c.group for c in plane.server.clients()}
    assert groups == {"one": "a", "two": "b"}
    assert all(t.version_acked == t.version_sent for c in plane.server.clients() for t in c.types)
    protocols = {c.protocol for c in plane.server.clients()}
    assert protocols == {"delta" if delta else "sotw"}


@both
async def test_either_side_may_restart(plane: Plane, delta: bool) -> None:
    red, blue = await plane.backend("red"), await plane.backend("blue")
    envoy = plane.envoy("one", delta=delta)
    plane.world("", envoy, "pool", {"pool": [(red, 1)]})
    await envoy.start()
    await eventually(lambda: envoy.serves("red"), 20)
    # Without its control plane Envoy goes on.
    await plane.stop_server()
    assert set(await envoy.count(20)) == {"red"}
    # A new server with a new world is found again.
    plane.world("", envoy, "pool", {"pool": [(blue, 1)]})
    await plane.restart_server()
    await eventually(lambda: envoy.serves("blue"), 40, "Envoy comes back to the restarted server")
    assert set(await envoy.count(20)) == {"blue"}
    # A new Envoy process gets everything from the start.
    await envoy.stop()
    await envoy.start()
    await eventually(lambda: envoy.serves("blue"), 20)
    # Envoy first, the server later.
    await envoy.stop()
    await plane.stop_server()
    await envoy.start()
    await asyncio.sleep(0.5)
    await plane.restart_server()
    await eventually(lambda: envoy.serves("blue"), 40)
    assert await rejected(envoy) == {}


@both
async def test_an_unchanged_world_costs_a_reconnecting_envoy_nothing(plane: Plane, delta: bool) -> None:
    red = await plane.backend("red")
    envoy = plane.envoy("one", delta=delta)
    plane.world("", envoy, "pool", {"pool": [(red, 1)]})
    await envoy.start()
    await eventually(lambda: envoy.serves("red"), 20)
    changed = await envoy.stats("cluster_manager.cluster_(added|modified|removed)$")
    with Load(envoy) as load:
        await plane.stop_server()
        await plane.restart_server()
        await eventually(lambda: bool(plane.server.clients()), 40, "Envoy has reconnected")
        await asyncio.sleep(0.5)
    assert set(await load.finish()) == {"red"}
    assert await envoy.stats("cluster_manager.cluster_(added|modified|removed)$") == changed


@both
async def test_a_poisoned_cluster_is_seen_and_stops_nothing_else(plane: Plane, delta: bool) -> None:
    red, blue = await plane.backend("red"), await plane.backend("blue")
    envoy = plane.envoy("one", delta=delta)
    plane.world("", envoy, "pool", {"pool": [(red, 1)]})
    await envoy.start()
    await eventually(lambda: envoy.serves("red"), 20)
    # Nothing that this side could know is wrong with it: the extension may exist, only not in this Envoy.
    unknown = {"@type": "type.googleapis.com/google.protobuf.StringValue", "value": "x"}
    policy = {"policies": [{"typed_extension_config": {"name": "acme.unknown", "typed_config": unknown}}]}
    plane.cache.update("", {CDS.type_url: {"poison": cluster("poison", load_balancing_policy=policy)}})
    await eventually(lambda: any(t.nacks for c in plane.server.clients() for t in c.types), 10, "the NACK is seen")
    status = {t.type: t for t in plane.server.clients()[0].types}["CDS"]
    assert status.rejected
    assert "poison" in status.last_error
    assert plane.server.stats.nacks["CDS"] == 1
    # Endpoints, a further cluster and a route to it still come through.
    plane.cache.update(
        "",
        {
            CDS.type_url: {"second": cluster("second")},
            EDS.type_url: {"second": assignment("second", [("127.0.0.1", blue.port, 1)])},
        },
    )
    await eventually(lambda: _active(envoy, "second"), 10, "the second cluster is there")
    plane.cache.update("", {RDS.type_url: {"route": routes("route", "second")}})
    await eventually(lambda: envoy.serves("blue"), 10)
    # Cured.
    plane.cache.update("", remove={CDS.type_url: ["poison"]})
    await eventually(
        lambda: not any(t.rejected for c in plane.server.clients() for t in c.types), 10, "nothing is rejected any more"
    )
    assert not any(c.lag_s for c in plane.server.clients())


async def _active(envoy: Envoy, name: str) -> bool:
    return bool(await envoy.stats(f"^cluster.{name}.membership_healthy$"))


@both
async def test_a_cluster_that_carries_traffic_goes_without_failed_requests(plane: Plane, delta: bool) -> None:
    red, blue = await plane.backend("red"), await plane.backend("blue")
    envoy = plane.envoy("one", delta=delta)
    plane.world("", envoy, "old", {"old": [(red, 1)]})
    await envoy.start()
    await eventually(lambda: envoy.serves("red"), 20)
    with Load(envoy) as quick, Load(envoy, 2, "/slow") as slow:
        await asyncio.sleep(0.5)
        for turn in range(6):
            # In one atomic step the old cluster goes, a new one comes and the route moves.
            name, backend = (f"new{turn}", blue) if turn % 2 == 0 else (f"back{turn}", red)
            plane.world("", envoy, name, {name: [(backend, 1)]})
            await eventually(lambda b=backend: envoy.serves(b.name), 10)
            await asyncio.sleep(0.3)
        answers, slow_answers = await asyncio.gather(quick.finish(), slow.finish())
    assert set(answers) == {"red", "blue"}, answers
    assert set(slow_answers) <= {"red", "blue"}, slow_answers
    assert answers["blue"] > 50
    assert await envoy.stats("^cluster.old.membership_total$") == {}
    assert await rejected(envoy) == {}


@both
async def test_a_changed_cluster_leaves_warming_at_once(plane: Plane, delta: bool) -> None:
    red = await plane.backend("red")
    envoy = plane.envoy("one", delta=delta)
    plane.world("", envoy, "pool", {"pool": [(red, 1)]})
    await envoy.start()
    await eventually(lambda: envoy.serves("red"), 20)
    with Load(envoy) as load:
        for seconds in (3, 4, 5):
            plane.cache.update("", {CDS.type_url: {"pool": cluster("pool", connect_timeout=f"{seconds}s")}})

            async def warmed(wanted: int = seconds - 2) -> bool:
                stats = await envoy.stats("cluster_manager.(cluster_modified|warming_clusters)$")
                return (
                    stats["cluster_manager.cluster_modified"] == wanted
                    and stats["cluster_manager.warming_clusters"] == 0
                )

            # Its initial fetch timeout is 15 s: it must not be what ends the warming.
            await eventually(warmed, 5, "the changed cluster is warm")
    assert set(await load.finish()) == {"red"}
    assert await envoy.stats("cluster.pool.init_fetch_timeout$") == {"cluster.pool.init_fetch_timeout": 0}


@both
@pytest.mark.parametrize(("clusters", "endpoints"), [(500, 4), (4, 1000)], ids=["500x4", "4x1000"])
async def test_many_clusters_and_many_endpoints_come_up(
    plane: Plane, delta: bool, clusters: int, endpoints: int
) -> None:
    red = await plane.backend("red")
    envoy = plane.envoy("one", delta=delta)
    plane.world("", envoy, "pool", {"pool": [(red, 1)]})

    def many(shift: int) -> dict[str, Any]:
        return {
            f"c{c}": assignment(
                f"c{c}",
                [
                    (f"127.{1 + c // 250}.{c % 250}.{1 + e % 250}", 1000 + e, 1 + (e + shift) % 7)
                    for e in range(endpoints)
                ],
            )
            for c in range(clusters)
        }

    plane.cache.update("", {CDS.type_url: {f"c{c}": cluster(f"c{c}") for c in range(clusters)}, EDS.type_url: many(0)})
    await envoy.start()
    await eventually(lambda: envoy.serves("red"), 60, "it comes up")
    stats = await envoy.stats("cluster_manager.(active|warming)_clusters$")
    assert stats["cluster_manager.active_clusters"] == clusters + 2
    assert stats["cluster_manager.warming_clusters"] == 0
    members = await envoy.stats(r"^cluster\.c\d+\.membership_total$")
    assert set(members.values()) == {endpoints}
    assert len(members) == clusters
    plane.cache.update("", {EDS.type_url: many(1)})
    await eventually(
        lambda: all(
            t.version_acked == t.version_sent and not t.outstanding for c in plane.server.clients() for t in c.types
        ),
        20,
    )
    assert await rejected(envoy) == {}
    assert not any(t.nacks for c in plane.server.clients() for t in c.types)


@both
async def test_heartbeats_keep_what_would_otherwise_expire(plane: Plane, delta: bool) -> None:
    red = await plane.backend("red")
    envoy = plane.envoy("one", delta=delta, features=["xds.config.resource-in-sotw"])
    plane.world("", envoy, "pool", {"pool": [(red, 1)]})
    plane.cache.update("", {CDS.type_url: {"pool": Wrapped(cluster("pool"), ttl=1.5)}})
    plane.cache.update(
        "",
        {
            CDS.type_url: {"lasting": cluster("lasting")},
            EDS.type_url: {"lasting": assignment("lasting", [("127.0.0.1", red.port, 1)])},
        },
    )
    await envoy.start()
    await eventually(lambda: envoy.serves("red"), 20)
    with Load(envoy, 1) as load:
        await asyncio.sleep(4)
    assert set(await load.finish()) == {"red"}
    assert await rejected(envoy) == {}
    # Without its control plane the lease ends.
    await plane.stop_server()

    async def gone() -> bool:
        status, _ = await envoy.get()
        return status == 503

    await eventually(gone, 10, "the cluster has expired")
    assert await _active(envoy, "lasting")
