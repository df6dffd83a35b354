"""Who may connect: TLS with files that are read again when they change, and bearer tokens."""

from __future__ import annotations

import hmac
import ipaddress
import os
import ssl
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import structlog

from xds_control.errors import ConfigError
from xds_control.policy.security import TlsFiles, no_password
from xds_control.policy.xds import XdsPolicy

log = structlog.get_logger("xds_control.xds")

_Mark = tuple[tuple[int, int, int], ...]


def _mark(*paths: str) -> _Mark:
    """Changes when one of the files does, also when it is replaced by renaming."""
    found = [os.stat(p) for p in paths]
    return tuple((s.st_mtime_ns, s.st_size, s.st_ino) for s in found)


def _read(path: str, what: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as problem:
        raise ConfigError(f"cannot read the {what} {path}: {problem.strerror}") from None


class TokenFile:
    """The bearer tokens that a file names, one a line; lines that begin with # are comments.

    Read again when the file changes; while it cannot be read, the last tokens hold. Raises ConfigError when it cannot
    be read at first or names no token.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._tokens = self._parse(_read(path, "token file"))
        if not self._tokens:
            raise ConfigError(f"the token file {path} names no token")
        self._seen = _mark(path)
        self._told = ""

    @staticmethod
    def _parse(raw: bytes) -> list[bytes]:
        lines = (line.strip() for line in raw.splitlines())
        return [line for line in lines if line and not line.startswith(b"#")]

    def accepts(self, authorization: str) -> bool:
        """Whether `Bearer TOKEN` names one of the tokens. Takes the same time for every wrong one of a length."""
        self._refresh()
        scheme, _, token = authorization.partition(" ")
        given = token.strip().encode("utf-8", "surrogateescape")  # headers may hold any bytes
        found = False
        for known in self._tokens:
            found |= hmac.compare_digest(given, known)
        return found and scheme.lower() == "bearer"

    def _refresh(self) -> None:
        try:
            mark = _mark(self._path)
            if mark == self._seen:
                return
            tokens = self._parse(_read(self._path, "token file"))
        except (OSError, ConfigError) as problem:
            if self._told != str(problem):  # once, not at every call
                self._told = str(problem)
                log.warning("xds.token_file_unreadable", path=self._path, error=self._told)
            return
        self._seen, self._told = mark, ""
        if tokens:
            self._tokens = tokens
            log.info("xds.tokens_reloaded", path=self._path, tokens=len(tokens))
        else:
            log.warning("xds.token_file_empty", path=self._path)


class TokenCheck(grpc.aio.ServerInterceptor):  # type: ignore[misc,unused-ignore]
    """Refuses every call without a valid token, whatever the service. `refused` is called for each."""

    def __init__(self, tokens: TokenFile, refused: Callable[[], None]) -> None:
        self._tokens = tokens
        self._refused = refused

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any) -> Any:
        for key, value in handler_call_details.invocation_metadata:
            if key == "authorization" and isinstance(value, str) and self._tokens.accepts(value):
                return await continuation(handler_call_details)
        self._refused()
        handler = await continuation(handler_call_details)
        return _refusal(handler)


def _refusal(handler: Any) -> Any:
    async def refuse(_: Any, context: Any) -> None:
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, "a valid bearer token is required")

    if handler is not None and not handler.request_streaming and not handler.response_streaming:
        return grpc.unary_unary_rpc_method_handler(refuse)
    if handler is not None and not handler.response_streaming:
        return grpc.stream_unary_rpc_method_handler(refuse)
    if handler is not None and not handler.request_streaming:
        return grpc.unary_stream_rpc_method_handler(refuse)
    return grpc.stream_stream_rpc_method_handler(refuse)


def _check_pair(tls: TlsFiles) -> None:
    """Raises ConfigError for files that are no certificate with its key: gRPC would say so only in its own log."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(tls.certificate_file, tls.key_file, no_password)
    except OSError as error:
        files = f"{tls.certificate_file} and {tls.key_file}"
        raise ConfigError(f"cannot use the certificate and key {files}: {error}") from None
    if tls.client_ca_file is not None:
        try:
            context.load_verify_locations(tls.client_ca_file)
        except OSError as error:
            raise ConfigError(f"cannot use the client authorities {tls.client_ca_file}: {error}") from None


def server_credentials(tls: TlsFiles) -> grpc.ServerCredentials:
    """TLS credentials that follow their files. Raises ConfigError when they cannot be read at first."""
    paths = [tls.certificate_file, tls.key_file]
    if tls.client_ca_file is not None:
        paths.append(tls.client_ca_file)

    def load() -> grpc.ServerCertificateConfiguration:
        chain = _read(tls.certificate_file, "certificate")
        key = _read(tls.key_file, "private key")
        roots = _read(tls.client_ca_file, "client authorities") if tls.client_ca_file is not None else None
        _check_pair(tls)
        return grpc.ssl_server_certificate_configuration([(key, chain)], root_certificates=roots)

    held = load()
    seen = _mark(*paths)
    told = ""

    def newest() -> grpc.ServerCertificateConfiguration:
        nonlocal held, seen, told
        try:
            mark = _mark(*paths)
            if mark != seen:
                held = load()
                seen, told = mark, ""
                log.info("xds.certificate_reloaded", path=tls.certificate_file)
        except (OSError, ConfigError) as problem:
            if told != str(problem):  # once, not at every connection
                told = str(problem)
                log.warning("xds.certificate_unreadable", error=told)
        return held

    return grpc.dynamic_ssl_server_credentials(
        held, newest, require_client_authentication=tls.client_ca_file is not None
    )


def check_exposure(address: str, options: XdsPolicy) -> None:
    """Raises ConfigError for a port that others can reach and anybody may use."""
    if options.insecure or is_local(address):
        return
    if options.tls is None:
        raise ConfigError(
            f"the xDS port {address} can be reached from elsewhere and has no TLS: set xds.tls and either "
            "xds.tls.client_ca_file or xds.token_file, listen on 127.0.0.1, or set xds.insecure: true"
        )
    if options.tls.client_ca_file is None and options.token_file is None:
        raise ConfigError(
            f"the xDS port {address} can be reached from elsewhere and anybody may use it: set xds.tls.client_ca_file "
            "(mTLS) or xds.token_file, or xds.insecure: true"
        )


def is_local(address: str) -> bool:
    """Whether an address to listen on cannot be reached from elsewhere."""
    if address.startswith(("unix:", "unix-abstract:")):
        return True
    host = address.rpartition(":")[0].strip("[]")
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
