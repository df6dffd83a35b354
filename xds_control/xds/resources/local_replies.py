"""Envoy's own error answers in the error form of the API that was called, so that client libraries can read them."""

from __future__ import annotations

from typing import Any

from envoy_data_plane.envoy.config.accesslog.v3 import (
    AccessLogFilter,
    AndFilter,
    ComparisonFilter,
    ComparisonFilterOp,
    ExtensionFilter,
    StatusCodeFilter,
)
from envoy_data_plane.envoy.config.core.v3 import (
    HeaderValue,
    HeaderValueOption,
    HeaderValueOptionHeaderAppendAction,
    RuntimeUInt32,
    SubstitutionFormatString,
)
from envoy_data_plane.envoy.extensions.access_loggers.filters.cel.v3 import ExpressionFilter
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 import (
    LocalReplyConfig,
    ResponseMapper,
)
from envoy_data_plane.google import protobuf as pb

from xds_control.policy import headers

# An answer made by a processor has the right form already; it is told by its reason header.
NOT_OURS = f"!('{headers.REASON}' in response.headers)"
ANTHROPIC = "request.path.contains('/v1/messages')"
OLLAMA = "(request.path.endsWith('/api/chat') || request.path.endsWith('/api/generate'))"

TOO_LARGE = "the request body is larger than the limit of {limit} bytes"


def local_replies(body_limit_bytes: int) -> LocalReplyConfig:
    """One mapper for each kind of error and form of API; the first that matches is taken."""
    too_large = TOO_LARGE.format(limit=body_limit_bytes)
    mappers: list[ResponseMapper] = []
    for form, expression in (("anthropic", ANTHROPIC), ("ollama", OLLAMA), ("openai", "true")):
        condition = f"{NOT_OURS} && {expression}"
        mappers.append(
            _mapper(
                413, 413, condition, _body(form, too_large, "invalid_request_error", "body-too-large"), "body-too-large"
            )
        )
        mappers.append(
            _mapper(
                400,
                499,
                condition,
                _body(form, "%LOCAL_REPLY_BODY%", "invalid_request_error", "%RESPONSE_CODE_DETAILS%"),
                "proxy-refused",
            )
        )
        mappers.append(
            _mapper(
                500,
                599,
                condition,
                _body(form, "%LOCAL_REPLY_BODY%", "server_error", "%RESPONSE_CODE_DETAILS%"),
                "proxy-failed",
            )
        )
    return LocalReplyConfig(mappers=mappers)


def _body(form: str, message: str, kind: str, code: str) -> dict[str, Any]:
    if form == "anthropic":
        return {"type": "error", "error": {"type": "api_error" if kind == "server_error" else kind, "message": message}}
    if form == "ollama":
        return {"error": message}
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def _mapper(low: int, high: int, condition: str, body: dict[str, Any], reason: str) -> ResponseMapper:
    status = [_status(ComparisonFilterOp.GE, low), _status(ComparisonFilterOp.LE, high)]
    cel = AccessLogFilter(
        extension_filter=ExtensionFilter(
            name="envoy.access_loggers.extension_filters.cel",
            typed_config=pb.Any.pack(ExpressionFilter(expression=condition)),
        )
    )
    return ResponseMapper(
        filter=AccessLogFilter(and_filter=AndFilter(filters=[*status, cel])),
        body_format_override=SubstitutionFormatString(
            json_format=pb.Struct.from_dict(body), content_type="application/json"
        ),
        headers_to_add=[
            HeaderValueOption(
                header=HeaderValue(key=headers.REASON, value=reason),
                append_action=HeaderValueOptionHeaderAppendAction.ADD_IF_ABSENT,
            )
        ],
    )


def _status(op: ComparisonFilterOp, value: int) -> AccessLogFilter:
    return AccessLogFilter(
        status_code_filter=StatusCodeFilter(
            comparison=ComparisonFilter(
                op=op, value=RuntimeUInt32(default_value=value, runtime_key=f"xds_control.local_reply.{value}")
            )
        )
    )
