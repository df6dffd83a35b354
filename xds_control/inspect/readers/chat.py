"""Chat requests: OpenAI, Anthropic, Ollama and Cohere, which differ in a few fields only."""

from __future__ import annotations

from typing import Any

import msgspec

from xds_control.inspect.canonical import ASSISTANT, MARKS, SYSTEM, Prompt, mark_of, sorted_json
from xds_control.inspect.errors import WrongShape
from xds_control.inspect.facts import RequestFacts
from xds_control.inspect.readers.content import Content, add_content, add_raw_content
from xds_control.inspect.scalars import given

Raw = msgspec.Raw
_NONE: Any = None


class Message(msgspec.Struct, gc=False):
    """One message of a chat."""

    role: str | int | float | bool | None = None
    content: Content = None
    reasoning_content: Any = None
    reasoning: Any = None
    tool_calls: Raw = _NONE
    function_call: Raw = _NONE
    images: Raw = _NONE


class _RawMessage(msgspec.Struct, gc=False):
    content: Raw = _NONE


class Function(msgspec.Struct, gc=False):
    """What a tool call calls."""

    name: Any = None
    arguments: Any = None


class ToolCall(msgspec.Struct, gc=False):
    """A call that the model made."""

    function: Function | None = None


decode_messages = msgspec.json.Decoder(list[Message]).decode
_decode_calls = msgspec.json.Decoder(list[ToolCall] | None).decode
_decode_originals = msgspec.json.Decoder(list[_RawMessage]).decode
_decode_raws = msgspec.json.Decoder(list[Raw] | None).decode


def read_openai(top: Any, prompt: Prompt, facts: RequestFacts) -> None:
    """OpenAI chat: tools first, as templates render them, then the messages."""
    if top.tools is not None:
        prompt.tools = add_tools(prompt, top.tools)
    elif top.functions is not None:
        prompt.tools = add_tools(prompt, top.functions)
    for raw in (top.documents, top.chat_template, top.chat_template_kwargs, top.reasoning_effort):
        if raw is not None and given(raw):
            prompt.add_setting(raw)
    add_messages(prompt, top.messages)


def read_anthropic(top: Any, prompt: Prompt, facts: RequestFacts) -> None:
    """Anthropic messages: tools, system, messages."""
    if given(top.tools):
        prompt.tools = add_tools(prompt, top.tools)
    if given(top.system):
        add_raw_content(prompt, prompt.begin("system"), top.system)
        prompt.messages -= 1
    add_messages(prompt, top.messages)


def add_tools(prompt: Prompt, raw: Any) -> int:
    """Adds a tool list to the head; returns how many tools there are."""
    prompt.add_tools(raw)
    try:
        tools = _decode_raws(raw)
    except (ValueError, RecursionError):
        return 0
    return len(tools) if tools else 0


def add_messages(prompt: Prompt, raw: Any) -> None:
    """Adds a raw list of messages."""
    if prompt.main is not None:
        raw = prompt.main
    if raw is None:
        raise WrongShape("there are no messages")
    try:
        messages = decode_messages(raw)
    except msgspec.ValidationError as error:
        raise WrongShape(f"messages: {error}") from None
    if not messages:
        raise WrongShape("messages is empty")
    find_mark = MARKS.get
    body = prompt.body
    pieces = prompt.head if prompt.in_head else body
    marks = 0
    originals: dict[int, _RawMessage] | None = None
    for message in messages:
        role = message.role
        mark = find_mark(role) or mark_of(role)  # type: ignore[arg-type]
        if mark is not SYSTEM:
            pieces = body
        marks += len(mark)
        content = message.content
        if type(content) is str:
            pieces += (mark, content)
        else:
            pieces.append(mark)
            if content is not None:
                add_content(prompt, pieces, content)
                if prompt.unknown:
                    if originals is None:
                        originals = {id(one): all_ for one, all_ in zip(messages, _decode_originals(raw), strict=True)}
                    prompt.fill_places(originals[id(message)].content)
        if mark is ASSISTANT:
            _add_answer(prompt, pieces, message)
        elif message.images is not None:
            add_images(prompt, pieces, message.images)
    prompt.in_head = pieces is not body
    prompt.marks += marks
    prompt.messages += len(messages)


def _add_answer(prompt: Prompt, pieces: list[str], message: Message) -> None:
    """What only answers of the model have: reasoning and tool calls."""
    reasoning = message.reasoning_content or message.reasoning
    if type(reasoning) is str:
        pieces.append(reasoning)
    if message.tool_calls is not None:
        try:
            calls = _decode_calls(message.tool_calls) or ()
        except msgspec.ValidationError:
            pieces.append(sorted_json(message.tool_calls))
            return
        for call in calls:
            if call.function is not None:
                _add_call(prompt, pieces, call.function)
    if given(message.function_call):
        pieces.append(sorted_json(message.function_call))


def _add_call(prompt: Prompt, pieces: list[str], function: Function) -> None:
    name = f"\x1e{function.name}\x1f"[:256]
    prompt.marks += 2
    pieces.append(name)
    arguments = function.arguments
    if type(arguments) is str:  # may be invalid JSON: taken as text
        pieces.append(arguments)
    elif arguments is not None:
        pieces.append(sorted_json(msgspec.json.encode(arguments)))


def add_images(prompt: Prompt, pieces: list[str], raw: Any) -> None:
    """Ollama's list of base64 images."""
    try:
        images = _decode_raws(raw)
    except (ValueError, RecursionError):
        return
    for image in images or ():
        prompt.add_media(pieces, "image", image)
