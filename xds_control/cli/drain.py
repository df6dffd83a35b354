"""`drain`, `undrain`, `pin`, `eject`, `clear`: an operator's orders for one endpoint."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

import click

from xds_control.cli.admin_client import AdminClient, admin_options
from xds_control.cli.options import EXIT_FAILED, fail
from xds_control.cli.output import Duration, counted, emit, output_option, seconds
from xds_control.cli.weights import label
from xds_control.proto import admin_pb2 as pb

F = TypeVar("F", bound=Callable[..., Any])
POLL_S = 0.5


def _order_options(command: F) -> F:
    command = click.option("--reason", "-r", default="", help="Why, for the events and the audit.")(command)
    return click.option("--ttl", type=Duration(), help="Lapses after this time; without, it holds until taken back.")(
        command
    )


@click.command()
@click.argument("endpoint")
@_order_options
@click.option("--wait", is_flag=True, help="Return when the endpoint has no requests left, or its drain time is over.")
@click.option("--wait-timeout", type=Duration(), default="10m", show_default=True, help="Longest wait.")
@output_option
@admin_options
def drain(
    client: AdminClient, endpoint: str, reason: str, ttl: float | None, wait: bool, wait_timeout: float, output: str
) -> None:
    """Send no new requests to an endpoint; what runs there ends in peace.

    Example: xds-control drain 10.0.0.11:8000 --reason "new driver" --wait
    """
    answer = client.call("Drain", pb.DrainRequest(endpoint=endpoint, ttl_s=ttl, reason=reason))
    if wait:
        _wait(client, answer.endpoint.address, wait_timeout, quiet=output != "table")
    _say(answer, output, f"{label(answer.endpoint)} {'is drained' if wait else 'drains'}")


@click.command()
@click.argument("endpoint")
@click.option("--reason", "-r", default="", help="Why, for the events and the audit.")
@output_option
@admin_options
def undrain(client: AdminClient, endpoint: str, reason: str, output: str) -> None:
    """Take a drain back.

    Example: xds-control undrain 10.0.0.11:8000
    """
    answer = client.call("Undrain", pb.UndrainRequest(endpoint=endpoint, reason=reason))
    _say(answer, output, f"{label(answer.endpoint)} serves again")


@click.command()
@click.argument("endpoint")
@click.argument("weight", type=click.IntRange(0, 4_294_967_295))
@_order_options
@output_option
@admin_options
def pin(client: AdminClient, endpoint: str, weight: int, reason: str, ttl: float | None, output: str) -> None:
    """Fix an endpoint's weight. 0 gives it no traffic by weight.

    Example: xds-control pin 10.0.0.11:8000 100 --ttl 1h
    """
    answer = client.call("Pin", pb.PinRequest(endpoint=endpoint, weight=weight, ttl_s=ttl, reason=reason))
    _say(answer, output, f"{label(answer.endpoint)} has weight {weight}")


@click.command()
@click.argument("endpoint")
@_order_options
@output_option
@admin_options
def eject(client: AdminClient, endpoint: str, reason: str, ttl: float | None, output: str) -> None:
    """Take an endpoint out at once. Prefer `drain`: requests there may be cut off.

    Example: xds-control eject 10.0.0.11:8000 --reason "wrong answers"
    """
    answer = client.call("Eject", pb.EjectRequest(endpoint=endpoint, ttl_s=ttl, reason=reason))
    _say(answer, output, f"{label(answer.endpoint)} is ejected")


@click.command()
@click.argument("endpoint")
@click.option("--reason", "-r", default="", help="Why, for the events and the audit.")
@output_option
@admin_options
def clear(client: AdminClient, endpoint: str, reason: str, output: str) -> None:
    """Take back whatever order an endpoint is under.

    Example: xds-control clear 10.0.0.11:8000
    """
    answer = client.call("Clear", pb.ClearRequest(endpoint=endpoint, reason=reason))
    _say(answer, output, f"{label(answer.endpoint)} is under no order any more")


def _say(answer: Any, output: str, text: str) -> None:
    if answer.HasField("override") and answer.override.HasField("ttl_s"):
        text += f", for {seconds(answer.override.ttl_s)}"
    if answer.HasField("before"):
        before = answer.before
        text += f" (was: {before.kind} by {before.by}{f', {before.reason}' if before.reason else ''})"
    emit(output, answer, lambda: [text])


def _wait(client: AdminClient, address: str, timeout_s: float, quiet: bool) -> None:
    deadline = time.monotonic() + timeout_s
    last = ""
    while True:
        answer = client.call("ListEndpoints", pb.ListEndpointsRequest(states=["draining"]))
        left = next((one for one in answer.endpoints if one.address == address), None)
        if left is None:
            return
        signals = {signal.name: signal.value for signal in left.signals}
        running = signals.get("running")
        said = f"{label(left)} drains"
        if running is not None:
            said = f"{label(left)}: {counted(round(running), 'request')} left"
        if said != last and not quiet:
            click.echo(said, err=True)
            last = said
        if time.monotonic() > deadline:
            fail(f"{label(left)} still drains after {seconds(timeout_s)}; the order stays in force", EXIT_FAILED)
        time.sleep(POLL_S)
