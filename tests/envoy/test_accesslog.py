"""What the access log says against what the engine did and what the client saw, on a real Envoy."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
import pytest_asyncio
from aiohttp import web

from tests.envoy.harness import eventually, free_ports, http_get
from xds_control.cli.serve import find_envoy
from xds_control.demo.engine import DemoEngine, EngineConfig, ServedRequest
from xds_control.demo.model import ModelConfig
from xds_control.extproc.accesslog_service import AccessLogService
from xds_control.policy.classes import ClassesPolicy
from xds_control.policy.extproc import ExtProcPolicy
from xds_control.policy.gateway import EnvoyPolicy
from xds_control.policy.processes import ProcessorPolicy
from xds_control.proto import fleet_pb2
from xds_control.signals.accesslog import AccessLog, Taken
from xds_control.signals.finished import FailedAttempt, Finished
from xds_control.signals.sketch import Sketch
from xds_control.xds.resources.gateway import access_log, http_filters
from xds_control.xds.resources.names import PROCESSOR_CLUSTER

PROMPT = "The quick brown fox jumps over the lazy dog. " * 60
TOLERANCE_S = 0.02


def as_dict(message: Any) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(message.to_json())
    return made


def from_header(header: str, key: str) -> dict[str, Any]:
    return {"header": header, "on_header_present": {"metadata_namespace": "xds_control", "key": key, "type": "STRING"}}


def cluster(name: str, *ports: int, http2: bool = False) -> dict[str, Any]:
    hosts = [
        {"endpoint": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": port}}}} for port in ports
    ]
    made: dict[str, Any] = {
        "name": name,
        "type": "STATIC",
        "connect_timeout": "1s",
        "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": hosts}]},
    }
    if http2:
        kind = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
        made["typed_extension_protocol_options"] = {
            kind: {
                "@type": f"type.googleapis.com/{kind}",
                "explicit_http_config": {"http2_protocol_options": {}},
            }
        }
    return made


def bootstrap(gateway: int, admin: int, processor: int, clusters: dict[str, tuple[int, ...]]) -> dict[str, Any]:
    """The product's own access log and filters, ext_proc left out, before static clusters chosen by header."""
    processors = ProcessorPolicy(access_log_flush_s=0.02)
    made = http_filters(EnvoyPolicy(), processors, ExtProcPolicy(), None)
    filters = [as_dict(one) for one in made if "ext_proc" not in one.name]
    decided = {
        "name": "envoy.filters.http.header_to_metadata",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.header_to_metadata.v3.Config",
            "request_rules": [from_header("x-id", "id"), from_header("x-class", "class")],
        },
    }
    routes = [
        {
            "match": {"prefix": "/", "headers": [{"name": "x-to", "string_match": {"exact": name}}]},
            "route": {"cluster": name, "timeout": "0.6s" if name == "hangs" else "0s"},
        }
        for name in clusters
    ]
    retries = {
        "retry_on": "connect-failure,refused-stream",
        "num_retries": 3,
        "retry_host_predicate": [
            {
                "name": "envoy.retry_host_predicates.previous_hosts",
                "typed_config": {
                    "@type": "type.googleapis.com/envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate"
                },
            }
        ],
        "host_selection_retry_max_attempts": 5,
    }
    manager = {
        "@type": "type.googleapis.com/"
        "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "gateway",
        "access_log": [as_dict(access_log(processors))],
        "route_config": {
            "virtual_hosts": [{"name": "all", "domains": ["*"], "routes": routes, "retry_policy": retries}]
        },
        "http_filters": [decided, *filters],
    }
    listener = {
        "name": "gateway",
        "address": {"socket_address": {"address": "127.0.0.1", "port_value": gateway}},
        "filter_chains": [
            {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
        ],
    }
    return {
        "node": {"id": "envoy-under-test", "cluster": "tests"},
        "admin": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": admin}}},
        "static_resources": {
            "listeners": [listener],
            "clusters": [
                *(cluster(name, *ports) for name, ports in clusters.items()),
                cluster(PROCESSOR_CLUSTER, processor, http2=True),
            ],
        },
    }


class Rig:
    """An Envoy with demo engines behind it and the access log service beside it."""

    def __init__(self) -> None:
        self.classes = ClassesPolicy()
        self.log = AccessLog(self.classes.by_name(), self.classes.default, now=time.monotonic())
        self.service = AccessLogService(self.log, self._listen)
        self.finished: dict[str, Finished] = {}
        self.attempts: list[FailedAttempt] = []
        timing = ModelConfig(prefill_tps=4000.0, decode_s=0.01)
        self.engine = DemoEngine(EngineConfig(timing=timing, record=1000, answer_tokens=30.0, early_role_chunk=False))
        self.sick = DemoEngine(EngineConfig(timing=timing))
        self.url = ""
        self.dead = ""
        self.other_port = 0
        self._other: web.AppRunner | None = None
        self._session: aiohttp.ClientSession | None = None
        self._ids = 0

    def _listen(self, taken: Taken) -> None:
        self.finished.update({one.id: one for one in taken.finished})
        self.attempts.extend(taken.failed_attempts)

    @property
    def session(self) -> aiohttp.ClientSession:
        assert self._session is not None
        return self._session

    async def run(self, folder: Path) -> AsyncIterator[Rig]:
        envoy = find_envoy()
        if envoy is None:
            pytest.skip("no envoy binary (install the extra `envoy`)")
        await self.engine.start()
        await self.sick.start()
        await self._start_other()
        server = grpc.aio.server()
        self.service.add_to(server)
        processor = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        gateway, admin, dead = free_ports(3)
        self.url = f"http://127.0.0.1:{gateway}"
        self.dead = f"127.0.0.1:{dead}"
        config = bootstrap(
            gateway,
            admin,
            processor,
            {
                "chat": (self.engine.port,),
                "dead": (dead,),
                "either": (dead, self.engine.port),
                "sick": (self.sick.port,),
                "hangs": (self.sick.port,),
                "other": (self.other_port,),
            },
        )
        path = folder / "envoy.json"
        path.write_text(json.dumps(config))
        log = (folder / "envoy.log").open("wb")
        process = await asyncio.create_subprocess_exec(
            *(envoy, "-c", str(path), "--concurrency", "1", "--use-dynamic-base-id", "-l", "warning"),
            stdout=log,
            stderr=log,
        )
        try:

            async def ready() -> bool:
                if process.returncode is not None:
                    pytest.fail((folder / "envoy.log").read_text()[-4000:])
                return (await http_get(f"http://127.0.0.1:{admin}/ready"))[0] == 200

            await eventually(ready, 30, "Envoy is ready")
            async with aiohttp.ClientSession() as self._session:
                yield self
        finally:
            if process.returncode is None:
                process.terminate()
                await asyncio.wait_for(process.wait(), 20)
            log.close()
            await server.stop(None)
            await self.engine.stop()
            await self.sick.stop()
            if self._other is not None:
                await self._other.cleanup()

    async def _start_other(self) -> None:
        """A server that names a character set, and Anthropic's usage."""

        async def answer(_: web.Request) -> web.Response:
            usage = {"input_tokens": 20, "cache_read_input_tokens": 900, "cache_creation_input_tokens": 80}
            return web.json_response({"usage": {**usage, "output_tokens": 7}})

        app = web.Application()
        app.router.add_post("/v1/chat/completions", answer)
        self._other = web.AppRunner(app)
        await self._other.setup()
        site = web.TCPSite(self._other, "127.0.0.1", 0)
        await site.start()
        self.other_port = self._other.addresses[0][1]

    async def ask(
        self, to: str, *, stream: bool = False, service_class: str = "", prompt: str = PROMPT, **body: Any
    ) -> tuple[str, int, bytes]:
        """(id, status, answer) of one chat request."""
        self._ids += 1
        name = f"request-{self._ids}"
        headers = {"x-to": to, "x-id": name, "endpoint-load-metrics-format": "JSON"}
        if service_class:
            headers["x-class"] = service_class
        sent = {"model": "demo", "messages": [{"role": "user", "content": prompt}], "max_tokens": 30, **body}
        if stream:
            sent |= {"stream": True, "stream_options": {"include_usage": True}}
        async with self.session.post(f"{self.url}/v1/chat/completions", json=sent, headers=headers) as answer:
            return name, answer.status, await answer.read()

    async def outcome(self, name: str) -> Finished:
        """How a request ended, as the access log tells."""
        await eventually(lambda: name in self.finished, 10, f"{name} is logged")
        return self.finished[name]

    def rows(self) -> list[fleet_pb2.Outcomes]:
        """The rows since the last call."""
        return list(self.log.drain(time.monotonic()).outcomes)

    def row(self, pool: str, endpoint: str, service_class: str = "medium") -> fleet_pb2.Outcomes:
        """The row of one key since the last call of this or `rows`."""
        key = (pool, endpoint, service_class)
        return next(row for row in self.rows() if (row.pool, row.endpoint, row.service_class) == key)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def module_rig(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    async for rig in Rig().run(tmp_path_factory.mktemp("accesslog")):
        yield rig


@pytest.fixture
def rig(module_rig: Rig) -> Rig:
    module_rig.rows()
    module_rig.attempts.clear()
    module_rig.engine.set_faults(heal=True)
    module_rig.sick.set_faults(heal=True)
    return module_rig


def usage_of(answer: bytes) -> dict[str, Any]:
    """Usage in a JSON answer, or in the last event of a streamed one that has it."""
    if answer.startswith(b"{"):
        usage: dict[str, Any] = json.loads(answer)["usage"]
        return usage
    events = [json.loads(line[5:]) for line in answer.splitlines() if line.startswith(b"data:") and b"{" in line]
    last: dict[str, Any] = next(event["usage"] for event in reversed(events) if event.get("usage"))
    return last


def served(rig: Rig) -> ServedRequest:
    return rig.engine.requests[-1]


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize("stream", [False, True], ids=["json", "streamed"])
async def test_usage_is_what_the_client_saw(rig: Rig, stream: bool) -> None:
    prompt = f"{stream} " + PROMPT
    totals = {"prompt": 0, "cached": 0}
    for _ in range(3):
        name, status, answer = await rig.ask("chat", stream=stream, prompt=prompt)
        assert status == 200
        finished = await rig.outcome(name)
        usage = usage_of(answer)
        told = (usage["prompt_tokens_details"] or {}).get("cached_tokens")
        assert finished.kind == "ok"
        assert finished.streamed is stream
        assert finished.endpoint == rig.engine.address
        assert finished.prompt_tokens == usage["prompt_tokens"]
        assert finished.completion_tokens == usage["completion_tokens"]
        # As vLLM, the engine leaves a zero out: it is known for one from the first hit on.
        assert finished.cached_tokens == told or (told is None and finished.cached_tokens == 0)
        if finished.cached_tokens is not None:
            totals["prompt"] += usage["prompt_tokens"]
            totals["cached"] += told or 0
    assert totals["cached"] > 0
    row = rig.row("chat", rig.engine.address)
    assert row.usage_known == 3
    assert (row.cached_known, row.cached_tokens) == (totals["prompt"], totals["cached"])


async def test_a_character_set_and_anthropics_usage(rig: Rig) -> None:
    finished = await rig.outcome((await rig.ask("other"))[0])
    assert (finished.prompt_tokens, finished.completion_tokens, finished.cached_tokens) == (1000, 7, 900)
    assert not finished.streamed


async def test_time_to_first_token_is_the_engines_own(rig: Rig) -> None:
    for words in (5, 100, 400):
        prompt = f"{words} is new. " * words
        name, _, _ = await rig.ask("chat", stream=True, prompt=prompt, service_class="high")
        finished = await rig.outcome(name)
        record = served(rig)
        assert record.ttft_s is not None
        assert record.total_s is not None
        assert finished.ttft_s == pytest.approx(record.ttft_s, abs=TOLERANCE_S)
        assert finished.decode_s == pytest.approx(record.total_s - record.ttft_s, abs=TOLERANCE_S)
        assert finished.e2e_s == pytest.approx(record.total_s, abs=2 * TOLERANCE_S)
    row = rig.row("chat", rig.engine.address, "high")
    assert Sketch.from_proto(row.ttft_s).count == Sketch.from_proto(row.tpot_s).count == 3
    assert Sketch.from_proto(row.tpot_s).quantile(0.5) == pytest.approx(0.01, abs=0.005)
    assert (row.slo_known, row.slo_met) == (3, 3)


async def test_a_role_chunk_sent_before_prefill_does_not_count(rig: Rig) -> None:
    # The engine answers headers at once; the first body byte comes with the first token.
    name, _, _ = await rig.ask("chat", stream=True, prompt="long and new " * 400)
    finished = await rig.outcome(name)
    assert finished.ttft_s is not None
    assert finished.ttft_s > 0.2


async def test_an_answer_at_once_has_an_end_only(rig: Rig) -> None:
    name, _, _ = await rig.ask("chat", prompt="at once " * 200)
    finished = await rig.outcome(name)
    record = served(rig)
    assert (finished.ttft_s, finished.decode_s) == (None, None)
    assert finished.e2e_s == pytest.approx(record.total_s, abs=2 * TOLERANCE_S)
    row = rig.row("chat", rig.engine.address)
    assert not row.HasField("ttft_s")
    assert row.orca["named_metrics.kv_cache_usage_perc"].count == 1


async def test_every_kind_of_end_is_told_apart(rig: Rig) -> None:
    sick = rig.sick
    ended: dict[str, str] = {}

    async def ask(kind: str, to: str, **more: Any) -> None:
        ended[kind] = (await rig.ask(to, **more))[0]

    await ask("ok", "sick")
    sick.set_faults(fail_rate=1.0, fail_status=500)
    await ask("5xx", "sick")
    sick.set_faults(fail_status=503)
    await ask("backpressure", "sick")
    sick.set_faults(heal=True)
    await ask("4xx", "sick", model="nobody")
    sick.set_faults(cut_rate=1.0)
    with pytest.raises(aiohttp.ClientPayloadError):
        await rig.ask("sick", stream=True)
    ended["reset"] = f"request-{rig._ids}"
    sick.set_faults(heal=True, hang="engine")
    await ask("timeout", "hangs")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(rig.ask("sick", stream=True), 0.3)
    ended["aborted"] = f"request-{rig._ids}"
    sick.set_faults(heal=True)
    await ask("connect", "dead")

    kinds = {kind: (await rig.outcome(name)).kind for kind, name in ended.items()}
    assert kinds == {kind: kind for kind in ended}
    rows = rig.rows()
    at_sick = [row for row in rows if row.endpoint == sick.address]
    counted = ("ok", "errors_5xx", "backpressure", "errors_4xx", "errors_reset", "errors_timeout", "aborted")
    assert [sum(getattr(row, field) for row in at_sick) for field in counted] == [1] * 7
    assert sum(row.requests for row in at_sick) == 7
    at_dead = next(row for row in rows if row.endpoint == rig.dead and row.service_class)
    assert (at_dead.requests, at_dead.errors_connect) == (1, 1)


async def test_a_retry_does_not_hide_a_dead_endpoint(rig: Rig) -> None:
    names = [(await rig.ask("either", service_class="high"))[0] for _ in range(6)]
    finished = [await rig.outcome(name) for name in names]
    assert {one.kind for one in finished} == {"ok"}
    assert {one.endpoint for one in finished} == {rig.engine.address}
    retried = sum(one.attempts > 1 for one in finished)
    assert retried
    await eventually(lambda: len(rig.attempts) >= retried, 5, "attempts are logged")
    assert {(one.endpoint, one.kind) for one in rig.attempts} == {(rig.dead, "connect")}
    rows = rig.rows()
    at_dead = next(row for row in rows if row.endpoint == rig.dead)
    assert (at_dead.requests, at_dead.attempts_connect) == (0, len(rig.attempts))
    assert at_dead.pool == "either"
    assert sum(row.retries for row in rows if row.endpoint == rig.engine.address) == retried


async def test_the_sender_says_who_it_is(rig: Rig) -> None:
    await rig.outcome((await rig.ask("chat"))[0])
    senders = {(one.node, one.log_name) for one in rig.service.streams()}
    assert senders == {("envoy-under-test", "xds-control")}
