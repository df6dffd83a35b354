"""Command line of the demo engine: `python -m xds_control.demo.engine`."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys

import uvloop

from xds_control.demo.engine import DemoEngine, EngineConfig
from xds_control.demo.model import ModelConfig


def parser() -> argparse.ArgumentParser:
    """Every option's default is the default of EngineConfig or ModelConfig."""
    timing, config = ModelConfig(), EngineConfig()
    options = argparse.ArgumentParser(
        prog="python -m xds_control.demo.engine",
        description="A model server without a GPU that speaks vLLM's HTTP, streaming and metrics formats.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example:\n  python -m xds_control.demo.engine --port 8101 --model demo --decode-ms 25",
    )
    add = options.add_argument
    add("--host", default="127.0.0.1")
    add("--port", type=int, default=0, help="0 takes a free one and prints it")
    add("--model", default=config.model, help="served model name")
    add("--name", default=config.name, help="comes back in the header x-demo-engine")
    add("--prefill-tps", type=float, default=timing.prefill_tps, help="prompt tokens per second")
    add("--decode-ms", type=float, default=timing.decode_s * 1e3, help="milliseconds per token with one sequence")
    add("--decode-growth-ms", type=float, default=timing.decode_growth_s * 1e3, help="added per further sequence")
    add("--kv-blocks", type=int, default=timing.kv_blocks, help="blocks in the KV cache")
    add("--block-size", type=int, default=timing.block_size, help="tokens per block")
    add("--max-seqs", type=int, default=timing.max_seqs, help="sequences that run at once")
    add("--max-batched-tokens", type=int, default=timing.max_batched_tokens, help="token budget of a step")
    add("--max-queued", type=int, default=None, help="refuse with 503 beyond so many waiting requests")
    add("--no-prefix-caching", action="store_true")
    add("--max-model-len", type=int, default=config.max_model_len)
    add("--answer-tokens", type=float, default=config.answer_tokens, help="mean length of answers")
    add("--stream-interval", type=int, default=config.stream_interval, help="tokens per streamed chunk")
    add("--engine-label", default=config.engine_label, help="value of the label `engine` on metrics")
    add("--lora", action="append", default=[], help="name of an adapter; may be given several times")
    add("--seed", type=int, default=config.seed)
    add("--kv-events-port", type=int, default=0, help="publish vLLM's KV events there (extra kv-events)")
    add("--kv-replay-port", type=int, default=0, help="send KV events again from there")
    add("--decodes", action="store_true", help="ask another engine for the prefill where a request names one")
    add("--record", type=int, default=config.record, help="keep so many last requests for GET /demo/requests")
    return options


def config_from(arguments: argparse.Namespace) -> EngineConfig:
    """Raises ValueError when the figures make no engine."""
    return EngineConfig(
        model=arguments.model,
        name=arguments.name,
        timing=ModelConfig(
            prefill_tps=arguments.prefill_tps,
            decode_s=arguments.decode_ms / 1e3,
            decode_growth_s=arguments.decode_growth_ms / 1e3,
            kv_blocks=arguments.kv_blocks,
            block_size=arguments.block_size,
            max_seqs=arguments.max_seqs,
            max_batched_tokens=arguments.max_batched_tokens,
            max_queued=arguments.max_queued,
            prefix_caching=not arguments.no_prefix_caching,
        ),
        max_model_len=arguments.max_model_len,
        answer_tokens=arguments.answer_tokens,
        stream_interval=arguments.stream_interval,
        engine_label=arguments.engine_label,
        loras=tuple(arguments.lora),
        seed=arguments.seed,
        record=arguments.record,
        decodes=arguments.decodes,
        kv_events_port=arguments.kv_events_port,
        kv_replay_port=arguments.kv_replay_port,
    )


async def _serve(config: EngineConfig, host: str, port: int) -> int:
    engine = DemoEngine(config)
    try:
        await engine.start(port, host)
    except OSError as error:
        print(f"demo engine: cannot listen on {host}:{port}: {error.strerror or error}", file=sys.stderr)
        return 1
    print(f"demo engine {config.model} on http://{engine.address}", flush=True)
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    await stopped.wait()
    await engine.stop()
    return 0


def main(argv: list[str] | None = None) -> int:
    """Run until SIGINT or SIGTERM; the exit code. 2: bad options, 1: the port is taken."""
    arguments = parser().parse_args(argv)
    try:
        config = config_from(arguments)
    except ValueError as error:
        print(f"demo engine: {error}", file=sys.stderr)
        return 2
    return uvloop.run(_serve(config, arguments.host, arguments.port))
