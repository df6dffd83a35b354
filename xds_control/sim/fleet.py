"""Fleets by words: presets, mixes of them, and what `calibrate` measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from xds_control.sim.engine import EngineSpec
from xds_control.sim.presets import preset

DEFAULT_ENGINE = "h100-llama-8b"


def parse_fleet(text: str, engine: str = DEFAULT_ENGINE) -> tuple[list[EngineSpec], list[float]]:
    """(engines, capacities relative to the first) from `8`, or `4xh100-llama-8b,4xa100-llama-8b`, each part with an
    optional speed as in `2xh100-llama-8b@0.5`. Raises ValueError."""
    engines: list[EngineSpec] = []
    for part in text.split(","):
        count_text, cross, rest = part.strip().partition("x")
        name, at, speed_text = rest.partition("@")
        if not cross:
            count_text, at, speed_text = part.strip().partition("@")
            name = engine
        try:
            count, speed = int(count_text), float(speed_text) if at else 1.0
        except ValueError:
            raise ValueError(f"{part.strip()!r} is not `N`, `NxENGINE` or `NxENGINE@SPEED`") from None
        if count < 1:
            raise ValueError(f"{part.strip()!r}: there must be at least one")
        engines.extend([preset(name).scaled(speed)] * count)
    return engines, [1.0 / engine_cost(e) * engine_cost(engines[0]) for e in engines]


def engine_cost(spec: EngineSpec) -> float:
    """Seconds of engine time that a request of 1,000 prompt and 200 output tokens takes in a batch of 16."""
    step = spec.step_s + spec.decode_s + 15 * spec.sequence_s + 16 * 1100 * spec.kv_s
    return 1000 * spec.prefill_s + 200 * step / 16


def from_calibration(reports: Sequence[Mapping[str, Any]], base: EngineSpec) -> list[EngineSpec]:
    """Engines with the speeds that `xds-control calibrate --output json` measured, memory and limits as in `base`.

    Raises ValueError for a report that lacks its figures.
    """
    engines = []
    for number, report in enumerate(reports, 1):
        tps = report.get("prefill_tps")
        levels = [
            (float(one["concurrency"]), float(one["tpot_s"])) for one in report.get("levels", ()) if one["tpot_s"]
        ]
        if not tps or not levels:
            raise ValueError(f"calibration {number} ({report.get('url', '?')}) has no prefill_tps or no levels")
        mean_n = sum(n for n, _ in levels) / len(levels)
        mean_t = sum(t for _, t in levels) / len(levels)
        spread = sum((n - mean_n) ** 2 for n, _ in levels)
        slope = sum((n - mean_n) * (t - mean_t) for n, t in levels) / spread if spread > 0 else 0.0
        slope = max(0.0, slope)
        engines.append(
            EngineSpec(
                prefill_s=1.0 / float(tps),
                decode_s=max(1e-5, mean_t - slope * (mean_n - 1)),
                sequence_s=slope,
                kv_tokens=base.kv_tokens,
                max_seqs=base.max_seqs,
                max_batched_tokens=base.max_batched_tokens,
            )
        )
    return engines
