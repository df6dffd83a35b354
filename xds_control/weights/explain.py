"""Explanations: every factor, every stage, one sentence."""

from __future__ import annotations

import math
from typing import NamedTuple


class Factor(NamedTuple):
    """One factor of the raw weight, or one term of a response that adds up.

    signal: name of the signal behind it, "" for none. value: smoothed value in the signal's unit, age: seconds,
    confidence: 0..1 by age, normalised: goodness 0..1 before exponent; NaN where they do not apply.
    exponent: what the goodness was raised to, or its share in a sum. factor: what the weight was multiplied by.
    """

    name: str
    signal: str
    value: float
    age: float
    confidence: float
    normalised: float
    exponent: float
    factor: float


class Stage(NamedTuple):
    """Value of the weight after one step of stabilising, on the scale of the pool."""

    name: str
    value: float


class Explanation(NamedTuple):
    """Why an endpoint has its weight.

    factors: their product, in order, is `raw` exactly. terms: parts of the factor `response` when the curves add up
    or are ranked instead of multiplied. stages: the weight after each stabiliser; the last one was rounded to `weight`.
    """

    address: str
    factors: tuple[Factor, ...]
    terms: tuple[Factor, ...]
    raw: float
    stages: tuple[Stage, ...]
    weight: int
    why: str

    def product(self) -> float:
        """The factors multiplied in order."""
        return math.prod((f.factor for f in self.factors), start=1.0)

    def lines(self) -> list[str]:
        """For a terminal, one line a factor."""
        out = [f"{self.address}: weight {self.weight}: {self.why}"]
        for factor in (*self.factors, *self.terms):
            detail = ""
            if factor.signal and not math.isnan(factor.value):
                detail = f"  {factor.signal} = {factor.value:.4g}, {factor.age:.1f} s old"
                if not math.isnan(factor.normalised):
                    detail += f", normalised {factor.normalised:.3f}, exponent {factor.exponent:g}"
            elif factor.signal:
                detail = f"  {factor.signal} unknown: the pool's mean"
            prefix = "×" if factor in self.factors else "+"
            out.append(f"  {prefix} {factor.name:<16} {factor.factor:8.4f}{detail}")
        out.append(f"  = raw {self.raw:.6g}")
        out.extend(f"  → {stage.name:<16} {stage.value:10.2f}" for stage in self.stages)
        return out
