"""Demo engines that are disturbed all the time, scraped on: nothing may leak and no value may be impossible.

Short by default; XDS_CONTROL_SOAK=120 runs 200 engines at 1 s for 120 seconds.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from pathlib import Path

import psutil
import pytest

from tests.shared import REPOSITORY
from xds_control.fleet.endpoint import Endpoint
from xds_control.policy.signals import ScrapePolicy
from xds_control.signals.catalogue import CATALOGUE
from xds_control.signals.reader import Observations
from xds_control.signals.scraper import Scraper
from xds_control.signals.store import SignalStore

SECONDS = float(os.environ.get("XDS_CONTROL_SOAK", "0"))
ENGINES, INTERVAL, RUN = (200, 1.0, SECONDS) if SECONDS else (16, 0.1, 4.0)


class Usage:
    """What this process holds."""

    def __init__(self) -> None:
        gc.collect()
        process = psutil.Process()
        self.rss = process.memory_info().rss
        self.sockets = sum(path.is_socket() for path in Path("/proc/self/fd").iterdir())
        self.tasks = len(asyncio.all_tasks())

    def __str__(self) -> str:
        return f"{self.rss / 2**20:.1f} MiB, {self.sockets} sockets, {self.tasks} tasks"


@pytest.mark.timeout(int(RUN) + 120)
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts sockets under /proc")
async def test_engines_under_faults_leak_nothing() -> None:
    before = Usage()
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.unit.signals.soak_engines",
        str(ENGINES),
        cwd=REPOSITORY,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    store = SignalStore()
    pages = 0

    def take(endpoint: Endpoint, seen: Observations) -> None:
        nonlocal pages
        pages += 1
        for name, value in seen.values.items():
            assert CATALOGUE[name].low <= value <= CATALOGUE[name].high
        store.put_all(endpoint.address, seen.values, seen.at, seen.source)

    policy = ScrapePolicy(
        min_interval_s=INTERVAL, max_interval_s=INTERVAL, timeout_s=INTERVAL, max_backoff_s=4 * INTERVAL, window_s=10
    )
    scraper = Scraper(policy, take, seed=3)
    try:
        addresses = []
        while line := (await asyncio.wait_for(child.stdout.readline(), 60)).strip():
            addresses.append(line.decode())
        assert len(addresses) == ENGINES
        scraper.set_targets(Endpoint(one, "p", engine="auto", metrics_url=f"http://{one}/metrics") for one in addresses)
        await asyncio.sleep(RUN / 3)
        early = Usage()
        await asyncio.sleep(RUN * 2 / 3)
        late = Usage()
        stats = scraper.all_stats()
        reasons = {reason for one in stats.values() for reason in one.errors}
        dropped = {reason for one in stats.values() for reason in one.dropped}
        print(f"\n{pages} pages of {ENGINES} engines in {RUN:g} s; {early} → {late}; errors {sorted(reasons)}")
        print(f"dropped: {sorted(dropped)}")
        assert "internal" not in reasons
        assert reasons & {"status", "timeout", "connect"}
        assert late.rss - early.rss < 24 * 2**20
        # The page and, while an answer is late, the connection that is being closed.
        assert late.sockets <= before.sockets + 2 * ENGINES + 8
        assert late.tasks <= before.tasks + ENGINES + 8

        child.stdin.write(b"\n")
        assert (await asyncio.wait_for(child.stdout.readline(), 30)).strip() == b"healed"
        async with asyncio.timeout(30):
            while any(one.consecutive_failures for one in scraper.all_stats().values()):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert {one.engine for one in scraper.all_stats().values()} == {"vllm"}
    finally:
        await scraper.stop()
        child.stdin.close()
        await asyncio.wait_for(child.wait(), 30)
    await asyncio.sleep(0.2)
    after = Usage()
    assert after.tasks <= before.tasks + 1
    assert after.sockets <= before.sockets + 2
