"""The product with TLS and tokens on its own ports, and what it refuses to start with."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from click.testing import CliRunner

from tests.envoy.harness import Product, eventually, free_ports
from tests.envoy.traffic import FAST_SCRAPE, served_by
from xds_control.cli.main import main

Start = Callable[..., Awaitable[Product]]
pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl on PATH")


def pool(address: str) -> dict[str, Any]:
    return {"name": "chat", "models": ["demo"], "engine": "vllm", "endpoints": [{"address": address}]}


def security(certs: Path) -> dict[str, Any]:
    tls = {"certificate_file": str(certs / "server.pem"), "key_file": str(certs / "server.key")}
    tokens = [
        {"name": f"the-{role}", "role": role, "file": str(certs / f"{role}.token")}
        for role in ("view", "operate", "admin")
    ]
    return {
        "admin_security": {"tls": tls, "tokens": tokens},
        "fleet_security": {
            "tls": {**tls, "client_ca_file": str(certs / "ca.pem")},
            "token_file": str(certs / "fleet.token"),
            "client": {
                "ca_file": str(certs / "ca.pem"),
                "certificate_file": str(certs / "client.pem"),
                "key_file": str(certs / "client.key"),
            },
        },
    }


async def test_everything_works_over_tls_and_strangers_are_refused(
    start_product: Start, make_engine: Any, client: aiohttp.ClientSession, tmp_path: Path
) -> None:
    certs = tmp_path / "certs"
    made = CliRunner().invoke(main, ["certs", "init", str(certs)])
    assert made.exit_code == 0, made.output
    engine = await make_engine(name="a")
    product = await start_product({"pools": [pool(engine.address)], "signals": FAST_SCRAPE, "control": security(certs)})
    assert (await served_by(client, product.gateway, 20)) == {"a": 20}

    async def decided() -> bool:
        return 'reason="picked"' in (await product.get("/metrics"))[1]

    await eventually(decided, 30, "the processor reports over TLS")

    async def run(token: str, *words: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "xds_control", *words, "--server", f"localhost:{product.ports['admin']}"]
        argv += ["--ca", str(certs / "ca.pem")]
        argv += ["--token-file", str(certs / f"{token}.token")] if token else []
        return await asyncio.to_thread(subprocess.run, argv, capture_output=True, text=True, timeout=60, check=False)

    looked = await run("view", "weights")
    assert looked.returncode == 0, looked.stderr
    assert engine.address in looked.stdout
    for token, words in (("", ("weights",)), ("view", ("drain", engine.address)), ("fleet", ("weights",))):
        refused = await run(token, *words)
        assert refused.returncode == 4, (token, refused.stdout, refused.stderr)
    rolled = await run("operate", "policy", "rollback")
    assert rolled.returncode == 4
    assert "needs the role admin" in rolled.stderr
    secrets = [(certs / f"{role}.token").read_text().strip() for role in ("view", "operate", "admin", "fleet")]
    log = product.log.read_text()
    assert not any(secret in log for secret in secrets)


@pytest.mark.parametrize(("port", "words"), [("admin", "control.admin_security.tls"), ("fleet", "fleet_security.tls")])
async def test_an_open_port_is_not_served(tmp_path: Path, port: str, words: str) -> None:
    names = dict(zip(("xds", "fleet", "admin", "http"), free_ports(4), strict=True))
    control = {name: f"127.0.0.1:{number}" for name, number in names.items()}
    control[port] = f"0.0.0.0:{names[port]}"
    path = tmp_path / "policy.yaml"
    path.write_text(yaml.safe_dump({"version": "xds-control/v1", "pools": [pool("127.0.0.1:9")], "control": control}))
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "xds_control", "control", "--policy", str(path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert words in done.stderr
