"""Content-Encoding of request bodies: gzip, deflate, br and zstd, inflated up to a limit."""

from __future__ import annotations

import zlib

import brotli  # type: ignore[import-untyped]
import zstandard

from xds_control.inspect.facts import BodyProblem

_STEP = 1 << 16
_MAX_MEMBERS = 1_000
"""Members of one gzip body. Those who compress in parallel write one for about every 128 KiB."""


def decode_body(data: bytes, encoding: str | None, limit: int, zstd_window: int) -> tuple[bytes, BodyProblem]:
    """The decoded body, or b"" and what is wrong.

    encoding: value of `content-encoding`; stacked encodings are unsupported. limit: most decoded bytes.
    zstd_window: largest zstd window in bytes. Exactly one complete zstd frame is accepted.
    """
    name = encoding.strip().lower() if encoding else "identity"
    if name in ("identity", ""):
        if len(data) > limit:
            return b"", BodyProblem.TOO_LARGE
        return data, BodyProblem.NONE if data else BodyProblem.EMPTY
    if not data:
        return b"", BodyProblem.EMPTY  # some clients name an encoding and send nothing
    try:
        if name in ("gzip", "x-gzip"):
            decoded = _gzip(data, limit)
        elif name == "deflate":
            decoded = _deflate(data, limit)
        elif name == "br":
            decoded = _brotli(data, limit)
        elif name == "zstd":
            decoded = _zstd(data, limit, zstd_window)
        else:
            return b"", BodyProblem.UNSUPPORTED_ENCODING
    except _TooLarge:
        return b"", BodyProblem.TOO_LARGE
    except (zlib.error, brotli.error, zstandard.ZstdError, _Damaged):
        return b"", BodyProblem.BAD_ENCODING
    return decoded, BodyProblem.NONE if decoded else BodyProblem.EMPTY


class _TooLarge(Exception):
    """More bytes come out than the limit allows."""


class _Damaged(Exception):
    """The compressed data is cut off, or is followed by something else."""


def _gzip(data: bytes, limit: int) -> bytes:
    # Members may follow one another. In steps and few, because what follows a member is copied at its end: a body of
    # empty members would be copied once for each of them.
    view, at, size = memoryview(data), 0, 0
    pieces: list[bytes] = []
    for _ in range(_MAX_MEMBERS):
        inflater = zlib.decompressobj(31)
        while not inflater.eof:
            if at >= len(view):
                raise _Damaged
            step = view[at : at + _STEP]
            piece = inflater.decompress(step, limit + 1 - size)
            size += len(piece)
            if size > limit:
                raise _TooLarge
            pieces.append(piece)
            at += len(step) - len(inflater.unused_data)
        if at == len(view):
            return b"".join(pieces)
    raise _Damaged


def _deflate(data: bytes, limit: int) -> bytes:
    try:
        decoded, rest = _inflate(data, limit, 15)
    except zlib.error:
        decoded, rest = _inflate(data, limit, -15)  # the raw form that some clients send under this name
    if rest:
        raise _Damaged
    return decoded


def _inflate(data: bytes, limit: int, window_bits: int) -> tuple[bytes, bytes]:
    inflater = zlib.decompressobj(window_bits)
    decoded = inflater.decompress(data, limit + 1)
    if len(decoded) > limit:
        raise _TooLarge
    if not inflater.eof:
        raise _Damaged
    return decoded, inflater.unused_data


def _brotli(data: bytes, limit: int) -> bytes:
    inflater = brotli.Decompressor()
    pieces = []
    size = 0
    while True:
        piece = inflater.process(data, output_buffer_limit=1 << 20)
        data = b""
        size += len(piece)
        if size > limit:
            raise _TooLarge
        pieces.append(piece)
        if inflater.is_finished():
            return b"".join(pieces)
        if not piece and inflater.can_accept_more_data():
            raise _Damaged


def _zstd(data: bytes, limit: int, window: int) -> bytes:
    size = zstandard.frame_content_size(data)
    if size > limit:
        raise _TooLarge
    inflater = zstandard.ZstdDecompressor(max_window_size=window).decompressobj(read_across_frames=False)
    pieces = []
    total = 0
    for start in range(0, len(data), _STEP):  # in steps, because one call inflates all that it is given
        if inflater.eof:
            raise _Damaged
        piece = inflater.decompress(data[start : start + _STEP])
        total += len(piece)
        if total > limit:
            raise _TooLarge
        pieces.append(piece)
    if not inflater.eof or inflater.unused_data:
        raise _Damaged
    return b"".join(pieces)
