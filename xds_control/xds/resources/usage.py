"""Rules by which Envoy itself reads token usage out of answers, so that no response byte needs Python.

Formats: request-format facts section 5 (OpenAI chat, completions, responses; Anthropic; SGLang; Ollama).
"""

from __future__ import annotations

from envoy_data_plane.envoy.extensions.content_parsers.json.v3 import JsonContentParser, JsonContentParserRuleConfig
from envoy_data_plane.envoy.extensions.filters.http.json_to_metadata.v3 import (
    JsonToMetadata,
    JsonToMetadataKeyValuePair,
    JsonToMetadataMatchRules,
    JsonToMetadataRule,
    JsonToMetadataSelector,
    JsonToMetadataValueType,
)
from envoy_data_plane.envoy.extensions.filters.http.sse_to_metadata.v3 import (
    SseToMetadata,
    SseToMetadataProcessingRules,
)
from envoy_data_plane.envoy.type.matcher.v3 import RegexMatcher

from xds_control.policy import headers
from xds_control.xds.resources.common import extension

# metadata key → places in the answer where it may stand
_JSON: tuple[tuple[str, tuple[str, ...]], ...] = (
    (headers.META_USAGE_PROMPT, ("usage", "prompt_tokens")),
    (headers.META_USAGE_COMPLETION, ("usage", "completion_tokens")),
    (headers.META_USAGE_CACHED, ("usage", "prompt_tokens_details", "cached_tokens")),
    (headers.META_USAGE_PROMPT, ("usage", "input_tokens")),
    (headers.META_USAGE_COMPLETION, ("usage", "output_tokens")),
    (headers.META_USAGE_CACHED, ("usage", "input_tokens_details", "cached_tokens")),
    (headers.META_USAGE_CACHE_READ, ("usage", "cache_read_input_tokens")),
    (headers.META_USAGE_CACHE_CREATION, ("usage", "cache_creation_input_tokens")),
    (headers.META_USAGE_PROMPT, ("meta_info", "prompt_tokens")),
    (headers.META_USAGE_COMPLETION, ("meta_info", "completion_tokens")),
    (headers.META_USAGE_CACHED, ("meta_info", "cached_tokens")),
    (headers.META_USAGE_PROMPT, ("prompt_eval_count",)),
    (headers.META_USAGE_COMPLETION, ("eval_count",)),
)
# events of streams that wrap the usage once more: Anthropic's message_start, Responses' response.completed
_SSE: tuple[tuple[str, tuple[str, ...]], ...] = (
    *_JSON,
    (headers.META_USAGE_PROMPT, ("message", "usage", "input_tokens")),
    (headers.META_USAGE_CACHE_READ, ("message", "usage", "cache_read_input_tokens")),
    (headers.META_USAGE_CACHE_CREATION, ("message", "usage", "cache_creation_input_tokens")),
    (headers.META_USAGE_PROMPT, ("response", "usage", "input_tokens")),
    (headers.META_USAGE_COMPLETION, ("response", "usage", "output_tokens")),
    (headers.META_USAGE_CACHED, ("response", "usage", "input_tokens_details", "cached_tokens")),
)
MAX_EVENT_BYTES = 1 << 20


def json_usage() -> JsonToMetadata:
    """Usage of answers that are one JSON object."""
    return JsonToMetadata(
        response_rules=JsonToMetadataMatchRules(
            # a pattern, because a listed type does not match `application/json; charset=utf-8`
            allow_content_types_regex=RegexMatcher(regex=r"application/(.+\+)?json\s*(;.*)?"),
            rules=[_rule(key, path) for key, path in _JSON],
        )
    )


def sse_usage() -> SseToMetadata:
    """Usage of streamed answers; the last event that carries it wins."""
    parser = JsonContentParser(rules=[JsonContentParserRuleConfig(rule=_rule(key, path)) for key, path in _SSE])
    return SseToMetadata(
        response_rules=SseToMetadataProcessingRules(
            content_parser=extension("envoy.content_parsers.json", parser), max_event_size=MAX_EVENT_BYTES
        )
    )


def _rule(key: str, path: tuple[str, ...]) -> JsonToMetadataRule:
    return JsonToMetadataRule(
        selectors=[JsonToMetadataSelector(key=part) for part in path],
        on_present=JsonToMetadataKeyValuePair(
            metadata_namespace=headers.NAMESPACE, key=key, type=JsonToMetadataValueType.NUMBER
        ),
    )
