"""Who may connect to the xDS port: TLS, client certificates, tokens, and that files are read again."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from tests.protocol.xds_client import assignment, connected, open_stream
from xds_control.errors import ConfigError
from xds_control.xds import EDS, SnapshotCache, TlsFiles, XdsPolicy, XdsServer
from xds_control.xds.security import TokenFile, check_exposure


class Authority:
    """A certificate authority of the test."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.name = name
        self.ca = folder / f"{name}-ca.pem"
        self._run("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}",
                  "-keyout", f"{name}-ca.key", "-out", self.ca.name)  # fmt: skip

    def _run(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=self.folder, check=True, capture_output=True)

    def sign(self, name: str) -> tuple[Path, Path]:
        """Certificate and key of `name.test`."""
        extension = self.folder / "extension.cnf"
        extension.write_text(f"subjectAltName=DNS:{name}.test")
        self._run("req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}.test",
                  "-keyout", f"{self.name}-{name}.key", "-out", f"{name}.csr")  # fmt: skip
        self._run("x509", "-req", "-in", f"{name}.csr", "-CA", self.ca.name, "-CAkey", f"{self.name}-ca.key",
                  "-days", "2", "-extfile", extension.name, "-out", f"{self.name}-{name}.pem")  # fmt: skip
        return self.folder / f"{self.name}-{name}.pem", self.folder / f"{self.name}-{name}.key"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    try:
        return Authority(tmp_path_factory.mktemp("certs"), "first")
    except FileNotFoundError:
        pytest.skip("no openssl to make certificates")


@pytest.fixture
async def servers() -> AsyncIterator[list[XdsServer]]:
    made: list[XdsServer] = []
    yield made
    for server in made:
        await server.stop(0)


async def start(servers: list[XdsServer], **options: Any) -> int:
    cache = SnapshotCache()
    cache.set("", {EDS.type_url: {"a": assignment("a")}})
    server = XdsServer(cache, XdsPolicy(**options))
    servers.append(server)
    return await server.start("127.0.0.1:0")


async def served(port: int, credentials: grpc.ChannelCredentials | None, token: str | None = None) -> bool:
    """Whether a client with these gets its resource; False when it is refused."""
    metadata = [("authorization", f"Bearer {token}")] if token is not None else []
    async with connected(port, credentials, initial_reconnect_backoff_ms=100) as channel:
        stream = open_stream(channel, metadata)
        try:
            await stream.ask("a")
            message = await stream.read()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return False
        return [r.name for r in message.resources] == ["a"]


async def test_tls_and_client_certificates(servers: list[XdsServer], authority: Authority) -> None:
    certificate, key = authority.sign("server")
    client_certificate, client_key = authority.sign("client")
    roots = authority.ca.read_bytes()
    tls = TlsFiles(certificate_file=str(certificate), key_file=str(key))
    port = await start(servers, tls=tls)
    assert await served(port, grpc.ssl_channel_credentials(roots))
    assert not await served(port, None)
    mutual = TlsFiles(certificate_file=str(certificate), key_file=str(key), client_ca_file=str(authority.ca))
    port = await start(servers, tls=mutual)
    own = grpc.ssl_channel_credentials(roots, client_key.read_bytes(), client_certificate.read_bytes())
    assert await served(port, own)
    assert not await served(port, grpc.ssl_channel_credentials(roots))
    # A certificate of another authority is no better than none.
    other = Authority(authority.folder, "second")
    stranger, stranger_key = other.sign("client")
    assert not await served(port, grpc.ssl_channel_credentials(roots, stranger_key.read_bytes(), stranger.read_bytes()))


async def test_certificates_are_exchanged_without_a_restart(servers: list[XdsServer], authority: Authority) -> None:
    certificate, key = authority.sign("server")
    chain, private = authority.folder / "live.pem", authority.folder / "live.key"
    chain.write_bytes(certificate.read_bytes())
    private.write_bytes(key.read_bytes())
    port = await start(servers, tls=TlsFiles(certificate_file=str(chain), key_file=str(private)))
    old = grpc.ssl_channel_credentials(authority.ca.read_bytes())
    assert await served(port, old)
    third = Authority(authority.folder, "third")
    certificate, key = third.sign("server")
    # Half of an exchange does not stop the service.
    private.write_bytes(b"not a key")
    chain.write_bytes(certificate.read_bytes())
    private.write_bytes(key.read_bytes())
    assert await served(port, grpc.ssl_channel_credentials(third.ca.read_bytes()))
    assert not await served(port, old)
    chain.unlink()
    assert await served(port, grpc.ssl_channel_credentials(third.ca.read_bytes())), "an unreadable file changes nothing"


async def test_tokens_and_their_rotation(servers: list[XdsServer], tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text("# the old one\nalpha\n")
    port = await start(servers, token_file=str(file), reflection=True)
    assert await served(port, None, "alpha")
    assert not await served(port, None)
    assert not await served(port, None, "alph")
    assert not await served(port, None, "alpha2")
    assert not await served(port, None, "")
    async with connected(port) as channel:
        stream = open_stream(channel, [("authorization", "Basic alpha")])
        assert (await stream.end())[0] == "UNAUTHENTICATED"
        # Every service of the port is behind it.
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await _services(channel)
        assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED
        fetch: Any = channel.unary_unary("/envoy.service.status.v3.ClientStatusDiscoveryService/FetchClientStatus")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await fetch(b"")
        assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED
    file.write_text("alpha\nbeta\n")
    assert await served(port, None, "beta")
    assert await served(port, None, "alpha")
    file.write_text("beta\n")
    assert not await served(port, None, "alpha")
    file.unlink()
    assert await served(port, None, "beta"), "an unreadable file changes nothing"
    assert servers[0].stats.unauthorised >= 6


def test_a_token_file_must_name_a_token(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the token file"):
        TokenFile(str(tmp_path / "none"))
    empty = tmp_path / "empty"
    empty.write_text("# nothing\n\n")
    with pytest.raises(ConfigError, match="names no token"):
        TokenFile(str(empty))


async def test_unreadable_certificates_stop_the_start(servers: list[XdsServer], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the certificate"):
        await start(servers, tls=TlsFiles(certificate_file=str(tmp_path / "c"), key_file=str(tmp_path / "k")))


async def _services(channel: grpc.aio.Channel) -> set[str]:
    stub: Any = reflection_pb2_grpc.ServerReflectionStub
    call = stub(channel).ServerReflectionInfo()
    await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
    answer = await call.read()
    return {s.name for s in answer.list_services_response.service}


async def test_reflection_is_off_unless_asked_for(servers: list[XdsServer]) -> None:
    port = await start(servers)
    async with connected(port) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as missing:
            await _services(channel)
        assert missing.value.code() == grpc.StatusCode.UNIMPLEMENTED
    port = await start(servers, reflection=True)
    async with connected(port) as channel:
        names = await _services(channel)
        assert "envoy.service.discovery.v3.AggregatedDiscoveryService" in names
        assert "envoy.service.endpoint.v3.EndpointDiscoveryService" in names
        stub: Any = reflection_pb2_grpc.ServerReflectionStub
        call = stub(channel).ServerReflectionInfo()
        for name in sorted(names):
            await call.write(reflection_pb2.ServerReflectionRequest(file_containing_symbol=name))
            answer = await call.read()
            assert answer.WhichOneof("message_response") == "file_descriptor_response", name


@pytest.mark.parametrize(
    ("address", "options", "allowed"),
    [
        ("127.0.0.1:1", {}, True),
        ("127.3.2.1:1", {}, True),
        ("localhost:1", {}, True),
        ("[::1]:1", {}, True),
        ("unix:/tmp/x", {}, True),
        ("0.0.0.0:1", {}, False),
        ("[::]:1", {}, False),
        ("10.0.0.1:1", {}, False),
        ("xds.example.com:1", {}, False),
        ("10.0.0.1:1", {"insecure": True}, True),
        ("10.0.0.1:1", {"token_file": "t"}, False),
        ("10.0.0.1:1", {"tls": TlsFiles(certificate_file="c", key_file="k")}, False),
        ("10.0.0.1:1", {"tls": TlsFiles(certificate_file="c", key_file="k"), "token_file": "t"}, True),
        ("10.0.0.1:1", {"tls": TlsFiles(certificate_file="c", key_file="k", client_ca_file="a")}, True),
    ],
)
def test_a_port_that_others_reach_must_be_guarded(address: str, options: dict[str, Any], allowed: bool) -> None:
    if allowed:
        check_exposure(address, XdsPolicy(**options))
    else:
        with pytest.raises(ConfigError, match=r"xds\.(tls|token_file)"):
            check_exposure(address, XdsPolicy(**options))
