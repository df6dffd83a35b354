"""Requests that generate no text: embeddings, reranking, scores, classification, speech, images."""

from __future__ import annotations

from typing import Any, Final

from xds_control.inspect.canonical import Prompt
from xds_control.inspect.errors import WrongShape
from xds_control.inspect.facts import RequestFacts
from xds_control.inspect.readers.chat import add_images, add_messages
from xds_control.inspect.readers.text import add_text
from xds_control.inspect.scalars import given

SCORE_FIELDS: Final = ("query", "queries", "text_1", "data_1", "documents", "items", "text_2", "data_2")

_EMPTY: Final = (b'""', b"[]")


def read_input(top: Any, prompt: Prompt, facts: RequestFacts) -> None:
    """`input` (or `content`, `prompt`) in any form of text, or `messages` as in chat."""
    if given(top.messages):
        add_messages(prompt, top.messages)
        return
    for raw in (top.input, top.content, top.prompt):
        if given(raw) and bytes(raw) not in _EMPTY:
            add_text(prompt, raw)
            return
    raise WrongShape("there is no input")


def read_pairs(top: Any, prompt: Prompt, facts: RequestFacts) -> None:
    """Queries first, so that requests about the same query share a prefix; then the documents."""
    found = False
    for name in SCORE_FIELDS:
        raw = getattr(top, name)
        if given(raw):
            add_text(prompt, raw)
            prompt.body.append("\x1e")
            prompt.marks += 1
            found = True
    if not found:
        raise WrongShape("there is nothing to compare")


def read_cohere_embed(top: Any, prompt: Prompt, facts: RequestFacts) -> None:
    """Cohere's `texts`, `inputs` (lists of parts) and `images`."""
    if not given(top.texts) and not given(top.inputs) and not given(top.images):
        raise WrongShape("there is no input")
    add_text(prompt, top.texts)
    add_text(prompt, top.inputs)
    if given(top.images):
        add_images(prompt, prompt.body, top.images)
