"""Several policy documents as one: mappings are joined, the long lists appended, everything else said only once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from xds_control.errors import Problem
from xds_control.policy.document import Document, Path

APPENDED: Final = frozenset({("pools",), ("routing", "rules"), ("routing", "models")})
"""Lists to which each file may add, in the order of the files."""

REPEATED: Final = frozenset({("version",)})
"""Values that each file may say, the same in all."""


def merge(documents: Sequence[Document]) -> Document:
    """One document with the places of all; conflicts are among its problems."""
    if len(documents) == 1:
        return documents[0]
    merged = Document({}, documents[0].file)
    for document in documents:
        merged.problems += document.problems
        if not isinstance(document.value, dict):
            merged.problems.append(Problem(document.place(()), "expected a mapping"))
            continue
        _join(merged, merged.value, document, document.value, ())
    return merged


def _join(merged: Document, into: dict[str, Any], source: Document, values: dict[str, Any], path: Path) -> None:
    for key, value in values.items():
        here = (*path, key)
        held = into.get(key)
        if key not in into or held is None:
            into[key] = _copied(merged, source, value, here, here)
        elif isinstance(held, dict) and isinstance(value, dict):
            _join(merged, held, source, value, here)
        elif here in APPENDED and isinstance(held, list) and isinstance(value, list):
            start = len(held)
            for index, item in enumerate(value):
                held.append(_copied(merged, source, item, (*here, start + index), (*here, index)))
        elif value is not None and not (here in REPEATED and held == value):
            first = merged.place(here, key=True)
            message = f"set in {first.file}:{first.line} already; say it in one file only"
            merged.problems.append(Problem(source.place(here, key=True), message))


def _copied(merged: Document, source: Document, value: Any, path: Path, at: Path) -> Any:
    for marks, found in ((merged.marks, source.marks), (merged.keys, source.keys)):
        mark = found.get(at)
        if mark is not None:
            marks[path] = mark
            merged.owners[path] = source.file
    if at in source.written:
        merged.written[path] = source.written[at]
    if isinstance(value, dict):
        return {key: _copied(merged, source, item, (*path, key), (*at, key)) for key, item in value.items()}
    if isinstance(value, list):
        return [_copied(merged, source, item, (*path, i), (*at, i)) for i, item in enumerate(value)]
    return value
