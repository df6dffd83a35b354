"""Mutated request bodies against the inspector, with what must hold of every result.

    python -m tests.fuzz.bodies [--seconds N] [--seed N]

Uses atheris for coverage guidance where it is installed (`pip install atheris`), a seeded mutator otherwise.
Prints the input of the first failure as a Python literal, to become a test.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import random
import sys
import time
from collections.abc import Iterator

from tests.unit.inspect.samples import SAMPLES
from xds_control.inspect import BodyProblem, Inspector, RequestFacts, TokenEstimator
from xds_control.inspect.patch import replace_model
from xds_control.policy.inspect import InspectPolicy, TagPolicy

POLICY = InspectPolicy(
    max_decoded_bytes=1 << 20,
    max_lenient_bytes=1 << 18,
    prefix_block_bytes=64,
    tags=(TagPolicy(name="t", keywords=("a", "中"), min_hits=2),),
)
FRAGMENTS = (
    b'"model":"m",', b'"model":', b'{"model":"a","model":"b"}', b'"mod\\u0065l":"x",', b"\\ud83d", b"\\u0000",
    b"\xff\xfe", b"\xef\xbb\xbf", b"NaN", b"1e999", b"-", b"9" * 30, b"null", b"[" * 50, b"{" * 50, b"]" * 50,
    b"}" * 50, b'"', b"\\", b",", b":", b"true", b'"messages":[', b'"content":',
    b'{"type":"image_url","image_url":', b'"stream":"on",',
    b'"metadata":{"messages":[{"role":"user","content":"x"}]},', b'"prompt":[1,2,', b"]}]}",
    b'"x":"' + b"y" * 400 + b'",', b"\r\n--B--", b"\r\n--B\r\n", b"\0\0\0\0\5", b"data:image/png;base64,AAAA",
    b"\x1e", b"\x1euser\x1f",
)  # fmt: skip


def mutate(rng: random.Random, data: bytes) -> bytes:
    """A few changes of bytes, pieces or fragments."""
    changed = bytearray(data)
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3, 8))):
        place = rng.randrange(len(changed) + 1)
        kind = rng.randrange(8)
        if kind == 0 and changed:
            changed[place % len(changed)] = rng.randrange(256)
        elif kind == 1:
            changed[place:place] = rng.choice(FRAGMENTS)
        elif kind == 2:
            del changed[place : place + rng.choice((1, 1, 5, 50))]
        elif kind == 3:
            del changed[place:]
        elif kind == 4 and changed:
            start = rng.randrange(len(changed))
            changed[place:place] = changed[start : start + rng.choice((1, 10, 200))]
        elif kind == 5:
            other = rng.choice(SAMPLES).data()
            start = rng.randrange(len(other) + 1)
            changed[place:place] = other[start : start + rng.choice((5, 40, 400))]
        elif kind == 6:
            changed = changed.replace(rng.choice((b'"', b"[", b":", b"content", b"m")), rng.choice(FRAGMENTS), 1)
        elif changed:
            changed[place % len(changed)] ^= 1 << rng.randrange(8)
    return bytes(changed)


class Checker:
    """Inspects inputs with an inspector that has seen all before and with one that has seen nothing: both agree."""

    def __init__(self) -> None:
        self.estimator = TokenEstimator(POLICY.tokens)
        self.seasoned = Inspector(POLICY, self.estimator)
        self.new = Inspector(POLICY, self.estimator)

    def check(self, path: str, headers: dict[str, str], body: bytes) -> RequestFacts:
        """Raises AssertionError when something that must hold does not."""
        facts = self.seasoned.inspect(path, headers, body)
        check_facts(facts, body)
        for _, envelopes in self.new._readers.values():
            envelopes._known.clear()
        assert facts == self.new.inspect(path, headers, body)
        data, _ = self.seasoned.decoded(headers, body)
        patched = replace_model(data, facts, "other")
        if patched is not None and facts.problem is BodyProblem.NONE and facts.model_span is not None:
            again = self.seasoned.inspect(path, {}, patched)
            assert again.model == "other", (facts, patched)
            assert again.problem is BodyProblem.NONE
            assert (again.messages, again.stream, again.prompt_bytes) == (
                facts.messages,
                facts.stream,
                facts.prompt_bytes,
            )
            assert again.session_key == facts.session_key
        return facts


def check_facts(facts: RequestFacts, body: bytes) -> None:
    """What holds of all facts."""
    assert facts.body_bytes == len(body)
    assert 0 <= facts.prompt_bytes <= 4 * POLICY.max_decoded_bytes
    assert 0 <= facts.prompt_tokens < 1 << 40
    assert 0 <= facts.expected_output_tokens < 1 << 31
    assert len(facts.prefix_keys) == len(facts.prefix_tokens) <= POLICY.prefix_max_keys
    assert list(facts.prefix_tokens) == sorted(facts.prefix_tokens)
    assert all(0 <= key < 1 << 64 for key in facts.prefix_keys)
    assert 0 <= facts.session_key < 1 << 64
    assert bool(facts.session_key) is bool(facts.session_source)
    assert facts.n >= 1
    assert facts.temperature is None or math.isfinite(facts.temperature)
    assert facts.max_output_tokens is None or 0 <= facts.max_output_tokens < 1 << 31
    assert facts.images <= facts.media_count
    assert 0 <= facts.text_profile < 1 << 53
    assert isinstance(facts.model, str)
    assert len(facts.model) <= 1024
    facts.model.encode()
    if facts.model_span is not None:
        start, end = facts.model_span
        assert 0 <= start < end


def inputs(rng: random.Random) -> Iterator[tuple[str, dict[str, str], bytes]]:
    """Endless inputs: samples with paths, bodies and encodings changed."""
    while True:
        sample = rng.choice(SAMPLES)
        path = rng.choice(SAMPLES).path if rng.random() < 0.1 else sample.path
        if rng.random() < 0.05:
            path = mutate(rng, path.encode()).decode("latin-1")
        headers = dict(sample.headers)
        data = mutate(rng, sample.data())
        if rng.random() < 0.03:
            headers["content-encoding"] = rng.choice(("gzip", "zstd", "br", "deflate"))
            data = mutate(rng, gzip.compress(data)) if rng.random() < 0.7 else data
        if rng.random() < 0.03:
            headers["inference-header-content-length"] = str(rng.randrange(len(data) + 10))
        yield path, headers, data


def run(seconds: float, seed: int) -> int:
    """Checks mutated inputs for so long; the number of inputs."""
    checker = Checker()
    end = time.monotonic() + seconds
    count = 0
    for path, headers, data in inputs(random.Random(seed)):
        try:
            checker.check(path, headers, data)
        except Exception:
            print(f"failed: {path!r}, {headers!r}, {data!r}", file=sys.stderr)
            raise
        count += 1
        if time.monotonic() > end:
            return count
    return count


def guided(seconds: float) -> None:
    """Coverage-guided by atheris; does not return."""
    import atheris  # type: ignore[import-not-found,import-untyped,unused-ignore]

    checker = Checker()
    paths = sorted({sample.path for sample in SAMPLES})

    def one(data: bytes) -> None:
        if data:
            checker.check(paths[data[0] % len(paths)], {}, data[1:])

    atheris.instrument_all()
    atheris.Setup([sys.argv[0], f"-max_total_time={int(seconds)}", "-max_len=4096"], one)
    atheris.Fuzz()


def main() -> None:
    """Runs for the asked time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=time.time_ns())
    parser.add_argument("--no-atheris", action="store_true", help="the seeded mutator even where atheris is installed")
    arguments = parser.parse_args()
    if not arguments.no_atheris:
        try:
            guided(arguments.seconds)
        except ImportError:
            print("atheris is not installed: mutating by seed", arguments.seed)
    print(json.dumps({"inputs": run(arguments.seconds, arguments.seed), "seed": arguments.seed}))


if __name__ == "__main__":
    main()
