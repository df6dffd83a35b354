"""Scrapes the pages of DCGM exporters: one task for each."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import structlog
from yarl import URL

from xds_control.observe.loops import kept
from xds_control.policy.signals import SignalsPolicy
from xds_control.signals.dcgm import GpuPage, read_dcgm
from xds_control.signals.fetch import Fetcher, FetchError

log = structlog.get_logger(__name__)

MAX_BACKOFF_S = 60.0


@dataclass(slots=True)
class ExporterStats:
    """How the scraping of one exporter goes."""

    scrapes: int = 0
    gpus: int = 0
    last_ok_at: float | None = None
    consecutive_failures: int = 0
    last_error: str = ""
    errors: dict[str, int] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)


class DcgmScraper:
    """on_page(node, page, at) is called with each page; the node is the exporter's host name, else its address.

    A page holds all GPUs of its node, so GPUs that are missing on it are gone.
    """

    def __init__(
        self, policy: SignalsPolicy, on_page: Callable[[str, GpuPage, float], None], seed: int | None = None
    ) -> None:
        self._policy = policy
        self._on_page = on_page
        self._fetcher = Fetcher(policy.scrape)
        self._random = random.Random(seed)
        self._tasks: list[asyncio.Task[None]] = []
        self.stats = {url: ExporterStats() for url in policy.gpu.dcgm}

    def start(self) -> None:
        """Begins to scrape the policy's exporters."""
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(kept(f"dcgm {url}", partial(self._run, url), log), name=f"dcgm {url}")
            for url in self.stats
        ]

    async def stop(self) -> None:
        """Ends all tasks and closes all connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._fetcher.close()

    async def _run(self, url: str) -> None:
        stats = self.stats[url]
        interval = self._policy.gpu.dcgm_interval_s
        while True:
            try:
                await self._scrape(URL(url), stats)
                pause = interval
            except FetchError as error:
                stats.consecutive_failures += 1
                stats.last_error = str(error)[:300]
                stats.errors[error.reason] = stats.errors.get(error.reason, 0) + 1
                if stats.consecutive_failures == 1:
                    log.info("dcgm scrape failed", url=url, reason=error.reason, error=stats.last_error)
                pause = min(max(MAX_BACKOFF_S, interval), interval * 2.0 ** min(stats.consecutive_failures - 1, 20))
            await asyncio.sleep(pause * self._random.uniform(0.9, 1.1))

    async def _scrape(self, url: URL, stats: ExporterStats) -> None:
        stats.scrapes += 1
        fetched = await self._fetcher.fetch(url)
        page = read_dcgm(fetched.body)
        for reason, count in page.dropped.items():
            stats.dropped[reason] = stats.dropped.get(reason, 0) + count
        if not page.recognised:
            raise FetchError("unrecognised", "the page is not one of a DCGM exporter")
        stats.gpus, stats.last_ok_at, stats.consecutive_failures = len(page.gpus), fetched.at, 0
        self._on_page(page.node or url.authority, page, fetched.at)
