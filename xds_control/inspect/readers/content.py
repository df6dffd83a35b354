"""Message content as OpenAI, Anthropic, Ollama and Cohere write it: a string, nothing, or a list of parts."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from xds_control.inspect.canonical import Prompt, sorted_json

Raw = msgspec.Raw
_NONE: Any = None


class Part(msgspec.Struct, gc=False):
    """One part of a message. Fields that may be large or of any shape stay raw."""

    type: Any = None
    text: Any = None
    thinking: Any = None
    refusal: Any = None
    name: Any = None
    input: Raw = _NONE
    arguments: Raw = _NONE
    content: Raw = _NONE
    output: Raw = _NONE
    image_url: Raw = _NONE
    source: Raw = _NONE
    image: Raw = _NONE
    image_embeds: Raw = _NONE
    input_audio: Raw = _NONE
    audio_url: Raw = _NONE
    audio: Raw = _NONE
    video_url: Raw = _NONE
    video: Raw = _NONE
    file: Raw = _NONE
    file_id: Raw = _NONE
    file_data: Raw = _NONE
    file_url: Raw = _NONE
    document: Raw = _NONE
    data: Raw = _NONE


Content = str | list[Part | str | int | float | bool | None] | Part | int | float | bool | None
_decode_content = msgspec.json.Decoder(Content).decode

MEDIA: Final = (
    ("image_url", "image"),
    ("image", "image"),
    ("image_embeds", "image"),
    ("input_audio", "audio"),
    ("audio_url", "audio"),
    ("audio", "audio"),
    ("video_url", "video"),
    ("video", "video"),
    ("file", "file"),
    ("file_data", "file"),
    ("file_id", "file"),
    ("file_url", "file"),
    ("document", "file"),
)
_TEXT_TYPES: Final = frozenset(("text", "input_text", "output_text"))
_SOURCE_KINDS: Final = {"image": "image", "document": "file", "audio": "audio", "video": "video"}
_MAX_NESTING: Final = 4  # a tool result holds parts, whose documents hold parts; nobody goes deeper


def add_content(prompt: Prompt, pieces: list[str], content: Any, nesting: int = 0) -> None:
    """Appends decoded content (see `Content`) to the pieces of a message."""
    if type(content) is str:
        pieces.append(content)
    elif type(content) is list:
        for part in content:
            if type(part) is Part:
                add_part(prompt, pieces, part, nesting)
            elif type(part) is str:
                pieces.append(part)
            elif part is not None:
                pieces.append(str(part))
    elif type(content) is Part:
        add_part(prompt, pieces, content, nesting)
    elif content is not None:
        pieces.append(str(content))


def add_raw_content(prompt: Prompt, pieces: list[str], raw: Any, nesting: int = 0) -> None:
    """As `add_content`, from raw JSON; what has no known shape is added as canonical JSON."""
    if nesting < _MAX_NESTING:
        try:
            content = _decode_content(raw)
        except (msgspec.ValidationError, RecursionError):
            content = sorted_json(raw)
    else:
        content = sorted_json(raw)
    add_content(prompt, pieces, content, nesting)
    if prompt.unknown and nesting == 0:
        prompt.fill_places(raw)


def add_part(prompt: Prompt, pieces: list[str], part: Part, nesting: int) -> None:
    """Appends one part: its text, or the digest of its media, or its canonical JSON."""
    kind = part.type
    text = part.text
    if type(text) is str and (kind in _TEXT_TYPES if type(kind) is str else kind is None):
        pieces.append(text)
        return
    if part.source is not None:  # Anthropic's image and document blocks
        prompt.add_media(pieces, _SOURCE_KINDS.get(kind, "file") if type(kind) is str else "file", part.source)
        return
    for field, media in MEDIA:
        raw = getattr(part, field)
        if raw is not None:
            prompt.add_media(pieces, media, raw)
            return
    known = False
    for value in (part.thinking, part.refusal, text):
        if type(value) is str:
            pieces.append(value)
            known = True
    if part.name is not None:
        pieces.append(f"\x1e{part.name}\x1f"[:256])
    for raw in (part.input, part.arguments):
        if raw is not None:
            pieces.append(sorted_json(raw))
            known = True
    for raw in (part.content, part.output):
        if raw is not None:
            add_raw_content(prompt, pieces, raw, nesting + 1)
            known = True
    if part.data is not None:
        prompt.add_media(pieces, "data", part.data)
    elif not known:
        prompt.leave_place(pieces)
