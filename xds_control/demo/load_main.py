"""Command line of the load generator: `python -m xds_control.demo.load`."""

from __future__ import annotations

import argparse
import asyncio
import json
from dataclasses import asdict

from xds_control.demo.load import Load
from xds_control.demo.traffic import TrafficConfig


def parser() -> argparse.ArgumentParser:
    """Defaults are those of TrafficConfig."""
    default = TrafficConfig()
    options = argparse.ArgumentParser(
        prog="python -m xds_control.demo.load",
        description="Sends mixed chat traffic and prints one JSON object of figures.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example:\n  python -m xds_control.demo.load --url http://127.0.0.1:10000 --rate 20 --seconds 10",
    )
    add = options.add_argument
    add("--url", required=True, help="base address, without /v1")
    add("--rate", type=float, default=default.rate, help="requests per second")
    add("--seconds", type=float, default=10.0)
    add("--model", action="append", default=[], help="name or name=share; may be given several times")
    add("--turns", type=float, default=default.turns, help="mean turns of a session")
    add("--system-prompts", type=int, default=default.system_prompts)
    add("--system-tokens", type=int, default=default.system_tokens)
    add("--user-tokens", type=float, default=default.user_tokens)
    add("--answer-tokens", type=float, default=default.answer_tokens)
    add("--stream-share", type=float, default=default.stream_share)
    add("--exact-answers", action="store_true", help="ask engines to ignore their end token")
    add("--max-in-flight", type=int, default=512)
    add("--seed", type=int, default=default.seed)
    return options


def main(argv: list[str] | None = None) -> int:
    """0, or 1 when a request failed."""
    options = parser()
    arguments = options.parse_args(argv)
    models: dict[str, float] = {}
    try:
        for text in arguments.model or ["demo"]:
            name, _, share = text.partition("=")
            models[name] = float(share or 1.0)
        traffic = TrafficConfig(
            rate=arguments.rate,
            models=models,
            turns=arguments.turns,
            system_prompts=arguments.system_prompts,
            system_tokens=arguments.system_tokens,
            user_tokens=arguments.user_tokens,
            answer_tokens=arguments.answer_tokens,
            stream_share=arguments.stream_share,
            exact_answers=arguments.exact_answers,
            seed=arguments.seed,
        )
    except ValueError as error:
        options.error(str(error))
    load = Load(arguments.url, traffic, max_in_flight=arguments.max_in_flight)
    summary = asyncio.run(load.run(seconds=arguments.seconds))
    print(json.dumps({**asdict(summary), "failed": summary.failed}))
    return 1 if summary.failed else 0
