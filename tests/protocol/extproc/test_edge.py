"""The ext_proc edge over real gRPC channels, on both servers that it can run on."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer

from tests.unit.extproc.support import (
    BUFFERED,
    DUPLEX,
    FirstPicker,
    body_of,
    decider_of,
    headers_message,
    pieces,
    set_headers,
)
from xds_control.extproc.decide import Decider, Pick, Refusal
from xds_control.extproc.decision import Decision, Hold
from xds_control.extproc.edge import ExtProcEdge
from xds_control.extproc.http2 import frames
from xds_control.extproc.http2 import server as http2_server
from xds_control.extproc.http2.connection import Connection
from xds_control.extproc.http2.hpack import literal as hpack_literal
from xds_control.extproc.http2.rpc import Rpc
from xds_control.extproc.http2.server import Http2Server
from xds_control.extproc.native import NativeExternalProcessor
from xds_control.policy import headers as names
from xds_control.policy.extproc import ExtProcPolicy

METHOD = "/envoy.service.ext_proc.v3.ExternalProcessor/Process"
LARGE = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


@pytest.fixture(params=["native", "grpc"])
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Client:
    """An ext_proc client on one channel."""

    def __init__(self, address: str) -> None:
        self.channel = grpc.aio.insecure_channel(address, options=LARGE)
        self.process: Any = self.channel.stream_stream(
            METHOD,
            request_serializer=ext_proc.ProcessingRequest.SerializeToString,
            response_deserializer=ext_proc.ProcessingResponse.FromString,
        )


class Served:
    """An edge with its client, for the length of a test."""

    def __init__(self, decider: Decider, transport: str, **more: Any) -> None:
        self._decider = decider
        self._transport = transport
        self._more = more

    async def __aenter__(self) -> tuple[ExtProcEdge, Client]:
        policy = ExtProcPolicy(transport=self._transport, max_body_bytes=16 << 20)  # type: ignore[arg-type]
        self.edge = ExtProcEdge(lambda: self._decider, policy, **self._more)
        self.health = HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self.health, self.edge)  # type: ignore[arg-type]
        address = await self.edge.start("127.0.0.1:0")
        self.client = Client(address)
        return self.edge, self.client

    async def __aexit__(self, *_: object) -> None:
        await self.client.channel.close()
        await self.edge.stop(0.2)


async def ending(call: Any) -> grpc.StatusCode:
    """The status that a call ends with, after whatever is still to be read."""
    try:
        while await call.read() is not grpc.aio.EOF:
            pass
    except grpc.aio.AioRpcError as error:
        return error.code()
    return await call.code()  # type: ignore[no-any-return]


def body_message(body: bytes, end: bool = True) -> ext_proc.ProcessingRequest:
    return ext_proc.ProcessingRequest(request_body=ext_proc.HttpBody(body=body, end_of_stream=end))


def first_message(mode: int, **config: Any) -> ext_proc.ProcessingRequest:
    message = headers_message()
    message.protocol_config.CopyFrom(ext_proc.ProtocolConfiguration(request_body_mode=mode, **config))
    return message


async def test_buffered_exchange_ends_cleanly(transport: str) -> None:
    async with Served(decider_of(), transport) as (edge, client):
        call = client.process()
        await call.write(first_message(BUFFERED))
        assert (await call.read()).WhichOneof("response") == "request_headers"
        await call.write(body_message(body_of("model-b")))
        assert set_headers(await call.read())[names.POOL] == "pool-b"
        assert await call.read() is grpc.aio.EOF
        assert await call.code() == grpc.StatusCode.OK
        assert edge.counters.requests == 1


@pytest.mark.parametrize("size", [0, 1, 62_000, 62_001, 1 << 20, 8 << 20])
async def test_full_duplex_bodies_of_any_size(transport: str, size: int) -> None:
    body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    async with Served(decider_of(), transport) as (_, client):
        call = client.process()
        await call.write(first_message(DUPLEX))
        for start in range(0, max(size, 1), 60_000):
            await call.write(body_message(body[start : start + 60_000], start + 60_000 >= size))
        answers: list[ext_proc.ProcessingResponse] = []
        while (answer := await call.read()) is not grpc.aio.EOF:
            answers.append(answer)
        assert answers[0].WhichOneof("response") == "request_headers"
        assert b"".join(one.body for one in pieces(answers)) == body
        assert pieces(answers)[-1].end_of_stream
        assert await call.code() == grpc.StatusCode.OK


async def test_large_buffered_body_in_one_message(transport: str) -> None:
    body = body_of("model-b", text="y" * (8 << 20))
    async with Served(decider_of(), transport) as (_, client):
        call = client.process()
        await call.write(first_message(BUFFERED))
        await call.read()
        await call.write(body_message(body))
        assert set_headers(await call.read())[names.POOL] == "pool-b"


async def test_many_streams_at_once(transport: str) -> None:
    async with Served(decider_of(), transport) as (edge, client):

        async def one(number: int) -> str:
            call = client.process()
            await call.write(first_message(BUFFERED))
            await call.read()
            await call.write(body_message(body_of("model-b" if number % 2 else "model-a")))
            return set_headers(await call.read())[names.POOL]

        found = await asyncio.gather(*(one(number) for number in range(200)))
        assert found == ["pool-b" if number % 2 else "pool-a" for number in range(200)]
        assert edge.counters.requests == 200


async def test_fault_is_a_grpc_error(transport: str) -> None:
    class Broken(FirstPicker):
        def pick(self, *args: object, **more: object) -> Pick | Refusal | None:
            raise RuntimeError("broken")

    async with Served(decider_of(picker=Broken(None)), transport) as (edge, client):
        call = client.process()
        await call.write(first_message(BUFFERED))
        await call.read()
        await call.write(body_message(body_of()))
        assert await ending(call) == grpc.StatusCode.INTERNAL
        assert edge.counters.failed == 1


async def test_fault_that_is_answered_is_counted_too(transport: str) -> None:
    class Broken(FirstPicker):
        def pick(self, *args: object, **more: object) -> Pick | Refusal | None:
            raise RuntimeError("broken")

    decider = decider_of(picker=Broken(None), extproc=ExtProcPolicy(on_error="continue"))
    async with Served(decider, transport) as (edge, client):
        call = client.process()
        await call.write(first_message(BUFFERED))
        await call.read()
        await call.write(body_message(body_of()))
        assert not set_headers(await call.read())
        assert await ending(call) == grpc.StatusCode.OK
        assert edge.counters.failed == 1
        assert "broken" in edge.counters.last_failure


async def test_peer_that_breaks_the_protocol(transport: str) -> None:
    async with Served(decider_of(), transport) as (_, client):
        call = client.process()
        await call.write(first_message(BUFFERED))
        await call.read()
        await call.write(first_message(BUFFERED))
        assert await ending(call) == grpc.StatusCode.INVALID_ARGUMENT


async def test_cancelled_midway_leaves_nothing_open(transport: str) -> None:
    async with Served(decider_of(), transport) as (edge, client):
        call = client.process()
        await call.write(first_message(BUFFERED))
        await call.read()
        assert edge.counters.streams == 1
        call.cancel()
        for _ in range(100):
            if edge.counters.streams == 0:
                break
            await asyncio.sleep(0.02)
        assert edge.counters.streams == 0
        assert edge.counters.cancelled == 1


class _Gate:
    def admit(self, decision: Decision, headers: object, now: float) -> Hold:
        return Hold(key=decision.id)


@pytest.mark.parametrize("refusal", [None, Refusal(429, "queue-timeout", "Waited too long.")])
async def test_held_request_waits_and_others_pass_it(transport: str, refusal: Refusal | None) -> None:
    gate: asyncio.Future[Refusal | None] = asyncio.get_running_loop().create_future()
    decider = decider_of()
    decider.admission = _Gate()
    async with Served(decider, transport, wait=lambda hold: gate) as (_, client):
        held = client.process()
        await held.write(first_message(BUFFERED))
        await held.read()
        await held.write(body_message(body_of("model-b")))
        other = client.process()
        await other.write(first_message(BUFFERED))
        assert (await other.read()).HasField("request_headers")
        gate.set_result(refusal)
        answer = await held.read()
        if refusal is None:
            assert set_headers(answer)[names.POOL] == "pool-b"
        else:
            assert answer.immediate_response.status.code == 429
        other.cancel()


async def test_a_held_request_whose_client_sends_no_more_is_answered_and_ends(transport: str) -> None:
    gate: asyncio.Future[Refusal | None] = asyncio.get_running_loop().create_future()
    decider = decider_of(extproc=ExtProcPolicy(responses="observe"))
    decider.admission = _Gate()
    async with Served(decider, transport, wait=lambda hold: gate) as (edge, client):
        held = client.process()
        await held.write(first_message(BUFFERED))
        await held.read()
        await held.write(body_message(body_of("model-b")))
        await held.done_writing()
        gate.set_result(None)
        assert set_headers(await held.read())[names.POOL] == "pool-b"
        assert await asyncio.wait_for(ending(held), 10) is grpc.StatusCode.OK
        assert edge.counters.streams == 0


@pytest.mark.parametrize("let_in", [False, True])
async def test_a_request_that_is_held_and_reset_at_once_waits_no_more(let_in: bool) -> None:
    gate: asyncio.Future[Refusal | None] = asyncio.get_running_loop().create_future()
    decider = decider_of()
    decider.admission = _Gate()
    decided: list[Decision] = []
    decider.on_decision = lambda decision, now: decided.append(decision)
    server = Http2Server()
    NativeExternalProcessor(lambda: decider, wait=lambda hold: gate).add_to(server)
    connection = Connection(lambda rpc, path, metadata: None)
    rpc = Rpc(connection, 1, 65_535)
    connection.rpcs[1] = rpc
    handler = rpc.handler = server.services[METHOD](rpc, {}, lambda: None)
    handler.message(first_message(BUFFERED).SerializeToString())
    handler.message(body_message(body_of("model-b")).SerializeToString())
    if let_in:
        gate.set_result(None)
    connection.lost()  # nothing else had its turn since the body came
    await asyncio.sleep(0)
    assert gate.cancelled() is not let_in
    assert decided == []


@pytest.mark.parametrize(("on_error", "ended"), [("abort", "INTERNAL"), ("continue", "OK")])
async def test_fault_after_a_wait_is_told_like_any_other(transport: str, on_error: str, ended: str) -> None:
    class Broken(FirstPicker):
        def pick(self, *args: object, **more: object) -> Pick | Refusal | None:
            raise RuntimeError("broken")

    gate: asyncio.Future[Refusal | None] = asyncio.get_running_loop().create_future()
    decider = decider_of(picker=Broken(None), extproc=ExtProcPolicy(on_error=on_error))  # type: ignore[arg-type]
    decider.admission = _Gate()
    async with Served(decider, transport, wait=lambda hold: gate) as (edge, client):
        held = client.process()
        await held.write(first_message(BUFFERED))
        await held.read()
        await held.write(body_message(body_of("model-b")))
        gate.set_result(None)
        assert await ending(held) == grpc.StatusCode[ended]
        assert edge.counters.failed == 1
        assert "broken" in edge.counters.last_failure


async def test_what_breaks_one_stream_leaves_the_others_of_its_connection(transport: str) -> None:
    def observer(decision: object) -> Any:
        raise RuntimeError("broken")

    async with Served(decider_of(), transport, observer_factory=observer) as (_, client):
        other = client.process()
        await other.write(first_message(BUFFERED))
        await other.read()
        call = client.process()
        await call.write(ext_proc.ProcessingRequest(response_headers=ext_proc.HttpHeaders()))
        assert await ending(call) in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN)
        await other.write(body_message(body_of("model-b")))
        assert set_headers(await other.read())[names.POOL] == "pool-b"


async def test_health_is_served_on_the_same_port(transport: str) -> None:
    async with Served(decider_of(), transport) as (_, client):
        stub: Any = health_pb2_grpc.HealthStub(client.channel)
        answer = await stub.Check(health_pb2.HealthCheckRequest())
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Check(health_pb2.HealthCheckRequest(service="nobody"))
        assert caught.value.code() == grpc.StatusCode.NOT_FOUND
        watch = stub.Watch(health_pb2.HealthCheckRequest())
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        watch.cancel()


async def test_unknown_method(transport: str) -> None:
    async with Served(decider_of(), transport) as (_, client):
        call: Any = client.channel.unary_unary("/no.such.Service/Method")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(b"")
        assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED


async def test_message_beyond_the_limit(transport: str) -> None:
    async with Served(decider_of(), transport) as (_, client):
        call = client.process()
        await call.write(first_message(BUFFERED))
        await call.read()
        await call.write(body_message(b"x" * (18 << 20)))
        assert await ending(call) == grpc.StatusCode.RESOURCE_EXHAUSTED


class _Numbers(grpc.GenericRpcHandler):
    """Services of every shape."""

    def service(self, handler_call_details: Any) -> Any:
        name = handler_call_details.method.rpartition("/")[2]
        if name == "Sum":
            return grpc.stream_unary_rpc_method_handler(self._sum)
        if name == "Count":
            return grpc.unary_stream_rpc_method_handler(self._count)
        if name == "Boom":
            return grpc.unary_unary_rpc_method_handler(self._boom)
        return None

    async def _sum(self, messages: AsyncIterator[bytes], context: Any) -> bytes:
        return str(sum([len(message) async for message in messages])).encode()

    async def _count(self, message: bytes, context: Any) -> AsyncIterator[bytes]:
        for number in range(int(message)):
            yield str(number).encode()

    async def _boom(self, message: bytes, context: Any) -> bytes:
        raise ValueError("boom")


async def test_other_services_of_every_shape(transport: str) -> None:
    policy = ExtProcPolicy(transport=transport)  # type: ignore[arg-type]
    edge = ExtProcEdge(decider_of, policy)
    edge.add_generic_rpc_handlers((_Numbers(),))
    address = await edge.start("127.0.0.1:0")
    async with grpc.aio.insecure_channel(address, options=LARGE) as opened:
        channel: Any = opened

        async def many() -> AsyncIterator[bytes]:
            for _ in range(300):
                yield b"x" * 100_000

        assert await channel.stream_unary("/n.N/Sum")(many()) == b"30000000"
        assert [one async for one in channel.unary_stream("/n.N/Count")(b"500")] == [b"%d" % n for n in range(500)]
        with pytest.raises(grpc.aio.AioRpcError, match="boom"):
            await channel.unary_unary("/n.N/Boom")(b"")
    await edge.stop(0.1)


async def test_unix_socket(transport: str, tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/ext_proc.sock"
    edge = ExtProcEdge(decider_of, ExtProcPolicy(transport=transport))  # type: ignore[arg-type]
    assert await edge.start(address) == address
    client = Client(address)
    call = client.process()
    await call.write(first_message(BUFFERED))
    assert (await call.read()).HasField("request_headers")
    await client.channel.close()
    await edge.stop(0.1)


async def test_stop_lets_open_streams_end(transport: str) -> None:
    edge = ExtProcEdge(decider_of, ExtProcPolicy(transport=transport))  # type: ignore[arg-type]
    client = Client(await edge.start("127.0.0.1:0"))
    call = client.process()
    await call.write(first_message(BUFFERED))
    await call.read()
    stopping = asyncio.create_task(edge.stop(5))
    await asyncio.sleep(0.1)
    assert not stopping.done()
    await call.write(body_message(body_of("model-b")))
    assert set_headers(await call.read())[names.POOL] == "pool-b"
    await asyncio.wait_for(stopping, 5)
    await client.channel.close()


async def test_address_in_use(transport: str) -> None:
    first = ExtProcEdge(decider_of, ExtProcPolicy(transport=transport))  # type: ignore[arg-type]
    address = await first.start("127.0.0.1:0")
    second = ExtProcEdge(decider_of, ExtProcPolicy(transport=transport))  # type: ignore[arg-type]
    with pytest.raises(OSError):
        await second.start(address)
    await first.stop(0)
    await second.stop(0)


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A self-signed certificate for localhost and its key."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl to make a certificate with")
    key, path = tmp_path / "key.pem", tmp_path / "cert.pem"
    argv = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
    argv += ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(path)]
    subprocess.run(argv, check=True, capture_output=True)
    return path, key


async def test_tls_with_a_certificate_of_our_own(certificate: tuple[Path, Path]) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    edge = ExtProcEdge(decider_of, ExtProcPolicy())
    address = await edge.start("localhost:0", context)
    credentials = grpc.ssl_channel_credentials(certificate[0].read_bytes())
    async with grpc.aio.secure_channel(address, credentials, options=LARGE) as channel:
        call: Any = channel.stream_stream(
            METHOD,
            request_serializer=ext_proc.ProcessingRequest.SerializeToString,
            response_deserializer=ext_proc.ProcessingResponse.FromString,
        )()
        await call.write(first_message(BUFFERED))
        await call.read()
        await call.write(body_message(body_of("model-b", text="y" * 1_000_000)))
        assert set_headers(await call.read())[names.POOL] == "pool-b"
    await edge.stop(0.1)


async def test_connection_that_speaks_something_else_is_closed() -> None:
    edge = ExtProcEdge(decider_of, ExtProcPolicy())
    host, _, port = (await edge.start("127.0.0.1:0")).rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
    await asyncio.wait_for(reader.read(), 5)
    assert reader.at_eof()
    writer.close()
    await edge.stop(0)


async def test_connections_that_say_nothing_are_closed_and_too_many_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http2_server, "GREETING_S", 0.2)
    async with Served(decider_of(), "native") as (edge, client):
        assert edge._native is not None
        edge._native.max_connections = 50
        host, _, port = edge.address.rpartition(":")
        silent = [await asyncio.open_connection(host, int(port)) for _ in range(50)]
        for _, writer in silent[:25]:
            writer.write(b"PRI * HTTP/2.0")
        reader, one_more = await asyncio.open_connection(host, int(port))
        with contextlib.suppress(ConnectionError):
            while await reader.read(1000):
                pass
        assert edge._native.refused >= 1
        for silent_reader, writer in [*silent, (reader, one_more)]:
            with contextlib.suppress(ConnectionError):
                while await silent_reader.read(1000):
                    pass
            writer.close()
        call = client.process()
        await call.write(first_message(BUFFERED))
        assert (await call.read()).HasField("request_headers")
        call.cancel()


async def test_many_small_streams_are_all_answered_whatever_comes_at_once() -> None:
    async with Served(decider_of(), "native") as (edge, _):
        host, _, port = edge.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        block = b"".join(
            hpack_literal(name, value)
            for name, value in (
                (b":method", b"POST"),
                (b":scheme", b"http"),
                (b":path", METHOD.encode()),
                (b"content-type", b"application/grpc"),
            )
        )
        writer.write(frames.PREFACE + frames.settings({}))
        empty = b"\0\0\0\0\0"  # a message that is a violation: each is answered with trailers
        for stream in range(1, 20_001, 2):
            writer.write(frames.frame(frames.HEADERS, frames.END_HEADERS, stream, block))
            writer.write(frames.frame(frames.DATA, 0, stream, empty))
        writer.write(frames.frame(frames.PING, 0, 0, b"the end!"))
        seen = b""
        while b"the end!" not in seen:
            seen = seen[-64:] + await reader.read(1 << 16)
        assert edge.counters.requests == 10_000
        assert edge.counters.failed == 10_000
        writer.close()


async def test_client_that_does_not_read_is_not_answered_without_end() -> None:
    """A peer that sends pings and reads nothing: the server stops reading instead of filling its memory."""
    edge = ExtProcEdge(decider_of, ExtProcPolicy())
    host, _, port = (await edge.start("127.0.0.1:0")).rpartition(":")
    sock = socket.create_connection((host, int(port)))
    sock.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(sock, frames.PREFACE + frames.settings({}))
    pings = frames.frame(frames.PING, 0, 0, b"8" * 8) * 1000
    sent = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(20):
            while sent < 200 << 20:
                await asyncio.wait_for(loop.sock_sendall(sock, pings), 1)
                sent += len(pings)
    assert sent < 200 << 20
    sock.close()
    await edge.stop(0)
