"""The `xds-control` command."""

from __future__ import annotations

from typing import Final

import click

from xds_control import __version__
from xds_control.cli.lazy import LazyGroup, Source


def _at(module: str, help_: str, name: str = "command") -> Source:
    return f"xds_control.cli.{module}", name, help_


PROCESSES: Final[dict[str, Source]] = {
    "serve": _at("serve", "Run control and the processors, and Envoy if asked, until SIGTERM or Ctrl-C.", "serve"),
    "control": _at(
        "serve", "Run the control process alone: signals, weights, xDS, fleet and admin services.", "control"
    ),
    "processor": _at("serve", "Run one processor: ext_proc and the access log service.", "processor"),
    "bootstrap": _at("serve", "Print the bootstrap for an Envoy.", "bootstrap"),
    "demo": _at("demo", "Watch Envoy move real traffic between inference servers because their state changes.", "demo"),
    "agent": _at("agent", "Stream the state of this machine's NVIDIA GPUs to control, changes only.", "agent"),
    "calibrate": _at(
        "calibrate",
        "Run a short standard load against OpenAI-compatible servers, one after another, and print what they can do.",
    ),
    "simulate": _at(
        "simulate",
        "Run a policy's real weights, prefix keys and picker against a simulated fleet, and print what users would "
        "feel.",
    ),
    "policy": _at("shadow", "Check, try, push and roll back policies.", "policy"),
    "certs": _at("certs", "Make certificates to try TLS with.", "certs"),
}
"""Commands that run something, or work on files."""

ADMIN: Final[dict[str, Source]] = {
    "status": _at("status", "Show how control is. Exits with 1 when it is not ready or something is wrong.", "status"),
    "weights": _at(
        "weights",
        "Show the weights that Envoy gets, and the share of traffic that each endpoint really took.",
        "weights",
    ),
    "endpoints": _at(
        "endpoints", "Inference servers: list them, or show one with everything that is known.", "endpoints"
    ),
    "pools": _at("pools", "List pools, or show one with its classes and localities.", "pools"),
    "events": _at("events", "Show what happened to endpoints and the policy, oldest first.", "events"),
    "history": _at("events", "Show past snapshots: which weights and states moved, and why.", "history"),
    "clients": _at(
        "clients",
        "Show connected Envoys: what they were sent, what they took, what they rejected and why.",
        "clients",
    ),
    "processors": _at(
        "processors",
        "Show the processors: load, lag, memory, and the snapshot and policy that they hold.",
        "processors",
    ),
    "explain": _at(
        "explain",
        "Explain a recorded request by its id, or try one: rule, pool, keys, candidates with their costs.",
        "explain",
    ),
    "requests": _at(
        "explain",
        "List recent requests that the processors kept: sampled ones and notable ones. No prompt text is kept.",
        "requests",
    ),
    "drain": _at("drain", "Send no new requests to an endpoint; what runs there ends in peace.", "drain"),
    "undrain": _at("drain", "Take a drain back.", "undrain"),
    "pin": _at("drain", "Fix an endpoint's weight. 0 gives it no traffic by weight.", "pin"),
    "eject": _at("drain", "Take an endpoint out at once. Prefer `drain`: requests there may be cut off.", "eject"),
    "clear": _at("drain", "Take back whatever order an endpoint is under.", "clear"),
    "top": _at("top", "Watch pools, endpoints and events on one screen. `q` or Ctrl-C ends it.", "top"),
    "audit": _at("status", "Show who did what and why, newest first.", "audit"),
    "log-level": _at("status", "Show control's log level, or set it.", "log_level"),
}
"""Commands that talk to a running control process."""


@click.group(cls=LazyGroup, sources={**PROCESSES, **ADMIN}, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="xds-control")
def main() -> None:
    """The control plane that lets an ordinary Envoy balance LLM inference servers by what they measure.

    Start with: xds-control serve --policy policy.yaml --with-envoy
    """
