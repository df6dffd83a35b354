"""The one error tree. Each class carries a stable code that reaches the client.

A code is a lower-case, dash-separated word; it is what appears in logs, in the
`x-xds-control-reason` header, in gRPC error details and in the reference page,
and it never changes meaning. Subclasses live where they are raised.
"""

from __future__ import annotations

from dataclasses import dataclass


class XdsControlError(Exception):
    """Anything that this product raises on purpose.

    code: stable identifier. grpc_status: name of the gRPC status it becomes at an edge.
    http_status: HTTP status it becomes at an edge.
    """

    code: str = "internal"
    grpc_status: str = "INTERNAL"
    http_status: int = 500


@dataclass(frozen=True, slots=True)
class Place:
    """Where in the user's input something is wrong.

    file: path as the user gave it, or None. line and column count from 1, or None when unknown.
    path: YAML path such as `pools[0].endpoints[1].address`, "" for the whole document.
    """

    file: str | None = None
    line: int | None = None
    column: int | None = None
    path: str = ""

    def __str__(self) -> str:
        where = self.file or "<policy>"
        if self.line is not None:
            where += f":{self.line}"
            if self.column is not None:
                where += f":{self.column}"
        return f"{where}: {self.path}" if self.path else where


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a policy: where, what was found, what is allowed."""

    place: Place
    message: str

    def __str__(self) -> str:
        return f"{self.place}: {self.message}"


class PolicyError(XdsControlError):
    """A policy cannot be used. `problems` lists everything found, in file order."""

    code = "policy-invalid"
    grpc_status = "INVALID_ARGUMENT"
    http_status = 400

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("\n".join(str(p) for p in problems))
        self.problems = problems


class ConfigError(XdsControlError):
    """The process was started with options that cannot work (a port in use, a missing file)."""

    code = "config-invalid"
    grpc_status = "FAILED_PRECONDITION"
