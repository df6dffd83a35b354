"""Token estimates of the processors: each hears of the others; one that sends nonsense is told of, seldom."""

from __future__ import annotations

from typing import Any

import msgspec

from xds_control.admin.estimates import Estimates
from xds_control.inspect import TokenEstimator
from xds_control.policy.inspect import TokensPolicy


class Log:
    def __init__(self) -> None:
        self.told: list[dict[str, Any]] = []

    def warning(self, event: str, **more: Any) -> None:
        self.told.append({"event": event, **more})


def state(tokens: int) -> bytes:
    made = TokenEstimator(TokensPolicy())
    for _ in range(100):
        made.observe("m", prompt_bytes=1000, profile=0, images=0, prompt_tokens=tokens)
    return msgspec.json.encode(made.export())


def test_each_hears_of_the_others() -> None:
    estimates = Estimates(Log())
    assert estimates.shared(["a", "b"], TokensPolicy()) == {}
    estimates.take("a", state(250))
    shared = {
        name: msgspec.json.decode(data)["prompt"] for name, data in estimates.shared("ab", TokensPolicy()).items()
    }
    assert shared["a"] == {}
    assert shared["b"]["m"]["seen"] > 50
    # a processor that is gone is forgotten
    assert estimates.shared(["b"], TokensPolicy()) == {}


def test_nonsense_is_told_ever_more_seldom_and_does_not_stop_the_others() -> None:
    log = Log()
    estimates = Estimates(log)
    estimates.take("good", state(250))
    for bad in (b"no json", b"[" * 10_000 + b"]" * 10_000, b"[1]"):
        estimates.take("bad", bad)
        for _ in range(20):
            shared = estimates.shared(["good", "bad"], TokensPolicy())
            assert msgspec.json.decode(shared["bad"])["prompt"]["m"]["seen"] > 50
    assert [one["count"] for one in log.told] == [1, 2, 4, 8, 16, 32]
    assert {one["source"] for one in log.told} == {"bad"}
