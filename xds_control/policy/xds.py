"""How the xDS port serves Envoys: limits, timing and security (the `xds` section)."""

from __future__ import annotations

from typing import Annotated

from xds_control.policy.base import Section, meta
from xds_control.policy.security import TlsFiles


class XdsPolicy(Section, frozen=True):
    """Limits, timing and security of the xDS port."""

    identifier: Annotated[str, meta("name of this control plane in every response", max_length=256)] = "xds-control"
    max_streams: Annotated[
        int, meta("discovery streams served at once; further ones get RESOURCE_EXHAUSTED", ge=1, le=1_000_000)
    ] = 10_000
    max_names_per_stream: Annotated[int, meta("resource names one stream may subscribe to", ge=1)] = 100_000
    max_types_per_stream: Annotated[int, meta("resource types one stream may subscribe to", ge=1, le=1000)] = 32
    max_request_bytes: Annotated[int, meta("largest request from a client", unit="bytes", ge=65536)] = 16 << 20
    first_request_deadline_s: Annotated[
        float, meta("a stream that says nothing for so long after opening is ended", unit="s", gt=0)
    ] = 30.0
    write_deadline_s: Annotated[
        float, meta("a client that takes no bytes for so long loses its stream", unit="s", gt=0, example=20.0)
    ] = 20.0
    stuck_after_s: Annotated[
        float, meta("a response unanswered for so long is logged and listed as stuck", unit="s", gt=0)
    ] = 30.0
    order_wait_s: Annotated[
        float,
        meta(
            "how long listeners and routes wait for the clusters they need, and removals for what still uses them; "
            "0 keeps the order but never waits for an answer",
            unit="s",
            ge=0,
            le=60,
        ),
    ] = 2.0
    keepalive_time_s: Annotated[
        float, meta("a connection silent for so long is pinged", unit="s", ge=1, example=30.0)
    ] = 30.0
    keepalive_timeout_s: Annotated[
        float, meta("a connection that does not answer a ping for so long is closed", unit="s", ge=0.1)
    ] = 10.0
    max_connection_age_s: Annotated[
        float, meta("mean age at which a client is asked to connect anew, 0 = never", unit="s", ge=0)
    ] = 1800.0
    connection_age_jitter: Annotated[
        float, meta("spread of the age, so that clients do not return all at once (0.2 = ±20 %)", ge=0, le=0.9)
    ] = 0.2
    max_connection_age_grace_s: Annotated[
        float, meta("how long a connection over its age may finish what it does", unit="s", ge=1)
    ] = 30.0
    load_report_interval_s: Annotated[
        float,
        meta("how often clients that report load (LRS) are asked to, 0 = load reports are not taken", unit="s", ge=0),
    ] = 1.0
    client_status: Annotated[bool, meta("whether the port tells the state of its clients (CSDS)")] = True
    tls: Annotated[TlsFiles | None, meta("TLS of the port, none = plain text")] = None
    token_file: Annotated[
        str | None,
        meta("file with the bearer token that clients must send; one token a line, so that it can be rotated"),
    ] = None
    insecure: Annotated[
        bool, meta("allow a port that others can reach without TLS, or with TLS that lets everybody in")
    ] = False
    reflection: Annotated[bool, meta("whether the port describes its services (gRPC reflection)")] = False
