"""Commands against an admin server that lies, is deaf, or speaks something else: words and an exit, no traceback."""

from __future__ import annotations

import asyncio
import random
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import pytest
from click.testing import CliRunner, Result
from google.protobuf.message import Message

from xds_control.cli.harmless import harmless, make_harmless
from xds_control.cli.main import main
from xds_control.proto import admin_pb2 as pb

EVIL = "\x1b]0;owned\x07\x1b[2J[red]a[/] :tiger: [/b]\x9b31m\u202ecod\r\nx"
TEXTS = ("", "alpha", "10.0.0.1:8000", "chat", "drain", "pin", "ready", "gone", EVIL, "ü" * 200, "[/red]", "{}", "[]")
NUMBERS = (0.0, 1.0, -1.0, 0.5, float("nan"), float("inf"), float("-inf"), 1e308, -1e308, 1e18, 1e-320, 1.7e9)
WHOLE = (0, 1, 7, (1 << 31) - 1)
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]")
LOOKS = [
    ("status",), ("pools",), ("pools", "chat"), ("endpoints",), ("endpoints", "show", "alpha", "--signals"),
    ("weights",), ("weights", "--explain"), ("events",), ("history",), ("clients",), ("clients", "--types"),
    ("processors",), ("requests",), ("audit",), ("policy", "history"), ("policy", "show"),
    ("policy", "show", "--effective"), ("policy", "shadow", "show"),
    ("policy", "rollback"), ("top", "--once"), ("explain", "id-1"), ("log-level",),
    ("drain", "alpha", "--reason", "x"),
]  # fmt: skip


def lie(kind: Any, rng: random.Random, depth: int = 0) -> Any:
    """A message of any content."""
    message = kind()
    for field in kind.DESCRIPTOR.fields:
        if rng.random() < 0.25:
            continue
        many = hasattr(getattr(message, field.name), "append") or hasattr(getattr(message, field.name), "add")
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            target = getattr(message, field.name)
            value = field.message_type.fields_by_name["value"]
            if value.message_type is None:
                for _ in range(rng.randrange(3)):
                    target[rng.choice(TEXTS)] = scalar(value, rng)
        elif field.message_type is not None:
            if depth > 4:
                continue
            made = [
                lie(field.message_type._concrete_class, rng, depth + 1) for _ in range(rng.randrange(3) if many else 1)
            ]
            if many:
                getattr(message, field.name).extend(made)
            else:
                for one in made:
                    getattr(message, field.name).CopyFrom(one)
        elif many:
            getattr(message, field.name).extend(scalar(field, rng) for _ in range(rng.randrange(3)))
        else:
            setattr(message, field.name, scalar(field, rng))
    return message


def scalar(field: Any, rng: random.Random) -> Any:
    if field.type == field.TYPE_STRING:
        return rng.choice(TEXTS)
    if field.type == field.TYPE_BYTES:
        return rng.choice(TEXTS).encode()
    if field.type in (field.TYPE_DOUBLE, field.TYPE_FLOAT):
        return rng.choice(NUMBERS)
    if field.type == field.TYPE_BOOL:
        return rng.random() < 0.5
    if field.type == field.TYPE_ENUM:
        return rng.choice([one.number for one in field.enum_type.values])
    return rng.choice(WHOLE)


class Liar(grpc.GenericRpcHandler):
    """Answers every call of the service with whatever comes to its mind, or with an error of such words."""

    def __init__(self) -> None:
        self.rng = random.Random(0)
        self.fails = False

    def service(self, handler_call_details: Any) -> Any:
        name = handler_call_details.method.rpartition("/")[2]
        method = pb.DESCRIPTOR.services_by_name["Admin"].methods_by_name.get(name)
        if method is None:
            return None
        kind = method.output_type._concrete_class

        async def one(request: Any, context: Any) -> Any:
            if self.fails:
                context.set_trailing_metadata((("x-other", "y"),))
                await context.abort(self.rng.choice(list(grpc.StatusCode)[1:]), EVIL.replace("\u202e", ""))
            return lie(kind, self.rng)

        shape = {
            "request_deserializer": method.input_type._concrete_class.FromString,
            "response_serializer": kind.SerializeToString,
        }
        return grpc.unary_unary_rpc_method_handler(one, **shape)


@contextmanager
def served(liar: Liar) -> Iterator[str]:
    loop, ready, address = asyncio.new_event_loop(), threading.Event(), ""
    done = asyncio.Event()

    async def serve() -> None:
        nonlocal address
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((liar,))
        address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        await server.start()
        ready.set()
        await done.wait()
        await server.stop(0)

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
    thread.start()
    assert ready.wait(10)
    yield address
    loop.call_soon_threadsafe(done.set)
    thread.join(10)


def command(server: str, *words: str) -> Result:
    environment = {"XDS_CONTROL_ADMIN": server, "XDS_CONTROL_TOKEN": "", "NO_COLOR": "1"}
    return CliRunner().invoke(main, list(words), env=environment, catch_exceptions=True)


@pytest.fixture(scope="module")
def liar() -> Iterator[tuple[Liar, str]]:
    made = Liar()
    with served(made) as address:
        yield made, address


@pytest.mark.parametrize("words", LOOKS, ids=" ".join)
def test_lies_are_shown_and_obeyed_by_nobody(liar: tuple[Liar, str], words: tuple[str, ...]) -> None:
    server, address = liar
    server.fails = False
    for seed in range(25):
        server.rng = random.Random(seed)
        for form in (
            ((), ("-o", "json"), ("-o", "yaml")) if seed < 3 and words[0] not in ("top", "policy", "drain") else ((),)
        ):
            result = command(address, *words, *form)
            assert result.exception is None or isinstance(result.exception, SystemExit), (seed, result.exc_info)
            assert "Usage:" not in result.output, result.output
            assert not OBEYED.search(result.output), (seed, form)


@pytest.mark.parametrize("words", LOOKS, ids=" ".join)
def test_words_of_errors_too(liar: tuple[Liar, str], words: tuple[str, ...]) -> None:
    server, address = liar
    server.fails, server.rng = True, random.Random(1)
    result = command(address, *words)
    assert isinstance(result.exception, SystemExit)
    assert result.exit_code != 0
    assert "Traceback" not in result.output
    assert "Usage:" not in result.output
    assert not OBEYED.search(result.output)


def test_names_with_markup_are_shown_as_they_are(liar: tuple[Liar, str]) -> None:
    one = pb.ListPoolsResponse(pools=[pb.Pool(name=EVIL, models=["[bold]m[/bold]"])])
    make_harmless(one)
    assert (
        one.pools[0].name
        == harmless(EVIL)
        == "\ufffd]0;owned\ufffd\ufffd[2J[red]a[/] :tiger: [/b]\ufffd31m\ufffdcod\nx"
    )
    assert one.pools[0].models == ["[bold]m[/bold]"]


def test_keys_of_maps_too() -> None:
    one = pb.GetStatusResponse(endpoint_states={"a\x1b": 3, "b": 4})
    make_harmless(one)
    assert dict(one.endpoint_states) == {"a\ufffd": 3, "b": 4}


def _deaf(listener: socket.socket) -> None:
    listener.accept()


def _garbage(listener: socket.socket) -> None:
    peer, _ = listener.accept()
    peer.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello" * 100)
    peer.close()


def _hangs_up(listener: socket.socket) -> None:
    for _ in range(3):
        listener.accept()[0].close()


@pytest.mark.parametrize("behave", [_deaf, _garbage, _hangs_up])
def test_a_server_that_is_none(behave: Callable[[socket.socket], None]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=behave, args=(listener,), daemon=True)
        thread.start()
        result = command(f"127.0.0.1:{listener.getsockname()[1]}", "status", "--timeout", "1s")
    assert result.exit_code == 3
    assert "127.0.0.1" in result.output
    assert isinstance(result.exception, SystemExit)


def test_a_message_that_is_whatever() -> None:
    assert isinstance(make_harmless(pb.GetStatusResponse()), Message)
