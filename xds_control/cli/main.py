"""The `xds-control` command."""

from __future__ import annotations

import click

from xds_control import __version__
from xds_control.cli.admin_commands import ADMIN_COMMANDS
from xds_control.cli.agent import agent
from xds_control.cli.calibrate import command as calibrate
from xds_control.cli.certs import certs
from xds_control.cli.demo import demo
from xds_control.cli.policy import policy
from xds_control.cli.serve import bootstrap, control, processor, serve
from xds_control.cli.shadow import shadow
from xds_control.cli.simulate import command as simulate


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="xds-control")
def main() -> None:
    """The control plane that lets an ordinary Envoy balance LLM inference servers by what they measure.

    Start with: xds-control serve --policy policy.yaml --with-envoy
    """


for command in (serve, control, processor, bootstrap, demo, agent, calibrate, simulate, policy, certs, *ADMIN_COMMANDS):
    main.add_command(command)
policy.add_command(shadow)
