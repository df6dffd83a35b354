"""The scraper against engines that behave and engines that do not."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import ssl
import subprocess
import zlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.unit.signals.pages import PageBuilder, vllm_page
from tests.unit.signals.servers import Answer, Engine, Request, engine, plain
from xds_control.errors import ConfigError
from xds_control.fleet.endpoint import Endpoint
from xds_control.policy.signals import GenericMapping, MetricMapping, ScrapePolicy, ScrapeTlsPolicy
from xds_control.signals.reader import Observations
from xds_control.signals.scraper import Scraper, ScrapeStats

FAST = ScrapePolicy(min_interval_s=0.05, max_interval_s=0.1, timeout_s=1.0, max_backoff_s=0.1, max_page_bytes=200_000)
PAGE = vllm_page(step=3, size=3_000)


class Watch:
    """A scraper and what it said."""

    def __init__(self, policy: ScrapePolicy = FAST, **more: object) -> None:
        self.seen: list[tuple[Endpoint, Observations]] = []
        self.failures: list[tuple[str, str, str]] = []
        self.scraper = Scraper(
            policy,
            lambda endpoint, seen: self.seen.append((endpoint, seen)),
            on_failure=lambda endpoint, reason, text: self.failures.append((endpoint.address, reason, text)),
            seed=1,
            **more,  # type: ignore[arg-type]
        )

    def stats(self, one: Engine) -> ScrapeStats:
        stats = self.scraper.stats(one.address)
        assert stats is not None
        return stats


@contextlib.asynccontextmanager
async def watching(*endpoints: Endpoint, policy: ScrapePolicy = FAST, **more: object) -> AsyncIterator[Watch]:
    watch = Watch(policy, **more)
    watch.scraper.set_targets(endpoints)
    try:
        yield watch
    finally:
        await watch.scraper.stop()


def endpoint(one: Engine, name: str = "vllm", path: str = "/metrics", scheme: str = "http", **labels: str) -> Endpoint:
    return Endpoint(one.address, "p", engine=name, metrics_url=one.url(path, scheme), labels=labels)


async def until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - what is waited for is in another server
            await asyncio.sleep(0.01)


async def test_pages_become_observations_over_one_connection() -> None:
    step = 0

    def page(request: Request) -> bytes:
        nonlocal step
        step += 1
        return vllm_page(step, 3_000)

    async with engine(plain(page)) as one, watching(endpoint(one)) as watch:
        await until(lambda: sum("running" in seen.values for _, seen in watch.seen) >= 5)
        assert one.connections <= 2, "the page and the list of models share a kept connection"
        assert one.most_busy == 1
        stats = watch.stats(one)
        assert (stats.engine, stats.consecutive_failures, stats.last_error) == ("vllm", 0, "")
        assert stats.last_ok_at is not None
        assert stats.last_bytes > 3_000
        assert {request.headers["accept-encoding"] for request in one.requests} == {"identity"}
        assert not any("openmetrics" in request.headers["accept"] for request in one.requests)
        assert watch.seen[0][1].values["running"] == 1


async def drip(request: Request, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 100000\r\n\r\n")
    while not writer.is_closing():
        writer.write(b"a")
        await writer.drain()
        await asyncio.sleep(0.05)


async def silent(request: Request, writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(30)


async def endless(request: Request, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ntransfer-encoding: chunked\r\n\r\n")
    while not writer.is_closing():
        writer.write(b"10000\r\n" + b"a 1\n" * 16384 + b"\r\n")
        await writer.drain()


async def broken_off(request: Request, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 100000\r\n\r\n" + PAGE)
    await writer.drain()
    writer.close()


async def broken_chunk(request: Request, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ntransfer-encoding: chunked\r\n\r\nffff\r\n" + PAGE)
    await writer.drain()
    writer.close()


async def no_http(request: Request, writer: asyncio.StreamWriter) -> None:
    writer.write(b"\x00\xff\xfe nonsense\r\n\r\n")
    writer.close()


async def hang_up(request: Request, writer: asyncio.StreamWriter) -> None:
    writer.close()


BOMB = gzip.compress(b"a 1\n" * 5_000_000)

BAD: dict[str, tuple[Answer, str]] = {
    "html": (plain(b"<html>", kind="text/html"), "content_type"),
    "html that says it is text": (plain(b"<html><body>\n</body></html>\n"), "bad_line"),
    "json": (plain(b"[]", kind="application/json"), "content_type"),
    "500": (plain(PAGE, status="500 Internal Server Error"), "status"),
    "501 without --metrics": (plain(b"{}", status="501 Not Implemented"), "status"),
    "503": (plain(PAGE, status="503 Service Unavailable"), "status"),
    "redirect": (plain(b"", status="302 Found", more="location: http://127.0.0.1:1/metrics\r\n"), "redirect"),
    "slow drip": (drip, "timeout"),
    "silence": (silent, "timeout"),
    "100 MB announced": (plain(b"", more="x: y\r\n"), "empty"),
    "endless": (endless, "too_large"),
    "large": (plain(b"a 1\n" * 100_000), "too_large"),
    "broken off": (broken_off, "partial"),
    "broken chunk": (broken_chunk, "partial"),
    "cut but complete by its length": (plain(PAGE[:-20]), "partial"),
    "gzip bomb": (plain(BOMB, more="content-encoding: gzip\r\n"), "too_large"),
    "gzip and much behind it": (
        plain(gzip.compress(PAGE) + bytes(1_000_000), more="content-encoding: gzip\r\n"),
        "too_large",
    ),
    "gzip cut": (plain(gzip.compress(PAGE)[:-30], more="content-encoding: gzip\r\n"), "partial"),
    "not gzip at all": (plain(PAGE, more="content-encoding: gzip\r\n"), "encoding"),
    "unknown encoding": (plain(PAGE, more="content-encoding: br\r\n"), "encoding"),
    "another program's page": (plain(b"go_goroutines 7\n"), "unrecognised"),
    "invalid UTF-8": (plain(b'\xff\xfe{x="\xff"} 1\n'), "bad_line"),
    "nothing": (plain(b""), "empty"),
    "no HTTP": (no_http, "protocol"),
    "hangs up": (hang_up, "protocol"),
}


@pytest.mark.parametrize("fault", BAD)
async def test_a_bad_answer_is_named_and_does_nothing_else(fault: str) -> None:
    answer, reason = BAD[fault]
    policy = ScrapePolicy(
        min_interval_s=0.05, max_interval_s=0.1, timeout_s=0.3, max_backoff_s=0.1, max_page_bytes=200_000
    )
    async with (
        engine(answer) as bad,
        engine(plain(PAGE)) as good,
        watching(endpoint(bad), endpoint(good), policy=policy) as watch,
    ):
        await until(lambda: watch.stats(bad).consecutive_failures >= 2)
        await until(lambda: len(watch.seen) >= 4)
        stats = watch.stats(bad)
        assert stats.last_error_reason == reason, stats.last_error
        assert set(stats.errors) == {reason}
        assert stats.last_ok_at is None
        assert {who for who, _, _ in watch.failures} == {bad.address}
        assert {one.address for one, _ in watch.seen} == {good.address}
        bad.answer = plain(PAGE)
        await until(lambda: watch.stats(bad).consecutive_failures == 0)
        if reason != "timeout":  # these servers do not notice at once that we hung up
            assert bad.most_busy == 1


@pytest.mark.parametrize(
    ("packed", "name"),
    [(gzip.compress(PAGE), "gzip"), (zlib.compress(PAGE), "deflate"), (gzip.compress(PAGE), "x-gzip")],
)
async def test_an_answer_that_is_packed_unasked_is_read(packed: bytes, name: str) -> None:
    async with engine(plain(packed, more=f"content-encoding: {name}\r\n")) as one, watching(endpoint(one)) as watch:
        await until(lambda: bool(watch.seen))
        assert watch.seen[0][1].values["running"] == 3


async def test_an_announced_hundred_megabytes_are_not_read() -> None:
    async def announce(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 100000000\r\n\r\n")

    async with engine(announce) as one, watching(endpoint(one)) as watch:
        await until(lambda: watch.stats(one).consecutive_failures >= 1)
        assert watch.stats(one).last_error_reason == "too_large"


async def test_an_engine_that_is_away_is_tried_ever_less_often_and_comes_back() -> None:
    one = Engine(plain(PAGE))
    await one.start()
    await one.stop()
    policy = ScrapePolicy(min_interval_s=0.05, max_interval_s=0.1, timeout_s=1.0, max_backoff_s=1.0)
    async with watching(endpoint(one), policy=policy) as watch:
        await until(lambda: watch.stats(one).consecutive_failures >= 3)
        stats = watch.stats(one)
        assert stats.errors.keys() == {"connect"}
        assert stats.interval_s >= 0.05 * 2 * 0.9
        await one.start()
        await until(lambda: bool(watch.seen))
        assert watch.stats(one).consecutive_failures == 0
    await one.stop()


async def test_never_two_requests_at_once_to_an_engine_even_if_two_endpoints_share_its_page() -> None:
    async def slow(request: Request, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.03)
        await plain(PAGE)(request, writer)

    async with engine(slow) as one:
        shared = [Endpoint(f"10.0.0.{n}:80", "p", engine="vllm", metrics_url=one.url()) for n in range(4)]
        async with watching(*shared) as watch:
            await until(lambda: len(one.requests) >= 12)
            assert len({endpoint.address for endpoint, _ in watch.seen}) == 4
            assert one.most_busy == 1


async def test_labels_of_an_endpoint_select_its_series() -> None:
    page = PageBuilder(model_name="m").value("ray_vllm_num_requests_running", 3, ReplicaId="a")
    page.more("ray_vllm_num_requests_running", 9, ReplicaId="b")
    async with engine(plain(bytes(page))) as one:
        two = [
            Endpoint(f"10.0.0.{n}:80", "p", engine="ray", metrics_url=one.url(), labels={"metrics.ReplicaId": replica})
            for n, replica in enumerate("ab")
        ]
        async with watching(*two) as watch:
            await until(lambda: len({endpoint.address for endpoint, _ in watch.seen}) == 2)
            values = {endpoint.address: seen.values["running"] for endpoint, seen in watch.seen}
            assert values == {"10.0.0.0:80": 3, "10.0.0.1:80": 9}


async def test_auto_recognises_the_engine_and_tries_the_usual_paths() -> None:
    page = PageBuilder(model_name="m", engine_type="trtllm").value("trtllm_num_requests_running", 2)

    def answer(request: Request) -> bytes:
        return bytes(page)

    async def serve(request: Request, writer: asyncio.StreamWriter) -> None:
        if request.path == "/prometheus/metrics":
            await plain(answer)(request, writer)
        elif request.path == "/metrics":
            await plain(b"[]", kind="application/json")(request, writer)
        else:
            await plain(b"", status="404 Not Found")(request, writer)

    async with engine(serve) as one, watching(endpoint(one, "auto")) as watch:
        await until(lambda: len(watch.seen) >= 3)
        assert (watch.seen[0][1].source, watch.seen[0][1].values["running"]) == ("trtllm", 2)
        assert watch.stats(one).url.endswith("/prometheus/metrics")
        before = len([request for request in one.requests if request.path == "/metrics"])
        await until(lambda: len(watch.seen) >= 6)
        assert len([request for request in one.requests if request.path == "/metrics"]) == before


async def test_auto_notices_that_another_engine_took_the_address() -> None:
    async with engine(plain(PAGE)) as one, watching(endpoint(one, "auto")) as watch:
        await until(lambda: bool(watch.seen))
        one.answer = plain(bytes(PageBuilder(model_name="m").value("sglang:num_running_reqs", 6)))
        await until(lambda: watch.seen[-1][1].source == "sglang")
        assert watch.seen[-1][1].values == {"running": 6}


async def test_further_pages_are_fetched_and_an_engine_without_them_is_well() -> None:
    llama = bytes(PageBuilder().value("llamacpp:requests_processing", 1))

    async def serve(request: Request, writer: asyncio.StreamWriter) -> None:
        if request.path == "/metrics":
            await plain(llama)(request, writer)
        elif request.path == "/slots":
            body = b'[{"id":0,"is_processing":true,"n_ctx":512},{"id":1,"is_processing":false,"n_ctx":512}]'
            await plain(body, kind="application/json")(request, writer)
        else:
            await plain(b"", status="404 Not Found")(request, writer)

    async with engine(serve) as one, watching(endpoint(one, "llamacpp")) as watch:
        await until(lambda: sum("kv_usage" in seen.values for _, seen in watch.seen) >= 3)
        stats = watch.stats(one)
        assert stats.consecutive_failures == 0
        assert stats.errors == {"models:status": 1}, "what an engine does not have is not asked for again soon"
        assert [request.path for request in one.requests[:3]] == ["/metrics", "/slots", "/v1/models"]


async def test_a_generic_engine_by_mapping() -> None:
    mapping = GenericMapping(signals=[MetricMapping(signal="waiting", metric="mine_queue")])
    async with (
        engine(plain(b"mine_queue 4\n")) as one,
        watching(endpoint(one, "mine"), engines={"mine": mapping}) as watch,
    ):
        await until(lambda: bool(watch.seen))
        assert (watch.seen[0][1].source, watch.seen[0][1].values) == ("mine", {"waiting": 4})


async def test_an_unknown_engine_or_a_bad_url_is_told_once_and_not_scraped() -> None:
    bad = [
        Endpoint("10.0.0.1:80", "p", engine="vlm", metrics_url="http://10.0.0.1:80/metrics"),
        Endpoint("10.0.0.2:80", "p", engine="vllm", metrics_url="ftp://10.0.0.2/metrics"),
        Endpoint("10.0.0.3:80", "p", engine="vllm", metrics_url="http://"),
        Endpoint("10.0.0.4:80", "p", engine="vllm"),
    ]
    async with watching(*bad) as watch:
        assert [(who, reason) for who, reason, _ in watch.failures] == [(f"10.0.0.{n}:80", "config") for n in (1, 2, 3)]
        assert watch.scraper.all_stats() == {}


async def test_targets_come_and_go_and_nothing_is_left() -> None:
    before = len(asyncio.all_tasks())
    async with engine(plain(PAGE)) as one, engine(plain(PAGE)) as two:
        async with watching(endpoint(one), endpoint(two)) as watch:
            await until(lambda: len({endpoint.address for endpoint, _ in watch.seen}) == 2)
            watch.scraper.set_targets([endpoint(two)])
            assert watch.scraper.stats(one.address) is None
            await asyncio.sleep(0.1)
            count = len(one.requests)
            await until(lambda: len(two.requests) > 12)
            assert len(one.requests) == count
            watch.scraper.set_targets([endpoint(two), endpoint(one)])
            await until(lambda: len(one.requests) > count)
        await until(lambda: one.open == two.open == 0)
        watch.scraper.set_targets([endpoint(one)])
        assert watch.scraper.all_stats() == {}, "stopped is stopped"
    await asyncio.sleep(0.05)
    assert len(asyncio.all_tasks()) <= before


async def test_a_changed_endpoint_is_a_new_target_and_an_equal_one_keeps_its_state() -> None:
    async with engine(plain(PAGE)) as one, watching(endpoint(one)) as watch:
        await until(lambda: len(watch.seen) >= 2)
        scrapes = watch.stats(one).scrapes
        watch.scraper.set_targets([endpoint(one)])
        assert watch.stats(one).scrapes >= scrapes
        watch.scraper.set_targets([endpoint(one, zone="b")])
        assert watch.stats(one).scrapes == 0


async def test_another_policy_takes_the_place_of_the_one_before() -> None:
    async with engine(plain(PAGE)) as one, watching(endpoint(one)) as watch:
        await until(lambda: len(watch.seen) >= 2)
        scrapes = watch.stats(one).scrapes
        watch.scraper.use_policy(FAST)
        assert watch.stats(one).scrapes >= scrapes, "an equal policy changes nothing"
        with pytest.raises(ConfigError):
            watch.scraper.use_policy(ScrapePolicy(tls=ScrapeTlsPolicy(ca_file="/nonexistent")))
        watch.scraper.use_policy(ScrapePolicy(min_interval_s=0.05, max_interval_s=0.05, max_page_bytes=2000))
        await until(lambda: bool(watch.failures))
        assert watch.failures[0][1] == "too_large"


async def test_a_fault_in_the_callback_does_not_end_the_scraping() -> None:
    calls = 0

    def fail(endpoint: Endpoint, seen: Observations) -> None:
        nonlocal calls
        calls += 1
        raise RuntimeError("callback")

    async with engine(plain(PAGE)) as one:
        scraper = Scraper(FAST, fail, seed=1)
        scraper.set_targets([endpoint(one)])
        try:
            await until(lambda: calls >= 3)
            stats = scraper.stats(one.address)
            assert stats is not None
            assert stats.last_error_reason == "internal"
        finally:
            await scraper.stop()


async def test_the_token_is_sent_and_read_again_when_it_changes(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("first\n")
    policy = ScrapePolicy(min_interval_s=0.05, max_interval_s=0.1, bearer_token_file=str(token))
    async with engine(plain(PAGE)) as one, watching(endpoint(one), policy=policy) as watch:
        await until(lambda: bool(watch.seen))
        assert one.requests[0].headers["authorization"] == "bearer first"
        token.write_text("second token\n")
        await until(lambda: one.requests[-1].headers["authorization"] == "bearer second token")


async def test_a_token_that_cannot_be_read_stops_the_request(tmp_path: Path) -> None:
    policy = ScrapePolicy(min_interval_s=0.05, max_interval_s=0.1, bearer_token_file=str(tmp_path / "none"))
    async with engine(plain(PAGE)) as one, watching(endpoint(one), policy=policy) as watch:
        await until(lambda: bool(watch.failures))
        assert watch.failures[0][1] == "token"
        assert one.requests == []


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CA, and server and client certificates of it."""
    folder = tmp_path_factory.mktemp("tls")
    ca = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=test ca"]
    try:
        subprocess.run(
            [*ca, "-keyout", "ca.key", "-out", "ca.pem"], cwd=folder, check=True, capture_output=True, timeout=60
        )
    except FileNotFoundError:
        pytest.skip("no openssl to make certificates")
    for name in ("server", "client"):
        request = ["openssl", "req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}.test"]
        request += ["-addext", f"subjectAltName=DNS:{name}.test", "-keyout", f"{name}.key", "-out", f"{name}.csr"]
        sign = ["openssl", "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-days", "2"]
        sign += ["-CAcreateserial", "-copy_extensions", "copy", "-out", f"{name}.pem"]
        for command in (request, sign):
            subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=60)
    return folder


def server_tls(folder: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem", folder / "server.key")
    context.load_verify_locations(folder / "ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    return context


@pytest.mark.parametrize(
    ("own", "name", "reason"),
    [("client", "server.test", None), (None, "server.test", "protocol"), ("client", "other.test", "tls")],
)
async def test_mutual_tls(certificates: Path, own: str | None, name: str, reason: str | None) -> None:
    tls = ScrapeTlsPolicy(
        ca_file=str(certificates / "ca.pem"),
        cert_file=None if own is None else str(certificates / f"{own}.pem"),
        key_file=None if own is None else str(certificates / f"{own}.key"),
        server_name=name,
    )
    policy = ScrapePolicy(min_interval_s=0.05, max_interval_s=0.1, tls=tls)
    async with (
        engine(plain(PAGE), server_tls(certificates)) as one,
        watching(endpoint(one, scheme="https"), policy=policy) as watch,
    ):
        if reason is None:
            await until(lambda: len(watch.seen) >= 3)
            assert one.connections <= 2
        else:
            await until(lambda: len(watch.failures) >= 2)
            assert watch.seen == []
            assert watch.failures[0][1] in (reason, "tls", "connect")


def test_tls_files_that_do_not_exist_are_told_at_the_start() -> None:
    policy = ScrapePolicy(tls=ScrapeTlsPolicy(ca_file="/nonexistent/ca.pem"))
    with pytest.raises(ConfigError, match="TLS files"):
        Scraper(policy, lambda endpoint, seen: None)
