"""Which group a node belongs to: the usual ways to tell (pure). A group function takes the node's message."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Node = Any
"""`envoy.config.core.v3.Node`."""

NodeGroup = Callable[[Node], str]


def one_group(node: Node) -> str:
    """Everybody sees the same resources: group ""."""
    return ""


def by_id(node: Node) -> str:
    """One group per node id."""
    return str(node.id)


def by_cluster(node: Node) -> str:
    """One group per node cluster."""
    return str(node.cluster)


def by_metadata(key: str, *, default: str = "") -> NodeGroup:
    """The text, number or truth under a key of the node's metadata; dots go deeper (`team.name`)."""
    path = key.split(".")

    def group(node: Node) -> str:
        fields = node.metadata.fields
        for part in path[:-1]:
            if part not in fields or fields[part].WhichOneof("kind") != "struct_value":
                return default
            fields = fields[part].struct_value.fields
        if path[-1] not in fields:
            return default
        value = fields[path[-1]]
        kind = value.WhichOneof("kind")
        if kind == "string_value":
            return str(value.string_value)
        if kind == "number_value":
            return f"{value.number_value:g}"
        if kind == "bool_value":
            return str(value.bool_value).lower()
        return default

    return group


def mapped(inner: NodeGroup, groups: Mapping[str, str], *, default: str = "") -> NodeGroup:
    """Translates what another function returns; what the mapping does not know belongs to `default`."""
    return lambda node: groups.get(inner(node), default)
