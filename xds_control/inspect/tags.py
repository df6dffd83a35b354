"""Tags by keyword: which of the policy's domains a prompt speaks of."""

from __future__ import annotations

from xds_control.inspect.canonical import Prompt
from xds_control.policy.inspect import TagPolicy


class Tagger:
    """Finds the tags of prompts. The cost grows with keywords times scanned bytes, both bounded by policy."""

    def __init__(self, tags: tuple[TagPolicy, ...], scan_bytes: int) -> None:
        self._tags = [
            (tag.name, tag.scope, tag.min_hits, tuple(word.strip().lower() for word in tag.keywords)) for tag in tags
        ]
        self._scan = scan_bytes

    def tags(self, prompt: Prompt) -> tuple[str, ...]:
        """Names of the tags that apply, in the policy's order."""
        texts: dict[str, str] = {}
        found = []
        for name, scope, min_hits, words in self._tags:
            text = texts.get(scope)
            if text is None:
                text = texts[scope] = self._text(prompt, scope)
            hits = 0
            for word in words:
                if _has_word(text, word):
                    hits += 1
                    if hits >= min_hits:
                        found.append(name)
                        break
        return tuple(found)

    def _text(self, prompt: Prompt, scope: str) -> str:
        if scope == "system":
            pieces = prompt.head
        elif scope == "last":
            pieces = prompt.user_message(latest=True)
        else:
            pieces = prompt.head + prompt.body
        kept: list[str] = []
        room = self._scan
        for piece in reversed(pieces):
            kept.append(piece[-room:])
            room -= len(kept[-1])
            if room <= 0:
                break
        return "".join(reversed(kept)).lower()


def _has_word(text: str, word: str) -> bool:
    """Whether the word stands in the text by itself; scripts without spaces have no word ends, so any place counts."""
    start = text.find(word)
    if start < 0 or not word.isascii():
        return start >= 0
    size = len(word)
    while start >= 0:
        before = text[start - 1 : start]
        after = text[start + size : start + size + 1]
        if not (before.isalnum() and before.isascii() and word[0].isalnum()) and not (
            after.isalnum() and after.isascii() and word[-1].isalnum()
        ):
            return True
        start = text.find(word, start + 1)
    return False
