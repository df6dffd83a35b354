"""References to secrets in a policy: `${env:NAME}` and `${file:/path}` inside any text. They are never printed back."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from xds_control.errors import Problem
from xds_control.policy.document import Document, Path

Lookup = Callable[[str, str], str]
"""(env or file, name) → value. Raises ValueError with a sentence that does not hold the value."""

MAX_BYTES: Final = 65_536
_REFERENCE: Final = re.compile(r"\$\{(env|file):([^{}]+)\}")


def look_up(kind: str, name: str) -> str:
    """The value of an environment variable, or the content of a file without the newline at its end."""
    if kind == "env":
        value = os.environ.get(name)
        if value is None:
            raise ValueError(f"the environment variable {name} is not set")
        return value
    if not os.path.isabs(name):
        raise ValueError(f"the file {name} needs an absolute path")
    try:
        with open(name, encoding="utf-8") as file:
            text = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ValueError(f"the file {name} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"the file {name} is not UTF-8") from None
    if len(text) > MAX_BYTES:
        raise ValueError(f"the file {name} is larger than {MAX_BYTES} bytes")
    return text.rstrip("\r\n")


def expand(document: Document, lookup: Lookup = look_up) -> dict[Path, tuple[str, str]]:
    """Puts the values in place of their references; path → (text with references, text with values)."""
    found: dict[Path, tuple[str, str]] = {}
    document.value = _expanded(document, document.value, (), lookup, found)
    return found


def has_reference(text: str) -> bool:
    """Whether a reference stands in a text."""
    return _REFERENCE.search(text) is not None


def hidden(problem: Problem, secrets: Mapping[Path, tuple[str, str]]) -> Problem:
    """The problem without any secret in its words."""
    message = problem.message
    for reference, value in secrets.values():
        if value:
            message = message.replace(value, reference)
    return problem if message == problem.message else Problem(problem.place, message)


def with_references(value: Any, references: Mapping[Path, str]) -> Any:
    """Plain values with references in place of what stands there."""
    for path, reference in references.items():
        parent = value
        for part in path[:-1]:
            parent = parent[part]
        parent[path[-1]] = reference
    return value


def _expanded(document: Document, value: Any, path: Path, lookup: Lookup, found: dict[Path, tuple[str, str]]) -> Any:
    if isinstance(value, dict):
        return {key: _expanded(document, item, (*path, key), lookup, found) for key, item in value.items()}
    if isinstance(value, list):
        return [_expanded(document, item, (*path, i), lookup, found) for i, item in enumerate(value)]
    if not isinstance(value, str) or "${" not in value:
        return value

    def replaced(match: re.Match[str]) -> str:
        try:
            return lookup(match[1], match[2])
        except ValueError as error:
            document.complain(path, str(error))
            return match[0]

    text = _REFERENCE.sub(replaced, value)
    if text != value:
        found[path] = (value, text)
    return text
