"""Feeds the capacity learners of all pools from scrapes and processors' windows (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from xds_control.fleet.rates import LearnedRates
from xds_control.policy.capacity import Learning
from xds_control.proto import fleet_pb2 as pb
from xds_control.weights.learn import CapacityLearner, Delivered


class FleetLearning:
    """One learner for each pool; endpoints are compared within their pool only."""

    def __init__(self, policy: Learning) -> None:
        self._policy = policy
        self._learners: dict[str, CapacityLearner] = {}

    def use_policy(self, policy: Learning) -> None:
        """A new policy; what was learned stays."""
        self._policy = policy
        for learner in self._learners.values():
            learner.policy = policy

    def on_scrape(self, pool: str, address: str, values: Mapping[str, float], now: float) -> None:
        """Load of an endpoint and its own figures of speed, when its page has them."""
        if "running" in values:
            self._of(pool).on_scrape(
                address,
                values["running"],
                values.get("waiting", 0.0),
                now,
                tpot_s=values.get("tpot"),
                decode_tps=values.get("decode_tps"),
            )

    def on_window(self, rows: Iterable[pb.Outcomes], now: float) -> None:
        """Outcomes of one window, classes summed for each endpoint."""
        sums: dict[tuple[str, str], list[float]] = {}
        for row in rows:
            if not row.endpoint or not row.ok:
                continue
            total = sums.setdefault((row.pool, row.endpoint), [0.0] * 8)
            for index, value in enumerate(
                (
                    row.ok,
                    row.prompt_tokens,
                    row.cached_tokens,
                    row.completion_tokens,
                    row.prefill_seconds,
                    row.timed_prefill_tokens,
                    row.decode_seconds,
                    row.timed_decode_tokens,
                )
            ):
                total[index] += value
        for (pool, address), total in sums.items():
            self._of(pool).on_window(address, Delivered(int(total[0]), *total[1:]), now)

    def seed(self, pool: str, address: str, rates: LearnedRates, batch: float, now: float) -> None:
        """What a calibration has found."""
        self._of(pool).seed(address, rates, now, batch)

    def rates(self, pool: str, address: str) -> LearnedRates | None:
        """What is known of an endpoint's speed."""
        learner = self._learners.get(pool)
        return learner.rates(address) if learner is not None else None

    def retain(self, alive: set[str]) -> None:
        """Forgets all other endpoints."""
        for learner in self._learners.values():
            learner.retain(alive)

    def _of(self, pool: str) -> CapacityLearner:
        learner = self._learners.get(pool)
        if learner is None:
            learner = self._learners[pool] = CapacityLearner(self._policy)
        return learner
