"""Decodes OTLP as the specification's own message definitions say: a check on what we write by hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from opentelemetry.proto.collector.trace.v1 import trace_service_pb2


@dataclass(frozen=True)
class Span:
    """One span, ids in hex."""

    service: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]
    status: int
    message: str


def spans_of(body: bytes) -> list[Span]:
    """The spans of an ExportTraceServiceRequest."""
    found = []
    for group in trace_service_pb2.ExportTraceServiceRequest.FromString(body).resource_spans:
        sender = _values(group.resource.attributes)
        # the two ages of the definitions name field 2 differently
        scopes = group.scope_spans if hasattr(group, "scope_spans") else group.instrumentation_library_spans
        found += [
            Span(
                service=sender.get("service.name", ""),
                name=one.name,
                trace_id=one.trace_id.hex(),
                span_id=one.span_id.hex(),
                parent_id=one.parent_span_id.hex(),
                start_ns=one.start_time_unix_nano,
                end_ns=one.end_time_unix_nano,
                attributes=_values(one.attributes),
                status=one.status.code,
                message=one.status.message,
            )
            for scope in scopes
            for one in scope.spans
        ]
    return found


def _values(attributes: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}
