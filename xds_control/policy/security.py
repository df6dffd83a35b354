"""Who may connect to control's own ports, and how."""

from __future__ import annotations

from typing import Annotated, Literal

from xds_control.policy.base import Section, meta

RoleName = Literal["view", "operate", "admin"]


def no_password() -> str:
    """For `ssl`, which would ask for the password of a key on the terminal and wait. Raises OSError."""
    raise OSError("the key is protected by a password; give one without")


class TlsFiles(Section, frozen=True):
    """TLS of a port. Files are read again when they change, without a restart."""

    certificate_file: Annotated[str, meta("PEM file with the server's certificate chain", min_length=1)]
    key_file: Annotated[str, meta("PEM file with the server's private key", min_length=1)]
    client_ca_file: Annotated[
        str | None, meta("PEM file with the authorities of client certificates; set, clients must show one (mTLS)")
    ] = None


class AdminToken(Section, frozen=True):
    """A bearer token and what it allows."""

    name: Annotated[
        str, meta("who it belongs to, for events and the audit", min_length=1, max_length=64, example="on-call")
    ]
    role: Annotated[
        RoleName, meta("view: look; operate: also drain, pin, eject; admin: also push policies and set the log level")
    ]
    file: Annotated[
        str,
        meta(
            "file with the token; one a line, so that it can be rotated; read again when it changes",
            min_length=1,
            example="/etc/xds-control/on-call.token",
        ),
    ]


class AdminSecurity(Section, frozen=True):
    """Security of the admin port. Without tokens everybody who reaches it may do everything."""

    tls: Annotated[TlsFiles | None, meta("TLS of the port, none = plain text, on loopback and Unix sockets only")] = (
        None
    )
    tokens: Annotated[tuple[AdminToken, ...], meta("who may call; empty on loopback: every user of this machine")] = ()
    certificate_role: Annotated[RoleName, meta("what a caller may do that shows a client certificate and no token")] = (
        "view"
    )
    max_failures_per_minute: Annotated[
        int, meta("wrong tokens from one address within a minute, beyond which it is refused unheard", ge=1, le=10_000)
    ] = 10

    def __post_init__(self) -> None:
        names = [token.name for token in self.tokens]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two tokens are named {name!r}")


class FleetClientTls(Section, frozen=True):
    """How the processors that `serve` starts reach the fleet port."""

    ca_file: Annotated[str, meta("PEM file with the authorities to trust", min_length=1)]
    certificate_file: Annotated[str | None, meta("PEM file with the processors' own certificate, for mTLS")] = None
    key_file: Annotated[str | None, meta("PEM file with its key")] = None
    server_name: Annotated[str | None, meta("name in the server's certificate, when it is not the address")] = None

    def __post_init__(self) -> None:
        if (self.certificate_file is None) != (self.key_file is None):
            raise ValueError("certificate_file and key_file belong together: give both or neither")


class FleetSecurity(Section, frozen=True):
    """Security of the fleet port: processors, agents and engines."""

    client: Annotated[FleetClientTls | None, meta("TLS of the processors that `serve` starts, with `tls`")] = None

    tls: Annotated[TlsFiles | None, meta("TLS of the port, none = plain text")] = None
    token_file: Annotated[
        str | None, meta("file with the bearer token that callers must send; one a line; read again when it changes")
    ] = None
    insecure: Annotated[
        bool, meta("allow a port that others can reach without TLS, or with TLS that lets everybody in")
    ] = False
