"""What one request asks for, read from its headers and body in one pass."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any


class BodyProblem(enum.StrEnum):
    """Why a body could not be read fully. The value is the stable reason code that reaches clients and metrics."""

    NONE = ""
    EMPTY = "body-empty"
    NOT_JSON = "body-not-json"
    TRUNCATED = "body-truncated"
    TRAILING = "body-trailing-data"
    TOO_DEEP = "body-too-deep"
    TOO_LARGE = "body-too-large"
    BAD_ENCODING = "body-bad-encoding"
    UNSUPPORTED_ENCODING = "body-unsupported-encoding"
    WRONG_SHAPE = "body-wrong-shape"


@dataclass(slots=True)
class RequestFacts:
    """Facts of one request; every field has a neutral default, so a body that cannot be read still routes.

    api: key of the format ("openai.chat", "anthropic.messages", ..., "" when the path is unknown).
    prompt_bytes: canonical prompt bytes, media excluded. prompt_tokens: estimate, or exact when `tokens_exact`.
    prefix_keys: 64-bit chained hashes over growing blocks of the canonical prompt;
    prefix_tokens[i]: estimated tokens up to and including block i (same length).
    max_output_tokens: what the client allows, None when it says nothing.
    session_key: 64-bit hash, 0 when none; session_source names where it came from ("header:x-session-id").
    priority: as the client sent it, None when absent. tenant, service_class: from headers by policy, "" when none.
    model_span: [start, end) of the JSON string value of `model` inside the *decoded* body, quotes included,
    None when absent or not patchable. ambiguous: top-level keys that appear twice (policy bypass risk).
    token_ids: the prompt as a JSON list of token ids when it came as one, or when the model's
    own tokenizer made them of a text that no template changes; "" otherwise, and once a pick was made.
    text_profile: kind of text in 53 bits (see `profile`), which the token estimate learns by.
    """

    api: str = ""
    path: str = ""
    model: str = ""
    body_bytes: int = 0
    prompt_bytes: int = 0
    prompt_tokens: int = 0
    tokens_exact: bool = False
    images: int = 0
    media_count: int = 0
    media_bytes: int = 0
    tools: int = 0
    messages: int = 0
    max_output_tokens: int | None = None
    expected_output_tokens: int = 0
    stream: bool = False
    n: int = 1
    temperature: float | None = None
    priority: int | None = None
    lora: str = ""
    cache_salt: str = ""
    session_key: int = 0
    session_source: str = ""
    prefix_keys: tuple[int, ...] = ()
    prefix_tokens: tuple[int, ...] = ()
    tenant: str = ""
    service_class: str = ""
    tags: tuple[str, ...] = ()
    model_span: tuple[int, int] | None = None
    ambiguous: tuple[str, ...] = ()
    problem: BodyProblem = BodyProblem.NONE
    detail: str = ""
    text_profile: int = 0
    token_ids: str = ""
    extra: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
