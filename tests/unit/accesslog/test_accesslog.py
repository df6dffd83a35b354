from __future__ import annotations

import base64
from typing import Any

import msgspec
import pytest
from envoy.data.accesslog.v3 import accesslog_pb2
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st
from xds.data.orca.v3 import orca_load_report_pb2

from tests.unit.accesslog.entries import DECIDED, UPSTREAM_END, USED, entry
from xds_control.policy.classes import ClassesPolicy, ServiceClassPolicy
from xds_control.proto import fleet_pb2
from xds_control.signals import accesslog
from xds_control.signals.accesslog import AccessLog
from xds_control.signals.finished import Finished
from xds_control.signals.sketch import Sketch


def log_of(*classes: ServiceClassPolicy) -> AccessLog:
    policy = ClassesPolicy(items=classes, default=classes[0].name) if classes else ClassesPolicy()
    return AccessLog(policy.by_name(), policy.default, now=0.0)


def one(made: Any, log: AccessLog | None = None) -> tuple[Finished, fleet_pb2.Outcomes]:
    log = log or log_of()
    taken = log.take([made])
    window = log.drain(1.0)
    assert len(taken.finished) == len(window.outcomes) == 1
    return taken.finished[0], window.outcomes[0]


def test_a_streamed_answer() -> None:
    finished, row = one(entry(metadata={**DECIDED, **USED}))
    assert (row.pool, row.endpoint, row.service_class) == ("chat", "10.0.0.1:8000", "high")
    assert (row.requests, row.ok, row.streamed, row.retries) == (1, 1, 1, 0)
    assert Sketch.from_proto(row.ttft_s).mean == pytest.approx(0.3)
    assert Sketch.from_proto(row.tpot_s).mean == pytest.approx(0.4 / 100)
    assert Sketch.from_proto(row.queue_s).mean == pytest.approx(0.002)
    assert Sketch.from_proto(row.e2e_s).mean == pytest.approx(0.702)
    assert (row.prompt_tokens, row.completion_tokens, row.cached_tokens, row.cached_known) == (1000, 101, 640, 1000)
    assert (row.usage_known, row.timed_decode_tokens, row.timed_prefill_tokens) == (1, 100, 360)
    assert row.decode_seconds == pytest.approx(0.4)
    assert row.prefill_seconds == pytest.approx(0.3)
    assert (row.slo_known, row.slo_met, row.ttft_known, row.ttft_met, row.tpot_known, row.tpot_met) == (1,) * 6
    assert (finished.ttft_s, finished.decode_s) == pytest.approx((0.3, 0.4))
    assert (finished.e2e_s, finished.queue_s) == pytest.approx((0.702, 0.002))
    rest = msgspec.structs.replace(finished, ttft_s=None, decode_s=None, e2e_s=None, queue_s=None)
    assert rest == Finished(
        id="00f1a2b3c4d5e6f7",
        pool="chat",
        endpoint="10.0.0.1:8000",
        model="llama-3.1-8b",
        service_class="high",
        tenant="acme",
        api="openai.chat",
        processor="node-1/0",
        pick="10.0.0.1:8000",
        kind="ok",
        ok=True,
        streamed=True,
        status=200,
        attempts=1,
        prompt_bytes=4096,
        prompt_tokens_est=1024,
        output_tokens_est=200,
        matched_tokens=512,
        prompt_tokens=1000,
        completion_tokens=101,
        cached_tokens=640,
        ttft_s=None,
        decode_s=None,
        e2e_s=None,
        queue_s=None,
    )


def test_an_answer_at_once_has_no_time_to_first_token() -> None:
    made = entry(content_type="application/json; charset=utf-8", ttft_s=0.7, decode_s=0.00001, metadata=dict(USED))
    finished, row = one(made)
    assert (row.ok, row.streamed) == (1, 0)
    assert not row.HasField("ttft_s")
    assert not row.HasField("tpot_s")
    assert (row.slo_known, row.decode_seconds, row.prefill_seconds) == (0, 0.0, 0.0)
    assert Sketch.from_proto(row.e2e_s).mean == pytest.approx(0.70201)
    assert (finished.ttft_s, finished.decode_s, finished.streamed) == (None, None, False)
    assert row.completion_tokens == 101


@pytest.mark.parametrize(("decode_s", "streamed"), [(0.4, True), (0.00001, False)])
def test_without_a_logged_content_type_the_body_tells(decode_s: float, streamed: bool) -> None:
    finished, _ = one(entry(content_type=None, decode_s=decode_s))
    assert finished.streamed is streamed


def test_an_answer_at_once_is_judged_by_its_end() -> None:
    log = log_of(ServiceClassPolicy(name="batch", priority=1, ttft_s=0.1, e2e_s=0.5))
    _, row = one(entry(content_type="application/json", ttft_s=0.7, decode_s=0.0), log)
    assert (row.slo_known, row.slo_met, row.ttft_known) == (1, 0, 0)


def test_the_wait_before_the_engine_counts_for_the_client_only() -> None:
    log = log_of(ServiceClassPolicy(name="strict", priority=1, ttft_s=0.5))
    _, row = one(entry(received_s=0.001, sent_s=0.301, ttft_s=0.3), log)
    assert Sketch.from_proto(row.ttft_s).mean == pytest.approx(0.3)
    assert (row.ttft_known, row.ttft_met, row.slo_known, row.slo_met) == (1, 0, 1, 0)


@pytest.mark.parametrize(
    ("ttft_s", "decode_s", "met"), [(0.3, 0.4, 1), (0.6, 0.4, 0), (0.3, 6.0, 0)], ids=["both", "first", "rest"]
)
def test_all_targets_must_be_met(ttft_s: float, decode_s: float, met: int) -> None:
    log = log_of(ServiceClassPolicy(name="c", priority=1, ttft_s=0.5, tpot_s=0.05))
    _, row = one(entry(ttft_s=ttft_s, decode_s=decode_s, metadata=dict(USED)), log)
    assert (row.slo_known, row.slo_met) == (1, met)


ENDED = {
    "ok": (200, ()),
    "errors_connect": (503, ("upstream_connection_failure", "upstream_retry_limit_exceeded")),
    "errors_timeout": (504, ("upstream_request_timeout",)),
    "errors_reset": (200, ("upstream_protocol_error",)),
    "errors_5xx": (500, ()),
    "errors_4xx": (404, ()),
    "backpressure": (429, ()),
    "aborted": (200, ("downstream_connection_termination",)),
}


@pytest.mark.parametrize("field", ENDED)
def test_each_kind_is_counted_apart(field: str) -> None:
    code, flags = ENDED[field]
    finished, row = one(entry(code=code, flags=flags))
    counted = {name: getattr(row, name) for name in ENDED}
    assert counted == {name: int(name == field) for name in ENDED}
    assert row.requests == 1
    assert finished.ok is (field == "ok")


@pytest.mark.parametrize(
    ("code", "flags", "kind"),
    [
        (503, ("upstream_retry_limit_exceeded",), "backpressure"),
        (503, ("upstream_overflow",), "backpressure"),
        (503, ("no_healthy_upstream",), "5xx"),
        (502, ("upstream_remote_reset",), "reset"),
        (503, ("upstream_connection_termination",), "reset"),
        (504, ("duration_timeout",), "timeout"),
        (408, ("stream_idle_timeout",), "4xx"),
        (504, ("stream_idle_timeout",), "timeout"),
        (200, ("stream_idle_timeout",), "timeout"),
        (400, ("downstream_protocol_error",), "4xx"),
        (503, ("dns_resolution_failure",), "connect"),
        (200, ("downstream_remote_reset", "upstream_remote_reset"), "aborted"),
        (0, (), "aborted"),
        (None, (), "aborted"),
        (301, (), "ok"),
    ],
)
def test_flags_before_codes(code: int | None, flags: tuple[str, ...], kind: str) -> None:
    assert one(entry(code=code, flags=flags))[0].kind == kind


def test_only_the_endpoints_fault_misses_the_slo() -> None:
    for field, (code, flags) in ENDED.items():
        _, row = one(entry(code=code, flags=flags, ttft_s=0.3 if field == "ok" else None))
        assert row.slo_met == (field == "ok")
        at_fault = field in ("errors_connect", "errors_timeout", "errors_reset", "errors_5xx")
        assert row.slo_known == int(field == "ok" or at_fault), field


def test_a_first_token_that_was_seen_counts_though_the_client_went_away() -> None:
    made = entry(flags=("downstream_connection_termination",), decode_s=None)
    _, row = one(made)
    assert row.aborted == 1
    assert Sketch.from_proto(row.ttft_s).count == 1


def test_single_attempts_are_no_requests() -> None:
    log = log_of()
    attempt = entry(
        endpoint="10.0.0.9:8000", code=0, flags=("upstream_connection_failure",), attempts=0, kind=UPSTREAM_END
    )
    good = entry(endpoint="10.0.0.9:8000", code=200, attempts=0, kind=UPSTREAM_END)
    taken = log.take([attempt, good, entry(attempts=2)])
    assert [(a.endpoint, a.kind) for a in taken.failed_attempts] == [("10.0.0.9:8000", "connect")]
    rows = {row.endpoint: row for row in log.drain(1.0).outcomes}
    assert (rows["10.0.0.9:8000"].requests, rows["10.0.0.9:8000"].attempts_connect) == (0, 1)
    assert (rows["10.0.0.1:8000"].requests, rows["10.0.0.1:8000"].retries) == (1, 1)


def test_entries_that_are_not_an_end_are_left_out() -> None:
    log = log_of()
    begun = entry(kind=5)
    periodic = entry(kind=7)
    intermediate = entry()
    intermediate.common_properties.intermediate_log_entry = True
    assert log.take([begun, periodic, intermediate]).finished == []
    assert log.trouble["not-an-end"] == 3
    assert not log.drain(1.0).outcomes


def test_older_envoys_do_not_name_the_entry() -> None:
    assert one(entry(kind=0))[1].requests == 1


def test_anthropic_prompts_are_the_sum_of_three() -> None:
    usage = {"prompt_tokens": 20.0, "cache_read_tokens": 900.0, "cache_creation_tokens": 80.0, "completion_tokens": 5.0}
    finished, row = one(entry(metadata=usage))
    assert (finished.prompt_tokens, finished.cached_tokens) == (1000, 900)
    assert (row.prompt_tokens, row.cached_tokens, row.cached_known) == (1000, 900, 1000)


def test_no_word_about_the_cache_is_not_a_miss() -> None:
    finished, row = one(entry(metadata={"prompt_tokens": 100.0, "completion_tokens": 5.0}))
    assert finished.cached_tokens is None
    assert (row.cached_known, row.prompt_tokens) == (0, 100)
    _, row = one(entry(metadata={"prompt_tokens": 100.0, "completion_tokens": 5.0, "cached_tokens": 0.0}))
    assert (row.cached_known, row.cached_tokens) == (100, 0)


def test_an_endpoint_that_tells_of_hits_leaves_zeros_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accesslog, "SILENCE", 3)
    log = log_of()
    silent = entry(metadata={"prompt_tokens": 100.0, "completion_tokens": 5.0})
    hit = entry(metadata={"prompt_tokens": 100.0, "completion_tokens": 5.0, "cached_tokens": 60.0})
    other = entry(endpoint="10.0.0.2:8000", metadata={"prompt_tokens": 100.0, "completion_tokens": 5.0})
    taken = log.take([silent, hit, silent, other, silent, silent, silent])
    assert [one.cached_tokens for one in taken.finished] == [None, 60, 0, None, 0, 0, None]
    rows = {row.endpoint: row for row in log.drain(1.0).outcomes}
    assert (rows["10.0.0.1:8000"].cached_tokens, rows["10.0.0.1:8000"].cached_known) == (60, 400)
    assert rows["10.0.0.2:8000"].cached_known == 0


def test_tgi_tells_tokens_in_headers() -> None:
    made = entry(content_type="application/json", headers={"x-prompt-tokens": "70", "x-generated-tokens": "9"})
    finished, _ = one(made)
    assert (finished.prompt_tokens, finished.completion_tokens) == (70, 9)


def test_load_reports_in_every_form() -> None:
    binary = base64.b64encode(orca_load_report_pb2.OrcaLoadReport(named_metrics={"kv": 0.6}).SerializeToString())
    log = log_of()
    log.take(
        [
            entry(headers={"endpoint-load-metrics": 'JSON {"named_metrics": {"kv": 0.2}}'}),
            entry(headers={"endpoint-load-metrics": "TEXT named_metrics.kv=0.4"}),
            entry(headers={"endpoint-load-metrics-bin": binary.decode()}),
            entry(headers={"endpoint-load-metrics": "JSON {"}),
        ]
    )
    kv = log.drain(1.0).outcomes[0].orca["named_metrics.kv"]
    assert (kv.count, kv.last) == (3, 0.6)
    assert kv.sum == pytest.approx(1.2)
    assert log.trouble["bad-orca"] == 1


def test_pools_and_classes_without_a_processor() -> None:
    _, row = one(entry())
    assert (row.pool, row.service_class) == ("chat", "medium")


def test_a_class_that_nobody_lists_is_other() -> None:
    log = log_of()
    finished, row = one(entry(metadata={"class": "x" * 5000}), log)
    assert (row.service_class, finished.service_class) == ("other", "other")
    assert (row.slo_known, log.trouble["unknown-class"]) == (0, 1)


def test_addresses() -> None:
    assert one(entry(endpoint="[2001:db8::1]:8000"))[0].endpoint == "[2001:db8::1]:8000"
    assert one(entry(endpoint=None, code=404))[0].endpoint == ""
    piped = entry(endpoint=None)
    piped.common_properties.upstream_remote_address.pipe.path = "/run/engine.sock"
    assert one(piped)[0].endpoint == "/run/engine.sock"


def test_rows_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accesslog, "MAX_ROWS", 10)
    log = log_of()
    log.take([entry(endpoint=f"10.0.0.{n}:8000") for n in range(1, 100)])
    outcomes = log.drain(1.0).outcomes
    assert len(outcomes) == 11
    assert sum(row.requests for row in outcomes) == 99
    assert {row.endpoint: row.requests for row in outcomes}[""] == 89


def test_windows_follow_each_other() -> None:
    log = log_of()
    log.take([entry()])
    first = log.drain(0.5)
    second = log.drain(2.0)
    assert (first.period_s, second.period_s) == (0.5, 1.5)
    assert (len(first.outcomes), len(second.outcomes)) == (1, 0)
    assert log.drain(1.0).period_s == 0.0


def test_a_new_policy_judges_from_now_on() -> None:
    log = log_of(ServiceClassPolicy(name="c", priority=1, ttft_s=0.1))
    log.take([entry()])
    log.use_classes({"c": ServiceClassPolicy(name="c", priority=1, ttft_s=1.0)}, "c")
    log.take([entry()])
    row = log.drain(1.0).outcomes[0]
    assert (row.slo_known, row.slo_met) == (2, 1)


def test_odd_values_are_absent() -> None:
    made = entry(
        metadata={
            "prompt_tokens": float("nan"),
            "completion_tokens": -3.0,
            "cached_tokens": 1e30,
            "prompt_bytes": "4096",
            "prompt_tokens_est": "many",
        }
    )
    made.common_properties.custom_tags["ttft_us"] = "-"
    made.common_properties.custom_tags["decode_us"] = "9" * 40
    made.common_properties.duration.seconds = -5
    made.common_properties.time_to_last_upstream_rx_byte.seconds = 1 << 60
    finished, row = one(made)
    assert (finished.prompt_tokens, finished.completion_tokens, finished.cached_tokens) == (None, None, None)
    assert (finished.prompt_bytes, finished.prompt_tokens_est) == (4096, None)
    assert (finished.ttft_s, finished.decode_s, finished.e2e_s) == (None, None, None)
    assert (row.requests, row.usage_known) == (1, 0)


ENTRY = entry(metadata={**DECIDED, **USED}, headers={"endpoint-load-metrics": "TEXT cpu_utilization=0.5"})


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 255)), min_size=1, max_size=8))
def test_whatever_parses_is_taken(flips: list[tuple[int, int]]) -> None:
    data = bytearray(ENTRY.SerializeToString())
    for place, value in flips:
        data[place % len(data)] = value
    log = log_of()
    try:
        made = accesslog_pb2.HTTPAccessLogEntry.FromString(bytes(data))
    except DecodeError:
        made = accesslog_pb2.HTTPAccessLogEntry()
    log.take([made])
    assert log.entries == 1
    assert len(log.drain(1.0).SerializeToString()) < 2000
