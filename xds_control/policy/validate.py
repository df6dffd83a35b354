"""Checks a document against the sections' types and collects everything that is wrong, not just the first thing."""

from __future__ import annotations

import difflib
import functools
import math
import re
import types
import typing
from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec

from xds_control.policy.base import Section
from xds_control.policy.document import Document, Path

T = TypeVar("T", bound=Section)

_AT = re.compile(r" - at `\$(?P<path>[^`]*)`$")
_TYPES = re.compile(r"`([a-z]+(?: \| [a-z]+)*)`")
_CALLED = {
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "object": "a mapping",
    "array": "a list",
    "null": "nothing",
}
_INDEX = re.compile(r"\[(\d+|\.\.\.)\]|\.([^.\[]+)|\[('[^']*'|\"[^\"]*\")\]")


def sections(hint: Any) -> type[Section] | None:
    """The section class inside an annotation such as `Annotated[Section | None, ...]`, or None."""
    if typing.get_origin(hint) is typing.Annotated:
        return sections(typing.get_args(hint)[0])
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        found = [s for s in map(sections, typing.get_args(hint)) if s is not None]
        return found[0] if len(found) == 1 else None
    return hint if isinstance(hint, type) and issubclass(hint, Section) else None


def _bare(hint: Any) -> Any:
    while typing.get_origin(hint) is typing.Annotated:
        hint = typing.get_args(hint)[0]
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        rest = [arg for arg in typing.get_args(hint) if arg is not type(None)]
        if len(rest) == 1:
            return _bare(rest[0])
    return hint


def _container(hint: Any) -> tuple[str, Any] | None:
    """("list", item) or ("dict", value) when the items are sections or hold sections."""
    bare = _bare(hint)
    origin = typing.get_origin(bare)
    if origin in (list, tuple):
        item = typing.get_args(bare)[0]
        return ("list", item) if sections(item) or _container(item) else None
    if origin is dict:
        item = typing.get_args(bare)[1]
        return ("dict", item) if sections(item) or _container(item) else None
    return None


def check(document: Document, section: type[T]) -> T | None:
    """The typed policy, or None with every problem in `document.problems`."""
    before = len(document.problems)
    result = _section(document, document.value, section, ())
    return result if len(document.problems) == before and before == 0 else None


@functools.cache
def _shape(section: type[Section]) -> tuple[dict[str, Any], dict[str, msgspec.structs.FieldInfo]]:
    """(annotations, fields by YAML name): a policy of a thousand endpoints asks for the same ones a thousand times."""
    hints = typing.get_type_hints(section, include_extras=True)
    return hints, {info.encode_name: info for info in msgspec.structs.fields(section)}


def _section(document: Document, value: Any, section: type[T], path: Path) -> T | None:
    if not isinstance(value, dict):
        document.complain(path, f"expected a mapping, found {_kind(value)}")
        return None
    before = len(document.problems)
    hints, fields = _shape(section)
    _read_exponents(document, value, section, path)
    meant: list[str] = []
    for key in value:
        if key not in fields:
            document.complain((*path, key), _unknown(key, list(fields)), key=True)
            meant += difflib.get_close_matches(key, list(fields), n=1, cutoff=0.6)
    for name, info in fields.items():
        here = (*path, name)
        if name not in value:
            if info.required and name not in meant:
                document.complain(path, f"`{name}` is missing")
            continue
        _value(document, value[name], hints[info.name], here)
    if len(document.problems) > before:
        return None
    try:
        return msgspec.convert(value, section)
    except msgspec.ValidationError as error:
        message, inner = _split(str(error))
        document.complain((*path, *inner), _plainly(message))
        return None


def _value(document: Document, value: Any, hint: Any, path: Path) -> None:
    inner = sections(hint)
    container = _container(hint)
    optional = _allows_none(hint)
    if value is None and optional:
        return
    if inner is not None and isinstance(value, dict):
        _section(document, value, inner, path)
    elif container is not None and container[0] == "list" and isinstance(value, list):
        for index, item in enumerate(value):
            _value(document, item, container[1], (*path, index))
    elif container is not None and container[0] == "dict" and isinstance(value, dict):
        for key, item in value.items():
            _value(document, item, container[1], (*path, key))
    else:
        try:
            msgspec.convert(value, hint)
        except msgspec.ValidationError as error:
            message, inner_path = _split(str(error))
            place = (*path, *inner_path)
            found = _found(value) if not inner_path else ""
            document.complain(
                place,
                _choice(message, value, hint, inner_path)
                or _plainly(message, _as_written(document, place, message) or found),
            )


def _read_exponents(document: Document, value: dict[str, Any], section: type[Section], path: Path) -> None:
    """Numbers such as `1e9`, which YAML 1.1 takes for text, become numbers where numbers are wanted."""
    hints, fields = _shape(section)
    for name, item in value.items():
        if name in fields:
            value[name] = _number(document, item, hints[fields[name].name], (*path, name))


def _number(document: Document, value: Any, hint: Any, path: Path) -> Any:
    bare = _bare(hint)
    if isinstance(value, str) and bare in (int, float) and path in document.written:
        number = float(value.replace("_", ""))
        if not math.isfinite(number):
            return value
        return int(number) if number.is_integer() and bare is int else number
    origin, arguments = typing.get_origin(bare), typing.get_args(bare)
    if isinstance(value, list) and origin in (list, tuple) and _bare(arguments[0]) in (int, float):
        return [_number(document, item, arguments[0], (*path, index)) for index, item in enumerate(value)]
    if isinstance(value, dict) and origin is dict and _bare(arguments[1]) in (int, float):
        return {key: _number(document, item, arguments[1], (*path, key)) for key, item in value.items()}
    return value


def _as_written(document: Document, path: Path, message: str) -> str:
    """What to write where text was wanted and YAML took the words for something else; "" elsewhere."""
    text = document.written.get(path)
    if text is None or not message.startswith("expected `str"):
        return ""
    return f", found {text}: write it in quotes to have it as text"


def _choice(message: str, value: Any, hint: Any, inner: Path) -> str:
    """The same for a word that is none of those allowed, with what is; "" for other mistakes."""
    if not message.startswith("invalid enum value"):
        return ""
    for part in inner:
        value = value[part] if isinstance(part, int) or part in value else value
    allowed = _words(hint)
    return f"{value!r} is none of {', '.join(allowed)}{nearest(str(value), allowed)}" if allowed else ""


def _words(hint: Any) -> list[str]:
    """All words that a literal type inside a hint allows."""
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is typing.Literal:
        return [str(word) for word in arguments]
    if typing.get_origin(hint) is typing.Annotated:
        arguments = arguments[:1]
    return list(dict.fromkeys(word for argument in arguments for word in _words(argument)))


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean ...?`, "" when nothing is near."""
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean `{found[0]}`?" if found else ""


def _allows_none(hint: Any) -> bool:
    if typing.get_origin(hint) is typing.Annotated:
        return _allows_none(typing.get_args(hint)[0])
    return typing.get_origin(hint) in (typing.Union, types.UnionType) and type(None) in typing.get_args(hint)


def _split(message: str) -> tuple[str, Path]:
    match = _AT.search(message)
    if match is None:
        return _lower(message), ()
    path: list[str | int] = []
    for index, name, quoted in _INDEX.findall(match["path"]):
        if index and index != "...":
            path.append(int(index))
        elif name or quoted:
            path.append(name or quoted[1:-1])
    return _lower(message[: match.start()]), tuple(path)


def _lower(message: str) -> str:
    return message[:1].lower() + message[1:]


def _plainly(message: str, found: str = "") -> str:
    """A message of msgspec's with types as people call them, and what was found."""
    expected, got, kind = message.partition(", got `")
    text = _TYPES.sub(_called, expected)
    return text + (found or (f", found {_called_one(kind.rstrip('`'))}" if got else ""))


def _called(match: re.Match[str]) -> str:
    names = [name for name in match[1].split(" | ") if name != "null"]
    return " or ".join(_called_one(name) for name in names)


def _called_one(name: str) -> str:
    return _CALLED.get(name, f"`{name}`")


def _found(value: Any) -> str:
    if isinstance(value, (dict, list)):
        return ""
    return f", found {value!r}" if len(repr(value)) <= 80 else f", found {repr(value)[:77]}..."


def _kind(value: Any) -> str:
    names = {dict: "a mapping", list: "a list", str: "text", bool: "true or false", int: "a number", float: "a number"}
    return "nothing" if value is None else names.get(type(value), type(value).__name__)


def _unknown(key: str, allowed: list[str]) -> str:
    hint = nearest(key, allowed) or f"; allowed are {', '.join(sorted(allowed))}"
    return f"unknown field `{key}`{hint}"
