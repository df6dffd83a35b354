"""`python -m xds_control`: the command line."""

from xds_control.cli.main import main

main()
