"""`certs init`: a development authority, certificates and tokens."""

from __future__ import annotations

import ipaddress
import os
import secrets
import shutil
import subprocess
import tempfile
from pathlib import Path

import click

from xds_control.cli.lazy import LazyGroup
from xds_control.cli.options import EXIT_BAD_INPUT, EXIT_FAILED, fail

KEY = ("ec", "-pkeyopt", "ec_paramgen_curve:P-256")
OPENSSL_S = 60


@click.group(cls=LazyGroup)
def certs() -> None:
    """Make certificates to try TLS with."""


@certs.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--name",
    "names",
    multiple=True,
    default=("localhost", "127.0.0.1", "::1"),
    show_default=True,
    help="Host name or IP address of the server's certificate; may be repeated.",
)
@click.option("--days", default=30, show_default=True, type=click.IntRange(1, 825), help="How long they are good for.")
@click.option("--force", is_flag=True, help="Replace what is in the folder.")
def init(folder: Path, names: tuple[str, ...], days: int, force: bool) -> None:
    """Make a development authority with a server's and a client's certificate and tokens in FOLDER.

    Not for production: the authority's key lies beside the certificates. Needs `openssl`.

    Example: xds-control certs init ./certs --name control.internal
    """
    if shutil.which("openssl") is None:
        fail("`openssl` is not on PATH: install it, or use certificates that you have", EXIT_FAILED)
    if (folder / "ca.pem").exists() and not force:
        fail(f"{folder}/ca.pem exists already; --force replaces it", EXIT_BAD_INPUT)
    folder.mkdir(parents=True, exist_ok=True)
    before = os.umask(0o077)
    try:
        with tempfile.TemporaryDirectory() as scratch:
            _authority(folder, days)
            _signed(folder, Path(scratch), "server", "xds-control server", names, "serverAuth", days)
            _signed(folder, Path(scratch), "client", "xds-control client", (), "clientAuth", days)
        for role in ("view", "operate", "admin", "fleet"):
            (folder / f"{role}.token").write_text(secrets.token_urlsafe(32) + "\n")
    finally:
        os.umask(before)
    click.echo(_advice(folder.resolve()))


def _authority(folder: Path, days: int) -> None:
    _openssl(
        *("req", "-x509", "-newkey", *KEY, "-nodes", "-days", str(days), "-subj", "/CN=xds-control development CA"),
        *("-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign,cRLSign"),
        *("-keyout", str(folder / "ca.key"), "-out", str(folder / "ca.pem")),
    )


def _signed(folder: Path, scratch: Path, name: str, common: str, names: tuple[str, ...], usage: str, days: int) -> None:
    request, extensions = scratch / f"{name}.csr", scratch / f"{name}.ext"
    lines = ["basicConstraints=CA:FALSE", "keyUsage=digitalSignature", f"extendedKeyUsage={usage}"]
    if names:
        lines.append("subjectAltName=" + ",".join(map(_alternative, names)))
    extensions.write_text("\n".join(lines) + "\n")
    _openssl(
        *("req", "-newkey", *KEY, "-nodes", "-subj", f"/CN={common}"),
        *("-keyout", str(folder / f"{name}.key"), "-out", str(request)),
    )
    _openssl(
        *("x509", "-req", "-in", str(request), "-CA", str(folder / "ca.pem"), "-CAkey", str(folder / "ca.key")),
        *("-set_serial", str(secrets.randbits(120)), "-days", str(days), "-extfile", str(extensions)),
        *("-out", str(folder / f"{name}.pem")),
    )


def _alternative(name: str) -> str:
    try:
        return f"IP:{ipaddress.ip_address(name)}"
    except ValueError:
        if not all(part.isascii() and part.replace("-", "a").isalnum() for part in name.split(".")):
            fail(f"{name!r} is neither a host name nor an IP address", EXIT_BAD_INPUT)
        return f"DNS:{name}"


def _openssl(*words: str) -> None:
    done = subprocess.run(["openssl", *words], capture_output=True, text=True, timeout=OPENSSL_S, check=False)
    if done.returncode != 0:
        fail(f"openssl {words[0]} failed: {done.stderr.strip()[-500:]}", EXIT_FAILED)


def _advice(folder: Path) -> str:
    return f"""\
made in {folder}: an authority, a server's and a client's certificate, and tokens. For the policy:

control:
  admin: 0.0.0.0:18002
  admin_security:
    tls: {{certificate_file: {folder}/server.pem, key_file: {folder}/server.key}}
    tokens:
    - {{name: viewer, role: view, file: {folder}/view.token}}
    - {{name: operator, role: operate, file: {folder}/operate.token}}
    - {{name: admin, role: admin, file: {folder}/admin.token}}

then: xds-control weights --server HOST:18002 --ca {folder}/ca.pem --token-file {folder}/view.token"""
