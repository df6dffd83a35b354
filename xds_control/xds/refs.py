"""Looks into a resource: what clients would reject in it, and which other resources it makes them fetch (pure)."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final, NamedTuple

from envoy.config.cluster.v3 import cluster_pb2
from envoy.config.endpoint.v3 import endpoint_pb2
from envoy.config.listener.v3 import listener_pb2
from envoy.extensions.filters.network.http_connection_manager.v3 import http_connection_manager_pb2 as hcm_pb2
from google.protobuf.message import DecodeError, Message

from xds_control.xds.resource import Resource
from xds_control.xds.types import CDS, EDS, LDS
from xds_control.xds.validate import check_resource, message_class

_HCM: Final = hcm_pb2.HttpConnectionManager.DESCRIPTOR.full_name


class Inspection(NamedTuple):
    """problems: sentences, empty when the resource is good. refs: names of dependent resources."""

    problems: tuple[str, ...]
    refs: tuple[str, ...]


def inspect_resource(
    type_url: str, name: str, body: bytes, message: Message | None = None, *, check: bool = True
) -> Inspection:
    """Inspects one resource; `message` is the same in parsed form when the caller has it.

    check: look for what clients reject. Types that are not known pass unseen.
    """
    if not check and type_url not in (CDS.type_url, LDS.type_url):
        return Inspection((), ())
    cls = message_class(type_url)
    if cls is None:
        return Inspection(() if name else ("the name is empty",), ())
    if message is None or message.DESCRIPTOR.full_name != cls.DESCRIPTOR.full_name:
        if message is not None and check:
            return Inspection((f"is a {message.DESCRIPTOR.full_name}, not a {cls.DESCRIPTOR.full_name}",), ())
        try:
            message = cls.FromString(body)
        except DecodeError:
            return Inspection(("the bytes are not a message of this type",) if check else (), ())
    problems = tuple(check_resource(type_url, name, message)) if check else ()
    if problems:
        return Inspection(problems, ())
    return Inspection((), refs_of(type_url, message))


def refs_of(type_url: str, message: Any) -> tuple[str, ...]:
    """EDS name of a cluster, RDS names of a listener, nothing of others."""
    if type_url == CDS.type_url:
        if message.type != cluster_pb2.Cluster.EDS or message.HasField("cluster_type"):
            return ()
        return (message.eds_cluster_config.service_name or message.name,)
    if type_url == LDS.type_url:
        return _routes_of(message)
    return ()


def _routes_of(listener: listener_pb2.Listener) -> tuple[str, ...]:
    managers = [f.typed_config for chain in listener.filter_chains for f in chain.filters]
    managers += [f.typed_config for f in listener.default_filter_chain.filters]
    managers.append(listener.api_listener.api_listener)
    names: dict[str, None] = {}
    for packed in managers:
        if packed.type_url.rpartition("/")[2] != _HCM:
            continue
        try:
            manager = hcm_pb2.HttpConnectionManager.FromString(packed.value)
        except DecodeError:
            continue
        if manager.HasField("rds") and manager.rds.route_config_name:
            names[manager.rds.route_config_name] = None
    return tuple(names)


@lru_cache(maxsize=1024)
def empty_assignment(name: str) -> Resource:
    """A ClusterLoadAssignment without endpoints."""
    body = endpoint_pb2.ClusterLoadAssignment(cluster_name=name).SerializeToString(deterministic=True)
    return Resource(EDS.type_url, name, body)
