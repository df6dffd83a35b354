"""Who may do what on the admin and fleet ports."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from click.testing import CliRunner

from tests.envoy.harness import free_ports
from tests.unit.admin.backend import FakeBackend
from xds_control.admin.auth import AdminGate, Guesses, check_admin, check_fleet, credentials, fleet_guards
from xds_control.admin.fleet_service import serve as serve_fleet
from xds_control.admin.server import serve_admin
from xds_control.admin.service import ROLES, AdminService, Role
from xds_control.cli.main import main
from xds_control.errors import ConfigError
from xds_control.extproc.fleet_client import FleetSecurity as FleetAccess
from xds_control.policy.security import AdminSecurity, AdminToken, FleetSecurity, TlsFiles
from xds_control.proto import admin_pb2 as pb
from xds_control.proto import admin_pb2_grpc, fleet_pb2
from xds_control.xds.security import TokenFile

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl on PATH")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("certs")
    result = CliRunner().invoke(main, ["certs", "init", str(made)])
    assert result.exit_code == 0, result.output
    return made


def security(folder: Path, **options: Any) -> AdminSecurity:
    return AdminSecurity(
        tokens=tuple(
            AdminToken(name=f"the-{role}", role=role, file=str(folder / f"{role}.token"))
            for role in ("view", "operate", "admin")
        ),
        **options,
    )


def tls(folder: Path, *, mutual: bool = False) -> TlsFiles:
    return TlsFiles(
        certificate_file=str(folder / "server.pem"),
        key_file=str(folder / "server.key"),
        client_ca_file=str(folder / "ca.pem") if mutual else None,
    )


def bearer(folder: Path, name: str) -> list[tuple[str, str]]:
    return [("authorization", f"Bearer {(folder / f'{name}.token').read_text().strip()}")]


def channel(folder: Path, port: int, *, certificate: bool = False) -> grpc.aio.Channel:
    own = [(folder / f"client.{kind}").read_bytes() for kind in ("key", "pem")] if certificate else [None, None]
    return grpc.aio.secure_channel(
        f"localhost:{port}", grpc.ssl_channel_credentials((folder / "ca.pem").read_bytes(), *own)
    )


@asynccontextmanager
async def admin(policy: AdminSecurity) -> AsyncIterator[tuple[int, FakeBackend, AdminGate]]:
    backend = FakeBackend()
    backend.tick()
    gate = AdminGate(policy)
    service = AdminService(backend, gate.who, clock=lambda: backend.now)
    port, stop = await serve_admin("127.0.0.1:0", service, credentials(policy.tls), [gate])
    yield port, backend, gate
    await stop()


@needs_openssl
async def test_every_method_asks_for_its_role(folder: Path) -> None:
    policy = security(folder, tls=tls(folder), max_failures_per_minute=10_000)
    async with admin(policy) as (port, _backend, _gate), channel(folder, port) as line:
        for method, needed in ROLES.items():
            for name, role in (("", None), ("view", Role.VIEW), ("operate", Role.OPERATE), ("admin", Role.ADMIN)):
                call: Any = line.unary_stream(method)
                metadata = bearer(folder, name) if name else [("authorization", "Bearer wrong")]
                try:
                    stream = call(b"", metadata=metadata, timeout=10)
                    await stream.read()
                    stream.cancel()
                    status = grpc.StatusCode.OK
                except grpc.aio.AioRpcError as error:
                    status = error.code()
                if role is None:
                    assert status is grpc.StatusCode.UNAUTHENTICATED, (method, name)
                elif role < needed:
                    assert status is grpc.StatusCode.PERMISSION_DENIED, (method, name)
                else:
                    assert status not in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED), method


@needs_openssl
async def test_the_name_of_the_token_is_in_the_audit_not_what_the_caller_says(folder: Path) -> None:
    async with admin(security(folder, tls=tls(folder))) as (port, backend, _gate), channel(folder, port) as line:
        stub = admin_pb2_grpc.AdminStub(line)  # type: ignore[no-untyped-call]
        metadata = [*bearer(folder, "operate"), ("xds-control-user", "root")]
        await stub.Drain(pb.DrainRequest(endpoint="beta", reason="r"), metadata=metadata, timeout=10)
        assert backend.orders[0][2] == "the-operate"


@needs_openssl
async def test_wrong_guesses_are_stopped(folder: Path) -> None:
    policy = security(folder, tls=tls(folder), max_failures_per_minute=3)
    async with admin(policy) as (port, _backend, gate), channel(folder, port) as line:
        stub = admin_pb2_grpc.AdminStub(line)  # type: ignore[no-untyped-call]
        found = []
        for _ in range(5):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.GetStatus(pb.GetStatusRequest(), metadata=[("authorization", "Bearer no")], timeout=10)
            found.append(caught.value.code())
        assert found == [grpc.StatusCode.UNAUTHENTICATED] * 3 + [grpc.StatusCode.RESOURCE_EXHAUSTED] * 2
        assert gate.refused == 5


def test_guesses_are_forgotten_after_a_minute_and_bounded() -> None:
    guesses = Guesses(2)
    guesses.wrong("a", 0.0)
    guesses.wrong("a", 30.0)
    assert guesses.too_many("a", 59.0)
    assert not guesses.too_many("a", 60.0)
    assert not guesses.too_many("b", 59.0)


@needs_openssl
async def test_a_client_certificate_has_its_role(folder: Path) -> None:
    policy = AdminSecurity(tls=tls(folder, mutual=True), certificate_role="operate")
    async with admin(policy) as (port, backend, _gate):
        async with channel(folder, port, certificate=True) as line:
            stub = admin_pb2_grpc.AdminStub(line)  # type: ignore[no-untyped-call]
            await stub.Drain(pb.DrainRequest(endpoint="beta"), timeout=10)
            assert backend.orders[0][2] == "certificate xds-control client"
            with pytest.raises(grpc.aio.AioRpcError, match="needs the role admin"):
                await stub.PushPolicy(pb.PushPolicyRequest(), timeout=10)
        async with channel(folder, port) as line:
            stub = admin_pb2_grpc.AdminStub(line)  # type: ignore[no-untyped-call]
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.GetStatus(pb.GetStatusRequest(), timeout=5)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


@needs_openssl
async def test_certificates_and_tokens_are_renewed_without_a_restart(folder: Path, tmp_path: Path) -> None:
    live = tmp_path / "live"
    shutil.copytree(folder, live)
    async with admin(security(live, tls=tls(live))) as (port, _backend, _gate):
        result = CliRunner().invoke(main, ["certs", "init", str(live), "--force"])
        assert result.exit_code == 0, result.output
        async with channel(live, port) as line:  # trusts only the new authority
            stub = admin_pb2_grpc.AdminStub(line)  # type: ignore[no-untyped-call]
            await stub.GetStatus(pb.GetStatusRequest(), metadata=bearer(live, "view"), timeout=10)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.GetStatus(pb.GetStatusRequest(), metadata=bearer(folder, "view"), timeout=10)
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


@needs_openssl
@pytest.mark.parametrize("name", ["server.pem", "server.key", "ca.pem"])
@pytest.mark.parametrize("content", [b"", b"\xff\0 nonsense", None])
async def test_bad_files_are_told_once_and_the_last_good_ones_serve(
    folder: Path, tmp_path: Path, name: str, content: bytes | None, capsys: pytest.CaptureFixture[str]
) -> None:
    live = tmp_path / "live"
    shutil.copytree(folder, live)
    async with admin(security(live, tls=tls(live, mutual=True))) as (port, _backend, _gate):
        (live / name).unlink()
        if content is not None:
            (live / name).write_bytes(content)
        capsys.readouterr()
        for _ in range(3):
            async with channel(folder, port, certificate=True) as line:
                stub = admin_pb2_grpc.AdminStub(line)  # type: ignore[no-untyped-call]
                await stub.GetStatus(pb.GetStatusRequest(), metadata=bearer(folder, "view"), timeout=10)
        out = capsys.readouterr().out
        assert "certificate_reloaded" not in out
        assert out.count("certificate_unreadable") == 1
        assert str(live / name) in out
    with pytest.raises(ConfigError, match=name):
        credentials(tls(live, mutual=True))


def test_a_token_file_that_is_gone_is_told_once_and_its_tokens_hold(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "t"
    path.write_text("correct-horse\n")
    tokens = TokenFile(str(path))
    path.unlink()
    assert all(tokens.accepts("Bearer correct-horse") for _ in range(5))
    assert not tokens.accepts("Bearer \udcff")
    assert capsys.readouterr().out.count("token_file_unreadable") == 1
    path.write_text("battery\n")
    assert tokens.accepts("Bearer battery")
    assert not tokens.accepts("Bearer correct-horse")


async def test_on_loopback_everybody_of_the_machine_may() -> None:
    async with admin(AdminSecurity()) as (port, backend, _gate), grpc.aio.insecure_channel(f"127.0.0.1:{port}") as line:
        stub = admin_pb2_grpc.AdminStub(line)  # type: ignore[no-untyped-call]
        await stub.Drain(pb.DrainRequest(endpoint="beta"), metadata=[("xds-control-user", "ann")], timeout=10)
        assert backend.orders[0][2] == "ann"


@pytest.mark.parametrize("address", ["0.0.0.0:1", "10.0.0.5:1", "[::]:1", "control.internal:1"])
def test_an_open_port_is_refused_with_what_to_do(address: str, tmp_path: Path) -> None:
    files = TlsFiles(certificate_file="c", key_file="k")
    mutual = TlsFiles(certificate_file="c", key_file="k", client_ca_file="a")
    token = (AdminToken(name="a", role="view", file="t"),)
    for bad in (AdminSecurity(), AdminSecurity(tls=files), AdminSecurity(tokens=token)):
        with pytest.raises(ConfigError, match=r"control\.admin_security\.tls"):
            check_admin(address, bad)
    check_admin(address, AdminSecurity(tls=files, tokens=token))
    check_admin(address, AdminSecurity(tls=mutual))
    for open_fleet in (FleetSecurity(), FleetSecurity(tls=files), FleetSecurity(token_file="t")):
        with pytest.raises(ConfigError, match=r"control\.fleet_security\.tls"):
            check_fleet(address, open_fleet)
    check_fleet(address, FleetSecurity(tls=files, token_file="t"))
    check_fleet(address, FleetSecurity(insecure=True))


@pytest.mark.parametrize("address", ["127.0.0.1:1", "[::1]:1", "localhost:1", "unix:/run/x.sock"])
def test_loopback_and_sockets_need_nothing(address: str) -> None:
    check_admin(address, AdminSecurity())
    check_fleet(address, FleetSecurity())


@needs_openssl
async def test_the_fleet_port_wants_its_token_too(folder: Path) -> None:
    strangers: list[int] = []
    policy = FleetSecurity(tls=tls(folder), token_file=str(folder / "fleet.token"))
    seen: list[str] = []

    async def watch(request: fleet_pb2.WatchRequest, _context: Any) -> AsyncIterator[bytes]:
        seen.append(request.processor)
        yield b""

    handler = grpc.method_handlers_generic_handler(
        "xds_control.fleet.v1.Fleet",
        {
            "Watch": grpc.unary_stream_rpc_method_handler(
                watch,
                request_deserializer=fleet_pb2.WatchRequest.FromString,
                response_serializer=lambda data: data,
            )
        },
    )
    address = f"127.0.0.1:{free_ports(1)[0]}"
    server, stop = await serve_fleet(
        address,
        handler,
        credentials=credentials(policy.tls),
        interceptors=fleet_guards(policy, lambda: strangers.append(1)),
    )
    assert server is not None
    request = fleet_pb2.WatchRequest(processor="p").SerializeToString()
    good = FleetAccess(ca=folder / "ca.pem", token=folder / "fleet.token", server_name="localhost")
    async with good.channel(address) as line:
        call: Any = line.unary_stream("/xds_control.fleet.v1.Fleet/Watch")
        await call(request, metadata=good.metadata(), timeout=10).read()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(request, timeout=10).read()
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
    assert seen == ["p"]
    assert strangers == [1]
    await stop()


@needs_openssl
def test_certs_init_does_not_replace_unasked_and_keeps_keys_private(folder: Path) -> None:
    again = CliRunner().invoke(main, ["certs", "init", str(folder)])
    assert again.exit_code == 2
    assert "exists already" in again.output
    for path in folder.iterdir():
        assert path.stat().st_mode & 0o077 == 0, path
    bad = CliRunner().invoke(main, ["certs", "init", str(folder / "x"), "--name", "a,DNS:b"])
    assert bad.exit_code == 2
