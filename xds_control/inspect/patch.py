"""Writes another model name into a body by replacing its bytes, leaving everything else as the client sent it."""

from __future__ import annotations

import json

from xds_control.inspect.facts import RequestFacts


def replace_model(body: bytes, facts: RequestFacts, new: str) -> bytes | None:
    """`body` with the model replaced, or None when that is not possible in place.

    body: the decoded body that `facts` were read from. Not possible: no model in the body (it is in the path, or
    absent), the key occurs twice (engines disagree about which counts), or the bytes are not those that were read.
    """
    span = facts.model_span
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
