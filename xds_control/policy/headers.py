"""Every header and metadata name that xds-control reads, writes or reserves: the one list.

A reserved header is ours to write: copies sent by clients are removed before anything
routes on them, by Envoy's `early_header_mutation_extensions` (so also when no processor
answers) and again by the processor.
"""

from __future__ import annotations

from typing import Final

POOL: Final = "x-xds-control-pool"
MODEL: Final = "x-xds-control-model"
CLASS: Final = "x-xds-control-class"
TENANT: Final = "x-xds-control-tenant"
PROMPT_TOKENS: Final = "x-xds-control-prompt-tokens"
SESSION: Final = "x-xds-control-session"
PREFIX: Final = "x-xds-control-prefix"
RULE: Final = "x-xds-control-rule"
REASON: Final = "x-xds-control-reason"
DECISION: Final = "x-xds-control-decision"
MIRROR: Final = "x-xds-control-mirror"  # cluster that gets a copy of the request

DESTINATION: Final = "x-gateway-destination-endpoint"
DESTINATION_SUBSET: Final = "x-gateway-destination-endpoint-subset"
DESTINATION_SERVED: Final = "x-gateway-destination-endpoint-served"
DESTINATION_SCORES: Final = "x-gateway-destination-endpoint-scores"
PREFILL: Final = "x-prefiller-host-port"
DATA_PARALLEL: Final = "x-data-parallel-host-port"
BOOTSTRAP_HOST: Final = "x-sglang-bootstrap-host"
BOOTSTRAP_PORT: Final = "x-sglang-bootstrap-port"
BOOTSTRAP_ROOM: Final = "x-sglang-bootstrap-room"

RESERVED_REQUEST_HEADERS: Final[tuple[str, ...]] = (
    POOL,
    MODEL,
    CLASS,
    TENANT,
    PROMPT_TOKENS,
    SESSION,
    PREFIX,
    RULE,
    REASON,
    DECISION,
    MIRROR,
    DESTINATION,
    DESTINATION_SUBSET,
    DESTINATION_SERVED,
    DESTINATION_SCORES,
    PREFILL,
    DATA_PARALLEL,
    BOOTSTRAP_HOST,
    BOOTSTRAP_PORT,
    BOOTSTRAP_ROOM,
)
"""Removed from every client request on entry."""

CONTROL_REQUEST_HEADERS: Final[tuple[str, ...]] = (
    "x-llm-d-inference-objective",
    "x-gateway-inference-objective",
    "x-llm-d-inference-fairness-id",
    "x-gateway-inference-fairness-id",
    "x-llm-d-model-name-rewrite",
    "x-gateway-model-name-rewrite",
    "x-llm-d-slo-ttft-ms",
    "x-slo-ttft-ms",
    "x-llm-d-slo-tpot-ms",
    "x-slo-tpot-ms",
)
"""Clients may send these to steer the processor; it reads them and removes them, so that engines do not see them."""

MODEL_REWRITE: Final[tuple[str, ...]] = ("x-llm-d-model-name-rewrite", "x-gateway-model-name-rewrite")

NAMESPACE: Final = "xds_control"
"""Dynamic-metadata namespace that carries a request's facts to the access log."""

LB_NAMESPACE: Final = "envoy.lb"
SUBSET_HINT_NAMESPACE: Final = "envoy.lb.subset_hint"

# Keys inside NAMESPACE. Written at request time by the processor:
META_ID: Final = "id"  # decision id, string
META_POOL: Final = "pool"
META_MODEL: Final = "model"
META_CLASS: Final = "class"
META_TENANT: Final = "tenant"
META_API: Final = "api"
META_RULE: Final = "rule"
META_PROCESSOR: Final = "processor"  # which processor decided, string
META_PROMPT_BYTES: Final = "prompt_bytes"  # number
META_PROMPT_TOKENS_ESTIMATE: Final = "prompt_tokens_est"  # number
META_OUTPUT_TOKENS_ESTIMATE: Final = "output_tokens_est"  # number
META_MATCHED_TOKENS: Final = "matched_tokens"  # number: prompt tokens believed cached at the first pick
META_PICK: Final = "pick"  # first address of the pick, "" when ring 1 chose
META_AHEAD_TOKENS: Final = "ahead_tokens"  # number: uncached prompt tokens believed ahead of it there at the pick
META_BATCH: Final = "batch"  # number: requests in flight there at the pick
META_PREFILL: Final = "prefill"  # prefill endpoint of a split request, absent otherwise
META_TOKEN: Final = "session_token"  # opaque token of the picked endpoint, where policy hands them out
META_PREFILL_TOKEN: Final = "session_token_prefill"
META_TEXT_PROFILE: Final = "text_profile"  # number of 52 bits: kind of text, for the token estimator
META_IMAGES: Final = "images"  # number
META_SESSION: Final = "session"  # hex of the session key hash
META_PREFIX: Final = "prefix"  # hex of the last prefix key
# Written at response time by Envoy's own filters (json_to_metadata, sse_to_metadata):
META_USAGE_PROMPT: Final = "prompt_tokens"
META_USAGE_COMPLETION: Final = "completion_tokens"
META_USAGE_CACHED: Final = "cached_tokens"
# Anthropic's input_tokens leave cached ones out; the prompt is the sum of the three:
META_USAGE_CACHE_READ: Final = "cache_read_tokens"
META_USAGE_CACHE_CREATION: Final = "cache_creation_tokens"

# Custom tags of an access-log entry, decimal strings of microseconds, "-" when unknown:
TAG_TTFT_US: Final = "ttft_us"
TAG_TTFB_US: Final = "ttfb_us"
TAG_DECODE_US: Final = "decode_us"
