"""`demo`: a fleet on this machine, an Envoy in front of it, and what happens when engines misbehave."""

from __future__ import annotations

from pathlib import Path

import click

from xds_control.cli.options import EXIT_FAILED, fail
from xds_control.errors import ConfigError


@click.command()
@click.option("--seconds", type=click.FloatRange(min=1.0), help="End by itself after so long; else run until Ctrl-C.")
@click.option("--engines", type=click.IntRange(0, 64), default=3, show_default=True, help="How many demo engines.")
@click.option("--llama/--no-llama", default=True, show_default=True, help="Also start three llama.cpp servers.")
@click.option("--rate", type=click.FloatRange(min=0.1), default=14.0, show_default=True, help="Requests per second.")
@click.option(
    "--picks/--no-picks",
    default=False,
    show_default=True,
    help="Let the processor name endpoints; without, the shares follow the weights alone.",
)
@click.option(
    "--disagg",
    is_flag=True,
    help="Half of the demo engines prefill, the others decode; long uncached prompts are split. Includes --picks.",
)
@click.option(
    "--dir",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Keep policy and logs there; a temporary folder when absent.",
)
def demo(
    seconds: float | None, engines: int, llama: bool, rate: float, picks: bool, disagg: bool, folder: Path | None
) -> None:
    """Watch Envoy move real traffic between inference servers because their state changes.

    Starts llama.cpp servers and demo engines, control, one processor and Envoy, sends mixed chat traffic, slows one
    engine and fills another's KV cache, heals both, and cleans up.

    Example: xds-control demo --seconds 40
    """
    try:
        from xds_control.demo.run import DemoOptions, run_demo

        summary = run_demo(
            DemoOptions(
                seconds=seconds, engines=engines, llama=llama, rate=rate, picks=picks, disagg=disagg, folder=folder
            )
        )
    except ConfigError as error:
        fail(error, EXIT_FAILED)
    except KeyboardInterrupt:  # so early that nothing was started
        summary = "demo: stopped before it began"
    click.echo(summary)
