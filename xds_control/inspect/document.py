"""Bytes to the top level of a JSON object: a strict fast reader, and tolerant ones for when it fails."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from xds_control.inspect.facts import BodyProblem
from xds_control.inspect.repair import close_truncated

_U8: Final = np.dtype(np.uint8)
_BOM: Final = b"\xef\xbb\xbf"
_KEY: Final = re.compile(rb'"([^"\\]*+)"\s*+:')
_MODEL: Final = re.compile(rb'"model"\s*+:\s*+("[^"\\]*+")')
_LARGE: Final = 256
_REST_SMALL: Final = 8192
_REST_LIMIT: Final = 1 << 18
_WATCHED: Final = ("model", "stream", "priority", "messages", "prompt", "input", "tools", "max_tokens", "n")

_decode_map = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def _address(data: Any) -> int:
    address: int = np.frombuffer(data, dtype=_U8).__array_interface__["data"][0]
    return address


# Where the bytes of a bytes object begin, counted from the object: msgspec's raw values are views into
# the message, so the difference of two addresses is a value's exact place, without another scan.
_PROBE: Final = b"probe"
_BYTES_OFFSET: Final = _address(_PROBE) - id(_PROBE)


class Document(NamedTuple):
    """A JSON body that was read.

    top: struct of raw values, as the format names them; None when nothing could be read. model_span: place of
    the model's string in the bytes that were given, None when there is none or it is not certain.
    ambiguous: top-level keys that occur more than once.
    """

    top: Any
    model_span: tuple[int, int] | None = None
    ambiguous: tuple[str, ...] = ()
    problem: BodyProblem = BodyProblem.NONE
    detail: str = ""


def read(data: bytes, decode: Callable[[bytes], Any], heavy: Sequence[str], lenient_limit: int) -> Document:
    """Reads a JSON object.

    decode: decoder of the format's struct of raw values. heavy: names of its fields that may be large.
    lenient_limit: largest body in bytes for which the tolerant readers are tried.
    """
    if data[:3] == _BOM:
        document = read(data[3:], decode, heavy, lenient_limit)
        if document.model_span is not None:
            start, end = document.model_span
            document = document._replace(model_span=(start + 3, end + 3))
        return document
    try:
        top = decode(data)
    except msgspec.ValidationError:
        return Document(None, problem=BodyProblem.WRONG_SHAPE, detail="the body is not a JSON object")
    except RecursionError:
        return Document(None, problem=BodyProblem.TOO_DEEP, detail="the body is nested too deep")
    except ValueError:
        return read_leniently(data, decode, lenient_limit)
    base = id(data) + _BYTES_OFFSET
    span = None
    if top.model is not None:
        start = _address(top.model) - base
        span = (start, start + len(top.model)) if data[start] == 0x22 else None
    return Document(top, span, _repeated_keys(data, base, top, heavy))


def _repeated_keys(data: bytes, base: int, top: Any, heavy: Sequence[str]) -> tuple[str, ...]:
    """Top-level keys that occur twice, found in what is left when large values are cut out."""
    large = [raw for name in heavy if (raw := getattr(top, name)) is not None and len(raw) > _LARGE]
    rest = _cut(data, base, large)
    if _REST_SMALL < len(rest) <= _REST_LIMIT:  # large values under names that the format does not know
        rest = _cut(data, base, [raw for raw in _decode_map(data).values() if len(raw) > _LARGE])
    if len(rest) > _REST_LIMIT:
        # So much beside the known fields is no honest request: what might be repeated counts as repeated.
        return tuple(name for name in _WATCHED if rest.count(b'"%b"' % name.encode()) > 1)
    keys = _KEY.findall(rest)
    if len(set(keys)) == len(keys) and b"\\u" not in rest:
        return ()
    try:  # a nested key may have the same name, an escaped one may hide: look properly at what is small now
        return _Pairs().read(rest.decode("utf-8", "replace"))[1]
    except (ValueError, RecursionError):
        return ()


def _cut(data: bytes, base: int, large: list[Any]) -> bytes:
    if not large:
        return data
    pieces = []
    place = 0
    for start, length in sorted([(_address(raw) - base, len(raw)) for raw in large]):
        pieces.append(data[place:start])
        place = start + length
    pieces.append(data[place:])
    return b"0".join(pieces)


def read_leniently(data: bytes, decode: Callable[[bytes], Any], limit: int) -> Document:
    """Reads what engines' own readers accept and the strict one does not: lone surrogates, NaN, numbers out of range,
    invalid UTF-8; and says what is wrong with the rest, reading as much of it as is there."""
    cut_off = data[-64:].rstrip()[-1:] != b"}"
    problem = BodyProblem.NONE
    detail = ""
    if len(data) > limit:
        if not cut_off:
            return Document(None, problem=BodyProblem.NOT_JSON, detail="the body is not valid JSON")
        data = data[:limit]
    pairs = _Pairs()
    try:
        try:
            value, repeated, end = pairs.read(data.decode("utf-8", "replace"))
            if end:
                problem, detail = BodyProblem.TRAILING, "there is more after the JSON object"
        except ValueError as error:
            closed = close_truncated(data)
            if closed is None:
                return Document(None, problem=BodyProblem.NOT_JSON, detail=f"the body is not valid JSON: {error}"[:200])
            value, repeated, _ = pairs.read(closed.decode("utf-8", "replace"))
            problem, detail = BodyProblem.TRUNCATED, "the body ends before the JSON object does"
        if not isinstance(value, dict):
            return Document(None, problem=BodyProblem.WRONG_SHAPE, detail="the body is not a JSON object")
        top = decode(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
    except RecursionError:
        return Document(None, problem=BodyProblem.TOO_DEEP, detail="the body is nested too deep")
    except ValueError as error:
        return Document(None, problem=BodyProblem.NOT_JSON, detail=f"the body is not valid JSON: {error}"[:200])
    span = None
    if data.count(b'"model"') == 1 and (found := _MODEL.search(data)) is not None:
        span = found.span(1)
    return Document(top, span, repeated, problem, detail)


class _Pairs:
    """A json decoder that notes keys which repeat in the outermost object, and never fails on a number."""

    def __init__(self) -> None:
        self._repeated: tuple[str, ...] = ()
        self._decoder = json.JSONDecoder(
            object_pairs_hook=self._object, parse_int=_whole, parse_float=_finite, parse_constant=_nothing
        )

    def read(self, text: str) -> tuple[Any, tuple[str, ...], bool]:
        """The value, the repeated keys of the outermost object, and whether more than white space follows it."""
        begin = len(text) - len(text.lstrip(" \t\r\n"))
        value, end = self._decoder.raw_decode(text, begin)
        return value, self._repeated if isinstance(value, dict) else (), bool(text[end:].strip(" \t\r\n"))

    def _object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        value = dict(pairs)
        if len(value) == len(pairs):
            self._repeated = ()
        else:  # the outermost object is the last one to be closed
            seen: set[str] = set()
            self._repeated = tuple(dict.fromkeys(key for key, _ in pairs if key in seen or seen.add(key)))  # type: ignore[func-returns-value]
        return value


def _whole(digits: str) -> int | None:
    return int(digits) if len(digits) <= 18 else None


def _finite(digits: str) -> float | None:
    value = float(digits)
    return value if math.isfinite(value) else None


def _nothing(_: str) -> None:
    return None
