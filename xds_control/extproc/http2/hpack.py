"""Header compression for a server (RFC 7541): a decoder with its dynamic table; encoding is literal, without a table.

A peer such as Envoy sends the same header block again and again on one connection, so whole blocks are remembered
for as long as the dynamic table does not change.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from xds_control.proto.wire import varint

Headers = list[tuple[bytes, bytes]]

_STATIC_TEXT: Final = """
:authority|:method GET|:method POST|:path /|:path /index.html|:scheme http|:scheme https|:status 200|:status 204
:status 206|:status 304|:status 400|:status 404|:status 500|accept-charset|accept-encoding gzip, deflate
accept-language|accept-ranges|accept|access-control-allow-origin|age|allow|authorization|cache-control
content-disposition|content-encoding|content-language|content-length|content-location|content-range|content-type
cookie|date|etag|expect|expires|from|host|if-match|if-modified-since|if-none-match|if-range|if-unmodified-since
last-modified|link|location|max-forwards|proxy-authenticate|proxy-authorization|range|referer|refresh|retry-after
server|set-cookie|strict-transport-security|transfer-encoding|user-agent|vary|via|www-authenticate
"""


def _static() -> tuple[tuple[bytes, bytes], ...]:
    entries = _STATIC_TEXT.strip().replace("\n", "|").split("|")
    pairs = (entry.partition(" ") for entry in entries)
    return tuple((name.encode(), value.encode()) for name, _, value in pairs)


STATIC: Final = _static()
"""Appendix A; index 1 is the first."""

# Appendix B. The code is canonical: within one length, codes follow the symbols' order, so the lengths say it all.
# Symbols 0 to 255, then the end-of-string symbol.
_CODE_LENGTHS: Final = bytes.fromhex(
    "0d171c1c1c1c1c1c1c181e1c1c1e1c1c1c1c1c1c1c1c1e1c1c1c1c1c1c1c1c1c"
    "060a0a0c0d06080b0a0a080b080606060505050606060606060607080f060c0a"
    "0d06070707070707070707070707070707070707070707070807080d130d0e06"
    "0f05060506050606060507070606060506070605050607070707070f0b0e0d1c"
    "1416141416161617161717171717181718181617181717171715161716171718"
    "1615141616171715171616181516171715151615171617171416161617161617"
    "1a1a1413161716191a1a1a1b1b1a181913151a1b1b1a1b1815151a1a1c1b1b1b"
    "14181415161515171616191918181a171a1b1a1a1b1b1b1b1b1c1b1b1b1b1b1a"
    "1e"
)
_END_OF_STRING: Final = 256

MAX_STRING: Final = 1 << 16
MAX_TABLE: Final = 4096
_REMEMBERED: Final = 256  # bytes of a coded string whose text is kept for the next time


class HpackError(ValueError):
    """A header block that cannot be decoded; the connection cannot go on, because the table is out of step."""


class _Node:
    """A state between bits of the code. `steps`: byte → (next state, symbols that it completed), filled on demand."""

    __slots__ = ("children", "may_end", "steps", "symbol")

    def __init__(self) -> None:
        self.children: list[_Node | None] = [None, None]
        self.symbol: int | None = None
        self.may_end = False
        self.steps: dict[int, tuple[_Node, bytes]] = {}


def _tree() -> _Node:
    root = _Node()
    code = previous = 0
    for symbol in sorted(range(257), key=lambda one: (_CODE_LENGTHS[one], one)):
        length = _CODE_LENGTHS[symbol]
        code <<= length - previous
        previous = length
        node = root
        for bit in range(length - 1, -1, -1):
            side = code >> bit & 1
            child = node.children[side]
            if child is None:
                child = node.children[side] = _Node()
            node = child
        node.symbol = symbol
        code += 1
    # Padding is at most seven ones (section 5.2).
    end: _Node | None = root
    for _ in range(8):
        assert end is not None
        end.may_end = True
        end = end.children[1]
    return root


_ROOT: Final = _tree()


def _step(node: _Node, byte: int) -> tuple[_Node, bytes]:
    start, out = node, bytearray()
    for bit in range(7, -1, -1):
        following = node.children[byte >> bit & 1]
        assert following is not None
        if following.symbol is None:
            node = following
        elif following.symbol == _END_OF_STRING:
            raise HpackError("end-of-string symbol inside a string")
        else:
            out.append(following.symbol)
            node = _ROOT
    start.steps[byte] = found = (node, bytes(out))
    return found


@lru_cache(maxsize=1024)
def huffman_decode(data: bytes) -> bytes:
    """The text behind Huffman-coded bytes. Raises HpackError."""
    node, out = _ROOT, bytearray()
    for byte in data:
        node, symbols = node.steps.get(byte) or _step(node, byte)
        out += symbols
    if not node.may_end:
        raise HpackError("padding of a Huffman-coded string is wrong")
    return bytes(out)


def _integer(data: bytes, at: int, bits: int) -> tuple[int, int]:
    """An integer with a prefix of `bits` bits (section 5.1), and where it ends."""
    mask = (1 << bits) - 1
    value = data[at] & mask
    at += 1
    if value < mask:
        return value, at
    shift = 0
    while True:
        byte = data[at]
        at += 1
        value += (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 28:
            raise HpackError("integer too large")


def _string(data: bytes, at: int) -> tuple[bytes, int]:
    coded = data[at] & 0x80
    size, at = _integer(data, at, 7)
    end = at + size
    if size > MAX_STRING or end > len(data):
        raise HpackError("string too long")
    text = data[at:end]
    if coded:
        text = huffman_decode(text) if size <= _REMEMBERED else huffman_decode.__wrapped__(text)
    return text, end


class Decoder:
    """Decodes the header blocks of one connection, in order."""

    __slots__ = ("_blocks", "_limit", "_max_list", "_size", "_table")

    def __init__(self, max_list: int = MAX_STRING) -> None:
        self._table: list[tuple[bytes, bytes]] = []  # newest first
        self._size = 0
        self._limit = MAX_TABLE
        self._max_list = max_list
        self._blocks: dict[bytes, Headers] = {}

    def decode(self, block: bytes) -> Headers:
        """The headers of a block; do not change the list. Raises HpackError."""
        known = self._blocks.get(block)
        if known is not None:
            return known
        try:
            headers, changed = self._decode(block)
        except IndexError:
            raise HpackError("header block ends too early") from None
        if changed:
            self._blocks.clear()
        elif len(self._blocks) < 64 and len(block) <= 1024:
            self._blocks[block] = headers
        return headers

    def _decode(self, block: bytes) -> tuple[Headers, bool]:
        headers: Headers = []
        at, total = 0, 0
        changed = False
        while at < len(block):
            byte = block[at]
            if byte & 0x80:
                index, at = _integer(block, at, 7)
                pair = self._entry(index)
            elif byte & 0xE0 == 0x20:
                limit, at = _integer(block, at, 5)
                if limit > MAX_TABLE or headers:
                    raise HpackError("dynamic table size update out of place")
                self._limit = limit
                self._evict()
                changed = True
                continue
            else:
                indexed = byte & 0x40
                index, at = _integer(block, at, 6 if indexed else 4)
                if index:
                    name = self._entry(index)[0]
                else:
                    name, at = _string(block, at)
                value, at = _string(block, at)
                pair = (name, value)
                if indexed:
                    self._insert(pair)
                    changed = True
            total += len(pair[0]) + len(pair[1]) + 32
            if total > self._max_list:
                raise HpackError("header list too large")
            headers.append(pair)
        return headers, changed

    def _entry(self, index: int) -> tuple[bytes, bytes]:
        if index == 0:
            raise HpackError("index 0")
        if index <= len(STATIC):
            return STATIC[index - 1]
        index -= len(STATIC) + 1
        if index >= len(self._table):
            raise HpackError("index beyond the table")
        return self._table[index]

    def _insert(self, pair: tuple[bytes, bytes]) -> None:
        self._table.insert(0, pair)
        self._size += len(pair[0]) + len(pair[1]) + 32
        self._evict()

    def _evict(self) -> None:
        while self._size > self._limit:
            name, value = self._table.pop()
            self._size -= len(name) + len(value) + 32


def literal(name: bytes, value: bytes) -> bytes:
    """A header as a literal without indexing, uncompressed."""
    return b"\x00" + _length(name) + name + _length(value) + value


def _length(text: bytes) -> bytes:
    size = len(text)
    if size < 0x7F:
        return bytes((size,))
    return b"\x7f" + varint(size - 0x7F)  # a number with a prefix goes on as protobuf's do
