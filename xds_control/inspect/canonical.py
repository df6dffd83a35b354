"""The canonical prompt: the text that an engine's template would see, free of how the JSON was written.

Two requests with the same system prompt and tools have the same head, whatever the order of keys,
the white space, the escapes or the shape of `content` (a string or a list of parts). Roles and media
are set off by control characters that prompts do not contain in practice.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from xxhash import xxh3_64_intdigest

_decode_any = msgspec.json.Decoder().decode
_encode_sorted = msgspec.json.Encoder(order="sorted").encode

_MEMO_TOTAL: Final = 1 << 23  # characters remembered
_MEMO_BYTES: Final = 1 << 18  # larger tool lists are taken as they are written
UNKNOWN: Final = "\x1e?\x1f"
MARKS: Final = {
    role: f"\x1e{role}\x1f" for role in ("system", "user", "assistant", "tool", "function", "model", "USER", "CHATBOT")
}
SYSTEM: Final = MARKS["system"]
USER: Final = MARKS["user"]
ASSISTANT: Final = MARKS["assistant"]
MARKS["developer"] = MARKS["system"]  # engines treat developer messages as system ones
MARKS["model"] = MARKS["assistant"]


def mark_of(role: Any) -> str:
    """What sets off a message of a role."""
    if type(role) is not str:
        return UNKNOWN
    return MARKS.get(role) or f"\x1e{role[:64]}\x1f"


class CanonicalJson:
    """Canonical text of JSON values that repeat from request to request, such as tool lists. Remembers the latest."""

    def __init__(self) -> None:
        self._memo: dict[int, str] = {}
        self._size = 0

    def text(self, raw: Any) -> str:
        """Compact text with sorted keys; array order is kept. What cannot be decoded is taken as it is written."""
        if len(raw) < 3:
            return bytes(raw).decode("utf-8", "replace")
        key = xxh3_64_intdigest(raw)
        known = self._memo.get(key)
        if known is not None:
            return known
        if len(raw) <= _MEMO_BYTES:
            text = sorted_json(raw)
            self._size += len(text)
            while self._size > _MEMO_TOTAL:
                self._size -= len(self._memo.pop(next(iter(self._memo))))
            self._memo[key] = text
            return text
        return bytes(raw).decode("utf-8", "replace")


def sorted_json(raw: Any) -> str:
    """Compact text of a raw JSON value with sorted keys; as it is written when it cannot be decoded."""
    try:
        return _encode_sorted(_decode_any(raw)).decode("utf-8", "replace")
    except (ValueError, RecursionError, TypeError):
        return bytes(raw).decode("utf-8", "replace")


class Prompt:
    """Collects the canonical prompt of one request.

    head: system prompt and tools; body: the rest. Both are lists of pieces of text. marks: characters of
    separators and media digests among them, which are not prompt. media: (in head?, number of pieces before it,
    kind, size in bytes) of each image, clip or file. exact_tokens: length when the prompt came as token ids.
    unknown: places of content of unknown types, yet to be filled.
    main: the raw list of messages, where it was taken out of the body beforehand.
    binary: tensors that follow the JSON (KServe's binary extension).
    """

    __slots__ = (
        "binary",
        "body",
        "digest_bytes",
        "exact_tokens",
        "head",
        "images",
        "in_head",
        "json",
        "main",
        "marks",
        "media",
        "media_bytes",
        "messages",
        "tools",
        "unknown",
    )

    def __init__(self, json: CanonicalJson, digest_bytes: int) -> None:
        self.json = json
        self.digest_bytes = digest_bytes
        self.head: list[str] = []
        self.body: list[str] = []
        self.in_head = True
        self.marks = 0
        self.images = 0
        self.media: list[tuple[bool, int, str, int]] = []
        self.media_bytes = 0
        self.messages = 0
        self.tools = 0
        self.exact_tokens: int | None = None
        self.unknown: list[tuple[list[str], int]] = []
        self.binary = b""
        self.main: Any = None

    def begin(self, role: Any) -> list[str]:
        """Starts a message and returns the pieces to append to: those of the head while only system messages came."""
        self.messages += 1
        mark = mark_of(role)
        self.marks += len(mark)
        if self.in_head:
            if mark is SYSTEM:
                self.head.append(mark)
                return self.head
            self.in_head = False
        self.body.append(mark)
        return self.body

    def user_message(self, *, latest: bool = False) -> list[str]:
        """Pieces of the first (or latest) message of the user, with its mark; [] when there is none."""
        pieces = self.body
        try:
            start = len(pieces) - 1 - pieces[::-1].index(USER) if latest else pieces.index(USER)
        except ValueError:
            return []
        for end in range(start + 1, len(pieces)):
            if pieces[end][:1] == "\x1e":
                return pieces[start:end]
        return pieces[start:]

    def add_tools(self, raw: Any) -> None:
        """Adds a raw tool list to the head."""
        text = self.json.text(raw)
        if text in ("null", "[]", "{}"):
            return
        self.head.append("\x1etools\x1f")
        self.head.append(text)
        self.marks += 7

    def add_setting(self, raw: Any) -> None:
        """Adds to the head a raw value that changes how the template renders the prompt."""
        self.head.append("\x1eset\x1f")
        self.head.append(sorted_json(raw))
        self.marks += 5

    def leave_place(self, pieces: list[str]) -> None:
        """Leaves a place for what could not be told apart."""
        self.unknown.append((pieces, len(pieces)))
        pieces.append("")

    def fill_places(self, raw: Any) -> None:
        """Fills the places that were left with a digest of the raw JSON around them, so that different content
        never shares a key."""
        mark = f"\x1d?:{xxh3_64_intdigest(raw):016x}\x1f"
        for pieces, place in self.unknown:
            pieces[place] = mark
        self.marks += len(mark) * len(self.unknown)
        self.unknown = []

    def add_media(self, pieces: list[str], kind: str, raw: Any) -> None:
        """Adds a digest of an image, clip or file, given as raw JSON (an object, or a string with data or URL)."""
        data = bytes(raw)
        size = len(data)
        if size > self.digest_bytes:
            half = self.digest_bytes // 2
            digest = xxh3_64_intdigest(data[-half:], xxh3_64_intdigest(data[:half], size))
        else:
            if data[:1] == b"{":
                data = sorted_json(raw).encode("utf-8", "surrogatepass")
            digest = xxh3_64_intdigest(data)
        mark = f"\x1d{kind}:{digest:016x}\x1f"
        self.media.append((pieces is self.head, len(pieces), kind, size))
        pieces.append(mark)
        self.marks += len(mark)
        self.media_bytes += size
        if kind == "image":
            self.images += 1
