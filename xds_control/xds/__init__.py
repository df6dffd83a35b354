"""A gRPC xDS server: pure subscription state machines over a snapshot cache of opaque bytes.

    cache = SnapshotCache()
    change = cache.set("", {CDS.type_url: {name: cluster}, EDS.type_url: {name: assignment}})
    server = XdsServer(cache, XdsPolicy(), node_group=by_metadata("team"))   # default: one group ""
    port = await server.start("127.0.0.1:18000")
    server.clients()          # per stream: peer, node, types, version sent and acked, last error, lag
    await server.stop(grace=1)

`SnapshotCache.set(group, {type_url: {name: resource}}, strict=True)` replaces all resources of the named types of a
group in one atomic step and returns a `Change` (false when nothing changed). A resource is serialised `bytes` (an
unchanged one costs one comparison), a protobuf message, anything that `bytes()` serialises (envoy-data-plane), or
`Wrapped(body, ttl=..., aliases=...)`. It raises `InvalidResource` (with `.name` and `.problems`) and changes nothing
when a client would reject one; with `strict=False` bad resources keep their last good version, `Change.invalid` lists
them, and the rest is applied. `SnapshotCache.update(group, put, remove)` edits single resources.

`XdsServer` also takes `on_nack(client, nack)`, `on_missing(group, type_url, names)` (may put the names into the cache
before the answer goes out) and `on_load(rows)` (load reports, `LoadReport`). `XdsCollector(server)` gives its metrics
to a Prometheus registry.

Group names come from `node_group(node)`; a group without a snapshot is answered UNAVAILABLE.
"""

from xds_control.policy.security import TlsFiles
from xds_control.policy.xds import XdsPolicy
from xds_control.xds.cache import CacheStats, Change, SnapshotCache, TypeChange, Wrapped
from xds_control.xds.clients import ClientStatus, TypeStatus
from xds_control.xds.errors import Invalid, InvalidResource, StreamEnd
from xds_control.xds.groups import NodeGroup, by_cluster, by_id, by_metadata, mapped, one_group
from xds_control.xds.lrs import LoadReport
from xds_control.xds.metrics import XdsCollector
from xds_control.xds.resource import Resource, content_version
from xds_control.xds.server import XdsServer
from xds_control.xds.stream import Nack
from xds_control.xds.types import CDS, ECDS, EDS, LDS, LEDS, RDS, RTDS, SDS, SRDS, VHDS, ResourceType, resource_type

__all__ = [
    "CDS",
    "ECDS",
    "EDS",
    "LDS",
    "LEDS",
    "RDS",
    "RTDS",
    "SDS",
    "SRDS",
    "VHDS",
    "CacheStats",
    "Change",
    "ClientStatus",
    "Invalid",
    "InvalidResource",
    "LoadReport",
    "Nack",
    "NodeGroup",
    "Resource",
    "ResourceType",
    "SnapshotCache",
    "StreamEnd",
    "TlsFiles",
    "TypeChange",
    "TypeStatus",
    "Wrapped",
    "XdsCollector",
    "XdsPolicy",
    "XdsServer",
    "by_cluster",
    "by_id",
    "by_metadata",
    "content_version",
    "mapped",
    "one_group",
    "resource_type",
]
