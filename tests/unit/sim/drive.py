"""Drives one engine by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq

from xds_control.sim.engine import Engine, Sequence
from xds_control.sim.request import Request


def request(index: int, at: float, prompt: int, output: int, keys: Seq[int] = (), block: int = 64) -> Request:
    return Request(index, at, prompt, output, list(keys), block)


def drive(engine: Engine, requests: Seq[Request]) -> list[Sequence]:
    """Runs the engine over these arrivals until it is empty."""
    sequences = [Sequence(r) for r in requests]
    waiting = sorted(sequences, key=lambda s: s.request.at)
    while waiting or engine.wakes_at < math.inf:
        if waiting and waiting[0].request.at < engine.wakes_at:
            sequence = waiting.pop(0)
            assert engine.submit(sequence, sequence.request.at)
        else:
            engine.end_step(engine.wakes_at)
    return sequences
