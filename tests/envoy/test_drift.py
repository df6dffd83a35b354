"""Four processors, eight engines, a real Envoy, processors killed under load: no in-flight count drifts.

`python -m tests.bench.drift` is the same for ten minutes.
"""

from __future__ import annotations

import pytest

from tests.bench.drift import run


@pytest.mark.slow
async def test_in_flight_counts_follow_the_engines_while_processors_are_killed() -> None:
    drift = await run(seconds=16.0, rate=30.0, kill_every=6.0, seed=3, tell=lambda _: None)
    assert drift.killed == 2
    assert drift.samples > 1000
    row = drift.row()
    assert row["mean_in_flight"] > 3, row
    # A machine that is short of CPU delays scrapes and samples; what must not happen is that counts walk away.
    assert drift.violations <= 0.01 * drift.samples, drift.examples
    assert abs(row["last"] - row["first"]) < 1.5, row
    assert drift.settled, row
    assert row["failed"] == 0, drift.outcomes
