"""How one request ended: the kind of its outcome, and the record of it that estimators and pickers learn from."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Kind = Literal["ok", "connect", "timeout", "reset", "5xx", "4xx", "backpressure", "aborted"]
"""What became of a request.

connect: no connection to the endpoint. timeout: it did not answer in time. reset: it broke the answer off.
5xx: it failed and said so. 4xx: the client's fault. backpressure: 429 or 503, or Envoy's own limits.
aborted: the client went away.
"""

FAILURES: frozenset[Kind] = frozenset({"connect", "timeout", "reset", "5xx"})
"""The kinds that are the endpoint's fault."""


class Finished(msgspec.Struct, frozen=True, gc=False):
    """One request that ended. Strings are "" and numbers None when unknown; times are seconds.

    endpoint: upstream address of the last attempt, "" when none was reached. pick: first address that the picker
    named, "" when the weights chose. processor: which processor decided. prompt_tokens: exact, cached ones included.
    ttft_s: from the request's last byte sent upstream to the answer's first body byte, streamed answers only.
    decode_s: from the first to the last body byte, streamed answers only. e2e_s: from the request's last byte received
    to the answer's last. queue_s: from the request's last byte received to its first byte sent upstream.
    ahead_tokens, batch: uncached prompt tokens ahead and requests in flight at the picked endpoint, as its pick said.
    ended_unix_s: wall-clock time of its end. prefill: prefill endpoint of a split request, "" otherwise.
    text_profile, images: kind of text and number of images, for the token estimator; 0 when unknown.
    attempts: how many the request took, 0 when it was answered without an upstream.
    """

    id: str
    pool: str
    endpoint: str
    model: str
    service_class: str
    tenant: str
    api: str
    processor: str
    pick: str
    kind: Kind
    ok: bool
    streamed: bool
    status: int
    attempts: int
    prompt_bytes: int | None
    prompt_tokens_est: int | None
    output_tokens_est: int | None
    matched_tokens: int | None
    prompt_tokens: int | None
    completion_tokens: int | None
    cached_tokens: int | None
    ttft_s: float | None
    decode_s: float | None
    e2e_s: float | None
    queue_s: float | None
    text_profile: int = 0
    images: int = 0
    ahead_tokens: int | None = None
    batch: int | None = None
    prefill: str = ""
    ended_unix_s: float | None = None


class FailedAttempt(msgspec.Struct, frozen=True, gc=False):
    """One attempt that failed, from Envoy's per-attempt log; the request may have succeeded elsewhere."""

    pool: str
    endpoint: str
    kind: Kind


def outcome_of(code: int, flags: Any) -> Kind:
    """The kind of an outcome, from the response code (0: none was sent) and Envoy's `ResponseFlags` (None: unset)."""
    if flags is not None:
        if flags.downstream_connection_termination or flags.downstream_remote_reset:
            return "aborted"
        if flags.upstream_connection_failure or flags.dns_resolution_failure:
            return "connect"
        if flags.upstream_request_timeout or flags.duration_timeout or flags.upstream_max_stream_duration_reached:
            return "timeout"
        if flags.stream_idle_timeout:
            return "4xx" if code == 408 else "timeout"  # 408: the client did not finish its request
        if flags.upstream_overflow or flags.rate_limited or flags.overload_manager:
            return "backpressure"
        if (
            flags.upstream_remote_reset
            or flags.upstream_connection_termination
            or flags.upstream_protocol_error
            or flags.local_reset
        ):
            return "reset"
        if flags.downstream_protocol_error or flags.invalid_envoy_request_headers:
            return "4xx"
        if flags.no_healthy_upstream or flags.no_cluster_found:
            return "5xx"
    if code in (429, 503):
        return "backpressure"
    if code >= 500:
        return "5xx"
    if code >= 400:
        return "4xx"
    return "ok" if code else "aborted"
