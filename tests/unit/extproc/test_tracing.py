"""Spans: who is sampled, what they say, what they look like on the wire, and what happens when nobody takes them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from tests.otlp import Span, spans_of
from xds_control.errors import ConfigError, PolicyError
from xds_control.extproc import otlp, span_export
from xds_control.extproc.decision import Decision, Immediate
from xds_control.extproc.span_export import SpanCounts, SpanExporter
from xds_control.extproc.tracing import Tracer, read_parent
from xds_control.inspect.facts import RequestFacts
from xds_control.policy.load import parse_policy
from xds_control.policy.tracing import TracingPolicy
from xds_control.routing.forwarded import forwarded_headers
from xds_control.routing.pick import Pick

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
SAMPLED = f"00-{TRACE}-{PARENT}-01"


def policy(**more: Any) -> TracingPolicy:
    return TracingPolicy(**{"endpoint": "http://127.0.0.1:4318/v1/traces", "sample_share": 0.0, **more})


def decision(**more: Any) -> Decision:
    facts = RequestFacts(api="chat", prompt_tokens=1200, expected_output_tokens=80, tenant="acme")
    found: dict[str, Any] = {
        "pool": "chat",
        "rule": "long",
        "model": "llama",
        "tenant": "acme",
        "service_class": "high",
        "reason": "picked",
        "destinations": ("10.0.0.1:8000", "10.0.0.2:8000"),
        "matched_tokens": 600,
        "priced": Pick(("10.0.0.1:8000",), "prefix", candidates=2, expected_ttft_s=0.25, cost_s=0.5),
        **more,
    }
    return Decision("p0-1f", facts, "p0", **found)


def made(settings: TracingPolicy, metadata: dict[str, str], headers: dict[str, str], **more: Any) -> list[Span]:
    """The spans of one request."""
    taken: list[bytes] = []
    tracer = Tracer(settings, taken.append, random.Random(1))
    began = tracer.begin(metadata, 1_000_000_000)
    if began is not None:
        tracer.end(began, headers, more.get("decision", decision()), more.get("error", ""), 1_000_250_000)
    return spans_of(otlp.request(otlp.resource({"service.name": "us"}), "xds-control", "1", taken)) if taken else []


def test_a_parent_in_the_streams_metadata_is_joined() -> None:
    (one,) = made(policy(), {"traceparent": SAMPLED}, {"traceparent": f"00-{'1' * 32}-{'2' * 16}-00"})
    assert (one.trace_id, one.parent_id, one.service) == (TRACE, PARENT, "us")
    assert one.end_ns - one.start_ns == 250_000
    assert one.status == 0
    assert one.attributes == {
        "xds_control.decision.id": "p0-1f",
        "xds_control.processor": "p0",
        "xds_control.reason": "picked",
        "xds_control.pool": "chat",
        "xds_control.rule": "long",
        "xds_control.class": "high",
        "xds_control.api": "chat",
        "gen_ai.request.model": "llama",
        "xds_control.prompt_tokens_estimate": 1200,
        "xds_control.output_tokens_estimate": 80,
        "xds_control.pick": "10.0.0.1:8000",
        "xds_control.matched_tokens": 600,
        "xds_control.pick.reason": "prefix",
        "xds_control.pick.candidates": 2,
        "xds_control.pick.expected_ttft_s": 0.25,
        "xds_control.pick.cost_s": 0.5,
    }


def test_the_clients_header_counts_where_envoy_traces_nothing() -> None:
    (one,) = made(policy(), {}, {"traceparent": SAMPLED})
    assert (one.trace_id, one.parent_id) == (TRACE, PARENT)


@pytest.mark.parametrize(
    ("metadata", "headers"),
    [
        ({"traceparent": f"00-{TRACE}-{PARENT}-00"}, {}),
        ({"traceparent": f"00-{TRACE}-{PARENT}-02"}, {}),
        ({}, {"traceparent": f"00-{TRACE}-{PARENT}-00"}),
    ],
)
def test_a_parent_that_is_not_sampled_decides_whatever_the_share(
    metadata: dict[str, str], headers: dict[str, str]
) -> None:
    assert made(policy(sample_share=1.0), metadata, headers) == []


@pytest.mark.parametrize(
    "text",
    [
        "nonsense",
        f"ff-{TRACE}-{PARENT}-01",
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{PARENT}-01",
        f"00-{TRACE}-{PARENT}-01-more",
        f"00-{TRACE}-{PARENT}",
    ],
)
def test_what_is_no_traceparent_is_as_if_it_were_not_there(text: str) -> None:
    assert read_parent(text) is None
    (one,) = made(policy(sample_share=1.0), {"traceparent": text}, {})
    assert one.parent_id == ""
    assert one.trace_id != TRACE


def test_a_later_version_of_traceparent_is_read_as_far_as_it_is_known() -> None:
    assert read_parent(f"01-{TRACE}-{PARENT}-01-more") == (bytes.fromhex(TRACE), bytes.fromhex(PARENT), True)


def test_requests_without_a_parent_are_sampled_by_the_share() -> None:
    taken: list[bytes] = []
    tracer = Tracer(policy(sample_share=0.25), taken.append, random.Random(7))
    for _ in range(4000):
        began = tracer.begin({}, 1)
        assert began is not None
        tracer.end(began, {}, decision(), "", 2)
    assert 850 < len(taken) < 1150
    spans = spans_of(otlp.request(b"", "", "", taken))
    assert len({one.trace_id for one in spans}) == len(taken)


def test_refusals_and_failures_are_told() -> None:
    refused = decision(destinations=(), priced=None, immediate=Immediate(429, "saturated", b""), reason="rejected:x")
    (one,) = made(policy(), {"traceparent": SAMPLED}, {}, decision=refused)
    assert one.attributes["http.response.status_code"] == 429
    assert "xds_control.pick" not in one.attributes
    (one,) = made(policy(), {"traceparent": SAMPLED}, {}, decision=None, error="protocol-violation")
    assert (one.status, one.message, one.attributes) == (2, "protocol-violation", {})


@given(
    st.dictionaries(
        st.text(min_size=1, max_size=20),
        st.text(max_size=300) | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False),
        max_size=8,
    ),
    st.integers(1, 2**64 - 1),
)
def test_the_wire_form_is_read_by_the_specifications_own_definitions(attributes: dict[str, Any], at: int) -> None:
    data = otlp.span(b"\1" * 16, b"\2" * 8, b"", "a=b", "name", at, at, attributes)
    (one,) = spans_of(otlp.request(otlp.resource({"service.name": "s"}), "scope", "1", [data]))
    assert (one.service, one.name, one.start_ns, one.end_ns) == ("s", "name", at, at)
    assert one.attributes == attributes
    assert {key: type(value) for key, value in one.attributes.items()} == {k: type(v) for k, v in attributes.items()}


def test_the_traceparent_is_forwarded_only_while_traces_are_on() -> None:
    text = "version: xds-control/v1\npools: [{name: a}]\n"
    assert "traceparent" not in (forwarded_headers(parse_policy(text)) or ())
    on = parse_policy(text + "tracing: {endpoint: 'http://127.0.0.1:4318/v1/traces'}\n")
    assert {"traceparent", "tracestate"} <= set(forwarded_headers(on) or ())


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("endpoint: 127.0.0.1:4317", "is not a URL such as"),
        ("endpoint: 'ftp://a/'", "is not a URL such as"),
        ("endpoint: 'http://user:pw@a/'", "is not a URL such as"),
        ("endpoint: 'http://a:99999/'", "is not a URL such as"),
        ("endpoint: 'https://a/'", "ca_file is missing"),
        ("endpoint: 'http://a/', headers: {'X Key': a}", "is not a header name"),
        ('endpoint: "http://a/", headers: {x-key: "a\\nb"}', "has characters that a header cannot have"),
    ],
)
def test_what_is_wrong_with_the_policy_is_said(line: str, wanted: str) -> None:
    with pytest.raises(PolicyError) as caught:
        parse_policy(f"version: xds-control/v1\npools: [{{name: a}}]\ntracing: {{{line}}}\n")
    (problem,) = caught.value.problems
    assert wanted in problem.message
    assert problem.place.path.startswith("tracing")
    assert problem.place.line == 3


# The exporter.

Serve = Callable[[Callable[[web.Request], Awaitable[web.Response]]], Awaitable[str]]


@pytest.fixture
async def serve() -> Any:
    """Starts a collector that answers as it is told; gives its URL."""
    runners: list[web.AppRunner] = []

    async def start(handler: Any) -> str:
        app = web.Application()
        app.router.add_post("/v1/traces", handler)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        runners.append(runner)
        return f"http://127.0.0.1:{runner.addresses[0][1]}/v1/traces"

    yield start
    for runner in runners:
        await runner.cleanup()


def a_span(number: int = 1) -> bytes:
    return otlp.span(b"\1" * 16, number.to_bytes(8, "big"), b"", "", "n", 1, 2, {})


async def until(check: Callable[[], bool]) -> None:
    for _ in range(2000):
        if check():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("not within 20 s")


async def test_spans_are_sent_again_after_a_passing_fault_and_none_is_lost(serve: Serve) -> None:
    answers = [503, 429, 200]
    seen: list[Span] = []

    async def handler(request: web.Request) -> web.Response:
        status = answers.pop(0) if answers else 200
        if status == 200:
            seen.extend(spans_of(await request.read()))
        return web.Response(status=status)

    exporter = SpanExporter(policy(endpoint=await serve(handler), flush_s=0.05), "p0")
    exporter.start()
    for number in range(1, 301):
        exporter.add(a_span(number))
    await until(lambda: exporter.counts.sent == 300)
    await exporter.stop(1.0)
    assert {int(one.span_id, 16) for one in seen} == set(range(1, 301))
    assert exporter.counts.lost == 0


async def test_a_collector_that_refuses_loses_them_and_the_queue_is_bounded(serve: Serve) -> None:
    async def handler(_: web.Request) -> web.Response:
        return web.Response(status=401)

    exporter = SpanExporter(policy(endpoint=await serve(handler), flush_s=0.05, max_queue=10), "p0")
    for number in range(1, 26):
        exporter.add(a_span(number))
    assert exporter.counts.lost == 15
    exporter.start()
    await until(lambda: exporter.counts.lost == 25)
    await exporter.stop(1.0)
    assert exporter.counts.sent == 0


@pytest.mark.parametrize("headers", [{}, {"content-encoding": "gzip"}])
async def test_of_an_answer_without_end_little_is_read(serve: Serve, headers: dict[str, str]) -> None:
    given = 0

    async def handler(request: web.Request) -> web.StreamResponse:
        nonlocal given
        await request.read()
        answer = web.StreamResponse(status=500, headers=headers)
        await answer.prepare(request)
        while True:
            await answer.write(b"x" * 65_536)
            given += 65_536

    exporter = SpanExporter(policy(endpoint=await serve(handler), flush_s=0.05, timeout_s=60.0), "p0")
    exporter.start()
    exporter.add(a_span())
    await until(lambda: exporter.counts.lost == 1)
    await exporter.stop(1.0)
    assert given < 64 << 20  # what fits into the buffers of the sockets


@pytest.mark.parametrize("host", ["none.invalid", "127.0.0.1:1"])
async def test_a_collector_that_cannot_be_asked_loses_spans_and_is_asked_again(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(span_export, "MAX_PAUSE_S", 0.01)
    exporter = SpanExporter(policy(endpoint=f"http://{host}/v1/traces", flush_s=0.05), "p0")
    exporter.start()
    exporter.add(a_span())
    await until(lambda: exporter.counts.lost == 1)
    exporter.add(a_span())
    await until(lambda: exporter.counts.lost == 2)
    await exporter.stop(1.0)


async def test_what_is_left_is_sent_at_the_end_and_a_deaf_collector_does_not_hold_it_up(serve: Serve) -> None:
    seen: list[Span] = []

    async def handler(request: web.Request) -> web.Response:
        seen.extend(spans_of(await request.read()))
        return web.Response()

    last = SpanExporter(policy(endpoint=await serve(handler), flush_s=60.0), "p0")
    last.start()
    last.add(a_span())
    await last.stop(5.0)
    assert len(seen) == last.counts.sent == 1

    async def deaf(_: web.Request) -> web.Response:
        await asyncio.sleep(60)
        return web.Response()

    stuck = SpanExporter(policy(endpoint=await serve(deaf), flush_s=0.05, timeout_s=60.0), "p0")
    stuck.start()
    stuck.add(a_span())
    await asyncio.sleep(0.2)
    await stuck.stop(0.1)
    assert (stuck.counts.sent, stuck.counts.lost) == (0, 1)


async def test_counts_go_on_from_one_exporter_to_the_next(serve: Serve) -> None:
    async def handler(_: web.Request) -> web.Response:
        return web.Response()

    counts = SpanCounts()
    endpoint = await serve(handler)
    for number in (1, 2):
        exporter = SpanExporter(policy(endpoint=endpoint, flush_s=0.05, max_queue=1), "p0", counts)
        exporter.start()
        exporter.add(a_span())
        exporter.add(a_span())
        assert counts == SpanCounts(number - 1, number)
        await exporter.stop(5.0)
        assert counts == SpanCounts(number, number)


def test_authorities_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tracing\.ca_file"):
        SpanExporter(policy(endpoint="https://a/", ca_file=str(tmp_path / "none.pem")), "p0")
