"""Bytes to the top level of a JSON object: a strict fast reader, and tolerant ones for when it fails."""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
import numpy as np

from xds_control.inspect.facts import BodyProblem
from xds_control.inspect.repair import close_truncated

_U8: Final = np.dtype(np.uint8)
_KEY: Final = re.compile(rb'"([^"\\]*+)"\s*+:')
_MODEL: Final = re.compile(rb'"model"\s*+:\s*+("[^"\\]*+")')
_FIND_LIMIT: Final = 1 << 15
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


class Document(msgspec.Struct, gc=False):
    """A JSON body that was read.

    top: struct of raw values, as the format names them; None when nothing could be read.
    rest: the object with a zero in place of every large value, b"" when it was not kept apart.
    cuts: where in it those zeros are, with how many bytes are gone; cut_names: of which fields.
    complete: only heavy fields were cut out.
    repeated: top-level keys that occur more than once, None when nobody has looked yet.
    """

    top: Any
    rest: bytes = b""
    cuts: list[tuple[int, int]] = []
    cut_names: tuple[str, ...] = ()
    complete: bool = False
    repeated: tuple[str, ...] | None = ()
    model_span: tuple[int, int] | None = None
    problem: BodyProblem = BodyProblem.NONE
    detail: str = ""


def read(data: bytes, decode: Callable[[bytes], Any], heavy: Sequence[str], lenient_limit: int) -> Document:
    """Reads a JSON object.

    decode: decoder of the format's struct of raw values. heavy: names of its fields that may be large.
    lenient_limit: largest body in bytes for which the tolerant readers are tried.
    """
    try:
        top = decode(data)
    except msgspec.ValidationError:
        return Document(None, problem=BodyProblem.WRONG_SHAPE, detail="the body is not a JSON object")
    except RecursionError:
        return Document(None, problem=BodyProblem.TOO_DEEP, detail="the body is nested too deep")
    except ValueError:
        return read_leniently(data, decode, lenient_limit)
    large = []
    for name in heavy:
        raw = getattr(top, name)
        if raw is not None and len(raw) > _LARGE:
            large.append((name, raw))
    rest, cuts = _cut(data, large)
    complete = len(rest) <= _REST_SMALL
    if not complete:
        if len(rest) <= _REST_LIMIT:  # large values under names that the format does not know
            rest, cuts = _cut(data, [(name, raw) for name, raw in _decode_map(data).items() if len(raw) > _LARGE])
        if len(rest) > _REST_LIMIT:
            # So much beside the known fields is no honest request: what might be repeated counts as repeated.
            repeated = tuple(name for name in _WATCHED if rest.count(b'"%b"' % name.encode()) > 1)
            return Document(top, repeated=repeated, model_span=address_of_model(data, top))
    return Document(top, rest, cuts, tuple([name for name, _ in large]), complete, None)


def repeated_keys(rest: bytes) -> tuple[str, ...] | None:
    """Keys that occur more than once in a small object; None when they all differ at every level."""
    keys = _KEY.findall(rest)
    if len(set(keys)) == len(keys) and b"\\u" not in rest:
        return None
    try:  # a nested key may have the same name, an escaped one may hide: look properly
        return _Pairs().read(rest.decode("utf-8", "replace"))[1]
    except (ValueError, RecursionError):
        return ()


def place_of_model(rest: bytes, top: Any) -> tuple[int, int] | None:
    """Where in `rest` the model's string stands, given that no key occurs twice at any level."""
    found = _MODEL.search(rest)
    return found.span(1) if found is not None and top.model is not None and found[1] == bytes(top.model) else None


def address_of_model(data: bytes, top: Any) -> tuple[int, int] | None:
    """Where in `data`, which `top` was decoded from, the model's string stands."""
    raw = top.model
    if raw is None or len(raw) < 2 or bytes(raw)[:1] != b'"':
        return None
    start = _address(raw) - id(data) - _BYTES_OFFSET
    return start, start + len(raw)


@functools.cache
def _key_pattern(name: str) -> re.Pattern[bytes]:
    return re.compile(rb'"%b"\s*+:\s*+' % re.escape(name.encode()))


def _cut(data: bytes, large: list[tuple[str, Any]]) -> tuple[bytes, list[tuple[int, int]]]:
    """`data` with a zero in place of each of the raw values; and where the zeros are, with how much is gone."""
    if not large:
        return data, []
    if len(large) == 1 and len(data) < _FIND_LIMIT:
        name, raw = large[0]
        found = _key_pattern(name).search(data)
        value = bytes(raw)
        # What is cut is a value that reads the same, so that what is left is JSON and holds every other key.
        if found is not None and data.startswith(value, start := found.end()):
            return data[:start] + b"0" + data[start + len(value) :], [(start, len(value) - 1)]
    base = id(data) + _BYTES_OFFSET
    pieces = []
    cuts = []
    place = removed = 0
    for start, length in sorted([(_address(raw) - base, len(raw)) for _, raw in large]):
        pieces.append(data[place:start])
        cuts.append((start - removed, length - 1))
        removed += length - 1
        place = start + length
    pieces.append(data[place:])
    return b"0".join(pieces), cuts


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
    return Document(top, repeated=repeated, model_span=span, problem=problem, detail=detail)


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
