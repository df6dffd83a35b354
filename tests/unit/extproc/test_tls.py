"""Certificates of the processors' port: self-signed, from files, changed while running, and not usable."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

from xds_control.errors import ConfigError
from xds_control.extproc.tls import Certificates, ServerTls

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")


def make(folder: Path, name: str) -> None:
    command = [
        *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
        *("-days", "2", "-subj", f"/CN={name}", "-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")),
    ]
    subprocess.run(command, check=True, capture_output=True, timeout=30)


async def shown(context: ssl.SSLContext) -> bytes:
    """The certificate (DER) that a client of a server with this context sees."""
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=context)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_mode = ssl.CERT_NONE
    _, writer = await asyncio.open_connection(*server.sockets[0].getsockname(), ssl=client)
    found = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    server.close()
    assert isinstance(found, bytes)
    return found


async def test_without_files_each_start_makes_its_own() -> None:
    first, second = Certificates(ServerTls()), Certificates(ServerTls())
    assert await shown(first.context) != await shown(second.context)
    assert not first.look()


async def test_files_that_change_are_taken_over_and_bad_ones_are_not(tmp_path: Path) -> None:
    make(tmp_path, "first")
    certificates = Certificates(ServerTls(str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")))
    first = await shown(certificates.context)
    assert not certificates.look()
    make(tmp_path, "second")
    assert certificates.look()
    second = await shown(certificates.context)
    assert b"second" in second
    assert second != first
    (tmp_path / "key.pem").write_text("nothing of use")
    assert not certificates.look()
    assert await shown(certificates.context) == second


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cert\.pem"):
        Certificates(ServerTls(str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")))
