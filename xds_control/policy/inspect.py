"""What is read from requests, and how far: limits, sessions, prefix blocks, tags, token estimates."""

from __future__ import annotations

import re
from typing import Annotated

from xds_control.policy.base import Section, meta

_SOURCE = re.compile(r"^(?:header:[a-z0-9!#$%&'*+.^_`|~-]{1,128}|cookie:[^=;\s]{1,128}|body:[^\s]{1,128}|fingerprint)$")

DEFAULT_SESSION_SOURCES: tuple[str, ...] = (
    "header:x-session-id",
    "header:x-claude-code-session-id",
    "header:x-session-affinity",
    "header:session-id",
    "header:session_id",
    "header:x-smg-routing-key",
    "header:x-aibrix-session-key",
    "header:x-conversation-id",
    "header:x-flow-conversation-id",
    "body:conversation",
    "body:previous_response_id",
    "body:prompt_cache_key",
    "body:session_id",
    "body:session_params.id",
    "body:conversation_id",
    "body:routing_key",
    "body:parameters.sequence_id",
    "body:vllm_xargs.session_id",
    "body:metadata.session_id",
    "body:metadata.user_id",
    "body:safety_identifier",
    "body:user",
    "header:x-user-id",
    "fingerprint",
)


class TagPolicy(Section, frozen=True):
    """A tag that a request gets when its prompt has enough of the keywords, for example a domain such as `legal`."""

    name: Annotated[
        str, meta("name of the tag, as rules use it", pattern=r"^[a-z0-9][a-z0-9_-]{0,63}$", example="code")
    ]
    keywords: Annotated[
        tuple[str, ...],
        meta("words or phrases, matched whole and without regard to case", min_length=1, max_length=256),
    ]
    min_hits: Annotated[int, meta("how many different keywords must occur for the tag to be given", ge=1, le=256)] = 1
    scope: Annotated[
        str,
        meta(
            "the part of the prompt that is searched: system, last (the last user message) or all",
            pattern="^(system|last|all)$",
        ),
    ] = "all"

    def __post_init__(self) -> None:
        for word in self.keywords:
            if not word.strip():
                raise ValueError(f"tag {self.name}: a keyword is blank")
        if self.min_hits > len(self.keywords):
            raise ValueError(
                f"tag {self.name}: min_hits is {self.min_hits}, but there are {len(self.keywords)} keywords"
            )


class TokensPolicy(Section, frozen=True):
    """How prompt and output lengths are estimated before the engine has counted them."""

    bytes_per_token: Annotated[
        float, meta("ratio that English prose starts from, until a model's own is learned", unit="bytes", ge=1, le=16)
    ] = 4.2
    message_tokens: Annotated[
        float, meta("tokens that a chat template adds per message, at first", unit="tokens", ge=0, le=64)
    ] = 4.0
    image_tokens: Annotated[float, meta("tokens of one image, at first", unit="tokens", ge=0, le=100_000)] = 800.0
    audio_tokens: Annotated[float, meta("tokens of one audio clip", unit="tokens", ge=0, le=1_000_000)] = 500.0
    video_tokens: Annotated[float, meta("tokens of one video", unit="tokens", ge=0, le=1_000_000)] = 4000.0
    file_tokens: Annotated[float, meta("tokens of one attached file", unit="tokens", ge=0, le=1_000_000)] = 2000.0
    learn: Annotated[bool, meta("whether estimates learn from the token counts that engines report")] = True
    memory_requests: Annotated[
        float,
        meta("after how many requests an observation has lost most of its weight", unit="requests", ge=10, le=1e6),
    ] = 500.0
    max_models: Annotated[
        int, meta("models (and model and class pairs) that are learned apart; the least recent go", ge=1, le=100_000)
    ] = 512
    output_tokens: Annotated[
        float, meta("output length assumed until a model and class have a history", unit="tokens", ge=1, le=1_000_000)
    ] = 256.0
    tokenizers: Annotated[
        dict[str, str],
        meta(
            "model name to the path of its tokenizer.json, for exact counts instead of estimates; "
            "needs the `tokenizers` extra and costs about a millisecond per 4 KB",
            example={"llama-3.1-8b": "/models/llama-3.1-8b/tokenizer.json"},
        ),
    ] = {}
    tokenizer_max_bytes: Annotated[
        int, meta("prompts above this are estimated though a tokenizer is there", unit="bytes", ge=0, le=1 << 30)
    ] = 65536


class InspectPolicy(Section, frozen=True):
    """Reading of requests: what becomes a fact, from where, within which limits."""

    max_decoded_bytes: Annotated[
        int,
        meta(
            "largest body that is read, after decompression; larger ones are routed unread",
            unit="bytes",
            ge=1024,
            le=1 << 30,
        ),
    ] = 64 << 20
    max_lenient_bytes: Annotated[
        int,
        meta(
            "largest body for which the slow tolerant reader is tried when the strict one fails "
            "(lone surrogates, NaN, invalid UTF-8, a cut end)",
            unit="bytes",
            ge=0,
            le=1 << 28,
        ),
    ] = 1 << 20
    max_items: Annotated[
        int,
        meta(
            "most members that the lists and objects of a body may have together; bodies with more are routed unread. "
            "Counted as commas, and only in bodies over 1 MiB",
            ge=1024,
            le=1 << 26,
        ),
    ] = 1 << 20
    zstd_window_bytes: Annotated[
        int, meta("largest zstd window that is accepted", unit="bytes", ge=1024, le=1 << 31)
    ] = 32 << 20
    session_sources: Annotated[
        tuple[str, ...],
        meta(
            "where the session key comes from, first hit wins: header:NAME, cookie:NAME, body:FIELD (dotted), "
            "fingerprint (system prompt and first user message of a chat)",
            example=["header:x-session-id", "body:prompt_cache_key", "fingerprint"],
        ),
    ] = DEFAULT_SESSION_SOURCES
    session_max_bytes: Annotated[
        int, meta("longest session value that is used; longer ones are passed over", unit="bytes", ge=16, le=65536)
    ] = 1024
    tenant_sources: Annotated[
        tuple[str, ...],
        meta("headers that name the tenant, first hit wins", example=["x-tenant-id"]),
    ] = ("x-tenant-id", "x-llm-d-inference-fairness-id", "x-gateway-inference-fairness-id")
    class_sources: Annotated[
        tuple[str, ...],
        meta("headers that name the service class, first hit wins", example=["x-service-class"]),
    ] = ("x-service-class", "x-llm-d-inference-objective", "x-gateway-inference-objective")
    priority_headers: Annotated[tuple[str, ...], meta("headers whose number overrides the body's priority")] = (
        "x-vllm-priority",
    )
    prefix_block_bytes: Annotated[int, meta("size of the first prefix blocks", unit="bytes", ge=64, le=1 << 20)] = 1024
    prefix_growth: Annotated[
        float,
        meta(
            "a block is never smaller than this share of what lies before it, so that long prompts cost few hashes",
            ge=0,
            le=1,
        ),
    ] = 0.03125
    prefix_max_keys: Annotated[
        int, meta("most prefix keys of one request; what lies behind them is not keyed", ge=1, le=4096)
    ] = 256
    media_digest_bytes: Annotated[
        int,
        meta(
            "images, audio and files above this are recognised by length, head and tail instead of every byte",
            unit="bytes",
            ge=1024,
            le=1 << 30,
        ),
    ] = 1 << 20
    tags: Annotated[tuple[TagPolicy, ...], meta("tags by keyword")] = ()
    tag_scan_bytes: Annotated[
        int, meta("how much of the prompt is searched for keywords, from its end", unit="bytes", ge=256, le=1 << 24)
    ] = 16384
    tokens: Annotated[TokensPolicy, meta("estimates of prompt and output length")] = TokensPolicy()

    def __post_init__(self) -> None:
        for source in self.session_sources:
            if not _SOURCE.match(source):
                raise ValueError(
                    f"session source {source!r} is none of header:NAME (lower case), cookie:NAME, "
                    "body:FIELD, fingerprint"
                )
        for name in (*self.tenant_sources, *self.class_sources, *self.priority_headers):
            if name != name.lower():
                raise ValueError(f"header {name!r} is not in lower case, as Envoy sends all of them")
        names = [tag.name for tag in self.tags]
        if len(names) != len(set(names)):
            raise ValueError(f"two tags have the same name: {sorted(n for n in set(names) if names.count(n) > 1)}")
