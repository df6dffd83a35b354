"""Every body mode on a real Envoy: bodies of all sizes, tampered headers, errors, faults."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from tests.envoy.static_envoy import Backends, StaticEnvoy, client
from tests.unit.extproc.support import FirstPicker, endpoint, pool, view_of
from xds_control.extproc.decide import Decider, Pick, Refusal, Routes
from xds_control.extproc.edge import ExtProcEdge
from xds_control.extproc.reading import RequestReader
from xds_control.inspect import TokenEstimator
from xds_control.policy import headers as names
from xds_control.policy.extproc import ExtProcPolicy
from xds_control.policy.inspect import InspectPolicy
from xds_control.policy.routing import ModelRoute, RoutingPolicy, Rule, Target

pytestmark = pytest.mark.asyncio(loop_scope="module")

SIZES = [0, 1, 62_000, 62_001, 1 << 20, 8 << 20]
ROUTING_MODES = ["buffered", "partial", "streamed_once", "duplex", "duplex_request"]


@dataclass
class World:
    """Envoy, a processor in this process and three engines: two of pool-a, one of pool-b."""

    envoy: StaticEnvoy
    backends: Backends
    edge: ExtProcEdge
    session: aiohttp.ClientSession
    decider: Decider

    def use(
        self,
        routing: RoutingPolicy | None = None,
        extproc: ExtProcPolicy | None = None,
        picker: FirstPicker | None = None,
    ) -> None:
        """Another policy for the requests from now on."""
        ports = self.backends.ports
        view = view_of(
            pool("pool-a", ["model-a"], *(endpoint(f"127.0.0.1:{port}", "pool-a") for port in ports[:2])),
            pool("pool-b", ["model-b"], endpoint(f"127.0.0.1:{ports[2]}", "pool-b")),
        )
        reader = RequestReader(InspectPolicy(), TokenEstimator())
        self.decider = Decider(view, reader, Routes.compile(routing or RoutingPolicy()), picker, extproc)

    async def post(
        self, mode: str, body: bytes, headers: dict[str, str] | None = None, path: str = "/v1/chat/completions"
    ) -> tuple[int, bytes, Mapping[str, str]]:
        sent = {"content-type": "application/json", **(headers or {})}
        async with self.session.post(self.envoy.url(mode, path), data=body, headers=sent) as answer:
            return answer.status, await answer.read(), answer.headers


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["native", "grpc"])
async def shared_world(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[World]:
    backends = Backends()
    await backends.start(3)
    holder: list[World] = []
    policy = ExtProcPolicy(transport=request.param)
    edge = ExtProcEdge(lambda: holder[0].decider, policy)
    address = await edge.start("127.0.0.1:0")
    folder: Path = tmp_path_factory.mktemp("envoy")
    pools = {"pool-a": backends.ports[:2], "pool-b": backends.ports[2:]}
    envoy = StaticEnvoy(folder, int(address.rpartition(":")[2]), pools)
    async with client() as session:
        world = World(envoy, backends, edge, session, None)  # type: ignore[arg-type]
        world.use()
        holder.append(world)
        try:
            await envoy.start()
            yield world
        finally:
            await envoy.stop()
            await edge.stop(0.2)
            await backends.stop()


@pytest.fixture
def world(shared_world: World) -> World:
    shared_world.use()
    return shared_world


def chat(model: str, size: int = 0, **more: Any) -> bytes:
    """A chat body of exactly `size` bytes when that is possible; the model comes last."""
    document = {"messages": [{"role": "user", "content": ""}], **more, "model": model}
    missing = size - len(json.dumps(document))
    document["messages"] = [{"role": "user", "content": "x" * max(missing, 1)}]
    return json.dumps(document).encode()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("mode", ROUTING_MODES)
async def test_body_is_routed_by_its_model_and_arrives_unchanged(world: World, mode: str, size: int) -> None:
    body = chat("model-b", size) if size > 100 else b"x" * size
    status, _, _ = await world.post(mode, body)
    seen = world.backends.last
    assert status == 200
    assert (seen.size, seen.digest) == (len(body), hashlib.sha256(body).hexdigest())
    if size > 100:
        # In BUFFERED_PARTIAL Envoy has been seen to route a large body before the answer to it is there.
        assert seen.port == world.backends.ports[2] or (mode == "partial" and size > 1_000_000)
        assert seen.headers[names.MODEL] == "model-b"
        assert int(seen.headers[names.PROMPT_TOKENS]) > 0
    else:
        assert seen.port in world.backends.ports[:2]
    if mode in ("buffered", "streamed_once", "duplex"):
        assert seen.headers["content-length"] == str(len(body))


@pytest.mark.parametrize("size", SIZES)
async def test_streamed_bodies_that_must_be_answered_pass_by_the_headers(world: World, size: int) -> None:
    world.use(RoutingPolicy(default_pool="pool-b"))
    body = chat("model-a", size) if size > 100 else b"x" * size
    status, _, _ = await world.post("streamed", body)
    assert status == 200
    assert world.backends.last.digest == hashlib.sha256(body).hexdigest()
    assert world.backends.last.port == world.backends.ports[2]


@pytest.mark.parametrize("mode", [*ROUTING_MODES, "streamed"])
async def test_header_only_request(world: World, mode: str) -> None:
    world.use(RoutingPolicy(default_pool="pool-b"))
    async with world.session.get(world.envoy.url(mode, "/v1/models")) as answer:
        assert answer.status == 200
    assert world.backends.last.port == world.backends.ports[2]


TAMPERED = dict.fromkeys(names.RESERVED_REQUEST_HEADERS, "evil") | {names.POOL: "pool-b", "x-keep": "yes"}


@pytest.mark.parametrize("mode", [*ROUTING_MODES, "streamed", "closed"])
@pytest.mark.parametrize("kind", ["json", "garbage", "none"])
async def test_reserved_headers_of_clients_never_arrive(world: World, mode: str, kind: str) -> None:
    if kind == "none":
        async with world.session.get(world.envoy.url(mode), headers=TAMPERED) as answer:
            assert answer.status == 200
    else:
        status, _, _ = await world.post(mode, chat("model-a") if kind == "json" else b"{", TAMPERED)
        assert status == 200
    seen = world.backends.last
    assert "evil" not in seen.headers.values()
    assert seen.headers["x-keep"] == "yes"
    assert seen.port in world.backends.ports[:2]
    assert seen.headers.get(names.POOL, "pool-a") == "pool-a"


async def test_reserved_headers_do_not_arrive_without_the_filter(world: World) -> None:
    status, _, _ = await world.post("plain", chat("model-a"), TAMPERED)
    assert status == 200
    assert "evil" not in world.backends.last.headers.values()
    assert names.POOL not in world.backends.last.headers


@pytest.mark.parametrize("mode", ROUTING_MODES)
@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/v1/chat/completions", lambda body: body["error"]["code"] == "model_not_found"),
        ("/v1/messages", lambda body: body["type"] == "error" and body["error"]["type"] == "not_found_error"),
        ("/api/chat", lambda body: isinstance(body["error"], str)),
    ],
)
async def test_unknown_model_is_404_in_the_form_of_the_api(world: World, mode: str, path: str, code: Any) -> None:
    world.use(RoutingPolicy(unknown_model=404))
    status, body, headers = await world.post(mode, chat("nobody", 500, max_tokens=5), path=path)
    assert status == 404
    assert code(json.loads(body))
    assert headers["content-type"] == "application/json"
    assert headers[names.REASON] == "model-not-found"


@pytest.mark.parametrize("mode", ROUTING_MODES)
async def test_malformed_body_is_400_when_policy_says_so(world: World, mode: str) -> None:
    world.use(extproc=ExtProcPolicy(on_malformed="reject"))
    status, body, _ = await world.post(mode, b'{"model": "model-a", "messages": [}')
    assert status == 400
    assert json.loads(body)["error"]["code"] == "body-not-json"


@pytest.mark.parametrize("mode", ["buffered", "streamed_once", "duplex"])
async def test_body_beyond_the_limit_is_413(world: World, mode: str) -> None:
    world.use(extproc=ExtProcPolicy(max_body_bytes=100_000))
    status, body, _ = await world.post(mode, chat("model-a", 300_000))
    assert status == 413
    assert json.loads(body)["error"]["code"] == "body-too-large"


@pytest.mark.parametrize("mode", ["buffered", "streamed_once", "duplex"])
async def test_body_beyond_the_limit_may_pass_unread(world: World, mode: str) -> None:
    world.use(extproc=ExtProcPolicy(max_body_bytes=100_000, on_too_large="pass"))
    body = chat("model-b", 3_000_000)
    status, _, _ = await world.post(mode, body)
    assert status == 200
    assert world.backends.last.digest == hashlib.sha256(body).hexdigest()


@pytest.mark.parametrize("mode", ["buffered", "duplex", "duplex_request"])
@pytest.mark.parametrize("size", [500, 300_000])
async def test_model_is_rewritten_in_place(world: World, mode: str, size: int) -> None:
    target = Target(pool="pool-b", model="model-b-with-a-longer-name")
    world.use(RoutingPolicy(models=(ModelRoute(model="gpt-4", to=(target,)),)))
    body = chat("gpt-4", size, temperature=1.50)
    status, _, _ = await world.post(mode, body)
    seen = world.backends.last
    assert status == 200
    assert seen.port == world.backends.ports[2]
    assert seen.body == body.replace(b'"gpt-4"', b'"model-b-with-a-longer-name"')
    if mode != "duplex_request":
        assert seen.headers["content-length"] == str(len(seen.body))


async def test_compressed_body_is_read_and_passed_on_as_it_is(world: World) -> None:
    body = gzip.compress(chat("model-b", 5000))
    status, _, _ = await world.post("buffered", body, {"content-encoding": "gzip"})
    assert status == 200
    assert world.backends.last.port == world.backends.ports[2]
    assert world.backends.last.headers["content-encoding"] == "gzip"


async def test_compressed_body_is_sent_plain_when_rewritten(world: World) -> None:
    target = Target(pool="pool-b", model="model-b")
    world.use(RoutingPolicy(models=(ModelRoute(model="gpt-4", to=(target,)),)))
    body = chat("gpt-4", 5000)
    status, _, _ = await world.post("buffered", gzip.compress(body), {"content-encoding": "gzip"})
    assert status == 200
    assert world.backends.last.body == body.replace(b'"gpt-4"', b'"model-b"')
    assert "content-encoding" not in world.backends.last.headers


@pytest.mark.parametrize("mode", ["buffered", "streamed_once", "duplex"])
async def test_pick_is_obeyed(world: World, mode: str) -> None:
    for port in world.backends.ports[:2] * 3:
        world.use(picker=FirstPicker(Pick((f"127.0.0.1:{port}",))))
        status, _, _ = await world.post(mode, chat("model-a", 500))
        assert status == 200
        assert world.backends.last.port == port
        assert world.backends.last.headers[names.DESTINATION] == f"127.0.0.1:{port}"


async def test_rule_sets_headers_and_class(world: World) -> None:
    rule = Rule(
        name="big",
        when="request.body_bytes > 1000 && headers['x-team'] == 'search'",
        pool="pool-b",
        service_class="batch",
        headers={"x-priority": "10"},
    )
    world.use(RoutingPolicy(rules=(rule,)))
    await world.post("buffered", chat("model-a", 2000), {"x-team": "search"})
    seen = world.backends.last
    assert seen.port == world.backends.ports[2]
    assert (seen.headers[names.CLASS], seen.headers["x-priority"]) == ("batch", "10")
    assert seen.headers[names.RULE] == "big"
    await world.post("buffered", chat("model-a", 2000))
    assert world.backends.last.port in world.backends.ports[:2]


@pytest.mark.parametrize("mode", ["buffered", "duplex"])
async def test_streamed_answer_comes_through_unchanged(world: World, mode: str) -> None:
    url = world.envoy.url(mode) + "?stream=1"
    async with world.session.post(url, data=chat("model-a", 500)) as answer:
        assert await answer.read() == b"".join(b'data: {"n": %d}\n\n' % number for number in range(20))


class _Broken(FirstPicker):
    def pick(self, *args: object, **more: object) -> Pick | Refusal | None:
        raise RuntimeError("broken")


async def test_fault_fails_open_or_closed_as_the_filter_says_and_is_counted(world: World) -> None:
    world.use(picker=_Broken(None))
    before = await world.envoy.stat("buffered", "failure_mode_allowed")
    status, _, _ = await world.post("buffered", chat("model-a", 500), TAMPERED)
    assert status == 200
    assert "evil" not in world.backends.last.headers.values()
    assert await world.envoy.stat("buffered", "failure_mode_allowed") == before + 1
    status, _, _ = await world.post("closed", chat("model-a", 500))
    assert status == 500


async def test_no_spurious_messages_and_no_failed_streams(world: World) -> None:
    for mode in ROUTING_MODES:
        failed = await world.envoy.stat(mode, "streams_failed")
        allowed = await world.envoy.stat(mode, "failure_mode_allowed")
        for size in (10, 500, 200_000):
            assert (await world.post(mode, chat("model-b", size)))[0] == 200
        assert await world.envoy.stat(mode, "streams_failed") == failed, mode
        assert await world.envoy.stat(mode, "failure_mode_allowed") == allowed, mode
        assert await world.envoy.stat(mode, "spurious_msgs_received") == 0, mode
        assert await world.envoy.stat(mode, "rejected_header_mutations") == 0, mode
    assert world.edge.counters.streams == 0
