"""CPU of scraping: a 60 KB page with all signals, alone and over HTTP, and a fleet of endpoints at 1 s.

    python -m tests.bench.scrape [--seconds N] [--endpoints N] [--size BYTES]

The engines run in a process of their own; only the scraper's CPU is counted. Keys of the last line:
cpu_ms_per_page (one whole scrape: HTTP, reading, signals, store), read_ms_per_page (reading and signals alone),
official_ms_per_page (prometheus_client's parser, which only parses), cores (for the fleet), late_p99_s.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import resource
import time
from multiprocessing.connection import Connection
from typing import cast

from prometheus_client.parser import text_string_to_metric_families

from tests.unit.signals.pages import vllm_page
from xds_control.fleet.endpoint import Endpoint
from xds_control.policy.signals import ScrapePolicy
from xds_control.signals.fetch import Fetcher
from xds_control.signals.reader import Observations, PageReader, SloTargets
from xds_control.signals.scraper import Scraper
from xds_control.signals.store import SignalStore

TARGETS = SloTargets(0.5, 0.05)


def cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def serve(size: int, pipe: Connection) -> None:
    """Engines on every loopback address at one port; answers prepared once. Ends when the pipe closes."""
    answers = []
    for step in range(64):
        page = vllm_page(step, size)
        answers.append(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/plain; version=0.0.4\r\ncontent-length: %d\r\n\r\n" % len(page)
            + page
        )
    missing = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"

    class Engine(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport = cast("asyncio.Transport", transport)
            self.step = id(self) % 64

        def data_received(self, data: bytes) -> None:
            self.step += 1
            self.transport.write(answers[self.step % 64] if data.startswith(b"GET /metrics") else missing)

    async def run() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(Engine, "0.0.0.0", 0, backlog=4096)
        pipe.send(server.sockets[0].getsockname()[1])
        await loop.run_in_executor(None, pipe.poll, None)

    _run(run())


def _run(main: object) -> None:
    import uvloop

    uvloop.run(main)  # type: ignore[arg-type]


def reading(seconds: float, size: int) -> dict[str, float]:
    """The page alone."""
    pages = [vllm_page(step, size) for step in range(64)]
    reader = PageReader("vllm", targets=TARGETS)
    now = 0.0
    for page in pages[:4]:
        now += 1
        reader.feed(page, now)
    best, spent = float("inf"), time.monotonic() + seconds
    while time.monotonic() < spent:
        began = time.process_time()
        for page in pages:
            now += 1
            reader.feed(page, now)
        best = min(best, (time.process_time() - began) / len(pages))
    text = pages[1].decode()
    began = time.process_time()
    for _ in range(5):
        list(text_string_to_metric_families(text))
    return {"read_ms_per_page": best * 1e3, "official_ms_per_page": (time.process_time() - began) / 5 * 1e3}


async def whole(port: int, seconds: float) -> dict[str, float]:
    """One scrape after the other over one connection: fetch, read, store."""
    from yarl import URL

    fetcher = Fetcher(ScrapePolicy())
    reader = PageReader("vllm", targets=TARGETS)
    store = SignalStore()
    url = URL(f"http://127.0.0.1:{port}/metrics")
    for _ in range(5):
        page = await fetcher.fetch(url)
        reader.feed(page.body, page.at)
    best, until = float("inf"), time.monotonic() + seconds
    while time.monotonic() < until:
        began = cpu()
        for _ in range(50):
            page = await fetcher.fetch(url)
            seen = reader.feed(page.body, page.at)
            store.put_all("127.0.0.1:80", seen.values, seen.at, seen.source)
        best = min(best, (cpu() - began) / 50)
    await fetcher.close()
    return {"cpu_ms_per_page": best * 1e3}


async def fleet(port: int, endpoints: int, seconds: float) -> dict[str, float]:
    """Many endpoints, each at 1 s."""
    store = SignalStore()
    gaps: list[float] = []
    last: dict[str, float] = {}

    def take(endpoint: Endpoint, seen: Observations) -> None:
        store.put_all(endpoint.address, seen.values, seen.at, seen.source)
        before = last.get(endpoint.address)
        if before is not None:
            gaps.append(seen.at - before)
        last[endpoint.address] = seen.at

    policy = ScrapePolicy(min_interval_s=1.0, max_interval_s=1.0, timeout_s=2.0)
    scraper = Scraper(policy, take, slo_targets=lambda endpoint: TARGETS, seed=1)
    scraper.set_targets(
        Endpoint(address, "p", engine="vllm", metrics_url=f"http://{address}/metrics")
        for address in (f"127.0.{1 + n // 250}.{1 + n % 250}:{port}" for n in range(endpoints))
    )
    await asyncio.sleep(3.0)  # connections, first pages
    gaps.clear()
    began, at = cpu(), time.monotonic()
    await asyncio.sleep(seconds)
    used, wall = cpu() - began, time.monotonic() - at
    failed = sum(stats.consecutive_failures > 0 for stats in scraper.all_stats().values())
    await scraper.stop()
    gaps.sort()
    return {
        "cores": used / wall,
        "endpoints": float(endpoints),
        "pages_per_s": len(gaps) / wall,
        "fleet_cpu_ms_per_page": used / max(1, len(gaps)) * 1e3,
        "late_p99_s": gaps[int(len(gaps) * 0.99)] - 1.0 if gaps else float("nan"),
        "failing": float(failed),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--endpoints", type=int, default=1000)
    parser.add_argument("--size", type=int, default=60_000)
    options = parser.parse_args()
    ours, theirs = multiprocessing.Pipe()
    child = multiprocessing.get_context("spawn").Process(target=serve, args=(options.size, theirs), daemon=True)
    child.start()
    try:
        port = ours.recv()
        found: dict[str, float] = reading(options.seconds / 5, options.size)

        async def run() -> None:
            found.update(await whole(port, options.seconds / 5))
            found.update(await fleet(port, options.endpoints, options.seconds * 3 / 5))

        _run(run())
    finally:
        ours.close()
        child.terminate()
        child.join(5)
    print(f"{found['endpoints']:.0f} endpoints at 1 s use {found['cores']:.2f} cores")
    print(json.dumps({key: round(value, 4) for key, value in found.items()}))


if __name__ == "__main__":
    main()
