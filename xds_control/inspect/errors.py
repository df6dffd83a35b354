"""Errors in the form that the client's API uses, so that its own library understands them."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from xds_control.errors import XdsControlError

_JSON: Final = "application/json"

_OPENAI_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}
_ANTHROPIC_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
_GOOGLE_STATUSES: Final = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    413: "INVALID_ARGUMENT",
    415: "INVALID_ARGUMENT",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
_BEDROCK_TYPES: Final = {
    403: "AccessDeniedException",
    404: "ResourceNotFoundException",
    408: "ModelTimeoutException",
    429: "ThrottlingException",
    503: "ServiceUnavailableException",
}
_TGI_TYPES: Final = {429: "overloaded", 503: "unhealthy", 424: "generation"}


class WrongShape(XdsControlError):
    """The body is JSON, but not of the shape that its API has; raised by readers, never leaves this package."""

    code = "body-wrong-shape"
    grpc_status = "INVALID_ARGUMENT"
    http_status = 400


def error_body(api: str, status: int, reason: str, message: str) -> tuple[bytes, str]:
    """Body and content type of an error answer.

    api: as in `RequestFacts.api`, "" (OpenAI's form) when unknown. status: HTTP status. reason: stable code.
    """
    family = api.partition(".")[0]
    make = _FORMS.get(family, _openai)
    if family == "grpc":
        return b"", "application/grpc"  # gRPC errors are trailers; a body would be taken for a message
    return msgspec.json.encode(make(status, reason, message)), _JSON


def _openai(status: int, reason: str, message: str) -> dict[str, Any]:
    kind = _OPENAI_TYPES.get(status) or ("server_error" if status >= 500 else "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": None, "code": reason}}


def _anthropic(status: int, reason: str, message: str) -> dict[str, Any]:
    kind = _ANTHROPIC_TYPES.get(status) or ("api_error" if status >= 500 else "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": f"{message} ({reason})"}}


def _plain(status: int, reason: str, message: str) -> dict[str, Any]:
    """Ollama, Triton and KServe."""
    return {"error": f"{message} ({reason})"}


def _tgi(status: int, reason: str, message: str) -> dict[str, Any]:
    return {"error": f"{message} ({reason})", "error_type": _TGI_TYPES.get(status, "validation")}


def _sglang(status: int, reason: str, message: str) -> dict[str, Any]:
    return {"error": {"message": message, "code": reason}}


def _llamacpp(status: int, reason: str, message: str) -> dict[str, Any]:
    kind = _OPENAI_TYPES.get(status) or ("server_error" if status >= 500 else "invalid_request_error")
    return {"error": {"code": status, "message": f"{message} ({reason})", "type": kind}}


def _gemini(status: int, reason: str, message: str) -> dict[str, Any]:
    name = _GOOGLE_STATUSES.get(status) or ("INTERNAL" if status >= 500 else "INVALID_ARGUMENT")
    detail = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": reason, "domain": "xds-control"}
    return {"error": {"code": status, "message": message, "status": name, "details": [detail]}}


def _bedrock(status: int, reason: str, message: str) -> dict[str, Any]:
    kind = _BEDROCK_TYPES.get(status) or ("InternalServerException" if status >= 500 else "ValidationException")
    return {"__type": kind, "message": f"{message} ({reason})"}


def _cohere(status: int, reason: str, message: str) -> dict[str, Any]:
    return {"message": f"{message} ({reason})"}


_FORMS: Final = {
    "anthropic": _anthropic,
    "ollama": _plain,
    "triton": _plain,
    "kserve": _plain,
    "tgi": _tgi,
    "sglang": _sglang,
    "llamacpp": _llamacpp,
    "gemini": _gemini,
    "bedrock": _bedrock,
    "cohere": _cohere,
}
