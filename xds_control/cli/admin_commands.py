"""The commands that talk to a running control process."""

from __future__ import annotations

import click

from xds_control.cli.clients import clients
from xds_control.cli.drain import clear, drain, eject, pin, undrain
from xds_control.cli.endpoints import endpoints
from xds_control.cli.events import events, history
from xds_control.cli.explain import explain, requests
from xds_control.cli.pools import pools
from xds_control.cli.processors import processors
from xds_control.cli.status import audit, log_level, status
from xds_control.cli.top import top
from xds_control.cli.weights import weights

ADMIN_COMMANDS: tuple[click.Command, ...] = (
    status,
    weights,
    endpoints,
    pools,
    events,
    history,
    clients,
    processors,
    explain,
    requests,
    drain,
    undrain,
    pin,
    eject,
    clear,
    top,
    audit,
    log_level,
)
