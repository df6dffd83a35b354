"""The request as the decider sees it, read from ext_proc messages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from envoy.config.core.v3 import base_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2
from google.protobuf import struct_pb2

from xds_control.policy import headers as names

_ATTRIBUTES = "envoy.filters.http.ext_proc"


@dataclass(slots=True)
class RequestView:
    """One request. Header names are in lower case; `:path`, `:method` and `:authority` are among them when sent.

    subset: addresses that the data plane allows, None when it says nothing.
    complete: False when the body was cut short or is not shown at all.
    can_rewrite: whether another body can be sent in its place.
    """

    headers: dict[str, str]
    body: bytes = b""
    subset: tuple[str, ...] | None = None
    complete: bool = True
    can_rewrite: bool = True
    has_body: bool = True
    attributes: dict[str, str] = field(default_factory=dict)

    @property
    def path(self) -> str:
        """The path that the client asked for: `x-original-path` where a proxy rewrote it, else `:path`."""
        headers = self.headers
        return headers.get("x-original-path") or headers.get(":path") or self.attributes.get("request.path", "")


def read_headers(headers: base_pb2.HeaderMap) -> dict[str, str]:
    """The header map as text. Several values of one name are joined by commas, as HTTP defines."""
    found: dict[str, str] = {}
    for header in headers.headers:
        raw = header.raw_value
        value = raw.decode("utf-8", "replace") if raw else header.value
        name = header.key
        if name in found:
            found[name] = f"{found[name]},{value}"
        else:
            found[name] = value
    return found


def read_subset(message: external_processor_pb2.ProcessingRequest) -> tuple[str, ...] | None:
    """The data plane's subset hint: a list of texts, others dropped, or one text with commas; None when absent."""
    if not message.HasField("metadata_context"):
        return None
    metadata = message.metadata_context.filter_metadata
    if names.SUBSET_HINT_NAMESPACE not in metadata:
        return None
    fields = metadata[names.SUBSET_HINT_NAMESPACE].fields
    if names.DESTINATION_SUBSET not in fields:
        return None
    value = fields[names.DESTINATION_SUBSET]
    kind = value.WhichOneof("kind")
    if kind == "list_value":
        return tuple(_addresses(item.string_value for item in value.list_value.values if _is_text(item)))
    if kind == "string_value":
        return tuple(_addresses(value.string_value.split(",")))
    return None


def _is_text(value: struct_pb2.Value) -> bool:
    return value.WhichOneof("kind") == "string_value"


def _addresses(texts: Iterable[str]) -> list[str]:
    return [text.strip() for text in texts if text.strip()]


def read_served(message: external_processor_pb2.ProcessingRequest) -> str:
    """The endpoint that answered, as the data plane reports it in the response phase; "" when it does not."""
    if not message.HasField("metadata_context"):
        return ""
    metadata = message.metadata_context.filter_metadata
    if names.LB_NAMESPACE not in metadata:
        return ""
    fields = metadata[names.LB_NAMESPACE].fields
    return fields[names.DESTINATION_SERVED].string_value if names.DESTINATION_SERVED in fields else ""


def read_attributes(message: external_processor_pb2.ProcessingRequest) -> dict[str, str]:
    """The request attributes that Envoy was told to send, as text."""
    if _ATTRIBUTES not in message.attributes:
        return {}
    found: dict[str, str] = {}
    for name, value in message.attributes[_ATTRIBUTES].fields.items():
        kind = value.WhichOneof("kind")
        if kind == "string_value":
            found[name] = value.string_value
        elif kind in ("number_value", "bool_value"):
            found[name] = str(getattr(value, kind))
    return found
