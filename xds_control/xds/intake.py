"""From protobuf requests to a stream's state (pure)."""

from __future__ import annotations

from typing import Any, Final

from xds_control.xds.errors import StreamEnd
from xds_control.xds.groups import Node
from xds_control.xds.stream import Nack, StreamState

MAX_NODE_BYTES: Final = 1 << 20
MAX_ERROR: Final = 4096
"""Characters of a client's error message that are kept."""


def open_stream(state: StreamState, message: Any) -> Node:
    """Takes the first request of a stream; returns its node, without what nobody reads. Raises StreamEnd."""
    # The type is checked first: it is the more basic mistake.
    state.type_of(message.type_url)
    state.open(message.node.id, message.node.client_features)
    node = type(message.node)()
    node.CopyFrom(message.node)
    # Envoy lists hundreds of extensions here.
    node.ClearField("extensions")
    if node.ByteSize() > MAX_NODE_BYTES:
        raise StreamEnd("RESOURCE_EXHAUSTED", f"the node is larger than {MAX_NODE_BYTES} bytes")
    return node


def take_request(state: StreamState, message: Any, now: float) -> Nack | None:
    """Takes a DiscoveryRequest or DeltaDiscoveryRequest; returns the NACK that it was, if any. Raises StreamEnd."""
    error: str | None = None
    if message.HasField("error_detail"):
        error = message.error_detail.message[:MAX_ERROR] or f"code {message.error_detail.code}"
    if state.delta:
        return state.delta_request(
            message.type_url,
            [*message.resource_names_subscribe, *(r.name for r in message.resource_locators_subscribe)],
            [*message.resource_names_unsubscribe, *(r.name for r in message.resource_locators_unsubscribe)],
            message.initial_resource_versions,
            message.response_nonce,
            error,
            now,
        )
    return state.sotw_request(
        message.type_url,
        [*message.resource_names, *(r.name for r in message.resource_locators)],
        message.response_nonce,
        error,
        now,
    )
