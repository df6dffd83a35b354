from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xds_control.extproc.http2.hpack import Decoder, HpackError, huffman_decode, literal

hpack = pytest.importorskip("hpack", reason="an independent encoder to compare with")
import hpack.huffman  # noqa: E402, F811
import hpack.huffman_constants  # noqa: E402

texts = st.binary(max_size=80)
names = st.sampled_from([b":path", b"content-type", b"te", b"x-a", b"x-b", b"cookie", b"traceparent"]) | st.binary(
    min_size=1, max_size=20
)


# RFC 7541, appendix C.4: the first request with Huffman coding.
def test_example_of_the_standard() -> None:
    decoder = Decoder()
    block = bytes.fromhex("828684418cf1e3c2e5f23a6ba0ab90f4ff")
    assert decoder.decode(block) == [
        (b":method", b"GET"),
        (b":scheme", b"http"),
        (b":path", b"/"),
        (b":authority", b"www.example.com"),
    ]
    second = bytes.fromhex("828684be5886a8eb10649cbf")
    assert decoder.decode(second)[3:] == [(b":authority", b"www.example.com"), (b"cache-control", b"no-cache")]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.lists(st.tuples(names, texts), max_size=12), st.booleans()), max_size=12))
def test_whatever_another_encoder_writes(blocks: list[tuple[list[tuple[bytes, bytes]], bool]]) -> None:
    encoder, decoder = hpack.Encoder(), Decoder()
    for headers, huffman in blocks:
        assert decoder.decode(encoder.encode(headers, huffman=huffman)) == headers


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(names, texts), max_size=30), st.lists(st.integers(0, 4096), max_size=4))
def test_table_size_updates(headers: list[tuple[bytes, bytes]], sizes: list[int]) -> None:
    encoder, decoder = hpack.Encoder(), Decoder()
    for size in sizes:
        encoder.header_table_size = size
        for _ in range(2):
            assert decoder.decode(encoder.encode(headers)) == headers


@given(texts.map(lambda text: text * 3), st.binary(min_size=1, max_size=300))
def test_literals_are_read_by_another_decoder(value: bytes, name: bytes) -> None:
    assert hpack.Decoder().decode(literal(name, value), raw=True) == [(name, value)]


def test_repeated_block_is_remembered_until_the_table_changes() -> None:
    encoder, decoder = hpack.Encoder(), Decoder()
    headers = [(b":path", b"/p"), (b"x-a", b"1")]
    decoder.decode(encoder.encode(headers))
    again = encoder.encode(headers)
    assert decoder.decode(again) is decoder.decode(again)
    decoder.decode(encoder.encode([(b"x-new", b"2")]))
    assert decoder.decode(encoder.encode(headers)) == headers


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200))
def test_garbage_is_an_error_or_headers_never_a_crash(block: bytes) -> None:
    try:
        for name, value in Decoder().decode(block):
            assert isinstance(name, bytes)
            assert isinstance(value, bytes)
    except HpackError:
        return


@pytest.mark.parametrize(
    "block",
    [
        b"\x80",  # index 0
        b"\xff\x80\x80\x80\x80\x80\x01",  # an integer without end
        b"\xc5",  # beyond the empty dynamic table
        b"\x3f\xe2\x1f",  # a table larger than allowed
        b"\x82\x20",  # a size update after a header
        b"\x00\x05ab",  # a string that is cut off
    ],
)
def test_malformed_blocks(block: bytes) -> None:
    with pytest.raises(HpackError):
        Decoder().decode(block)


def test_header_list_limit() -> None:
    with pytest.raises(HpackError, match="too large"):
        Decoder(max_list=100).decode(literal(b"x", b"y" * 200))


@pytest.mark.parametrize("data", [b"\xff\xff\xff\xff", b"\x00\x00"])
def test_huffman_padding(data: bytes) -> None:
    with pytest.raises(HpackError):
        huffman_decode(data)


def test_long_coded_strings_are_not_remembered() -> None:
    huffman_decode.cache_clear()
    for number in range(20):
        text = b"0" * 5_000 + str(number).encode()
        coded = hpack.huffman.HuffmanEncoder(
            hpack.huffman_constants.REQUEST_CODES, hpack.huffman_constants.REQUEST_CODES_LENGTH
        ).encode(text)
        assert Decoder().decode(b"\x00\x01x" + _coded_length(len(coded)) + coded) == [(b"x", text)]
    assert huffman_decode.cache_info().currsize == 0


def _coded_length(size: int) -> bytes:
    out, size = bytearray((0xFF,)), size - 0x7F
    while size >= 0x80:
        out.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes((*out, size))
