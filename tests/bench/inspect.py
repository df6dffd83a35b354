"""Time to read one request into facts, with the session key, all prefix keys and the token estimates.

    python -m tests.bench.inspect [--seconds N]

Bodies are chats as clients send them: a system prompt, turns of prose and code with escapes, some with tools; no two
are the same, the fields around the prompt vary. Also printed: other texts and formats, for comparison.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable

from tests.bench import corpora
from xds_control.inspect import Inspector, TokenEstimator
from xds_control.policy.inspect import InspectPolicy

SIZES = {"us_4k": 4_000, "us_400k": 400_000, "us_4m": 4_000_000}
HEADERS = {
    ":method": "POST",
    ":path": "/v1/chat/completions",
    ":authority": "gateway",
    ":scheme": "http",
    "content-type": "application/json",
    "user-agent": "OpenAI/Python 1.99",
    "accept": "application/json",
    "accept-encoding": "gzip, deflate",
    "x-request-id": "5f0c4a4e-8a3c-4b5e-9f53-4a4b8b0a2a11",
    "x-stainless-lang": "python",
    "x-stainless-retry-count": "0",
}


def chat(rng: random.Random, size: int, kind: str = "", ascii_only: bool = True) -> bytes:
    """A chat of about `size` bytes."""
    turns = rng.randint(3, 9) if size < 100_000 else rng.randint(20, 120)
    makers = [corpora.KINDS[kind]] if kind else [corpora.english, corpora.english, corpora.code]
    body = {
        "messages": [
            {"role": "system", "content": corpora.english(rng, size // turns)},
            *(
                {"role": "user" if turn % 2 else "assistant", "content": rng.choice(makers)(rng, size // turns)}
                for turn in range(1, turns)
            ),
        ],
        "model": "meta-llama/Llama-3.1-8B-Instruct",
        "stream": True,
        "max_tokens": rng.choice((256, 512, 1024)),
        "temperature": rng.choice((0.0, 0.7)),
        "stream_options": {"include_usage": True},
    }
    if rng.random() < 0.3:
        body["user"] = f"user-{rng.randrange(10_000)}"
    return json.dumps(body, ensure_ascii=ascii_only).encode()


def measure(call: Callable[[bytes], object], bodies: list[bytes], seconds: float) -> float:
    """Microseconds per call: each body's shortest time, averaged over the bodies, which are gone through in turn.

    What disturbs a call (other processes, interrupts) only ever adds to it.
    """
    clock = time.perf_counter_ns
    shortest = [2**62] * len(bodies)
    end = time.perf_counter() + seconds
    rounds = 0
    while rounds < 3 or time.perf_counter() < end:
        for place, body in enumerate(bodies):
            start = clock()
            call(body)
            spent = clock() - start
            if spent < shortest[place]:
                shortest[place] = spent
        rounds += 1
    return sum(shortest) / len(bodies) / 1000


def main() -> None:
    """Prints the comparison, then one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="about how long to measure in all")
    seconds = parser.parse_args().seconds / 8
    policy = InspectPolicy()
    inspector = Inspector(policy, TokenEstimator(policy.tokens))

    def call(body: bytes) -> object:
        return inspector.inspect("/v1/chat/completions", HEADERS, body)

    rng = random.Random(1)
    results = {}
    for name, size in SIZES.items():
        bodies = [chat(rng, size) for _ in range(200 if size < 10_000 else 8 if size < 1_000_000 else 2)]
        facts = inspector.inspect("/v1/chat/completions", HEADERS, bodies[0])
        print(f"{name}: {len(bodies[0])} bytes, {facts.messages} messages, {len(facts.prefix_keys)} prefix keys")
        results[name] = round(measure(call, bodies, seconds), 2)
    for name, kind, ascii_only in (
        ("Chinese", "chinese", False),
        ("Chinese, escaped", "chinese", True),
        ("code", "code", True),
    ):
        for size in (4_000, 400_000):
            bodies = [chat(rng, size, kind, ascii_only) for _ in range(100 if size < 10_000 else 4)]
            print(f"{name}, {len(bodies[0])} bytes: {measure(call, bodies, seconds / 3):.1f} us")
    bodies = [json.dumps({"model": "m", "prompt": corpora.english(rng, 4_000)}).encode() for _ in range(100)]
    spent = measure(lambda body: inspector.inspect("/v1/completions", HEADERS, body), bodies, seconds / 3)
    print(f"completions, 4000 bytes: {spent:.1f} us")
    print(json.dumps(results))


if __name__ == "__main__":
    main()
