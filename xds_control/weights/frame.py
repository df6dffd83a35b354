"""The arrays of one tick, kept so that explanations can be made when somebody asks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from xds_control.weights.explain import Explanation, Factor, Stage
from xds_control.weights.inputs import EndpointInput
from xds_control.weights.response import FactorColumn
from xds_control.weights.spec import describe
from xds_control.weights.stabilise import Ints
from xds_control.weights.table import Floats

_NOTABLE = 0.97  # a factor nearer to 1 than this is not worth naming


class _Named(NamedTuple):
    """Per endpoint: position of the worst factor among `columns` (-1 for none) and its value."""

    columns: list[FactorColumn]
    worst: list[int]
    least: list[float]
    ramp: list[float]
    limit: list[float]
    fair: list[int]
    bounded: list[float]
    weights: list[int]


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
    _explained: list[tuple[tuple[Factor, ...], tuple[Factor, ...], float, tuple[Stage, ...]]] | None = None
    _named: _Named | None = None

    def explain(self, index: int) -> Explanation:
        """The explanation of one endpoint; the first call turns the arrays into rows for all."""
        if self._explained is None:
            n = len(self.inputs)
            self._explained = list(
                zip(_rows(self.factors, n), _rows(self.terms, n), self.raw.tolist(), self._stages(), strict=True)
            )
        factors, terms, raw, stages = self._explained[index]
        address = self.inputs[index].endpoint.address
        return Explanation(address, factors, terms, raw, stages, self._names().weights[index], self.why(index))

    def why(self, index: int) -> str:
        """The one sentence."""
        note = self.notes.get(index)
        if note is not None:
            return note
        named = self._names()
        weight, fair, ramp, least = named.weights[index], named.fair[index], named.ramp[index], named.least[index]
        if ramp < min(least, _NOTABLE):
            return f"ramping up ({ramp:.0%}): weight {fair} → {weight}".replace("%", " %")
        if weight < fair and least < _NOTABLE:
            return f"{self._says(named.columns[named.worst[index]], index)}: weight {fair} → {weight}"
        if named.limit[index] < 1.0:
            return f"a gate limits it: weight {fair} → {weight}"
        if abs(weight - fair) <= 0.03 * max(fair, 1):
            return f"as its capacity: weight {weight}"
        if weight > fair:
            return f"has more room than others: weight {fair} → {weight}"
        if named.bounded[index] > weight:
            return f"on its way back up: weight {fair} → {weight}"
        return f"others have more room: weight {fair} → {weight}"

    def _names(self) -> _Named:
        if self._named is None:
            n = len(self.inputs)
            columns = [c for c in (*self.factors, *self.terms) if c.column is not None]
            stack = np.stack([c.factor if not self.terms or c.normalised is None else c.normalised for c in columns])
            self._named = _Named(
                columns,
                stack.argmin(axis=0).tolist(),
                stack.min(axis=0).tolist(),
                _factor(self.factors, "ramp", n),
                _factor(self.factors, "gates", n),
                np.rint(self.fair).astype(np.int64).tolist(),
                dict(self.stages)["bounded"].tolist(),
                self.weights.tolist(),
            )
        return self._named

    def _stages(self) -> list[tuple[Stage, ...]]:
        n = len(self.inputs)
        names = [name for name, _ in self.stages]
        made = [map(_STAGE, zip([name] * n, values.tolist(), strict=True)) for name, values in self.stages]
        rows: list[tuple[Stage, ...]] = list(zip(*made, strict=True)) if made else [()] * n
        holes = np.isnan(np.stack([values for _, values in self.stages])).any(axis=0) if names else np.zeros(0, bool)
        for i in np.flatnonzero(holes).tolist():
            rows[i] = tuple(stage for stage in rows[i] if not math.isnan(stage.value))
        return rows

    def _says(self, column: FactorColumn, index: int) -> str:
        if column.name == "load":
            readings = self.inputs[index].readings
            parts = [
                describe(name, readings[name].value)
                for name in ("running", "waiting")
                if name in readings and (name == "running" or readings[name].value >= 0.5)
            ]
            return " and ".join(parts) if parts else "load"
        assert column.column is not None
        value = float(column.column.value[index])
        return describe(column.column.name, value) if math.isfinite(value) else f"{column.name} unknown"


def _factor(columns: Sequence[FactorColumn], name: str, n: int) -> list[float]:
    return next((c.factor.tolist() for c in columns if c.name == name), [1.0] * n)


# The tuple's own constructor skips a Python call for each of the many rows.
_FACTOR: Callable[[Iterable[object]], Factor] = partial(tuple.__new__, Factor)
_STAGE: Callable[[Iterable[object]], Stage] = partial(tuple.__new__, Stage)


def _rows(columns: Sequence[FactorColumn], n: int) -> list[tuple[Factor, ...]]:
    if not columns:
        return [()] * n
    nan = [math.nan] * n
    made = []
    for c in columns:
        signal = c.column
        made.append(
            map(
                _FACTOR,
                zip(
                    [c.name] * n,
                    [signal.name if signal else ""] * n,
                    signal.value.tolist() if signal else nan,
                    signal.age.tolist() if signal else nan,
                    signal.confidence.tolist() if signal else nan,
                    c.normalised.tolist() if c.normalised is not None else nan,
                    [c.exponent] * n,
                    c.factor.tolist(),
                    strict=True,
                ),
            )
        )
    return list(zip(*made, strict=True))
