"""The page and its JSON: what they say, whom they let look, what they answer to nonsense."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestClient, TestServer

from tests.unit.admin.backend import A, B, FakeBackend
from xds_control.admin import web as web_module
from xds_control.admin.auth import AdminGate
from xds_control.admin.http import HttpEdge
from xds_control.admin.state_view import state_view
from xds_control.admin.web import MAX_TRIES, WebApi
from xds_control.policy.security import AdminSecurity, AdminToken
from xds_control.proto import admin_pb2 as pb
from xds_control.signals.catalogue import CATALOGUE

Client = TestClient[web.Request, web.Application]
Start = Callable[..., Any]


class Kept(FakeBackend):
    """A backend that has one request, and remembers what was tried."""

    asked: pb.ExplainRequestRequest | None = None

    async def explain(self, request: pb.ExplainRequestRequest) -> pb.ExplainRequestResponse:
        self.asked = request
        return pb.ExplainRequestResponse(explanation=pb.RequestExplanation(id=request.request_id, dry_run=True))

    async def requests(self, request: pb.ListRequestsRequest) -> pb.ListRequestsResponse:
        return pb.ListRequestsResponse(requests=[pb.RequestExplanation(id=",".join(request.notable))])


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    clients: list[Client] = []

    async def begin(address: str = "127.0.0.1:18003", security: AdminSecurity | None = None) -> tuple[Client, Kept]:
        backend = Kept()
        backend.settle()
        edge = HttpEdge(lambda: b"", lambda: (True, {}))
        gate = AdminGate(security or AdminSecurity(), clock=lambda: backend.now)
        api = WebApi(
            backend,
            gate,
            address,
            lambda: state_view(backend.core, backend.now),
            clock=lambda: backend.now,
            wall=lambda: 1_700_000_000.0 + backend.now,
        )
        api.add_to(edge.app)
        client: Client = TestClient(TestServer(edge.app))
        await client.start_server()
        clients.append(client)
        return client, backend

    yield begin
    for client in clients:
        await client.close()


@pytest.fixture
def tokens(tmp_path: Path) -> AdminSecurity:
    path = tmp_path / "tokens"
    path.write_text("correct-horse\n")
    return AdminSecurity(tokens=(AdminToken(name="ops", role="view", file=str(path)),), max_failures_per_minute=3)


async def test_the_page_comes_with_its_parts_and_may_load_nothing_else(start: Start) -> None:
    client, _ = await start()
    page = await client.get("/")
    text = await page.text()
    assert page.status == 200
    assert page.content_type == "text/html"
    assert "default-src 'none'" in page.headers["content-security-policy"]
    for name in re.findall(r'(?:src|href)="([^":]+)"', text):
        part = await client.get(f"/{name}")
        assert part.status == 200, name
    assert not re.search(r"https?://(?!www\.w3\.org/)", text + await (await client.get("/page.js")).text())


async def test_endpoints_are_what_the_admin_service_says(start: Start) -> None:
    client, backend = await start()
    answer = await client.get("/api/v1/endpoints", params={"pool": "chat", "explain": "true", "all_sources": "1"})
    found = await answer.json()
    assert answer.status == 200
    assert [one["address"] for one in found["endpoints"]] == [A, B]
    one = found["endpoints"][0]
    assert one["weight"] == backend.core.snapshot.pools["chat"].endpoints[0].weight
    assert {factor["name"] for factor in one["explanation"]["factors"]} >= {"capacity"}
    assert isinstance(found["snapshot_version"], int)


@pytest.mark.parametrize("call", ["status", "pools", "endpoints", "events", "snapshots", "processors", "clients"])
async def test_every_call_answers(start: Start, call: str) -> None:
    client, _ = await start()
    answer = await client.get(f"/api/v1/{call}")
    assert answer.status == 200, await answer.text()
    assert await answer.json()


async def test_those_who_look_at_once_share_an_answer(start: Start) -> None:
    client, backend = await start()
    made = 0
    snapshot = backend.snapshot

    def counted() -> Any:
        nonlocal made
        made += 1
        return snapshot()

    backend.snapshot = counted
    first = await (await client.get("/api/v1/endpoints")).json()
    for _ in range(5):
        assert await (await client.get("/api/v1/endpoints")).json() == first
    assert made == 1
    assert len((await (await client.get("/api/v1/endpoints?pool=code")).json())["endpoints"]) == 1
    assert made == 2
    backend.now += 0.6
    later = await (await client.get("/api/v1/endpoints")).json()
    assert made == 3
    assert later["endpoints"][0]["state_age_s"] == pytest.approx(first["endpoints"][0]["state_age_s"] + 0.6)


async def test_lists_are_given_by_repetition(start: Start) -> None:
    client, _ = await start()
    answer = await client.get("/api/v1/requests?notable=slow&notable=failed")
    assert (await answer.json())["requests"][0]["id"] == "slow,failed"


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("endpoints?pool=nope", 404, "pools are chat, code"),
        ("endpoints?colour=red", 400, "there is no parameter 'colour'"),
        ("events?limit=many", 400, "limit"),
        ("events?limit=-1", 400, "limit"),
        ("endpoints?explain=perhaps", 400, "explain"),
        ("endpoints?states=happy", 400, "states are"),
        ("requests?notable=odd", 400, "reasons are slow, failed"),
        ("nothing", 404, "there are state, status"),
        ("explain?request=x", 400, "there is no parameter 'request'"),
    ],
)
async def test_nonsense_is_answered_with_what_is_allowed(start: Start, path: str, status: int, words: str) -> None:
    client, _ = await start()
    answer = await client.get(f"/api/v1/{path}")
    found = await answer.json()
    assert answer.status == status
    assert words in found["message"]
    assert found["code"]


async def test_a_fault_inside_says_nothing_of_what_is_inside(start: Start) -> None:
    client, backend = await start()
    backend.broken = True
    answer = await client.get("/api/v1/status")
    assert answer.status == 500
    assert "secret inside" not in await answer.text()


async def test_a_request_is_tried(start: Start) -> None:
    client, backend = await start()
    given = {"path": "/v1/chat/completions", "headers": {"x-a": "1"}, "body": "{}"}
    answer = await client.post("/api/v1/explain", data=json.dumps(given))
    assert (await answer.json())["explanation"]["dry_run"] is True
    assert backend.asked.request.body == b"{}"
    assert backend.asked.request.headers["x-a"] == "1"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{",
        b"\xff\xfe",
        b'{"path": 1}',
        b'{"path": ""}',
        b'{"path": "/", "more": 1}',
        b'{"path": "/", "body_base64": "#"}',
        b'{"path": "/", "body": "\\ud800"}',
    ],
)
async def test_a_malformed_try_is_refused(start: Start, body: bytes) -> None:
    client, _ = await start()
    answer = await client.post("/api/v1/explain", data=body)
    assert answer.status == 400
    assert (await answer.json())["code"] == "bad-request"


async def test_a_try_that_is_too_large_is_refused(start: Start) -> None:
    client, _ = await start()
    answer = await client.post("/api/v1/explain", data=b"x" * (17 << 20))
    assert answer.status == 413


async def test_with_tokens_only_their_holders_may_look(start: Start, tokens: AdminSecurity) -> None:
    client, _ = await start("0.0.0.0:18003", tokens)
    assert (await client.get("/")).status == 200  # it asks for the token
    assert (await client.get("/api/v1/state")).status == 401
    good = {"authorization": "Bearer correct-horse"}
    assert (await client.get("/api/v1/state", headers=good)).status == 200
    assert (await client.post("/api/v1/explain", data=b'{"path": "/"}')).status == 401
    assert (await client.get("/metrics")).status == 200


async def test_guessing_is_slowed(start: Start, tokens: AdminSecurity) -> None:
    client, backend = await start("0.0.0.0:18003", tokens)
    wrong = {"authorization": "Bearer wrong"}
    statuses = [(await client.get("/api/v1/status", headers=wrong)).status for _ in range(4)]
    assert statuses == [401, 401, 401, 429]
    backend.now += 61
    assert (await client.get("/api/v1/status", headers=wrong)).status == 401


async def test_a_token_of_any_bytes_is_a_wrong_guess_and_no_fault(start: Start, tokens: AdminSecurity) -> None:
    client, _ = await start("0.0.0.0:18003", tokens)
    statuses = [await _raw_status(client, b"authorization: Bearer \xff\xfe\r\n") for _ in range(4)]
    assert statuses == [401, 401, 401, 429]


async def test_refusals_do_not_fill_the_log(
    start: Start, tokens: AdminSecurity, capsys: pytest.CaptureFixture[str]
) -> None:
    client, backend = await start("0.0.0.0:18003", tokens)
    for _ in range(10):
        assert (await client.get("/api/v1/status")).status == 401
    backend.now += 2
    await client.get("/api/v1/status")
    out = capsys.readouterr()
    assert (out.out + out.err).count("admin-refused") == 2


async def _raw_status(client: Client, headers: bytes, path: bytes = b"/api/v1/status") -> int:
    """The status of the answer to a request that is sent as it stands."""
    reader, writer = await asyncio.open_connection(client.host, client.port)
    writer.write(b"GET " + path + b" HTTP/1.1\r\nhost: localhost\r\n" + headers + b"\r\n")
    line = await reader.readline()
    writer.close()
    return int(line.split()[1])


async def test_a_few_are_tried_at_once_and_the_next_is_told(start: Start) -> None:
    client, backend = await start()
    let, all_in, entered = asyncio.Event(), asyncio.Event(), 0
    explain = backend.explain

    async def slow(request: pb.ExplainRequestRequest) -> pb.ExplainRequestResponse:
        nonlocal entered
        entered += 1
        if entered == MAX_TRIES:
            all_in.set()
        await let.wait()
        return await explain(request)

    backend.explain = slow
    first = [asyncio.create_task(client.post("/api/v1/explain", data=b'{"path": "/"}')) for _ in range(MAX_TRIES)]
    await all_in.wait()
    answer = await client.post("/api/v1/explain", data=b'{"path": "/"}')
    assert answer.status == 429
    assert (await answer.json())["code"] == "busy"
    let.set()
    assert [(await one).status for one in first] == [200] * MAX_TRIES
    assert (await client.post("/api/v1/explain", data=b'{"path": "/"}')).status == 200


async def test_an_open_address_without_tokens_shows_nothing(start: Start) -> None:
    client, _ = await start("0.0.0.0:18003")
    answer = await client.get("/api/v1/state")
    assert answer.status == 403
    assert "control.admin_security.tokens" in (await answer.json())["message"]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "localhost:18003"}, 200),
        ({"host": "127.0.0.1"}, 200),
        ({"host": "[::1]:18003"}, 200),
        ({"host": "evil.example:18003"}, 403),
        ({"host": ""}, 403),
        ({"host": "localhost", "sec-fetch-site": "same-origin"}, 200),
        ({"host": "localhost", "sec-fetch-site": "cross-site"}, 403),
    ],
)
async def test_other_web_sites_cannot_read_along(start: Start, headers: dict[str, str], status: int) -> None:
    client, _ = await start()
    async with ClientSession() as session:
        answer = await session.get(client.make_url("/api/v1/status"), headers=headers)
        assert answer.status == status


def test_the_page_uses_only_fields_that_exist() -> None:
    """What the script reads of an endpoint, a request or a client is a field of its message, or a signal's name."""
    text = (Path(web_module.__file__).parent / "static" / "page.js").read_text()
    fields: set[str] = set()
    for message in pb.DESCRIPTOR.message_types_by_name.values():
        fields |= set(message.fields_by_name)
    of_javascript = set(re.findall(r"\b[a-z]+(?:_[a-z0-9]+)+\b", text))
    assert of_javascript <= fields | set(CATALOGUE)
