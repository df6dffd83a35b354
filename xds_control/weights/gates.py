"""Gates: hard limits with two thresholds, and the rule that they never empty a pool."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from xds_control.policy.weights import Gate, Gates
from xds_control.weights.table import Bools, Column, Floats

NAMES = ("gpu_memory", "kv", "waiting", "slo_miss", "error_rate", "throttled", "asleep", "model_missing")
SIGNALS = (
    "gpu_mem_free_bytes",
    "kv_usage",
    "waiting",
    "preemptions",
    "slo_attainment",
    "error_rate",
    "gpu_throttled",
    "asleep",
)
_CANNOT_SERVE = frozenset({"asleep", "model_missing"})


@dataclass(slots=True)
class GateResult:
    """closed: per gate, what is closed now. spill, drain, remove, limit: what follows for each endpoint.
    admitted: endpoints that a gate would have taken out, but that stay because too few would be left."""

    closed: dict[str, Bools]
    spill: Bools
    drain: Bools
    remove: Bools
    limit: Bools
    admitted: Bools


@dataclass(slots=True)
class GateBank:
    """Which gates are closed, remembered from tick to tick."""

    policy: Gates
    _closed: dict[str, Bools] = field(default_factory=dict)
    _admitted: Bools = field(default_factory=lambda: np.zeros(0, dtype=bool))

    def adopt(self, other: GateBank) -> None:
        """Goes on from another bank: what was closed there stays closed until it may open."""
        self._closed = {name: values.copy() for name, values in other._closed.items()}
        self._admitted = other._admitted.copy()

    def reorder(self, old_index: npt.NDArray[np.int64]) -> None:
        """Moves the memory to a new order of endpoints; newcomers start with open gates."""
        for name, values in self._closed.items():
            self._closed[name] = _moved(values, old_index)
        self._admitted = _moved(self._admitted, old_index)

    def update(
        self, columns: Mapping[str, Column], need_bytes: Floats, model_missing: Bools, ready: Bools
    ) -> GateResult:
        """need_bytes: declared GPU memory need, NaN when none. ready: endpoints that would serve but for gates."""
        n = len(need_bytes)
        values = self._values(columns, need_bytes, model_missing)
        severity = np.zeros(n)
        closed: dict[str, Bools] = {}
        for name in NAMES:
            gate: Gate = getattr(self.policy, name)
            before = self._closed.get(name)
            was = before if before is not None and len(before) == n else np.zeros(n, dtype=bool)
            if not gate.enabled:
                closed[name] = np.zeros(n, dtype=bool)
                continue
            x, trigger = values[name]
            falling = name == "gpu_memory"
            with np.errstate(invalid="ignore"):
                enter = ((x <= gate.enter) if falling else (x >= gate.enter)) & trigger
                stays = (x < gate.leave) if falling else (x > gate.leave)
            # A value that nobody knows any more is neutral: NaN compares false, so the gate opens.
            closed[name] = enter | (was & stays)
            if gate.action != "limit":
                span = max(abs(gate.enter - gate.leave), 1e-9)
                excess = np.clip(np.nan_to_num(np.abs(x - gate.leave)) / span, 0.0, 10.0)
                bad = 100.0 if name in _CANNOT_SERVE else 0.0
                severity = np.where(closed[name], np.maximum(severity, excess + bad), severity)
        self._closed = closed
        return self._actions(closed, severity, ready)

    def _values(
        self, columns: Mapping[str, Column], need_bytes: Floats, model_missing: Bools
    ) -> dict[str, tuple[Floats, Bools]]:
        always = np.ones(len(need_bytes), dtype=bool)
        with np.errstate(invalid="ignore", divide="ignore"):
            pressure = (columns["waiting"].raw > 0.0) | (columns["preemptions"].raw > 0.0)
            headroom = columns["gpu_mem_free_bytes"].raw / need_bytes
        return {
            "gpu_memory": (headroom, always),
            "kv": (columns["kv_usage"].raw, pressure),
            "waiting": (columns["waiting"].raw, always),
            "slo_miss": (1.0 - columns["slo_attainment"].raw, always),
            "error_rate": (columns["error_rate"].raw, always),
            "throttled": (columns["gpu_throttled"].raw, always),
            "asleep": (columns["asleep"].raw, always),
            "model_missing": (model_missing.astype(np.float64), always),
        }

    def _actions(self, closed: dict[str, Bools], severity: Floats, ready: Bools) -> GateResult:
        n = len(ready)
        acts: dict[str, Bools] = {a: np.zeros(n, dtype=bool) for a in ("spill", "drain", "remove", "limit")}
        candidates = int(ready.sum())
        allowed = min(int(self.policy.max_share * candidates), candidates - 1)
        for name, shut in closed.items():
            gate: Gate = getattr(self.policy, name)
            # A cut that nearly everybody shares tells nobody apart: then nobody is cut.
            if gate.action == "limit" and int((shut & ready).sum()) > allowed:
                continue
            acts[gate.action] |= shut
        out = (acts["spill"] | acts["drain"] | acts["remove"]) & ready
        admitted = np.zeros(n, dtype=bool)
        surplus = int(out.sum()) - max(allowed, 0)
        if surplus > 0:
            was = self._admitted if len(self._admitted) == n else admitted
            # Those that were let stay before have an edge, so that two nearly equal ones do not take turns.
            rank = np.where(out, severity * np.where(was, 0.7, 1.0), np.inf)
            admitted[np.argsort(rank, kind="stable")[:surplus]] = True
        self._admitted = admitted
        keep = ~admitted
        return GateResult(
            closed, acts["spill"] & keep, acts["drain"] & keep, acts["remove"] & keep, acts["limit"], admitted
        )


def _moved(values: Bools, old_index: npt.NDArray[np.int64]) -> Bools:
    if not len(values):
        return np.zeros(len(old_index), dtype=bool)
    return np.where(old_index >= 0, values[old_index], False)
