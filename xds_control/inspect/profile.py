"""What kind of text a prompt is, in one integer: the shares of its byte classes and its number of messages.

Tokenizers spend very different numbers of tokens on a byte of prose, code, digits or Chinese.
The shares are what the token estimate is linear in; packed into 53 bits they fit a protobuf
number exactly, so that they travel in the request's metadata and return with its usage.
"""

from __future__ import annotations

import math
from typing import Final

CLASSES: Final = ("upper", "digit", "space", "newline", "punct", "two_byte", "wide")
"""Classes in the order of packing; what is left is `lower`. wide: characters of three and four UTF-8 bytes."""

_BITS: Final = 6
_TOP: Final = (1 << _BITS) - 1
MAX_MESSAGES: Final = 1023
_SAMPLE: Final = 640


def _class_of(byte: int) -> bytes:
    if byte in (0x0A, 0x0D):
        return b"n"
    if byte in (0x20, 0x09):
        return b"s"
    if 0x30 <= byte <= 0x39:
        return b"d"
    if 0x41 <= byte <= 0x5A:
        return b"U"
    if byte < 0x80:
        return b"p"
    return b"2" if byte < 0xE0 else b"3"


_TABLE: Final = b"".join(_class_of(byte) for byte in range(256))
# Lower-case letters are what is left over; continuation bytes are counted with their lead byte, and our own
# separators are no text.
_UNCOUNTED: Final = bytes(
    byte
    for byte in range(256)
    if 0x61 <= byte <= 0x7A or 0x80 <= byte < 0xC0 or (byte < 0x20 and byte not in (0x09, 0x0A, 0x0D))
)
# Shares are kept as square roots, so that rare classes keep their precision.
_LEVELS: Final = tuple(round(_TOP * math.sqrt(share / 1024)) for share in range(1025))
SHARES: Final = tuple((level / _TOP) ** 2 for level in range(_TOP + 1))

FIRST_SHARE: Final = 1 << 10
"""Profiles below hold no shares: nothing but the number of messages is known."""
UNLEARNABLE: Final = 1 << 52
"""Set when the bytes do not explain the tokens: token ids, audio, video, files. Nothing is learned from those."""
PROSE: Final = sum(
    _LEVELS[int(share * 1024)] << 10 + 6 * place for place, share in enumerate((0.03, 0.01, 0.16, 0.005, 0.035))
)
"""Shares of English prose, for when nothing is known."""


def profile(head: bytes, body: bytes, messages: int) -> int:
    """Packed profile of a canonical prompt. Reads some hundreds of evenly spread bytes, whatever the length."""
    size = len(head) + len(body)
    if size <= _SAMPLE:
        sample = head + body
    else:  # two odd steps without a common factor: regular text, such as a table, does not fall in with both
        step = 2 * size // _SAMPLE | 1
        sample = body[::step] + body[1 :: step + 2]
        if head:
            sample += head[::step] + head[1 :: step + 2]
    count = sample.translate(_TABLE, _UNCOUNTED).count
    upper, digit, space, newline, punct = count(b"U"), count(b"d"), count(b"s"), count(b"n"), count(b"p")
    two = wide = 0
    if not sample.isascii():
        two, wide = 2 * count(b"2"), 3 * count(b"3")
    total = max(len(sample), upper + digit + space + newline + punct + two + wide)
    packed = min(messages, MAX_MESSAGES)
    if not total:
        return packed
    level = _LEVELS
    packed |= (
        level[upper * 1024 // total] << 10
        | level[digit * 1024 // total] << 16
        | level[space * 1024 // total] << 22
        | level[newline * 1024 // total] << 28
        | level[punct * 1024 // total] << 34
    )
    if two or wide:
        packed |= level[two * 1024 // total] << 40 | level[wide * 1024 // total] << 46
    return packed


def shares(packed: int) -> tuple[float, float, float, float, float, float, float, float]:
    """Shares of lower and then of CLASSES, summing to one; those of English prose when the profile says nothing.

    Rounding may leave lower a little below zero.
    """
    of = SHARES
    if packed < FIRST_SHARE:
        packed |= PROSE
    upper = of[packed >> 10 & _TOP]
    digit = of[packed >> 16 & _TOP]
    space = of[packed >> 22 & _TOP]
    newline = of[packed >> 28 & _TOP]
    punct = of[packed >> 34 & _TOP]
    two = of[packed >> 40 & _TOP]
    wide = of[packed >> 46 & _TOP]
    rest = 1.0 - (upper + digit + space + newline + punct + two + wide)
    return (rest, upper, digit, space, newline, punct, two, wide)


def message_count(packed: int) -> int:
    """Messages of the prompt, 1023 when there were more."""
    return packed & MAX_MESSAGES
