"""Distributed traces: what is traced and where the spans go (the `tracing` section)."""

from __future__ import annotations

import re
from typing import Annotated
from urllib.parse import urlsplit

from xds_control.policy.address import split_address
from xds_control.policy.base import Section, meta

_HEADER_NAME = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]+\Z")


class TracingPolicy(Section, frozen=True):
    """OpenTelemetry traces, sent by OTLP over HTTP: Envoy's spans, and in each a span of the decision."""

    endpoint: Annotated[
        str,
        meta(
            "URL of the collector's trace intake (OTLP over HTTP, protobuf)",
            max_length=2048,
            example="http://127.0.0.1:4318/v1/traces",
        ),
    ]
    headers: Annotated[
        dict[str, str],
        meta(
            "headers of each export, such as a key; write secrets as ${env:NAME} or ${file:/path}",
            example={"authorization": "Bearer ${file:/etc/xds-control/otlp.token}"},
        ),
    ] = {}
    sample_share: Annotated[
        float,
        meta(
            "share of the requests without a traceparent that begin a trace; with one, its sampled flag decides",
            unit="ratio",
            ge=0,
            le=1,
        ),
    ] = 0.01
    envoy: Annotated[
        bool,
        meta("whether the Envoy that is configured begins traces, and sends its own spans to the same endpoint"),
    ] = True
    service_name: Annotated[str, meta("`service.name` of the processors' spans", min_length=1, max_length=256)] = (
        "xds-control"
    )
    envoy_service_name: Annotated[str, meta("`service.name` of Envoy's spans", min_length=1, max_length=256)] = "envoy"
    ca_file: Annotated[
        str | None,
        meta(
            "PEM file with the authorities of an https endpoint, read by processors and by Envoy, which has no others",
            example="/etc/ssl/certs/ca-certificates.crt",
        ),
    ] = None
    flush_s: Annotated[float, meta("how often processors send what they have", unit="s", ge=0.05, le=60)] = 1.0
    timeout_s: Annotated[float, meta("longest wait for the collector's answer", unit="s", gt=0, le=60)] = 5.0
    max_queue: Annotated[
        int, meta("spans that a processor holds for a collector that is slow or away; further ones are lost", ge=1)
    ] = 4096

    def __post_init__(self) -> None:
        _host, _port, tls = self.target()
        if tls and self.envoy and not self.ca_file:
            raise ValueError(
                "ca_file is missing: Envoy trusts no authority by itself (the system's are often in "
                "/etc/ssl/certs/ca-certificates.crt)"
            )
        for name, value in self.headers.items():
            if not _HEADER_NAME.match(name):
                raise ValueError(f"headers: {name!r} is not a header name in lower case")
            if not value.isprintable() or not value.isascii():
                raise ValueError(f"headers: the value of {name!r} has characters that a header cannot have")

    def target(self) -> tuple[str, int, bool]:
        """(host, port, whether TLS is used) of the endpoint."""
        try:
            parts = urlsplit(self.endpoint)
            port = parts.port or (443 if parts.scheme == "https" else 80)
            good = parts.scheme in ("http", "https") and parts.hostname and not parts.username
        except ValueError:
            good = None
        if not good:
            raise ValueError(f"endpoint {self.endpoint!r} is not a URL such as http://127.0.0.1:4318/v1/traces")
        host = str(parts.hostname)
        split_address(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        return host, port, parts.scheme == "https"
