"""Reads a policy file into a checked `Policy`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from xds_control.errors import Place, PolicyError, Problem
from xds_control.policy.document import Document, path_text, read_document
from xds_control.policy.schema import Policy, cross_check
from xds_control.policy.validate import check


Check = Callable[[Policy], None]
"""A check of a higher layer (rules that compile, say); raises PolicyError with YAML paths."""


def load_policy(path: Path, checks: Sequence[Check] = ()) -> Policy:
    """The policy in the file at `path`. Raises PolicyError with every problem found."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise PolicyError([Problem(Place(str(path)), f"cannot be read: {error.strerror}")]) from None
    return parse_policy(data, str(path), checks)


def parse_policy(text: str | bytes, file: str | None = None, checks: Sequence[Check] = ()) -> Policy:
    """The policy in a YAML text. file: name for error messages. Raises PolicyError with every problem found."""
    document = read_document(text, file)
    policy = check(document, Policy)
    if policy is None:
        raise PolicyError(_in_order(document.problems))
    for path, message in cross_check(policy):
        document.complain(path, message)
    for further in checks:
        try:
            further(policy)
        except PolicyError as error:
            document.problems += [_placed(problem, document) for problem in error.problems]
    if document.problems:
        raise PolicyError(_in_order(document.problems))
    # one form for equal content (2 and 2.0), so that equal policies have equal versions everywhere
    return decode_policy(encode_policy(policy))


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
    return sorted(problems, key=lambda p: (p.place.line or 0, p.place.column or 0))
