"""TLS of the port that data planes call: certificates from files that may change, or a self-signed one."""

from __future__ import annotations

import asyncio
import os
import ssl
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from xds_control.errors import ConfigError
from xds_control.observe.logs import logger
from xds_control.policy.security import no_password

LOOK_S = 30.0
_DAYS = 3650
_OPENSSL_S = 30


@dataclass(frozen=True, slots=True)
class ServerTls:
    """PEM files of the server's certificate chain and key; without them a self-signed certificate is made."""

    certificate_file: str | None = None
    key_file: str | None = None


class Certificates:
    """The TLS context of a server. Raises ConfigError when the certificate cannot be had."""

    def __init__(self, tls: ServerTls) -> None:
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._log = logger("processor.tls")
        self._files: tuple[str, str] | None = None
        self._seen: object = None
        if tls.certificate_file is None or tls.key_file is None:
            _load_self_signed(self.context)
            return
        self._files = (tls.certificate_file, tls.key_file)
        try:
            self._seen = self._mark()
            self.context.load_cert_chain(*self._files, no_password)
        except OSError as error:
            files = " and ".join(self._files)
            raise ConfigError(f"cannot use the certificate and key {files}: {error}") from None

    def look(self) -> bool:
        """Takes over files that changed, for connections from now on; whether it did. Bad ones leave the last."""
        if self._files is None:
            return False
        try:
            mark = self._mark()
            if mark == self._seen:
                return False
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
                *self._files, no_password
            )  # a pair that fits, or an error
            self.context.load_cert_chain(*self._files, no_password)
        except OSError as error:
            self._log.warning("certificate-not-usable", file=self._files[0], error=str(error))
            return False
        self._seen = mark
        self._log.info("certificate-reloaded", file=self._files[0])
        return True

    async def follow(self) -> None:
        """Looks again and again, until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            self.look()

    def _mark(self) -> object:
        assert self._files is not None
        found = [os.stat(path) for path in self._files]
        return [(one.st_mtime_ns, one.st_size, one.st_ino) for one in found]


def _load_self_signed(context: ssl.SSLContext) -> None:
    with tempfile.TemporaryDirectory(prefix="xds-control-tls-") as folder:
        certificate, key = Path(folder) / "cert.pem", Path(folder) / "key.pem"
        command = [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-days", str(_DAYS), "-subj", "/CN=xds-control", "-addext", "subjectAltName=DNS:localhost"),
            *("-keyout", str(key), "-out", str(certificate)),
        ]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_OPENSSL_S, check=False)
        except OSError as error:
            raise ConfigError(f"a self-signed certificate needs `openssl`: {error}") from None
        except subprocess.TimeoutExpired:
            raise ConfigError(f"openssl made no certificate within {_OPENSSL_S} s") from None
        if done.returncode != 0:
            raise ConfigError(f"openssl made no certificate: {done.stderr.strip()[-300:]}")
        context.load_cert_chain(certificate, key)
