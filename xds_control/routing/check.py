"""Checks of a whole policy that need more than its own types: rules and model routes that compile."""

from __future__ import annotations

from xds_control.errors import PolicyError, Problem
from xds_control.policy.schema import Policy
from xds_control.routing.models import compile_models
from xds_control.routing.rules import compile_rules


def check_routing(policy: Policy) -> None:
    """Raises PolicyError with every rule and model route that does not compile."""
    pools = [pool.name for pool in policy.pools]
    problems: list[Problem] = []
    for compile_one in (compile_rules, compile_models):
        try:
            compile_one(policy.routing, pools)
        except PolicyError as error:
            problems += error.problems
    if problems:
        raise PolicyError(problems)


CHECKS = (check_routing,)
"""To be given to `load_policy`."""
