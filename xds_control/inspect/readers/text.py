"""Prompts that are one text, several texts, or token ids."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from xds_control.inspect.canonical import Prompt
from xds_control.inspect.errors import WrongShape
from xds_control.inspect.facts import RequestFacts
from xds_control.inspect.readers.content import add_raw_content
from xds_control.inspect.scalars import given

_decode_strings = msgspec.json.Decoder(str | list[str]).decode
_decode_raws = msgspec.json.Decoder(list[msgspec.Raw]).decode

_SPACE: Final = b" \t\r\n"
_OF_NUMBERS: Final = b"0123456789-,[]"


def add_text(prompt: Prompt, raw: Any) -> None:
    """Adds a raw prompt: a string, [strings], [token ids], [[token ids]], or a mixture; null adds nothing."""
    if raw is None:
        return
    pieces = prompt.body
    prompt.in_head = False
    try:
        value = _decode_strings(raw)
    except msgspec.ValidationError:
        _add_other(prompt, raw)
        return
    if type(value) is str:
        pieces.append(value)
        prompt.messages += 1
    else:
        if not value:
            raise WrongShape("the prompt is an empty list")
        for text in value:
            pieces.append(text)
            pieces.append("\x1e")
        prompt.messages += len(value)
        prompt.marks += len(value)


def _add_other(prompt: Prompt, raw: Any) -> None:
    data = bytes(raw)
    if data == b"null":
        return
    if data[:1] == b"[":
        ids = data.translate(None, _SPACE)
        if not ids.translate(None, _OF_NUMBERS):
            _add_ids(prompt, ids)
            return
        try:
            items = _decode_raws(raw)
        except (ValueError, RecursionError):
            items = []
        for item in items:
            add_raw_content(prompt, prompt.body, item)
        prompt.messages += 1
        return
    if data[:1] == b"{":
        add_raw_content(prompt, prompt.body, raw)
        prompt.messages += 1
        return
    raise WrongShape("the prompt is neither text nor token ids")


def _add_ids(prompt: Prompt, ids: bytes) -> None:
    """Token ids: their number is exact, and their text without spaces is the canonical prompt."""
    lists = ids.count(b"[") - 1 if ids[1:2] == b"[" else 1
    count = ids.count(b",") + 1 - ids.count(b"[]")
    if count <= 0:
        raise WrongShape("the prompt has no token ids")
    prompt.exact_tokens = (prompt.exact_tokens or 0) + count
    prompt.messages += lists
    prompt.body.append(ids.decode("ascii"))


def read_completion(top: Any, prompt: Prompt, facts: RequestFacts) -> None:
    """OpenAI completions."""
    add_text(prompt, top.prompt)
    if given(top.prompt_embeds):
        prompt.add_media(prompt.body, "embeds", top.prompt_embeds)
    elif not given(top.prompt):
        raise WrongShape("there is no prompt")
    if given(top.suffix):
        prompt.body.append("\x1e")
        prompt.marks += 1
        add_text(prompt, top.suffix)
        prompt.messages -= 1
