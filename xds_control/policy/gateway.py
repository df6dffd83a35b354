"""The Envoy side: where it listens, what it may buffer, how it retries, how long it waits."""

from __future__ import annotations

from typing import Annotated, Literal

from xds_control.policy.address import check_listen
from xds_control.policy.base import Section, meta


class RetryPolicy(Section, frozen=True):
    """When Envoy tries another endpoint. Nothing is retried after the first response byte."""

    on: Annotated[
        tuple[str, ...],
        meta(
            "Envoy's `retry_on` conditions that are tried again on another endpoint of the list or pool",
            example=["connect-failure", "refused-stream", "reset"],
        ),
    ] = ("connect-failure", "refused-stream", "reset")
    attempts: Annotated[int, meta("how many further attempts one request gets", ge=0, le=10)] = 2
    status_codes: Annotated[
        list[int], meta("upstream status codes that are also tried again, for example 503", example=[503])
    ] = []


class EnvoyPolicy(Section, frozen=True):
    """The Envoy that xds-control configures (managed mode) or starts (`serve --with-envoy`)."""

    listen: Annotated[str, meta("address where clients connect", example="0.0.0.0:8080")] = "127.0.0.1:8080"
    admin: Annotated[str, meta("Envoy's own admin address; keep it on loopback", example="127.0.0.1:9901")] = (
        "127.0.0.1:9901"
    )
    concurrency: Annotated[int, meta("worker threads of an Envoy started by `serve --with-envoy`", ge=1, le=256)] = 2
    node_id: Annotated[str, meta("node id in the generated bootstrap", min_length=1)] = "envoy"
    node_cluster: Annotated[str, meta("node cluster in the generated bootstrap", min_length=1)] = "xds-control"
    xds: Annotated[Literal["delta", "sotw"], meta("variant of ADS that the generated bootstrap asks for")] = "delta"
    body_limit_bytes: Annotated[
        int,
        meta(
            "largest request body that is buffered for inspection; above it: 413 in the API's error form",
            unit="bytes",
            ge=1024,
            le=1 << 30,
            example=16777216,
        ),
    ] = 16 * 1024 * 1024
    stream_idle_timeout_s: Annotated[
        float, meta("a request or answer on which nothing moves for this long is ended", unit="s", gt=0)
    ] = 300.0
    connect_timeout_s: Annotated[float, meta("time to connect to an endpoint", unit="s", gt=0, le=60)] = 1.0
    retries: Annotated[RetryPolicy, meta("retries on other endpoints")] = RetryPolicy()
    max_requests: Annotated[
        int, meta("circuit breaker per pool: requests, pending requests and connections at once", ge=1)
    ] = 100_000
    update_merge_window_s: Annotated[
        float,
        meta(
            "Envoy merges weight changes that come within this time into one load-balancer rebuild; 0 switches it off",
            unit="s",
            ge=0,
            le=10,
        ),
    ] = 0.1
    usage_from_json: Annotated[bool, meta("read token usage from JSON answers inside Envoy (json_to_metadata)")] = True
    usage_from_sse: Annotated[
        bool,
        meta("read token usage from streamed answers inside Envoy (sse_to_metadata, still work in progress in Envoy)"),
    ] = True
    x_forwarded_trusted_hops: Annotated[int, meta("trusted proxies in front of this Envoy", ge=0, le=16)] = 0

    def __post_init__(self) -> None:
        check_listen(self.listen, "listen")
        check_listen(self.admin, "admin")
