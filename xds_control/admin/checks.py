"""All checks of a policy beyond its types, and what is allowed but known to do harm."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from xds_control.admin.auth import check_admin, check_fleet
from xds_control.errors import ConfigError, Place, PolicyError, Problem
from xds_control.policy.document import Path, path_text
from xds_control.policy.schema import Policy
from xds_control.routing.check import CHECKS as ROUTING_CHECKS
from xds_control.signals.engines.generic import problems as signal_problems
from xds_control.signals.engines.generic import unknown_engine
from xds_control.weights import warnings as weight_warnings
from xds_control.xds.security import check_exposure


def check_signals(policy: Policy) -> None:
    """Raises PolicyError for names of signals, engines and sources that do not exist."""
    found = [Problem(Place(path=path_text(("signals", *path))), text) for path, text in signal_problems(policy.signals)]
    for index, pool in enumerate(policy.pools):
        where: Path = ("pools", index)
        engines = [((*where, "engine"), pool.engine)]
        engines += [((*where, "endpoints", n, "engine"), one.engine or "auto") for n, one in enumerate(pool.endpoints)]
        for path, engine in engines:
            text = unknown_engine(policy.signals, engine)
            if text:
                found.append(Problem(Place(path=path_text(path)), text))
    if found:
        raise PolicyError(found)


def check_ports(policy: Policy) -> None:
    """Raises PolicyError for ports that others can reach and anybody may use: control would refuse to start."""
    control = policy.control
    checks: tuple[tuple[str, Callable[[], None]], ...] = (
        ("control.xds", lambda: check_exposure(control.xds, policy.xds)),
        ("control.fleet", lambda: check_fleet(control.fleet, control.fleet_security)),
        ("control.admin", lambda: check_admin(control.admin, control.admin_security)),
    )
    found: list[Problem] = []
    for path, check in checks:
        try:
            check()
        except ConfigError as error:
            found.append(Problem(Place(path=path), str(error)))
    if found:
        raise PolicyError(found)


CHECKS = (*ROUTING_CHECKS, check_signals, check_ports)
"""To be given to `load_policy`."""


def warnings(policy: Policy) -> Iterator[Problem]:
    """Settings that were measured to do harm."""
    for text in weight_warnings(policy.weights):
        yield Problem(Place(path="weights"), text)
    for index, pool in enumerate(policy.pools):
        for text in weight_warnings(pool.weights) if pool.weights is not None else ():
            yield Problem(Place(path=f"pools[{index}].weights"), text)
