"""Certificates of the processors' port: self-signed, from files, changed while running, and not usable."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from xds_control.errors import ConfigError
from xds_control.extproc.tls import Certificates, ServerTls
from xds_control.policy.signals import ScrapeTlsPolicy
from xds_control.signals.fetch import tls_context

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


@pytest.mark.parametrize(
    "damage",
    [
        lambda one: one.write_bytes(b"\xff\x00" * 100),
        lambda one: one.write_bytes(b""),
        lambda one: one.write_bytes(one.read_bytes()[:-60]),
        lambda one: one.unlink(),
        lambda one: (one.unlink(), one.mkdir()),
        lambda one: (one.unlink(), one.symlink_to(one)),
    ],
)
@pytest.mark.parametrize("name", ["cert.pem", "key.pem"])
async def test_whatever_becomes_of_the_files_the_last_pair_serves(
    tmp_path: Path, name: str, damage: Callable[[Path], object]
) -> None:
    make(tmp_path, "first")
    certificates = Certificates(ServerTls(str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")))
    first = await shown(certificates.context)
    damage(tmp_path / name)
    assert not certificates.look()
    assert await shown(certificates.context) == first


def test_a_key_with_a_password_is_refused_and_nobody_asked(tmp_path: Path) -> None:
    make(tmp_path, "first")
    certificates = Certificates(ServerTls(str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")))
    key = tmp_path / "key.pem"
    subprocess.run(
        ["openssl", "ec", "-in", str(key), "-aes256", "-passout", "pass:abc", "-out", str(tmp_path / "locked.pem")],
        check=True,
        capture_output=True,
        timeout=30,
    )
    key.write_bytes((tmp_path / "locked.pem").read_bytes())
    assert not certificates.look()
    with pytest.raises(ConfigError, match="protected by a password"):
        Certificates(ServerTls(str(tmp_path / "cert.pem"), str(key)))
    scraper = ScrapeTlsPolicy(cert_file=str(tmp_path / "cert.pem"), key_file=str(key))
    with pytest.raises(ConfigError, match="protected by a password"):
        tls_context(scraper)


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cert\.pem"):
        Certificates(ServerTls(str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")))


def test_an_openssl_that_hangs_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **_: object) -> None:
        raise subprocess.TimeoutExpired(command, 30)

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(ConfigError, match="within 30 s"):
        Certificates(ServerTls())
