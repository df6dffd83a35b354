"""A YAML text as plain values plus the place of each value, so that errors can name it."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any

import yaml

from xds_control.errors import Place, PolicyError, Problem

Path = tuple[str | int, ...]
MAX_BYTES = 8 * 1024 * 1024
MAX_NODES = 500_000
MAX_DEPTH = 100

_EXPONENT = re.compile(r"[-+]?(\d[\d_]*(\.[\d_]*)?|\.\d[\d_]*)[eE][-+]?\d+\Z")
_OCTAL_OR_BASE_60 = re.compile(r"[-+]?(0[0-7_]+|\d[\d_]*(:[0-5]?\d)+)\Z")


def path_text(path: Path) -> str:
    """`("pools", 0, "name")` as `pools[0].name`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else (f".{part}" if text else part)
    return text


@dataclass(slots=True)
class Document:
    """value: plain Python values. marks: path → (line, column) of the value, keys: of its key; both from 1.

    owners: path → file, where the document was merged out of several. written: path → text of a value without quotes
    that YAML 1.1 reads as something else than people may mean by it: `1e9` is text, `on` is true, `010` is eight.
    """

    value: Any
    file: str | None = None
    marks: dict[Path, tuple[int, int]] = field(default_factory=dict)
    keys: dict[Path, tuple[int, int]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    owners: dict[Path, str | None] = field(default_factory=dict)
    written: dict[Path, str] = field(default_factory=dict)

    def place(self, path: Path, *, key: bool = False) -> Place:
        """The place of a value (or of its key); of the nearest parent that is in the text when it is not."""
        known = path
        while known:
            mark = (self.keys.get(known) if key else None) or self.marks.get(known)
            if mark is not None:
                return Place(self.owners.get(known, self.file), mark[0], mark[1], path_text(path))
            known = known[:-1]
        return Place(self.file, 1, 1, path_text(path))

    def complain(self, path: Path, message: str, *, key: bool = False) -> None:
        self.problems.append(Problem(self.place(path, key=key), message))


class _Walk:
    """Turns composed nodes into values. Bounded in nodes, because aliases can multiply."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.left = MAX_NODES
        self.constructor = yaml.constructor.SafeConstructor()

    def value(self, node: yaml.Node, path: Path) -> Any:
        self.left -= 1
        if self.left < 0:
            raise PolicyError(
                [Problem(self.document.place(path[:1]), f"more than {MAX_NODES} values (aliases count each time)")]
            )
        if len(path) > MAX_DEPTH:
            raise PolicyError([Problem(self.document.place(path[:1]), f"nested deeper than {MAX_DEPTH} levels")])
        self.document.marks[path] = (node.start_mark.line + 1, node.start_mark.column + 1)
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(child, (*path, index)) for index, child in enumerate(node.value)]
        try:
            value = self.constructor.construct_object(node)
            if (
                isinstance(node, yaml.ScalarNode)
                and node.style is None
                and (not isinstance(value, str) or _EXPONENT.match(value))
            ):
                self.document.written[path] = node.value
            if isinstance(value, int) and _OCTAL_OR_BASE_60.match(node.value):
                self.document.complain(
                    path, f"YAML reads {node.value} as {value}: write {value}, or '{node.value}' in quotes for text"
                )
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError(f"{node.value} is not a finite number")
            return value
        except (yaml.YAMLError, ValueError, OverflowError) as error:
            self.document.complain(path, f"cannot be read: {error}")
            return None

    def mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        try:
            self.constructor.flatten_mapping(node)  # resolves `<<` merges
        except yaml.YAMLError as error:
            self.document.complain(path, f"bad merge: {error}")
            return {}
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
            if key is None:
                self.document.complain(path, "a key has to be plain text")
                continue
            here = (*path, key)
            mark = (key_node.start_mark.line + 1, key_node.start_mark.column + 1)
            first = self.document.keys.get(here)
            self.document.keys[here] = mark
            # a key that came by `<<` stands elsewhere in the text and may be overridden
            if key in result and _inside(node, mark) and first is not None and _inside(node, first):
                self.document.complain(here, f"{key!r} appears twice (first on line {first[0]})", key=True)
            result[key] = self.value(value_node, here)
        return result


def _inside(node: yaml.Node, mark: tuple[int, int]) -> bool:
    start, end = node.start_mark, node.end_mark
    return (start.line + 1, start.column + 1) <= mark <= (end.line + 1, end.column + 1)


def read_document(text: str | bytes, file: str | None = None) -> Document:
    """Reads one YAML document.

    Raises PolicyError when the text is not YAML, holds several documents, or is larger than 8 MiB.
    Duplicate keys and unreadable scalars are collected in `problems`.
    """
    document = Document(None, file)
    if len(text) > MAX_BYTES:
        raise PolicyError([Problem(Place(file), f"larger than {MAX_BYTES} bytes")])
    if isinstance(text, bytes):
        raw = text
        try:
            text = raw.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = raw[: error.start].count(b"\n") + 1
            raise PolicyError([Problem(Place(file, line), "is not UTF-8")]) from None
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except RecursionError:
        raise PolicyError([Problem(Place(file), f"nested deeper than {MAX_DEPTH} levels")]) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = Place(file, mark.line + 1, mark.column + 1) if mark else Place(file)
        words = " ".join(part for part in (error.context, error.problem) if part)
        raise PolicyError([Problem(place, f"is not YAML: {words}")]) from None
    except yaml.reader.ReaderError as error:
        line = text[: error.position].count("\n") + 1
        raise PolicyError([Problem(Place(file, line), f"is not YAML: {error.reason}")]) from None
    if node is None:
        document.value = {}
        return document
    document.value = _Walk(document).value(node, ())
    return document
