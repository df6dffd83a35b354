"""Policies side by side on the real thing: Envoy, processors, four demo engines, the same requests for each policy.

    python -m tests.bench.policies_live [--load shared-prefix|multi-turn|both] [--seconds 15] [--processors 1]

shared-prefix: many groups of requests, each group with a long prompt of its own before a short question; together
they are more than one engine's cache holds. multi-turn: conversations that grow by each answer. Poisson arrivals,
seeded; streamed answers. Printed: time to first token as the client saw it, the share of prompt tokens that the
engines found cached, and the busiest engine's share. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from tests.envoy.harness import Product
from xds_control.demo.engine import DemoEngine, EngineConfig
from xds_control.demo.model import ModelConfig

ENGINES = 4
CHAT = "/v1/chat/completions"
TIMING = ModelConfig(
    prefill_tps=4_000.0, decode_s=0.012, decode_growth_s=0.0006, kv_blocks=1_600, max_seqs=16, max_batched_tokens=1024
)
WORDS = [f"w{number:03x}" for number in range(4096)]

VARIANTS: dict[str, dict[str, Any]] = {
    "round robin": {"pool": {"picks": False, "lb": "round_robin"}, "equal": True},
    "least_request": {"pool": {"picks": False, "lb": "least_request"}, "equal": True},
    "weights only": {"pool": {"picks": False, "lb": "least_request"}},
    "EPP default 2:2:3": {"picker": {"use": [{"profile": "epp-default"}]}},
    "sticky": {"picker": {"use": [{"profile": "affinity"}]}},
    "least total cost": {},
}


@dataclass
class Seen:
    """What the clients of one policy saw in the measured time."""

    ttft_s: list[float] = field(default_factory=list)
    prompt: int = 0
    cached: int = 0
    failed: int = 0
    served: Counter[str] = field(default_factory=Counter)

    def quantile(self, q: float) -> float:
        """A quantile of the time to first token in seconds."""
        ranked = sorted(self.ttft_s)
        return ranked[min(len(ranked) - 1, int(q * len(ranked)))] if ranked else float("nan")

    def row(self) -> dict[str, float | int]:
        """The figures."""
        total = sum(self.served.values()) or 1
        return {
            "ttft_p50_ms": round(self.quantile(0.5) * 1000, 1),
            "ttft_p90_ms": round(self.quantile(0.9) * 1000, 1),
            "hit_ratio": round(self.cached / self.prompt, 3) if self.prompt else 0.0,
            "busiest_share": round(max(self.served.values(), default=0) / total, 3),
            "requests": total,
            "failed": self.failed,
        }


def policy(engines: list[DemoEngine], variant: dict[str, Any], processors: int) -> dict[str, Any]:
    """The policy of one variant."""
    found: dict[str, Any] = {
        "pools": [
            {"name": "chat", "models": ["demo"], "engine": "vllm"}
            | {"endpoints": [{"address": engine.address} for engine in engines]}
            | variant.get("pool", {})
        ],
        "signals": {"scrape": {"min_interval_s": 0.2, "max_interval_s": 0.5}},
        "weights": {"slow_start": {"window_s": 0}},
        "processors": {"count": processors},
    }
    if variant.get("equal"):
        found["weights"] |= {
            "profile": "custom",
            "waterfill": {"enabled": False},
            "curves": [{"signal": "asleep"}],
            "fairness": {"enabled": False},
        }
        found["capacity"] = {"learn": {"enabled": False}}
    if "picker" in variant:
        found["picker"] = variant["picker"]
    return found


def text(rng: random.Random, words: int) -> str:
    """So many words, about 1.25 tokens of the demo engine each."""
    return " ".join(rng.choices(WORDS, k=words))


class Workload:
    """Requests of one load in order of arrival. A follow-up waits for the answer before it."""

    def __init__(self, kind: str, rate: float, seed: int) -> None:
        self.kind = kind
        self.rate = rate
        self.rng = random.Random(seed)
        self._groups = [text(random.Random(seed * 1000 + group), 900) for group in range(64)]
        self._open: list[list[dict[str, str]]] = []

    def next(self) -> list[dict[str, str]]:
        """The messages of the next request."""
        rng = self.rng
        if self.kind == "shared-prefix":
            head = rng.choice(self._groups)
            return [{"role": "system", "content": head}, {"role": "user", "content": text(rng, 40)}]
        if len(self._open) >= 24 or (self._open and rng.random() < 0.8):
            messages = self._open.pop(rng.randrange(len(self._open)))
        else:
            messages = [{"role": "system", "content": "Answer briefly."}]
        return [*messages, {"role": "user", "content": text(rng, 250)}]

    def answered(self, messages: list[dict[str, str]], answer: str) -> None:
        """A conversation may go on, eight turns at most."""
        if self.kind == "multi-turn" and len(messages) < 16:
            self._open.append([*messages, {"role": "assistant", "content": answer}])


async def ask(session: aiohttp.ClientSession, url: str, work: Workload, seen: Seen | None) -> None:
    """One streamed request."""
    messages = work.next()
    body = {
        "model": "demo",
        "messages": messages,
        "max_tokens": 24,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    started = time.monotonic()
    first = 0.0
    words: list[str] = []
    usage: dict[str, Any] = {}
    try:
        async with session.post(url + CHAT, json=body) as answer:
            async for line in answer.content:
                if not line.startswith(b"data: {"):
                    continue
                event = json.loads(line[6:])
                usage = event.get("usage") or usage
                for choice in event.get("choices") or ():
                    content = (choice.get("delta") or {}).get("content")
                    if content:
                        first = first or time.monotonic()
                        words.append(content)
            if answer.status != 200 or not first:
                if seen is not None:
                    seen.failed += 1
                return
            work.answered(messages, "".join(words))
            if seen is not None:
                seen.ttft_s.append(first - started)
                seen.served[answer.headers.get("x-demo-engine", "?")] += 1
                seen.prompt += usage.get("prompt_tokens", 0)
                seen.cached += (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    except (aiohttp.ClientError, TimeoutError, OSError):
        if seen is not None:
            seen.failed += 1


async def measure(name: str, kind: str, options: argparse.Namespace) -> Seen:
    """Runs one policy from a cold start: some seconds to fill caches, then the measured ones."""
    engines = [
        DemoEngine(EngineConfig(model="demo", timing=TIMING, name=f"e{number}", stream_interval=8))
        for number in range(ENGINES)
    ]
    for engine in engines:
        await engine.start()
    seen = Seen()
    work = Workload(kind, options.rate, options.seed)
    try:
        with tempfile.TemporaryDirectory() as folder:
            product = Product(policy(engines, VARIANTS[name], options.processors), Path(folder))
            connector = aiohttp.TCPConnector(limit=0)
            timeout = aiohttp.ClientTimeout(total=120)
            async with product, aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
                loop = asyncio.get_running_loop()
                start = due = loop.time()
                running: list[asyncio.Task[None]] = []
                while due < start + options.warm + options.seconds:
                    counts = due >= start + options.warm
                    running.append(asyncio.create_task(ask(session, product.gateway, work, seen if counts else None)))
                    due += work.rng.expovariate(options.rate)
                    await asyncio.sleep(max(0.0, due - loop.time()))
                await asyncio.gather(*running)
    finally:
        for engine in engines:
            await engine.stop()
    return seen


async def run(options: argparse.Namespace) -> dict[str, Any]:
    """All policies on the chosen loads."""
    loads = ["shared-prefix", "multi-turn"] if options.load == "both" else [options.load]
    names = options.policy or list(VARIANTS)
    result: dict[str, Any] = {}
    for kind in loads:
        print(f"\n{kind}: {options.rate:g} requests/s, {ENGINES} engines, {options.processors} processor(s)")
        print(
            f"{'policy':20} {'TTFT p50':>9} {'p90':>9} {'hit ratio':>10} {'busiest':>8} {'requests':>9} {'failed':>7}"
        )
        for name in names:
            row = (await measure(name, kind, options)).row()
            result.setdefault(kind, {})[name] = row
            print(
                f"{name:20} {row['ttft_p50_ms']:7.0f} ms {row['ttft_p90_ms']:6.0f} ms {row['hit_ratio']:10.3f} "
                f"{row['busiest_share']:8.2f} {row['requests']:9d} {row['failed']:7d}",
                flush=True,
            )
    return result


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--load", choices=("shared-prefix", "multi-turn", "both"), default="both")
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--warm", type=float, default=10.0)
    parser.add_argument("--rate", type=float, default=11.0)
    parser.add_argument("--processors", type=int, default=1)
    parser.add_argument("--policy", action="append", choices=list(VARIANTS))
    parser.add_argument("--seed", type=int, default=1)
    result = asyncio.run(run(parser.parse_args()))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
