from __future__ import annotations

import msgspec
import pytest

from xds_control.policy.signals import GenericMapping, MetricMapping, ScrapePolicy, ScrapeTlsPolicy, SignalsPolicy
from xds_control.signals.pace import Pace, rest

POLICY = ScrapePolicy(min_interval_s=0.5, max_interval_s=2.0, max_backoff_s=10.0, jitter=0.1)


def test_load_that_stands_is_read_seldom_and_load_that_moves_often() -> None:
    pace = Pace(POLICY)
    for _ in range(20):
        pause = pace.succeeded({"running": 10, "waiting": 2, "kv_usage": 0.5}, 0.0)
    assert pause == 2.0
    assert pace.succeeded({"running": 20, "waiting": 2, "kv_usage": 0.5}, 0.0) == 1.0
    assert pace.succeeded({"running": 20, "waiting": 2, "kv_usage": 0.9}, 0.0) == 0.5
    assert pace.succeeded({"running": 20, "waiting": 40, "kv_usage": 0.9}, 0.0) == 0.5


def test_failures_double_the_pause_up_to_the_limit_and_success_ends_it() -> None:
    pace = Pace(POLICY)
    assert [pace.failed(0.0) for _ in range(7)] == [0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]
    for _ in range(2000):
        pace.failed(0.0)
    assert pace.succeeded({}, 0.0) <= 2.0
    assert pace.failed(0.0) == 0.5


def test_noise_spreads_the_pauses() -> None:
    pace = Pace(POLICY)
    assert [pace.failed(-1.0), Pace(POLICY).failed(1.0)] == pytest.approx([0.45, 0.55])


@pytest.mark.parametrize(
    "make",
    [
        lambda: ScrapePolicy(min_interval_s=3.0, max_interval_s=2.0),
        lambda: ScrapeTlsPolicy(cert_file="a"),
        lambda: SignalsPolicy(age_limits_s={"running": 0.0}),
        lambda: MetricMapping(signal="waiting", metric="a", kind="ratio"),
        lambda: MetricMapping(signal="waiting", metric="a", over="b"),
    ],
)
def test_policies_that_contradict_themselves(make: object) -> None:
    assert callable(make)
    with pytest.raises(ValueError):
        make()


def test_policies_read_from_documents() -> None:
    found = msgspec.convert(
        {"signals": [{"signal": "waiting", "metric": "my:queue", "labels": {"state": ["queued"]}}]}, GenericMapping
    )
    assert found.signals[0].kind == "gauge"
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"signals": []}, GenericMapping)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"min_interval_s": 0.001}, ScrapePolicy)


def test_the_next_scrape_waits_for_an_engine_that_is_slow_and_for_a_page_that_is_long() -> None:
    assert rest(1.0, 0.2, 0.001) == pytest.approx(0.8)
    assert rest(1.0, 3.0, 0.001) == pytest.approx(0.25)
    assert rest(0.2, 0.8, 0.7) == pytest.approx(14.0)
