"""Formats of hosted services: Gemini and Bedrock, with the model in the path."""

from __future__ import annotations

from typing import Any

import msgspec

from xds_control.inspect.canonical import Prompt, sorted_json
from xds_control.inspect.errors import WrongShape
from xds_control.inspect.facts import RequestFacts
from xds_control.inspect.readers.chat import add_messages, add_tools, read_anthropic
from xds_control.inspect.readers.content import add_raw_content
from xds_control.inspect.readers.text import add_text
from xds_control.inspect.scalars import count_in, given, number_in, options

Raw = msgspec.Raw
_NONE: Any = None


class CloudPart(msgspec.Struct, gc=False, rename="camel"):
    """A part of Gemini's contents or Bedrock's messages: exactly one field is set."""

    text: Any = None
    thought: Any = None
    inline_data: Raw = _NONE
    inline: Raw = msgspec.field(default=_NONE, name="inline_data")
    file_data: Raw = _NONE
    function_call: Raw = _NONE
    function_response: Raw = _NONE
    executable_code: Raw = _NONE
    code_execution_result: Raw = _NONE
    image: Raw = _NONE
    document: Raw = _NONE
    video: Raw = _NONE
    tool_use: Raw = _NONE
    tool_result: Raw = _NONE
    reasoning_content: Raw = _NONE
    guard_content: Raw = _NONE
    cache_point: Raw = _NONE


class CloudMessage(msgspec.Struct, gc=False):
    """A turn; Gemini calls its content `parts`, Bedrock `content`."""

    role: str | None = None
    parts: list[CloudPart] | CloudPart | str | None = None
    content: list[CloudPart] | str | None = None


_decode_turns = msgspec.json.Decoder(list[CloudMessage] | CloudMessage | str).decode
_decode_parts = msgspec.json.Decoder(list[CloudPart] | CloudPart | str | None).decode

_AS_JSON = (
    "function_call",
    "function_response",
    "executable_code",
    "code_execution_result",
    "tool_use",
    "tool_result",
    "reasoning_content",
    "guard_content",
)
_AS_MEDIA = (
    ("inline_data", "image"),
    ("inline", "image"),
    ("file_data", "file"),
    ("image", "image"),
    ("document", "file"),
    ("video", "video"),
)


def _add_parts(prompt: Prompt, pieces: list[str], parts: Any) -> None:
    if isinstance(parts, str):
        pieces.append(parts)
        return
    for part in parts if isinstance(parts, list) else (parts,) if parts is not None else ():
        if type(part.text) is str:
            pieces.append(part.text)
        elif not _add_other(prompt, pieces, part):
            prompt.leave_place(pieces)


def _add_other(prompt: Prompt, pieces: list[str], part: CloudPart) -> bool:
    """Whether the part is of a known type."""
    for name, kind in _AS_MEDIA:
        raw = getattr(part, name)
        if given(raw):
            prompt.add_media(pieces, _kind_of(raw) if name.startswith("inline") else kind, raw)
            return True
    for name in _AS_JSON:
        raw = getattr(part, name)
        if given(raw):
            pieces.append(sorted_json(raw))
            return True
    return part.cache_point is not None


def _kind_of(raw: Any) -> str:
    """Kind of inline data by its MIME type, which comes early or late but is short."""
    head = bytes(memoryview(raw)[:256]) + bytes(memoryview(raw)[-256:])
    for kind in ("audio", "video"):
        if b'"%b/' % kind.encode() in head:
            return kind
    return "file" if b"application/" in head or b'"text/' in head else "image"


def _add_turns(prompt: Prompt, raw: Any) -> None:
    turns = _decode_turns(raw)
    if isinstance(turns, str):
        prompt.begin("user").append(turns)
        return
    for turn in turns if isinstance(turns, list) else (turns,):
        pieces = prompt.begin(turn.role or "user")
        _add_parts(prompt, pieces, turn.parts)
        _add_parts(prompt, pieces, turn.content)
    if prompt.unknown:
        prompt.fill_places(raw)


def _add_system(prompt: Prompt, raw: Any) -> None:
    """Gemini's {parts: [...]} or text, Bedrock's [{text}]."""
    try:
        parts: Any = _decode_parts(raw)
        if isinstance(parts, CloudPart) and type(parts.text) is not str:
            message = msgspec.json.decode(raw, type=CloudMessage)
            parts = message.parts if message.parts is not None else message.content
    except msgspec.ValidationError:
        parts = sorted_json(raw)
    pieces = prompt.begin("system")
    prompt.messages -= 1
    _add_parts(prompt, pieces, parts)
    if prompt.unknown:
        prompt.fill_places(raw)


def read_gemini(top: Any, prompt: Prompt, facts: RequestFacts) -> None:
    """Gemini: tools, system instruction, cached content by name, contents."""
    if given(top.tools):
        prompt.tools = add_tools(prompt, top.tools)
    system = top.systemInstruction if given(top.systemInstruction) else top.system_instruction
    if system is not None:
        _add_system(prompt, system)
    if given(top.cachedContent):
        prompt.add_setting(top.cachedContent)
    for raw in (top.contents, top.content, top.requests):
        if given(raw):
            if raw is top.requests:
                prompt.in_head = False
                prompt.body.append(sorted_json(raw))
            else:
                _add_turns(prompt, raw)
            break
    else:
        raise WrongShape("there are no contents")
    settings = options(top.generationConfig if given(top.generationConfig) else top.generation_config)
    facts.max_output_tokens = count_in(settings, "maxOutputTokens", "max_output_tokens")
    facts.temperature = number_in(settings, "temperature")
    facts.n = min(count_in(settings, "candidateCount", "candidate_count") or 1, 1024)


def read_converse(top: Any, prompt: Prompt, facts: RequestFacts) -> None:
    """Bedrock converse: tools, system, messages."""
    if given(top.toolConfig):
        tools = options(top.toolConfig, 1 << 24).get("tools")
        if isinstance(tools, list):
            prompt.tools = add_tools(prompt, msgspec.Raw(msgspec.json.encode(tools)))
    if given(top.system):
        _add_system(prompt, top.system)
    if not given(top.messages):
        raise WrongShape("there are no messages")
    _add_turns(prompt, top.messages)
    settings = options(top.inferenceConfig)
    facts.max_output_tokens = count_in(settings, "maxTokens", "max_new_tokens")
    facts.temperature = number_in(settings, "temperature")


def read_invoke(top: Any, prompt: Prompt, facts: RequestFacts) -> None:
    """Bedrock invoke: the body is in the model's own format."""
    if given(top.inferenceConfig) or given(top.toolConfig):
        read_converse(top, prompt, facts)
    elif given(top.messages):
        if given(top.system) or given(top.anthropic_version):
            read_anthropic(top, prompt, facts)
        else:
            add_messages(prompt, top.messages)
    elif given(top.prompt) or given(top.inputText):
        add_text(prompt, top.prompt if given(top.prompt) else top.inputText)
        limits = dict(_limits(top))
        if limits:
            facts.max_output_tokens = count_in(limits, *limits)
    elif given(top.texts):
        add_text(prompt, top.texts)
    else:
        raise WrongShape("the body belongs to no model family that is known")


def _limits(top: Any) -> list[tuple[str, Any]]:
    """Llama says max_gen_len, Titan textGenerationConfig.maxTokenCount, older Claude max_tokens_to_sample."""
    found: list[tuple[str, Any]] = []
    for name in ("max_gen_len", "max_tokens_to_sample"):
        raw = getattr(top, name)
        if raw is not None and len(raw) < 32:
            found.append((name, bytes(raw).decode("ascii", "replace").strip('"')))
    titan = options(top.textGenerationConfig).get("maxTokenCount")
    if titan is not None:
        found.append(("maxTokenCount", titan))
    return found


def read_cohere_chat(top: Any, prompt: Prompt, facts: RequestFacts) -> None:
    """Cohere v2 chat, and v1's message with preamble and history."""
    if given(top.tools):
        prompt.tools = add_tools(prompt, top.tools)
    if given(top.documents):
        prompt.add_setting(top.documents)
    if given(top.messages):
        add_messages(prompt, top.messages)
        return
    if not given(top.message):
        raise WrongShape("there are no messages")
    if given(top.preamble):
        add_raw_content(prompt, prompt.begin("system"), top.preamble)
        prompt.messages -= 1
    if given(top.chat_history):
        prompt.in_head = False
        prompt.body.append(sorted_json(top.chat_history))
    add_raw_content(prompt, prompt.begin("user"), top.message)
