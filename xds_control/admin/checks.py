"""All checks of a policy beyond its types, and what is allowed but known to do harm."""

from __future__ import annotations

from collections.abc import Iterator

from xds_control.errors import Place, PolicyError, Problem
from xds_control.policy.document import Path, path_text
from xds_control.policy.schema import Policy
from xds_control.routing.check import CHECKS as ROUTING_CHECKS
from xds_control.signals.engines.generic import problems as signal_problems
from xds_control.signals.engines.generic import unknown_engine
from xds_control.weights import warnings as weight_warnings


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


CHECKS = (*ROUTING_CHECKS, check_signals)
"""To be given to `load_policy`."""


def warnings(policy: Policy) -> Iterator[Problem]:
    """Settings that were measured to do harm."""
    for text in weight_warnings(policy.weights):
        yield Problem(Place(path="weights"), text)
    for index, pool in enumerate(policy.pools):
        for text in weight_warnings(pool.weights) if pool.weights is not None else ():
            yield Problem(Place(path=f"pools[{index}].weights"), text)
