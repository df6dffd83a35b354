"""Compressed bodies, whole and damaged, large and hostile."""

from __future__ import annotations

import gzip
import json
import random
import zlib
from collections.abc import Callable

import brotli  # type: ignore[import-untyped]
import pytest
import zstandard

from xds_control.inspect import BodyProblem, Inspector, TokenEstimator
from xds_control.inspect.patch import replace_model
from xds_control.policy.inspect import InspectPolicy

CHAT = "/v1/chat/completions"
BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hello " * 3000}]}).encode()


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "x-gzip": gzip.compress,
    "deflate": zlib.compress,
    "br": brotli.compress,
    "zstd": zstandard.compress,
}


@pytest.fixture(scope="module")
def inspector() -> Inspector:
    return Inspector(InspectPolicy(max_decoded_bytes=1 << 20), TokenEstimator())


@pytest.mark.parametrize("name", [*PACKERS, "identity", "", "GZIP "])
def test_encodings_are_read(inspector: Inspector, name: str) -> None:
    pack = gzip.compress if name == "GZIP " else PACKERS.get(name)
    packed = BODY if pack is None else pack(BODY)
    facts = inspector.inspect(CHAT, {"content-encoding": name}, packed)
    assert (facts.problem, facts.model, facts.body_bytes) == (BodyProblem.NONE, "m", len(packed))
    data, _ = inspector.decoded({"content-encoding": name}, packed)
    assert data == BODY
    patched = replace_model(data, facts, "other")
    assert patched is not None
    assert json.loads(patched)["model"] == "other"
    if packed is not BODY:
        assert replace_model(packed, facts, "other") is None


def test_raw_deflate_and_members_of_gzip(inspector: Inspector) -> None:
    assert inspector.inspect(CHAT, {"content-encoding": "deflate"}, raw_deflate(BODY)).model == "m"
    parts = gzip.compress(BODY[:500]) + gzip.compress(BODY[500:])
    assert inspector.inspect(CHAT, {"content-encoding": "gzip"}, parts).model == "m"


def test_zstd_without_a_size_in_its_header(inspector: Inspector) -> None:
    packer = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    packed = packer.compress(BODY) + packer.flush()
    assert inspector.inspect(CHAT, {"content-encoding": "zstd"}, packed).model == "m"


@pytest.mark.parametrize("name", PACKERS)
def test_damage_is_noticed(inspector: Inspector, name: str) -> None:
    packed = PACKERS[name](BODY)
    headers = {"content-encoding": name}
    for damaged in (packed[:-3], packed[: len(packed) // 2], b"x" + packed, b"\0" * 50, packed[:1]):
        assert inspector.inspect(CHAT, headers, damaged).problem is BodyProblem.BAD_ENCODING
    assert inspector.inspect(CHAT, headers, b"").problem is BodyProblem.EMPTY
    assert inspector.inspect(CHAT, headers, PACKERS[name](b"")).problem is BodyProblem.EMPTY


@pytest.mark.parametrize("name", ["deflate", "zstd"])
def test_trailing_data_is_no_part_of_it(inspector: Inspector, name: str) -> None:
    packed = PACKERS[name](BODY) + b"extra"
    assert inspector.inspect(CHAT, {"content-encoding": name}, packed).problem is BodyProblem.BAD_ENCODING


def test_two_zstd_frames_are_refused(inspector: Inspector) -> None:
    packed = zstandard.compress(BODY)
    assert inspector.inspect(CHAT, {"content-encoding": "zstd"}, packed * 2).problem is BodyProblem.BAD_ENCODING


@pytest.mark.parametrize("name", ["gzip, zstd", "compress", "x", "br;q=1"])
def test_unknown_and_stacked_encodings(inspector: Inspector, name: str) -> None:
    assert inspector.inspect(CHAT, {"content-encoding": name}, BODY).problem is BodyProblem.UNSUPPORTED_ENCODING


@pytest.mark.parametrize("name", PACKERS)
def test_bombs_stop_at_the_limit(inspector: Inspector, name: str) -> None:
    bomb = PACKERS[name](bytes(16 << 20))
    assert len(bomb) < 100_000
    assert inspector.inspect(CHAT, {"content-encoding": name}, bomb).problem is BodyProblem.TOO_LARGE
    exact = PACKERS[name](bytes(1 << 20))
    assert inspector.inspect(CHAT, {"content-encoding": name}, exact).problem is BodyProblem.NOT_JSON
    assert inspector.inspect(CHAT, {}, bytes((1 << 20) + 1)).problem is BodyProblem.TOO_LARGE


@pytest.mark.parametrize(("members", "problem"), [(999, BodyProblem.NONE), (1_000_000, BodyProblem.BAD_ENCODING)])
def test_empty_members_of_gzip_are_few(inspector: Inspector, members: int, problem: BodyProblem) -> None:
    # a million of them, copied one by one, took minutes
    packed = gzip.compress(b"") * members + gzip.compress(BODY)
    assert inspector.inspect(CHAT, {"content-encoding": "gzip"}, packed).problem is problem


def test_members_larger_than_a_step() -> None:
    inspector = Inspector(InspectPolicy(), TokenEstimator())
    noise = json.dumps({"model": "m", "prompt": random.Random(1).randbytes(300_000).hex()}).encode()
    parts = [gzip.compress(noise[at : at + 100_000]) for at in range(0, len(noise), 100_000)]
    assert inspector.decoded({"content-encoding": "gzip"}, b"".join(parts)) == (noise, BodyProblem.NONE)
    assert inspector.decoded({"content-encoding": "gzip"}, b"".join(parts)[:-1])[1] is BodyProblem.BAD_ENCODING


def test_zstd_windows_are_limited() -> None:
    inspector = Inspector(InspectPolicy(zstd_window_bytes=1 << 20), TokenEstimator())
    parameters = zstandard.ZstdCompressionParameters(window_log=24, write_content_size=False)
    packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    packed = packer.compress(BODY) + packer.flush()
    assert inspector.inspect(CHAT, {"content-encoding": "zstd"}, packed).problem is BodyProblem.BAD_ENCODING
