"""`agent`: reads this machine's GPUs and streams them to control."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import sys
from dataclasses import asdict
from pathlib import Path

import click

from xds_control.cli.options import EXIT_BAD_INPUT, EXIT_FAILED, fail, fleet_options, log_options, together
from xds_control.observe.logs import configure


@click.command()
@click.option("--control", "control_address", default=None, help="Address of control's fleet service, host:port.")
@click.option(
    "--node", default=None, help="Name of this machine in endpoint labels (`gpu.node`); the host name if absent."
)
@click.option("--interval", "interval_s", default=0.2, show_default=True, help="Seconds between readings (0.05 to 60).")
@click.option("--once", is_flag=True, help="Print what the GPUs say now as JSON and end; needs no control.")
@fleet_options
@log_options
def agent(
    control_address: str | None,
    node: str | None,
    interval_s: float,
    once: bool,
    ca: Path | None,
    cert: Path | None,
    key: Path | None,
    token_file: Path | None,
    log_level: str,
    log_format: str,
) -> None:
    """Stream the state of this machine's NVIDIA GPUs to control, changes only.

    Example: xds-control agent --control 10.0.0.2:18001 --node gpu-node-7
    """
    configure(log_level, log_format, process="agent")
    if once:
        sys.exit(_print_once())
    if control_address is None:
        fail("give --control, the address of control's fleet service (or --once)", EXIT_BAD_INPUT)
    if not 0.05 <= interval_s <= 60:
        fail(f"--interval must be 0.05 to 60 seconds, it is {interval_s:g}", EXIT_BAD_INPUT)
    together(cert=cert, key=key)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_run(control_address, node or socket.gethostname(), interval_s, ca, cert, key, token_file))


async def _run(
    control: str,
    node: str,
    interval_s: float,
    ca: Path | None,
    cert: Path | None,
    key: Path | None,
    token_file: Path | None,
) -> None:
    import grpc

    from xds_control.agent.client import Agent

    credentials = None
    if ca is not None or cert is not None:
        read = [path.read_bytes() if path is not None else None for path in (ca, key, cert)]
        credentials = grpc.ssl_channel_credentials(*read)
    loop = asyncio.get_running_loop()
    made = Agent(control, node, interval_s=interval_s, credentials=credentials, token_file=token_file)
    task = loop.create_task(made.run())
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await task


def _print_once() -> int:
    from xds_control.agent.nvml import DriverUnavailable, NvmlReader

    reader = NvmlReader()
    try:
        reader.open()
        for state in reader.read():
            shown = {name: value for name, value in asdict(state).items() if value not in (None, "", (), {}, False)}
            click.echo(json.dumps(shown, ensure_ascii=False))
    except DriverUnavailable as error:
        click.echo(f"error: {error}", err=True)
        return EXIT_FAILED
    finally:
        reader.close()
    return 0
