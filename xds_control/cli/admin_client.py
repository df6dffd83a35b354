"""The line from a command to control's admin service, and what is said when it does not work.

Exit codes of all commands: 0 done, 1 failed, 2 wrong input (also a name that does not exist), 3 control is not
reachable or not ready, 4 not allowed.
"""

from __future__ import annotations

import functools
import getpass
import ipaddress
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click
import grpc

from xds_control.admin.keys import CODE_KEY, USER_KEY
from xds_control.cli.harmless import harmless, make_harmless
from xds_control.cli.options import EXISTING_FILE, EXIT_BAD_INPUT, EXIT_FAILED, EXIT_UNREACHABLE, fail
from xds_control.cli.output import Duration
from xds_control.proto import admin_pb2_grpc

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_SERVER = "127.0.0.1:18002"
EXIT_NOT_ALLOWED = 4
MAX_MESSAGE = 64 * 1024 * 1024

_EXITS = {
    grpc.StatusCode.INVALID_ARGUMENT: EXIT_BAD_INPUT,
    grpc.StatusCode.NOT_FOUND: EXIT_BAD_INPUT,
    grpc.StatusCode.UNAVAILABLE: EXIT_UNREACHABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED: EXIT_UNREACHABLE,
    grpc.StatusCode.UNAUTHENTICATED: EXIT_NOT_ALLOWED,
    grpc.StatusCode.PERMISSION_DENIED: EXIT_NOT_ALLOWED,
}


class AdminClient:
    """Calls the admin service; a call that fails ends the command with a message and an exit code.

    server: `host:port` or `unix:/path`. timeout_s: of one call. ca_file, cert_file, key_file: TLS. token: bearer token.
    """

    def __init__(
        self,
        server: str,
        timeout_s: float = 10.0,
        ca_file: Path | None = None,
        cert_file: Path | None = None,
        key_file: Path | None = None,
        token: str = "",
    ) -> None:
        self.server = server
        self._timeout_s = timeout_s
        self._metadata = [(USER_KEY, _user())]
        tls = bool(ca_file or cert_file or key_file)
        if token:
            if not tls and not is_local(server):
                raise click.UsageError(f"a token is only sent over TLS: give --ca to reach {server} (see --help)")
            self._metadata.append(("authorization", f"Bearer {token}"))
        options = [
            ("grpc.max_receive_message_length", MAX_MESSAGE),
            ("grpc.max_send_message_length", MAX_MESSAGE),
            ("grpc.enable_http_proxy", 0),
        ]
        if tls:
            credentials = grpc.ssl_channel_credentials(_bytes(ca_file), _bytes(key_file), _bytes(cert_file))
            self._channel = grpc.secure_channel(server, credentials, options=options)
        else:
            self._channel = grpc.insecure_channel(server, options=options)
        self.stub: Any = admin_pb2_grpc.AdminStub(self._channel)  # type: ignore[no-untyped-call]

    def close(self) -> None:
        """Ends the connection."""
        self._channel.close()

    def call(self, method: str, request: Any) -> Any:
        """The answer to one call."""
        with self.errors():
            return self.ask(method, request)

    def ask(self, method: str, request: Any) -> Any:
        """The same, but an error is raised as grpc.RpcError."""
        return make_harmless(getattr(self.stub, method)(request, timeout=self._timeout_s, metadata=self._metadata))

    def only(self, found: Sequence[Any]) -> Any:
        """The one thing that was asked for."""
        if len(found) != 1:
            self.senseless(f"{len(found)} things where one was asked for")
        return found[0]

    def senseless(self, what: str) -> NoReturn:
        """Ends the command because an answer makes no sense."""
        fail(f"control at {self.server} answered {what}; is it another version, or another program?", EXIT_FAILED)

    def stream(self, method: str, request: Any) -> Iterator[Any]:
        """The answers of a stream, without end."""
        with self.errors():
            yield from map(make_harmless, getattr(self.stub, method)(request, metadata=self._metadata))

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turns an error of a call into a message and an exit."""
        try:
            yield
        except grpc.RpcError as error:
            self._fail(error)

    def _fail(self, error: Any) -> NoReturn:
        status = error.code()
        codes = [harmless(str(value)) for key, value in error.trailing_metadata() or () if key == CODE_KEY]
        details = harmless(error.details() or "")
        if codes:
            fail(f"{details} [{codes[0]}]", _EXITS.get(status, EXIT_FAILED))
        if status is grpc.StatusCode.UNAVAILABLE:
            fail(
                f"control is not reachable at {self.server}: {_short(details)}\n"
                "Is it running (`xds-control serve`)? Its admin address is `control.admin` in the policy; name another "
                "with --server or XDS_CONTROL_ADMIN. Where it wants TLS, give --ca.",
                EXIT_UNREACHABLE,
            )
        if status is grpc.StatusCode.DEADLINE_EXCEEDED:
            fail(f"control at {self.server} did not answer in {self._timeout_s:g} s (see --timeout)", EXIT_UNREACHABLE)
        if status is grpc.StatusCode.UNAUTHENTICATED:
            fail(
                f"control at {self.server} wants a token: {details} (XDS_CONTROL_TOKEN or --token-file)",
                EXIT_NOT_ALLOWED,
            )
        if status is grpc.StatusCode.PERMISSION_DENIED:
            fail(f"not allowed: {details}", EXIT_NOT_ALLOWED)
        if status is grpc.StatusCode.UNIMPLEMENTED:
            fail(f"control at {self.server} does not offer this call; is it an older version?", EXIT_FAILED)
        fail(f"{status.name.lower()}: {details}", _EXITS.get(status, EXIT_FAILED))


def admin_options(command: F) -> F:
    """Adds the connection options; the command gets an open `AdminClient` as `client`."""

    @click.option(
        "--server",
        "-s",
        envvar="XDS_CONTROL_ADMIN",
        default=DEFAULT_SERVER,
        show_default=True,
        show_envvar=True,
        help="Admin address of control: host:port, or unix:/path.",
    )
    @click.option("--timeout", type=Duration(), default="10s", show_default=True, help="Longest wait for one answer.")
    @click.option("--ca", type=EXISTING_FILE, envvar="XDS_CONTROL_CA", help="CA file: TLS.")
    @click.option("--cert", type=EXISTING_FILE, help="Own certificate, for mutual TLS.")
    @click.option("--key", type=EXISTING_FILE, help="Key of the own certificate.")
    @click.option(
        "--token-file",
        type=EXISTING_FILE,
        envvar="XDS_CONTROL_TOKEN_FILE",
        help="File with the bearer token; or set XDS_CONTROL_TOKEN.",
    )
    @functools.wraps(command)
    def run(
        *args: Any,
        server: str,
        timeout: float,
        ca: Path | None,
        cert: Path | None,
        key: Path | None,
        token_file: Path | None,
        **options: Any,
    ) -> Any:
        token = token_file.read_text().strip() if token_file else os.environ.get("XDS_CONTROL_TOKEN", "").strip()
        client = AdminClient(server, timeout, ca, cert, key, token)
        try:
            return command(*args, client=client, **options)
        except KeyboardInterrupt:
            return None
        except BrokenPipeError:
            # The reader of a pipe has enough; without this, Python would complain when it flushes at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return None
        finally:
            client.close()

    return run  # type: ignore[return-value]


def is_local(server: str) -> bool:
    """Whether an address cannot leave this machine."""
    if server.startswith("unix:"):
        return True
    host = server.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _bytes(path: Path | None) -> bytes | None:
    return None if path is None else path.read_bytes()


def _user() -> str:
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = f"uid {os.getuid()}"
    return name if name.isascii() and name.isprintable() else "unnamed"


def _short(details: str) -> str:
    """The part of gRPC's text that tells people something."""
    for words in (
        "Connection refused",
        "No such file or directory",
        "DNS resolution failed",
        "Name or service not known",
    ):
        if words.lower() in details.lower():
            return words.lower()
    if "handshake" in details.lower() or "ssl" in details.lower() or "certificate" in details.lower():
        return "the TLS handshake failed"
    return details.splitlines()[0][:200] if details else "no answer"
