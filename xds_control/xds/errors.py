"""What this package raises on purpose."""

from __future__ import annotations

from dataclasses import dataclass

from xds_control.errors import XdsControlError


@dataclass(frozen=True, slots=True)
class Invalid:
    """One thing that a client would reject: the resource's type and name, and what is wrong with it."""

    type_url: str
    name: str
    message: str

    def __str__(self) -> str:
        return f"{self.type_url.rpartition('.')[2]} {self.name!r}: {self.message}"


class InvalidResource(XdsControlError):
    """A resource that clients would reject. Nothing was changed: the last good version stays.

    problems: everything found, in the order of the resources. name: the first resource's name.
    """

    code = "xds-resource-invalid"
    grpc_status = "INVALID_ARGUMENT"
    http_status = 400

    def __init__(self, problems: list[Invalid]) -> None:
        super().__init__("; ".join(str(p) for p in problems))
        self.problems = problems
        self.name = problems[0].name
        self.type_url = problems[0].type_url


class StreamEnd(XdsControlError):
    """The protocol demands that this stream ends. `status` is the gRPC status name the client sees."""

    code = "xds-stream-ended"

    def __init__(self, status: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.grpc_status = status
