"""Reads a policy file into a checked `Policy`."""

from __future__ import annotations

import errno
import hashlib
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any

import msgspec

from xds_control.errors import Place, PolicyError, Problem
from xds_control.policy.document import MAX_BYTES, Document, Path, path_text, read_document
from xds_control.policy.merge import merge
from xds_control.policy.schema import Policy, cross_check
from xds_control.policy.secrets import Lookup, expand, has_reference, hidden, look_up, with_references
from xds_control.policy.validate import check

Check = Callable[[Policy], None]
"""A check of a higher layer (rules that compile, say); raises PolicyError with YAML paths."""

Files = Sequence[tuple[str, str]]
"""(name, YAML text) of each file."""

SUFFIXES = (".yaml", ".yml")
MAX_FILES = 1_000


@dataclass(frozen=True, slots=True)
class Loaded:
    """A checked policy with what it was made of. references: where a secret stands in it, and how it was named.

    version: 12 hex digits of the hash of its effective content.
    """

    policy: Policy
    files: tuple[tuple[str, str], ...]
    references: Mapping[Path, str]
    version: str

    def shown(self) -> Any:
        """The effective policy as plain values, with references in place of secrets."""
        return with_references(msgspec.to_builtins(self.policy), self.references)


def load_policy(path: FilePath, checks: Sequence[Check] = ()) -> Policy:
    """The policy in the file, or in the YAML files of the folder, at `path`.

    Raises PolicyError with every problem found.
    """
    return load_files(read_files(path), checks).policy


def parse_policy(text: str | bytes, file: str | None = None, checks: Sequence[Check] = ()) -> Policy:
    """The policy in a YAML text. file: name for error messages. Raises PolicyError with every problem found."""
    return _checked(read_document(text, file), checks)[0]


def load_files(files: Files, checks: Sequence[Check] = (), lookup: Lookup = look_up) -> Loaded:
    """The policy in one or several YAML texts, merged. Raises PolicyError with every problem found."""
    if not files:
        raise PolicyError([Problem(Place(), "no policy file is given")])
    documents: list[Document] = []
    problems: list[Problem] = []
    for name, text in files:
        try:
            documents.append(read_document(text, name))
        except PolicyError as error:
            problems += error.problems
    if problems:
        raise PolicyError(problems)
    policy, references = _checked(merge(documents), checks, lookup)
    return Loaded(policy, tuple(files), references, policy_version(policy))


def read_files(path: FilePath, *, regular: bool = False) -> list[tuple[str, str]]:
    """The policy file at `path`, or the YAML files of a folder in the order of their names. Raises PolicyError.

    regular: nothing but files; reading a pipe could take for ever.
    """
    try:
        paths = sorted(one for one in path.iterdir() if one.suffix in SUFFIXES) if path.is_dir() else [path]
    except OSError as error:
        raise PolicyError([Problem(Place(str(path)), f"cannot be read: {error.strerror}")]) from None
    if not paths:
        raise PolicyError([Problem(Place(str(path)), f"the folder has no file that ends in {' or '.join(SUFFIXES)}")])
    if len(paths) > MAX_FILES:
        raise PolicyError([Problem(Place(str(path)), f"the folder has {len(paths)} files; {MAX_FILES} may be")])
    found: list[tuple[str, str]] = []
    problems: list[Problem] = []
    for one in paths:
        data = b""
        try:
            if regular and not stat.S_ISREG(one.stat().st_mode) and not one.is_dir():
                raise OSError(errno.EINVAL, "is not a regular file")
            with one.open("rb") as file:
                data = file.read(MAX_BYTES + 1)
            if len(data) > MAX_BYTES:
                problems.append(Problem(Place(str(one)), f"larger than {MAX_BYTES} bytes"))
                continue
            found.append((str(one), data.decode("utf-8-sig")))
        except OSError as error:
            problems.append(Problem(Place(str(one)), f"cannot be read: {error.strerror}"))
        except UnicodeDecodeError as error:
            problems.append(Problem(Place(str(one), data[: error.start].count(b"\n") + 1), "is not UTF-8"))
    if problems:
        raise PolicyError(problems)
    return found


def _checked(
    document: Document, checks: Sequence[Check], lookup: Lookup = look_up
) -> tuple[Policy, Mapping[Path, str]]:
    secrets = expand(document, lookup)
    unknown = len(document.problems)
    policy = check(document, Policy)
    if unknown:
        # a reference that stayed in its place is wrong in some other way too, which helps nobody
        rest = [problem for problem in document.problems[unknown:] if not has_reference(problem.message)]
        document.problems[unknown:] = rest
    if policy is not None:
        for path, message in cross_check(policy):
            document.complain(path, message)
        told = {problem.place.path for problem in document.problems}  # one problem a place is enough to begin with
        for further in checks:
            try:
                further(policy)
            except PolicyError as error:
                found = [_placed(problem, document) for problem in error.problems]
                document.problems += [problem for problem in found if problem.place.path not in told]
    if document.problems or policy is None:
        raise PolicyError(_in_order([hidden(problem, secrets) for problem in document.problems]))
    # one form for equal content (2 and 2.0), so that equal policies have equal versions everywhere
    return decode_policy(encode_policy(policy)), {path: reference for path, (reference, _value) in secrets.items()}


def policy_version(policy: Policy) -> str:
    """Version of a policy: 12 hex digits of the hash of its effective content."""
    return hashlib.sha256(encode_policy(policy)).hexdigest()[:12]


def encode_policy(policy: Policy) -> bytes:
    """The effective policy as JSON, the same bytes for the same content."""
    return msgspec.json.encode(policy, order="deterministic")


def decode_policy(data: bytes) -> Policy:
    """The policy in `encode_policy`'s bytes."""
    return msgspec.json.decode(data, type=Policy)


def _placed(problem: Problem, document: Document) -> Problem:
    """A problem that only knows its YAML path, with file, line and column."""
    if problem.place.line is not None:
        return problem
    known = {path_text(path): path for path in document.marks}
    wanted = problem.place.path
    nearest = wanted
    while nearest and nearest not in known:
        nearest = nearest[: max(nearest.rfind("."), nearest.rfind("["), 0)]
    place = document.place(known.get(nearest, ()))
    return Problem(Place(place.file, place.line, place.column, wanted), problem.message)


def _in_order(problems: list[Problem]) -> list[Problem]:
    return sorted(problems, key=lambda p: (p.place.file or "", p.place.line or 0, p.place.column or 0))
