"""Token usage out of an answer that passes by in pieces: JSON, server-sent events, or lines of JSON. Pure.

Pieces may be cut anywhere, also inside a UTF-8 sequence or a line; what is held between them is bounded. Nothing
is buffered that is not needed: of an event stream one line, of a JSON body its last kilobytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

LINE_LIMIT: Final = 1 << 20
"""Longest line of an event stream that is read; the rest of a longer one is passed over."""
BODY_LIMIT: Final = 8 << 20
"""Largest JSON body that is decoded for its usage."""
TAIL: Final = 16 << 10
"""Of larger bodies so much of the end is searched."""

MOST_TRIED: Final = 16
"""Places in it that are looked at, from the end."""

_decode_first = json.JSONDecoder().raw_decode
_decode = msgspec.json.Decoder().decode
_USAGE_IN_TAIL: Final = re.compile(rb'(?<!\\)"usage"\s*:\s*(\{)')


@dataclass(slots=True)
class Usage:
    """Token counts as the API reports them; None = not reported."""

    prompt: int | None = None
    completion: int | None = None
    total: int | None = None
    cached: int | None = None

    def known(self) -> bool:
        """Whether anything was reported."""
        return any(value is not None for value in (self.prompt, self.completion, self.total, self.cached))

    def as_dict(self) -> dict[str, int]:
        """The reported ones by their names in the OpenAI API, `cached_tokens` beside them."""
        named = {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.total,
            "cached_tokens": self.cached,
        }
        return {name: value for name, value in named.items() if value is not None}


def _number(value: Any) -> int | None:
    """A count from a number or a numeric text; None when it is neither, negative or absurd."""
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    if isinstance(value, int | float) and 0 <= value < 1e12:
        return int(value)
    return None


def _first(found: Mapping[str, Any], *names: str) -> int | None:
    for name in names:
        value = _number(found.get(name))
        if value is not None:
            return value
    return None


class UsageReader:
    """Feed it the answer's pieces; `usage` grows. streamed: event stream or JSON lines, else one JSON document.

    events: events with data that were not the end marker.
    """

    def __init__(self, streamed: bool) -> None:
        self._streamed = streamed
        self._held = bytearray()
        self._skipping = False
        self._size = 0
        self.usage = Usage()
        self.events = 0
        self._exclusive = False
        self._read = 0
        self._created = 0

    def feed(self, piece: bytes, end: bool = False) -> None:
        """Takes a piece. end: it is the last."""
        self._size += len(piece)
        if self._streamed:
            self._lines(piece, end)
            return
        held = self._held
        held += piece
        if len(held) > BODY_LIMIT:
            del held[: len(held) - TAIL]
            self._skipping = True
        if end:
            self._document(bytes(held))
            held.clear()

    def _lines(self, piece: bytes, end: bool) -> None:
        held = self._held
        start = 0
        while True:
            at = piece.find(b"\n", start)
            if at < 0:
                break
            if self._skipping:
                self._skipping = False
            elif held:
                held += piece[start:at]
                self._line(bytes(held))
            else:
                self._line(piece[start:at])
            held.clear()
            start = at + 1
        if not self._skipping:
            held += piece[start:]
            if len(held) > LINE_LIMIT:
                held.clear()
                self._skipping = True
        if end and held:
            self._line(bytes(held))
            held.clear()

    def _line(self, line: bytes) -> None:
        line = line.rstrip(b"\r")
        if line.startswith(b"data:"):
            line = line[5:].strip()
        elif not line.startswith(b"{"):  # other SSE fields; JSON lines begin with their object
            return
        if not line or line == b"[DONE]":
            return
        self.events += 1
        # Most events are one token of text: only those that name usage are decoded.
        named = b"usage" in line or b"eval_count" in line or b"tokens" in line
        if named and not self._event(line) and b"data:" in line:
            # Some servers forget the line break between two events.
            for part in line.split(b"data:"):
                self._event(part.strip())

    def _event(self, text: bytes) -> bool:
        try:
            self.take(_decode(text))
        except (msgspec.DecodeError, ValueError, RecursionError):
            return False
        return True

    def _document(self, body: bytes) -> None:
        if not self._skipping:
            try:
                self.take(_decode(body))
            except (msgspec.DecodeError, ValueError, RecursionError):
                return
            return
        for found in reversed(list(_USAGE_IN_TAIL.finditer(body))[-MOST_TRIED:]):
            try:
                usage, _end = _decode_first(body[found.start(1) :].decode("utf-8", "replace"))
            except (ValueError, RecursionError):
                continue
            self.take({"usage": usage})
            return

    def take(self, document: Any) -> None:
        """Reads usage from a decoded event or body of any of the APIs. Later reports win, field by field."""
        if not isinstance(document, dict):
            return
        for holder in (document, document.get("response"), document.get("message")):
            if isinstance(holder, dict) and isinstance(holder.get("usage"), dict):
                self._usage(holder["usage"])
        if "eval_count" in document or "prompt_eval_count" in document:  # Ollama
            self._set(_first(document, "prompt_eval_count"), _first(document, "eval_count"), None, None)
        details = document.get("details")
        if isinstance(details, dict) and "generated_tokens" in details:  # TGI
            self._set(_first(details, "prompt_tokens"), _first(details, "generated_tokens"), None, None)
        meta = document.get("meta_info")
        if isinstance(meta, dict) and "completion_tokens" in meta:  # SGLang
            self._set(
                _first(meta, "prompt_tokens"), _first(meta, "completion_tokens"), None, _first(meta, "cached_tokens")
            )

    def _usage(self, usage: dict[str, Any]) -> None:
        cached = None
        for name in ("prompt_tokens_details", "input_tokens_details"):
            details = usage.get(name)
            if isinstance(details, dict):
                cached = _first(details, "cached_tokens")
        if cached is None:
            cached = _first(usage, "cached_tokens", "prompt_cache_hit_tokens")
        read, created = _first(usage, "cache_read_input_tokens"), _first(usage, "cache_creation_input_tokens")
        if read is not None or created is not None:
            # Anthropic counts only what was not cached as input.
            self._exclusive = True
            self._read = read if read is not None else self._read
            self._created = created if created is not None else self._created
        self._set(
            _first(usage, "prompt_tokens", "input_tokens"),
            _first(usage, "completion_tokens", "output_tokens"),
            _first(usage, "total_tokens"),
            cached if cached is not None else read,
        )

    def _set(self, prompt: int | None, completion: int | None, total: int | None, cached: int | None) -> None:
        usage = self.usage
        usage.prompt = usage.prompt if prompt is None else prompt
        usage.completion = usage.completion if completion is None else completion
        usage.total = usage.total if total is None else total
        usage.cached = usage.cached if cached is None else cached

    @property
    def whole_prompt(self) -> int | None:
        """Prompt tokens with cached ones, also where the API leaves them out of its input count."""
        if self.usage.prompt is None or not self._exclusive:
            return self.usage.prompt
        return self.usage.prompt + self._read + self._created
