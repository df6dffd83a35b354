"""Writes another model name into a body by replacing its bytes, leaving everything else as the client sent it."""

from __future__ import annotations

import json

from xds_control.inspect.facts import BodyProblem, RequestFacts

_NAMING = ("openai.", "anthropic.", "ollama.", "cohere.", "vllm.")  # APIs whose bodies have a model; others refuse one


def replace_model(body: bytes, facts: RequestFacts, new: str) -> bytes | None:
    """`body` with the model replaced, or None when that is not possible in place.

    body: the decoded body that `facts` were read from. A JSON object that names no model gets one as its first
    member, if its API has one there. Not possible: the model is in the path, the key occurs twice (engines disagree
    about which counts) or has a value that is no text, or the bytes are not those that were read.
    """
    span = facts.model_span
    if span is None and not facts.model and facts.problem is BodyProblem.NONE and facts.api.startswith(_NAMING):
        return _insert_model(body, new)
    if span is None or "model" in facts.ambiguous:
        return None
    start, end = span
    if not 0 <= start < end <= len(body):
        return None
    try:
        current = json.loads(body[start:end])
    except ValueError:
        return None
    if current != facts.model:
        return None
    return b"".join((body[:start], json.dumps(new, ensure_ascii=False).encode("utf-8", "replace"), body[end:]))


def _insert_model(body: bytes, new: str) -> bytes | None:
    """The object with a model as its first member, or None when it may have one that was not understood."""
    start = body.find(b"{")
    if start < 0 or body[:start].strip(b" \t\r\n\xef\xbb\xbf"):
        return None
    try:
        document = json.loads(body[start:])
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict) or "model" in document:
        return None
    comma = b"," if document else b""
    named = b'"model":' + json.dumps(new, ensure_ascii=False).encode("utf-8", "replace")
    return b"".join((body[: start + 1], named, comma, body[start + 1 :]))
