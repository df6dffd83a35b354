"""Ring 2: from request bytes to facts (pure)."""

from __future__ import annotations

from xds_control.inspect.facts import BodyProblem, RequestFacts
from xds_control.inspect.inspector import Inspector
from xds_control.inspect.tokens import TokenEstimator

__all__ = ["BodyProblem", "Inspector", "RequestFacts", "TokenEstimator"]
