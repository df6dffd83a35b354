"""The arrays of one tick, kept so that explanations can be made when somebody asks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from xds_control.weights.explain import Explanation, Factor, Stage
from xds_control.weights.inputs import EndpointInput
from xds_control.weights.response import FactorColumn
from xds_control.weights.spec import describe
from xds_control.weights.stabilise import Ints
from xds_control.weights.table import Floats

_NOTABLE = 0.97  # a factor nearer to 1 than this is not worth naming


@dataclass(slots=True)
class Frame:
    """One tick. notes: sentence that outranks the factors, by index. fair: weight by capacity alone."""

    inputs: Sequence[EndpointInput]
    factors: list[FactorColumn]
    terms: list[FactorColumn]
    raw: Floats
    stages: list[tuple[str, Floats]]
    weights: Ints
    fair: Floats
    notes: dict[int, str]
    _rows: list[list[Factor]] | None = field(default=None)
    _terms: list[list[Factor]] | None = field(default=None)
    _stages: list[list[Stage]] | None = field(default=None)

    def explain(self, index: int) -> Explanation:
        """The explanation of one endpoint; the first call turns the arrays into rows for all."""
        if self._rows is None or self._terms is None or self._stages is None:
            self._rows = _rows(self.factors, len(self.inputs))
            self._terms = _rows(self.terms, len(self.inputs))
            self._stages = [
                list(map(Stage, [name for name, _ in self.stages], row))
                for row in zip(*(values.tolist() for _, values in self.stages), strict=True)
            ] or [[] for _ in self.inputs]
        return Explanation(
            self.inputs[index].endpoint.address,
            tuple(self._rows[index]),
            tuple(self._terms[index]),
            float(self.raw[index]),
            tuple(stage for stage in self._stages[index] if not math.isnan(stage.value)),
            int(self.weights[index]),
            self.why(index),
        )

    def why(self, index: int) -> str:
        """The one sentence."""
        note = self.notes.get(index)
        weight = int(self.weights[index])
        if note is not None:
            return note
        fair = round(float(self.fair[index]))
        named = [c for c in (*self.factors, *self.terms) if c.column is not None and c.name != "response"]
        worst: FactorColumn | None = None
        least = _NOTABLE
        for column in named:
            goodness = column.factor if column.normalised is None or not self.terms else column.normalised
            value = float(goodness[index])
            if value < least:
                worst, least = column, value
        ramp = next((float(c.factor[index]) for c in self.factors if c.name == "ramp"), 1.0)
        if ramp < least:
            return f"ramping up ({ramp:.0%}): weight {fair} → {weight}".replace("%", " %")
        if worst is not None and weight < fair:
            return f"{self._says(worst, index)}: weight {fair} → {weight}"
        limit = next((float(c.factor[index]) for c in self.factors if c.name == "gates"), 1.0)
        if limit < 1.0:
            return f"a gate limits it: weight {fair} → {weight}"
        if abs(weight - fair) <= 0.03 * max(fair, 1):
            return f"as its capacity: weight {weight}"
        if weight > fair:
            return f"has more room than others: weight {fair} → {weight}"
        bounded = next((values for name, values in self.stages if name == "bounded"), None)
        if bounded is not None and float(bounded[index]) > weight:
            return f"on its way back up: weight {fair} → {weight}"
        return f"others have more room: weight {fair} → {weight}"

    def _says(self, column: FactorColumn, index: int) -> str:
        if column.name == "load":
            readings = self.inputs[index].readings
            parts = [describe(s, readings[s].value) for s in ("running", "waiting") if s in readings]
            return " and ".join(parts) if parts else "load"
        assert column.column is not None
        value = float(column.column.value[index])
        return describe(column.column.name, value) if math.isfinite(value) else f"{column.name} unknown"


def _rows(columns: Sequence[FactorColumn], n: int) -> list[list[Factor]]:
    nan = [math.nan] * n
    made: list[list[Factor]] = []
    for c in columns:
        signal = c.column
        made.append(
            list(
                map(
                    Factor,
                    [c.name] * n,
                    [signal.name if signal else ""] * n,
                    signal.value.tolist() if signal else nan,
                    signal.age.tolist() if signal else nan,
                    signal.confidence.tolist() if signal else nan,
                    c.normalised.tolist() if c.normalised is not None else nan,
                    [c.exponent] * n,
                    np.broadcast_to(c.factor, n).tolist(),
                )
            )
        )
    return [list(row) for row in zip(*made, strict=True)] if made else [[] for _ in range(n)]
