"""OpenAI responses: instructions, then an input that is a text or a list of items."""

from __future__ import annotations

from typing import Any

import msgspec

from xds_control.inspect.canonical import Prompt, sorted_json
from xds_control.inspect.errors import WrongShape
from xds_control.inspect.facts import RequestFacts
from xds_control.inspect.readers.chat import add_tools
from xds_control.inspect.readers.content import Content, add_content, add_raw_content
from xds_control.inspect.scalars import as_count, as_flag, given

Raw = msgspec.Raw
_NONE: Any = None


class Item(msgspec.Struct, gc=False):
    """One input item: a message, a tool call or its result, earlier reasoning, a reference."""

    type: Any = None
    role: str | int | float | bool | None = None
    content: Content = None
    name: Any = None
    arguments: Any = None
    input: Raw = _NONE
    output: Raw = _NONE
    summary: Raw = _NONE
    encrypted_content: Raw = _NONE
    action: Raw = _NONE
    id: Any = None


_decode_input = msgspec.json.Decoder(str | list[Item] | None).decode
_decode_raws = msgspec.json.Decoder(list[Raw]).decode


def read_responses(top: Any, prompt: Prompt, facts: RequestFacts) -> None:
    """Tools, instructions, then the input. A stored prompt or conversation is only named, so its name stands for it."""
    if given(top.tools):
        prompt.tools = add_tools(prompt, top.tools)
    if given(top.prompt):
        prompt.add_setting(top.prompt)
    if given(top.instructions):
        add_raw_content(prompt, prompt.begin("system"), top.instructions)
        prompt.messages -= 1
    if given(top.max_output_tokens):
        facts.max_output_tokens = as_count(top.max_output_tokens)
    if given(top.background) and as_flag(top.background):
        facts.extra = {**facts.extra, "background": True}
    for raw in (top.conversation, top.previous_response_id):
        if given(raw):
            # What came before is on the server: the prefix is its name.
            prompt.in_head = False
            prompt.body.append(f"\x1eprevious\x1f{sorted_json(raw)}")
            prompt.marks += 10
    if given(top.input):
        _add_input(prompt, top.input)
    elif not given(top.prompt) and not given(top.instructions):
        raise WrongShape("there is no input")


def _add_input(prompt: Prompt, raw: Any) -> None:
    items = _decode_input(raw)
    if isinstance(items, str):
        prompt.begin("user").append(items)
        return
    originals: list[Raw] | None = None
    for place, item in enumerate(items or ()):
        _add_item(prompt, item)
        if prompt.unknown:
            if originals is None:
                originals = _decode_raws(raw)
            prompt.fill_places(originals[place])


def _add_item(prompt: Prompt, item: Item) -> None:
    kind = item.type
    if item.role is not None or item.content is not None:
        add_content(prompt, prompt.begin(item.role), item.content)
        return
    if item.output is not None:
        add_raw_content(prompt, prompt.begin("tool"), item.output)
        return
    if type(item.name) is str:
        pieces = prompt.begin("assistant")
        pieces.append(f"{item.name}\x1f")
        prompt.marks += 1
        if type(item.arguments) is str:
            pieces.append(item.arguments)
        elif item.input is not None:
            add_raw_content(prompt, pieces, item.input)
        return
    if item.summary is not None or item.encrypted_content is not None:
        pieces = prompt.begin("assistant")
        if item.summary is not None:
            add_raw_content(prompt, pieces, item.summary)
        if item.encrypted_content is not None:
            prompt.add_media(pieces, "data", item.encrypted_content)
        return
    if kind in ("item_reference", None) and type(item.id) is str:
        pieces = prompt.begin("assistant")
        pieces.append(item.id)
        return
    prompt.in_head = False
    prompt.leave_place(prompt.body)
