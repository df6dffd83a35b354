"""The HTTP/2 connection against an independent client (h2), cut into pieces and starved of flow control."""

from __future__ import annotations

import random
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xds_control.extproc.http2 import frames
from xds_control.extproc.http2.connection import Connection, Limits
from xds_control.extproc.http2.rpc import Held, Rpc

h2_connection = pytest.importorskip("h2.connection", reason="an independent client to talk to")
import h2.config  # noqa: E402
import h2.errors  # noqa: E402
import h2.events  # noqa: E402
import h2.settings  # noqa: E402

HEADERS = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/t.T/Echo"),
    (":authority", "xds"),
    ("te", "trailers"),
    ("content-type", "application/grpc"),
]


class Echo:
    """Answers each message with itself, and ends when the client does."""

    def __init__(self, rpc: Rpc, log: list[str]) -> None:
        self.rpc = rpc
        self.log = log
        self.messages: list[bytes] = []

    def message(self, data: bytes) -> None:
        self.messages.append(data)
        if data == b"finish":
            self.rpc.finish()
        elif data == b"fail":
            self.rpc.finish(13, "schön 100%")
        else:
            self.rpc.send(data)

    def parts(self, parts: list[bytes | memoryview]) -> None:
        self.message(b"".join(parts))

    def half_closed(self) -> None:
        self.rpc.finish()

    def closed(self) -> None:
        self.log.append("closed")


class Client:
    """An h2 client joined to a connection without a network; what is sent is cut by `cut`."""

    def __init__(self, limits: Limits | None = None, cut: random.Random | None = None) -> None:
        self.log: list[str] = []
        self.handlers: list[Echo] = []
        self.server = Connection(self._accept, limits)
        self.client = h2_connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding="utf-8"))
        self.client.initiate_connection()
        self.cut = cut
        self.data: dict[int, bytes] = {}
        self.trailers: dict[int, dict[str, str]] = {}
        self.headers: dict[int, dict[str, str]] = {}
        self.resets: dict[int, int] = {}
        self.events: list[Any] = []
        self.acknowledge = True
        self.pump()

    def _accept(self, rpc: Rpc, path: str, metadata: dict[str, str]) -> Echo | None:
        if path != "/t.T/Echo":
            return None
        rpc.takes_parts = len(self.handlers) % 2 == 0
        self.handlers.append(Echo(rpc, self.log))
        return self.handlers[-1]

    def open(self, headers: list[tuple[str, str]] | None = None, end: bool = False) -> int:
        stream = int(self.client.get_next_available_stream_id())
        self.client.send_headers(stream, headers or HEADERS, end_stream=end)
        return stream

    def send(self, stream: int, *messages: bytes, end: bool = False, pad: int | None = None) -> None:
        payload = b"".join(b"\x00" + len(one).to_bytes(4, "big") + one for one in messages)
        while payload:
            size = min(len(payload), self.client.max_outbound_frame_size, self.client.local_flow_control_window(stream))
            if pad:
                size = min(size, 1000)
            assert size > 0, "the server gives no window"
            self.client.send_data(stream, payload[:size], pad_length=pad)
            payload = payload[size:]
            self.pump()
        if end:
            self.client.end_stream(stream)
        self.pump()

    def pump(self) -> None:
        """Moves bytes until nothing is left to move."""
        while True:
            out = self.client.data_to_send()
            at = 0
            while at < len(out):
                size = len(out) if self.cut is None else self.cut.choice([1, 3, 9, 10, 100, 5000])
                self.server.receive(out[at : at + size])
                at += size
                while self.server.more:
                    self.server.receive(b"")
            back = self.server.take_output()
            if not out and not back:
                return
            for event in self.client.receive_data(back):
                self._event(event)

    def _event(self, event: Any) -> None:
        self.events.append(event)
        if isinstance(event, h2.events.DataReceived):
            self.data[event.stream_id] = self.data.get(event.stream_id, b"") + event.data
            if self.acknowledge:
                self.client.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
        elif isinstance(event, h2.events.ResponseReceived):
            self.headers[event.stream_id] = dict(event.headers)  # type: ignore[arg-type]
        elif isinstance(event, h2.events.TrailersReceived):
            self.trailers[event.stream_id] = dict(event.headers)  # type: ignore[arg-type]
        elif isinstance(event, h2.events.StreamReset):
            self.resets[event.stream_id] = event.error_code

    def messages(self, stream: int) -> list[bytes]:
        """The messages that came back on a stream."""
        data, found = self.data.get(stream, b""), []
        while data:
            size = int.from_bytes(data[1:5], "big")
            found.append(data[5 : 5 + size])
            data = data[5 + size :]
        return found

    def raw(self, data: bytes) -> bytes:
        """Sends bytes behind the client's back; what the server answers."""
        self.server.receive(data)
        return self.server.take_output()


def status(client: Client, stream: int) -> str:
    found = client.trailers.get(stream) or client.headers[stream]
    return found["grpc-status"]


def test_messages_come_back_and_the_end_is_clean() -> None:
    client = Client()
    stream = client.open()
    client.send(stream, b"one", b"", b"two", end=True)
    assert client.messages(stream) == [b"one", b"", b"two"]
    assert client.headers[stream] == {":status": "200", "content-type": "application/grpc"}
    assert client.trailers[stream] == {"grpc-status": "0"}
    assert client.log == ["closed"]
    assert stream not in client.resets


def test_answer_that_ends_first_releases_the_client() -> None:
    client = Client()
    stream = client.open()
    client.send(stream, b"finish")
    assert client.resets[stream] == h2.errors.ErrorCodes.NO_ERROR
    assert not client.server.rpcs
    again = client.open()
    client.send(again, b"x", end=True)
    assert client.messages(again) == [b"x"]


def test_error_status_is_percent_encoded() -> None:
    client = Client()
    stream = client.open()
    client.send(stream, b"fail")
    assert status(client, stream) == "13"
    assert client.headers[stream]["grpc-message"] == "sch%C3%B6n 100%25"


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 40_000), min_size=1, max_size=6),
    st.integers(0, 1 << 30),
    st.sampled_from([None, 3]),
)
def test_any_cut_of_the_bytes_gives_the_same_messages(sizes: list[int], seed: int, pad: int | None) -> None:
    client = Client(cut=random.Random(seed))
    first, second = client.open(), client.open()
    messages = [random.Random(size).randbytes(size) for size in sizes]
    for number, message in enumerate(messages):
        client.send(first if number % 2 else second, message, pad=pad)
    client.send(first, end=True)
    client.send(second, end=True)
    assert client.messages(second) == messages[::2]
    assert client.messages(first) == messages[1::2]
    assert status(client, first) == status(client, second) == "0"


def test_large_message_passes_small_windows_both_ways() -> None:
    client = Client(Limits(max_message=1 << 22, stream_window=70_000, connection_window=70_000, max_frame=16_384))
    stream = client.open()
    message = random.Random(1).randbytes(1 << 20)
    client.send(stream, message, end=True)
    assert client.messages(stream) == [message]


def test_answers_wait_for_the_window_of_a_slow_reader() -> None:
    client = Client(Limits(max_message=1 << 22, stream_window=1 << 22))
    client.acknowledge = False
    stream = client.open()
    message = b"m" * 200_000
    client.send(stream, message, end=True)
    assert len(client.data[stream]) == 65_535
    rpc = client.server.rpcs[stream]
    assert rpc.waiting_bytes == 200_005 - 65_535
    assert client.log == []
    client.client.increment_flow_control_window(1 << 20)
    client.pump()
    assert len(client.data[stream]) == 65_535
    client.client.increment_flow_control_window(1 << 20, stream)
    client.pump()
    assert client.messages(stream) == [message]
    assert client.log == ["closed"]


def test_window_that_grows_by_settings() -> None:
    client = Client(Limits(max_message=1 << 22, stream_window=1 << 22))
    client.acknowledge = False
    client.client.increment_flow_control_window(1 << 22)
    stream = client.open()
    client.send(stream, b"m" * 100_000, end=True)
    assert len(client.data[stream]) == 65_535
    client.client.update_settings({h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 200_000})
    client.pump()
    assert client.messages(stream) == [b"m" * 100_000]


def test_message_beyond_the_limit_ends_its_stream_only() -> None:
    client = Client(Limits(max_message=1000))
    bad, good = client.open(), client.open()
    client.send(bad, b"x" * 1001)
    assert status(client, bad) == "8"
    client.send(good, b"x" * 1000, end=True)
    assert client.messages(good) == [b"x" * 1000]


def test_unknown_method_and_requests_that_are_not_grpc() -> None:
    client = Client()
    unknown = client.open([(name, "/t.T/No" if name == ":path" else value) for name, value in HEADERS])
    plain = client.open([(name, "text/html" if name == "content-type" else value) for name, value in HEADERS])
    client.pump()
    assert client.headers[unknown]["grpc-status"] == "12"
    assert client.headers[plain][":status"] == "415"
    assert not client.server.rpcs


def test_compressed_message_is_refused() -> None:
    client = Client()
    stream = client.open()
    client.client.send_data(stream, b"\x01\x00\x00\x00\x01z")
    client.pump()
    assert status(client, stream) == "12"


def test_stream_that_ends_inside_a_message() -> None:
    client = Client()
    stream = client.open()
    client.client.send_data(stream, b"\x00\x00\x00\x00\x09abc", end_stream=True)
    client.pump()
    assert status(client, stream) == "13"


def test_reset_by_the_client_closes_the_handler_once() -> None:
    client = Client()
    stream = client.open()
    client.send(stream, b"one")
    client.client.reset_stream(stream)
    client.pump()
    assert client.log == ["closed"]
    assert not client.server.rpcs
    client.handlers[0].rpc.send(b"late")
    client.handlers[0].rpc.finish()
    assert client.server.take_output() == b""


def test_lost_connection_closes_every_handler() -> None:
    client = Client()
    for _ in range(3):
        client.open()
    client.pump()
    client.server.lost()
    assert client.log == ["closed"] * 3
    client.server.lost()
    assert client.log == ["closed"] * 3


def test_ping_is_answered() -> None:
    client = Client()
    client.client.ping(b"12345678")
    client.pump()
    assert any(isinstance(event, h2.events.PingAckReceived) for event in client.events)


def test_drain_refuses_new_streams_and_finishes_after_the_last() -> None:
    client = Client()
    stream = client.open()
    client.pump()
    client.server.drain()
    assert not client.server.finished
    late = frames.frame(frames.HEADERS, frames.END_HEADERS, stream + 2, b"\x83\x86\x84")
    assert frames.reset(stream + 2, frames.REFUSED_STREAM) in client.raw(late)
    client.server.receive(frames.frame(frames.DATA, frames.END_STREAM, stream, b"\x00\x00\x00\x00\x01a"))
    assert client.server.finished
    assert client.handlers[0].messages == [b"a"]


def test_too_many_streams_are_refused() -> None:
    client = Client(Limits(max_streams=2))
    first = client.open()
    client.open()
    client.pump()
    block = client.client.encoder.encode(HEADERS)
    out = client.raw(frames.frame(frames.HEADERS, frames.END_HEADERS, first + 4, block))
    assert out == frames.reset(first + 4, frames.REFUSED_STREAM)


def test_continued_header_block() -> None:
    client = Client()
    block = client.client.encoder.encode([*HEADERS, ("x-long", "v" * 3000)])
    parts = [block[at : at + 100] for at in range(0, len(block), 100)]
    client.raw(frames.frame(frames.HEADERS, frames.END_STREAM, 1, parts[0]))
    for part in parts[1:-1]:
        client.raw(frames.frame(frames.CONTINUATION, 0, 1, part))
    out = client.raw(frames.frame(frames.CONTINUATION, frames.END_HEADERS, 1, parts[-1]))
    assert len(client.handlers) == 1
    assert frames.ok_trailers(1)[9:] in out


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (frames.frame(frames.DATA, 0, 9, b"x"), frames.PROTOCOL_ERROR),
        (frames.frame(frames.HEADERS, frames.END_HEADERS, 2, b"\x83"), frames.PROTOCOL_ERROR),
        (frames.frame(frames.HEADERS, frames.END_HEADERS, 1, b"\xff\xff\xff"), frames.COMPRESSION_ERROR),
        (frames.frame(frames.CONTINUATION, 0, 1, b""), frames.PROTOCOL_ERROR),
        (frames.frame(frames.HEADERS, 0, 1, b"") + frames.frame(frames.PING, 0, 0, b"8" * 8), frames.PROTOCOL_ERROR),
        (frames.frame(frames.PING, 0, 0, b"short"), frames.FRAME_SIZE_ERROR),
        (frames.frame(frames.SETTINGS, 0, 0, b"12345"), frames.FRAME_SIZE_ERROR),
        (frames.settings({4: 1 << 31}), frames.FLOW_CONTROL_ERROR),
        (frames.settings({5: 1}), frames.PROTOCOL_ERROR),
        (frames.window_update(0, 0), frames.PROTOCOL_ERROR),
        (frames.window_update(0, (1 << 31) - 1), frames.FLOW_CONTROL_ERROR),
        (frames.window_update(7, 1), frames.PROTOCOL_ERROR),
        (frames.reset(7, 0), frames.PROTOCOL_ERROR),
        (frames.frame(frames.PUSH_PROMISE, 0, 1, b""), frames.PROTOCOL_ERROR),
        (frames.frame(frames.DATA, frames.PADDED, 1, b"\x09a"), frames.PROTOCOL_ERROR),
        (b"\xff\xff\xff\x00\x00\x00\x00\x00\x01", frames.FRAME_SIZE_ERROR),
        (frames.frame(frames.PING, 0, 0, b"8" * 8) * 10_001, frames.ENHANCE_YOUR_CALM),
    ],
)
def test_faults_of_the_peer_close_the_connection(data: bytes, code: int) -> None:
    client = Client()
    out = client.raw(data)
    assert client.server.finished
    at = out.rindex(frames.frame(frames.GOAWAY, 0, 0)[3:5])
    assert int.from_bytes(out[at + 10 : at + 14], "big") == code
    client.server.receive(b"more")
    assert client.server.take_output() == b""


def test_data_after_the_end_of_a_stream() -> None:
    client = Client()
    client.raw(frames.frame(frames.HEADERS, frames.END_HEADERS, 1, client.client.encoder.encode(HEADERS)))
    held = client.handlers[0]
    held.half_closed = lambda: None  # type: ignore[method-assign]
    client.raw(frames.frame(frames.DATA, frames.END_STREAM, 1))
    client.raw(frames.frame(frames.DATA, 0, 1, b"x"))
    assert client.server.finished


def test_not_an_http2_client() -> None:
    server = Connection(lambda rpc, path, metadata: None)
    server.receive(b"GET / HTTP/1.1\r\n\r\n")
    assert server.finished


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 255), st.integers(0, 9), st.binary(max_size=60)), max_size=20)
)
def test_any_frames_are_served_or_refused_never_a_crash(sequence: list[tuple[int, int, int, bytes]]) -> None:
    client = Client()
    client.open()
    client.pump()
    for kind, flags, stream, payload in sequence:
        client.raw(frames.frame(kind, flags, stream, payload))
    client.server.lost()
    assert len(client.log) == len(client.handlers)


# Games of a peer: each costs it little and would cost us much.


def test_the_initial_window_cannot_be_moved_without_end() -> None:
    client = Client()
    streams = [client.open() for _ in range(100)]
    client.pump()
    one = (4).to_bytes(2, "big") + (70_000).to_bytes(4, "big")
    out = client.raw(frames.frame(frames.SETTINGS, 0, 0, one * 10_000))  # a single frame
    assert client.server.finished
    assert not client.server.rpcs
    assert client.log == ["closed"] * len(streams)
    assert int.from_bytes(out[-200:][out[-200:].index(b"too many") - 4 :][:4], "big") == frames.ENHANCE_YOUR_CALM


def test_settings_cost_more_where_there_are_many_streams() -> None:
    client = Client()
    for _ in range(1000):
        client.open()
    client.pump()
    one = frames.settings({frames.SETTING_INITIAL_WINDOW: 70_000})
    assert not client.raw(one * 500).count(b"too many control")
    assert client.raw(one * 1000).count(b"too many control") == 1


def test_window_comes_drop_by_drop_and_is_given_to_those_that_wait_longest() -> None:
    client = Client()
    client.acknowledge = False
    streams = [client.open() for _ in range(40)]
    for stream in streams:
        client.send(stream, bytes(5_000))
    server = client.server
    assert server.send_window == 0
    waiting = list(server.blocked)
    assert waiting == streams[13:]
    before = {stream: rpc.waiting_bytes for stream, rpc in server.rpcs.items()}
    server.receive(frames.window_update(0, 100))
    after = {stream: rpc.waiting_bytes for stream, rpc in server.rpcs.items()}
    flushed = [stream for stream in before if before[stream] != after[stream]]
    assert flushed == waiting[:1]
    assert list(server.blocked) == [*waiting[1:], waiting[0]]


def test_a_message_in_tiny_pieces_takes_little_more_than_its_size() -> None:
    client = Client()
    stream = client.open()
    client.pump()
    size = 300_000
    client.send(stream, b"start")
    head = b"\x00" + size.to_bytes(4, "big")
    for piece in (head, *(bytes((7, 7)) for _ in range(size // 2 - 1))):
        client.server.receive(frames.frame(frames.DATA, 0, stream, piece))
    kept = client.server.rpcs[stream]._chunks
    assert sum(map(sys.getsizeof, kept)) < 1.3 * size
    assert len(kept) < 10
    client.server.receive(frames.frame(frames.DATA, 0, stream, bytes((7, 7))))
    assert client.handlers[0].messages[-1] == bytes((7,)) * size
    assert all(isinstance(one, bytes) for one in client.handlers[0].messages)


@pytest.mark.parametrize("kind", [frames.HEADERS, frames.SETTINGS, frames.CONTINUATION, 77])
def test_only_data_comes_in_large_frames(kind: int) -> None:
    client = Client()
    out = client.raw(frames.frame(kind, frames.END_HEADERS, 1, b"\x20" * 70_000)[:30])  # its head is enough
    assert client.server.finished
    assert b"larger than one of its kind" in out


def test_streams_that_are_opened_and_reset_at_once_are_counted() -> None:
    client = Client(Limits(max_control=100))
    block = client.client.encoder.encode(HEADERS)
    stream = 1
    for _ in range(100):
        client.server.receive(frames.frame(frames.HEADERS, frames.END_HEADERS, stream, block))
        client.server.receive(frames.reset(stream, 8))
        stream += 2
    assert not client.server.finished
    client.server.receive(frames.frame(frames.HEADERS, frames.END_HEADERS, stream, block) + frames.reset(stream, 8))
    assert client.server.finished
    assert b"too many control" in client.server.take_output()


def test_resets_between_answers_are_usual() -> None:
    client = Client(Limits(max_control=100))
    for _ in range(300):
        stream = client.open()
        client.send(stream, b"x")
        client.client.reset_stream(stream)
        client.pump()
    assert not client.server.finished


def test_messages_that_are_not_whole_are_bounded_over_all_connections() -> None:
    held = Held(100_000)
    clients = [Client(), Client()]
    for client in clients:
        client.server.held = held
    first, second = (client.open() for client in clients)
    head = b"\x00" + (1_000_000).to_bytes(4, "big")
    for client, stream, size in ((clients[0], first, 60_000), (clients[1], second, 30_000)):
        client.pump()
        client.server.receive(frames.frame(frames.DATA, 0, stream, head + bytes(size)))
    assert held.bytes == 90_000
    clients[1].server.receive(frames.frame(frames.DATA, 0, second, bytes(20_000)))
    clients[1].pump()
    assert status(clients[1], second) == "8"
    assert held.bytes == 60_000
    other = clients[1].open()
    clients[1].send(other, b"x" * 10_000, end=True)
    assert clients[1].messages(other) == [b"x" * 10_000]
    assert held.bytes == 60_000
    clients[0].server.lost()
    assert held.bytes == 0


def test_nothing_stays_counted_of_messages_that_were_whole() -> None:
    client = Client(cut=random.Random(3))
    stream = client.open()
    client.send(stream, b"a" * 30_000, b"b" * 300, b"", b"c" * 30_000, end=True)
    assert [len(one) for one in client.messages(stream)] == [30_000, 300, 0, 30_000]
    assert client.server.held.bytes == 0


def test_padding_gives_its_window_back() -> None:
    client = Client(Limits(stream_window=70_000))
    stream = client.open()
    for _ in range(1_000):
        client.send(stream, b"x", pad=255)  # asserts that there is window
    assert client.messages(stream) == [b"x"] * 1_000


def test_nothing_is_taken_after_an_end_that_waits_to_be_sent() -> None:
    client = Client()
    client.acknowledge = False
    held = client.server.held
    stream = client.open()
    client.send(stream, bytes(100_000))  # the answer fills the window
    client.send(stream, b"finish")
    rpc = client.server.rpcs[stream]
    client.server.receive(frames.frame(frames.DATA, 0, stream, b"\x00" + (9_000).to_bytes(4, "big") + bytes(5_000)))
    client.server.receive(frames.frame(frames.DATA, 0, stream, bytes(4_000) + b"\x00\x00\x00\x00\x01x"))
    assert client.handlers[-1].messages == [bytes(100_000), b"finish"]
    assert held.bytes == 0
    assert rpc.waiting_bytes


def test_of_many_streams_at_once_others_have_their_turn_between() -> None:
    client = Client()
    block = client.client.encoder.encode(HEADERS)
    message = frames.frame(frames.DATA, frames.END_STREAM, 0, b"\x00" + (1).to_bytes(4, "big") + b"x")
    data = b"".join(
        frames.frame(frames.HEADERS, frames.END_HEADERS, stream, block)
        + message[:5]
        + stream.to_bytes(4, "big")
        + message[9:]
        for stream in range(1, 3001, 2)
    )
    server = client.server
    server.receive(data)
    turns = 1
    assert len(client.handlers) == 500
    while server.more:
        server.receive(b"")
        turns += 1
    assert len(client.handlers) == 1500
    assert turns == 4  # the last piece of the last stream
    assert all(one.messages == [b"x"] for one in client.handlers)
    assert not server.rpcs
