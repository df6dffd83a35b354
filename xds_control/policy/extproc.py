"""How the external processor talks with Envoy: body modes, limits, and what it does when something is wrong."""

from __future__ import annotations

from typing import Annotated, Literal

import cel

from xds_control.policy.base import Section, meta


class UsageMetadata(Section, frozen=True):
    """A value computed from an observed answer's token usage, written into the metadata of its last message."""

    name: Annotated[str, meta("key in the namespace", min_length=1, example="x-gateway-inference-request-cost")]
    value: Annotated[
        str,
        meta("CEL expression over usage", min_length=1, max_length=1024, example="usage.completion_tokens * 3"),
    ]
    namespace: Annotated[str, meta("metadata namespace", min_length=1, example="envoy.lb")] = "envoy.lb"
    when: Annotated[
        str, meta("CEL condition over usage; empty = always", max_length=1024, example="has(usage.completion_tokens)")
    ] = ""

    def __post_init__(self) -> None:
        for field, text in (("value", self.value), ("when", self.when)):
            if not text:
                continue
            try:
                cel.compile(text)
            except ValueError as error:
                message = f"{field} is not a CEL expression: {error}"
                raise ValueError(message) from None


class ExtProcPolicy(Section, frozen=True, kw_only=True):
    """Settings of the ext_proc service and of the Envoy filter that calls it."""

    body_mode: Annotated[
        Literal["buffered", "streamed", "full_duplex"],
        meta(
            "how the generated filter sends bodies. buffered: once, whole, not echoed; streamed: in pieces without "
            "waiting, answered once (large bodies, no body rewrite); full_duplex: what Gateway API data planes use, "
            "echoes the body. The service itself understands whatever the data plane announces"
        ),
    ] = "buffered"
    max_body_bytes: Annotated[
        int,
        meta("largest request body that the processor reads", unit="bytes", ge=1024, le=1 << 30, example=67108864),
    ] = 64 << 20
    max_buffered_bytes: Annotated[
        int,
        meta(
            "bytes of request bodies in one processor of which more is to come. Beyond it streamed and full_duplex "
            "requests are decided by what has come of them, their bodies unchanged, and buffered ones as if the "
            "processor were away",
            unit="bytes",
            ge=1 << 20,
        ),
    ] = 1 << 30
    on_malformed: Annotated[
        Literal["pass", "reject"],
        meta(
            "a body that cannot be read: pass lets ring 1 serve it by defaults, reject answers 400 "
            "(415 for an unknown encoding)"
        ),
    ] = "pass"
    on_too_large: Annotated[
        Literal["pass", "reject"],
        meta(
            "a body above max_body_bytes that reached the processor: reject answers 413, "
            "pass lets ring 1 serve it by defaults"
        ),
    ] = "reject"
    on_error: Annotated[
        Literal["abort", "continue"],
        meta(
            "an error inside the processor: abort ends the stream with a gRPC error, so that Envoy's failure mode "
            "decides and counts it; continue answers as if there were nothing to change"
        ),
    ] = "abort"
    failure_mode_allow: Annotated[
        bool, meta("whether Envoy lets requests through by ring 1 when the processor is away or fails")
    ] = True
    responses: Annotated[
        Literal["auto", "ignore", "observe"],
        meta(
            "response phases. ignore: the stream ends with the request's answer; observe: it stays and reads status "
            "and usage; auto: observes only where the data plane sends response bodies (full duplex)"
        ),
    ] = "auto"
    restore_model_name: Annotated[
        bool,
        meta(
            "whether the client's model name is written back into observed responses when the request's was rewritten"
        ),
    ] = True
    usage_metadata: Annotated[
        tuple[UsageMetadata, ...],
        meta("values written into the metadata of observed answers, for example their cost for a rate limit"),
    ] = ()
    emit_decision: Annotated[
        bool,
        meta("whether the decision's id is set as x-xds-control-decision on the request and on its answer"),
    ] = False
    served_header: Annotated[
        str,
        meta(
            "header that tells on observed answers which endpoint gave them; empty = none",
            pattern="^[a-z0-9-]*$",
            max_length=64,
            example="x-served-by",
        ),
    ] = ""
    emit_scores: Annotated[bool, meta("whether picks carry the candidates' scores in the metadata")] = False
    request_headers: Annotated[
        tuple[str, ...],
        meta("request headers that Envoy sends to the processor beside those that policy uses", example=["x-team"]),
    ] = ()
    control_headers: Annotated[
        bool, meta("whether the llm-d control headers of clients are obeyed (model rewrite, objective, SLO)")
    ] = True
    subset_hint: Annotated[bool, meta("whether picks honour the data plane's subset of endpoints")] = True
    transport: Annotated[
        Literal["native", "grpc"],
        meta(
            "server under the service: native is the built-in HTTP/2 server; grpc is grpcio's, "
            "which costs about twice the CPU"
        ),
    ] = "native"
    max_streams: Annotated[
        int, meta("most streams that one connection from Envoy may have open", ge=1, le=1_000_000)
    ] = 40_000

    @property
    def message_limit(self) -> int:
        """Largest gRPC message in bytes that the server takes: a whole body, and room for headers and metadata."""
        return self.max_body_bytes + (1 << 20)
