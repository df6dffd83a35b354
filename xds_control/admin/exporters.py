"""The DCGM exporters that the policy names, scraped for the core."""

from __future__ import annotations

import asyncio

from xds_control.admin.core import ControlCore
from xds_control.policy.signals import SignalsPolicy
from xds_control.signals.gpu_scraper import DcgmScraper


class Exporters:
    """Runs one scraper, or none where no exporter is named."""

    def __init__(self, core: ControlCore) -> None:
        self._core = core
        self._scraper: DcgmScraper | None = None
        self._ending: set[asyncio.Task[None]] = set()

    def use_policy(self, policy: SignalsPolicy) -> None:
        """Scrapes by this policy from now on. Raises ConfigError when its TLS files cannot be used."""
        new = None
        if policy.gpu.dcgm:
            new = DcgmScraper(policy, lambda node, page, at: self._core.on_gpu_page(node, page.gpus, at))
        old, self._scraper = self._scraper, new
        if old is not None:
            task = asyncio.get_running_loop().create_task(old.stop())
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
        if new is not None:
            new.start()

    async def stop(self) -> None:
        """Ends all scraping."""
        await asyncio.gather(*self._ending)
        if self._scraper is not None:
            await self._scraper.stop()
