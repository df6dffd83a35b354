"""Errors in the form of the API that the client called, so that its SDK understands them."""

from __future__ import annotations

import json

_OPENAI_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "invalid_request_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    429: "rate_limit_error",
}
_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    415: "invalid_request_error",
    429: "rate_limit_error",
    503: "overloaded_error",
    529: "overloaded_error",
}
_TGI_TYPES = {
    400: "validation",
    413: "validation",
    415: "validation",
    422: "validation",
    429: "overloaded",
    503: "overloaded",
}
_GOOGLE_STATUS = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    413: "INVALID_ARGUMENT",
    415: "INVALID_ARGUMENT",
    429: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
}


def error_body(api: str, status: int, code: str, message: str) -> bytes:
    """The JSON body of an error. api: key of the format ("openai.chat", "anthropic.messages", "ollama.chat", ...);
    an unknown one gets the OpenAI form. code: stable reason code."""
    family = api.partition(".")[0]
    document: dict[str, object]
    if family == "anthropic":
        kind = _ANTHROPIC_TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
        document = {"type": "error", "error": {"type": kind, "message": message}}
    elif family == "ollama":
        document = {"error": message}
    elif family == "tgi":
        document = {"error": message, "error_type": _TGI_TYPES.get(status, "generation")}
    elif family in ("triton", "kserve"):
        document = {"error": message}
    elif family == "gemini":
        document = {"error": {"code": status, "message": message, "status": _GOOGLE_STATUS.get(status, "INTERNAL")}}
    else:
        kind = _OPENAI_TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
        param = "model" if code == "model_not_found" else None
        document = {"error": {"message": message, "type": kind, "param": param, "code": code}}
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
