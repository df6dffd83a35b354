"""Scrapes the pages of all endpoints: one task for each, never two requests at once to one engine."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import structlog
from yarl import URL

from xds_control.fleet.endpoint import Endpoint
from xds_control.policy.signals import GenericMapping, ScrapePolicy
from xds_control.signals.adapter import Adapter, Extra
from xds_control.signals.engines import AUTO_PATHS, UnknownEngine, adapter_for
from xds_control.signals.engines.generic import generic_adapter
from xds_control.signals.fetch import JSON, TEXT, Fetcher, FetchError
from xds_control.signals.pace import Pace, rest
from xds_control.signals.reader import Observations, PageReader, SloTargets

log = structlog.get_logger(__name__)

SELECT_PREFIX = "metrics."
"""Endpoint labels that begin so select series: `metrics.ReplicaId: abc` on a page that many replicas share."""

_EXTRA_RETRY_S = 60.0
_LOST_AFTER = 3


@dataclass(slots=True)
class ScrapeStats:
    """How the scraping of one endpoint goes. Times are monotonic seconds, None for never.

    errors: reason → failures. dropped: reason → values that were not used, from all of its pages.
    """

    url: str
    engine: str
    scrapes: int = 0
    last_ok_at: float | None = None
    last_error_at: float | None = None
    last_error: str = ""
    last_error_reason: str = ""
    consecutive_failures: int = 0
    last_duration_s: float | None = None
    last_bytes: int = 0
    bytes: int = 0
    interval_s: float = 0.0
    errors: dict[str, int] = field(default_factory=dict)
    dropped: Mapping[str, int] = field(default_factory=dict)


OnObservations = Callable[[Endpoint, Observations], None]
OnFailure = Callable[[Endpoint, str, str], None]


class _Target:
    """One endpoint while it is scraped."""

    def __init__(self, endpoint: Endpoint, url: URL, policy: ScrapePolicy, reader: PageReader) -> None:
        self.endpoint = endpoint
        self.url = url
        self.pace = Pace(policy)
        self.reader = reader
        self.stats = ScrapeStats(str(url), endpoint.engine)
        self.extras_due: dict[str, float] = {}
        self.asked = url
        self.path = 0  # how many of the usual places were tried in vain
        self.unrecognised = 0
        self.reading = 0.0  # seconds that the pages of the latest scrape took to be read
        self.task: asyncio.Task[None] | None = None


class Scraper:
    """Keeps every endpoint's page fresh.

    on_observations is called in the event loop with each page's signals, also for the engine's further pages;
    on_failure with a reason and a text when a page could not be had or was not the engine's. slo_targets: what
    is promised for an endpoint, the policy's targets when absent. engines: adapters by mapping.
    """

    def __init__(
        self,
        policy: ScrapePolicy,
        on_observations: OnObservations,
        *,
        on_failure: OnFailure | None = None,
        slo_targets: Callable[[Endpoint], SloTargets] | None = None,
        engines: Mapping[str, GenericMapping] | None = None,
        seed: int | None = None,
    ) -> None:
        self._policy = policy
        self._on_observations = on_observations
        self._on_failure = on_failure
        self._slo_targets = slo_targets
        self._adapters = {name: generic_adapter(name, mapping) for name, mapping in (engines or {}).items()}
        self._fetcher = Fetcher(policy)
        self._random = random.Random(seed)
        self._targets: dict[str, _Target] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._stopped = False

    def set_targets(self, endpoints: Iterable[Endpoint]) -> None:
        """Scrapes exactly these endpoints from now on. Those without a metrics URL are left out."""
        if self._stopped:
            return
        wanted = {endpoint.address: endpoint for endpoint in endpoints if endpoint.metrics_url is not None}
        for address in [known for known in self._targets if known not in wanted]:
            self._end(self._targets.pop(address))
        for address, endpoint in wanted.items():
            target = self._targets.get(address)
            if target is not None:
                if _same_page(target.endpoint, endpoint):
                    target.endpoint = endpoint
                    continue
                self._end(self._targets.pop(address))
            self._begin(endpoint)
        used = {target.url.authority for target in self._targets.values()}
        for authority in [known for known in self._locks if known not in used and not self._locks[known].locked()]:
            del self._locks[authority]

    def use_policy(self, policy: ScrapePolicy, engines: Mapping[str, GenericMapping] | None = None) -> None:
        """Scrapes by another policy from now on. Endpoints are begun anew when it differs from the one in force.

        Raises ConfigError when its TLS files cannot be used; then all stays as it was.
        """
        adapters = {name: generic_adapter(name, mapping) for name, mapping in (engines or {}).items()}
        if self._stopped or (policy == self._policy and adapters == self._adapters):
            return
        old, self._fetcher = self._fetcher, Fetcher(policy)
        self._policy, self._adapters = policy, adapters
        closing = asyncio.get_running_loop().create_task(old.close())
        self._ending.add(closing)
        closing.add_done_callback(self._ending.discard)
        endpoints = [target.endpoint for target in self._targets.values()]
        self.set_targets([])
        self.set_targets(endpoints)

    def stats(self, address: str) -> ScrapeStats | None:
        """How the scraping of an endpoint goes; None when it is not scraped."""
        target = self._targets.get(address)
        return None if target is None else target.stats

    def all_stats(self) -> dict[str, ScrapeStats]:
        """The same for all endpoints."""
        return {address: target.stats for address, target in self._targets.items()}

    async def stop(self) -> None:
        """Ends all tasks and closes all connections."""
        self._stopped = True
        for target in self._targets.values():
            self._end(target)
        self._targets.clear()
        while self._ending:
            await asyncio.wait(list(self._ending))
        await self._fetcher.close()

    def _begin(self, endpoint: Endpoint) -> None:
        try:
            adapter: Adapter | str = self._adapters.get(endpoint.engine) or (
                "auto" if endpoint.engine == "auto" else adapter_for(endpoint.engine)
            )
            url = URL(endpoint.metrics_url or "")
            if url.scheme not in ("http", "https") or not url.host:
                raise ValueError(f"{endpoint.metrics_url!r} is no http or https URL")
        except (UnknownEngine, ValueError) as error:
            log.warning("endpoint is not scraped", endpoint=endpoint.address, error=str(error))
            if self._on_failure is not None:
                self._on_failure(endpoint, "config", str(error))
            return
        target = _Target(endpoint, url, self._policy, self._reader(endpoint, adapter))
        self._targets[endpoint.address] = target
        target.task = asyncio.get_running_loop().create_task(self._run(target), name=f"scrape {endpoint.address}")

    def _end(self, target: _Target) -> None:
        if target.task is not None:
            target.task.cancel()
            self._ending.add(target.task)
            target.task.add_done_callback(self._ending.discard)

    def _reader(self, endpoint: Endpoint, adapter: Adapter | str) -> PageReader:
        policy = self._policy
        targets = (
            SloTargets(policy.ttft_target_s, policy.tpot_target_s)
            if self._slo_targets is None
            else self._slo_targets(endpoint)
        )
        select = {
            name.removeprefix(SELECT_PREFIX): value
            for name, value in endpoint.labels.items()
            if name.startswith(SELECT_PREFIX)
        }
        return PageReader(
            adapter,
            targets=targets,
            window_s=policy.window_s,
            rate_window_s=policy.rate_window_s,
            select=select,
            kv_combine=policy.kv_combine,
            min_observations=policy.min_observations,
        )

    async def _run(self, target: _Target) -> None:
        noise = self._random.uniform
        await asyncio.sleep(noise(0, self._policy.min_interval_s))
        while True:
            began = time.monotonic()
            target.reading = 0.0
            try:
                values = await self._scrape(target)
                pause = target.pace.succeeded(values, noise(-1, 1))
            except FetchError as error:
                self._failed(target, error.reason, str(error))
                pause = target.pace.failed(noise(-1, 1))
            except Exception as error:
                # A fault of ours in one endpoint's page must not end the scraping of it.
                log.exception("scrape failed unexpectedly", endpoint=target.endpoint.address)
                self._failed(target, "internal", f"{type(error).__name__}: {error}")
                pause = target.pace.failed(noise(-1, 1))
            target.stats.interval_s = pause
            await asyncio.sleep(rest(pause, time.monotonic() - began, target.reading))

    async def _scrape(self, target: _Target) -> Mapping[str, float]:
        """One page and what else is due; the load that it showed. Raises FetchError."""
        stats = target.stats
        lock = self._locks.setdefault(target.url.authority, asyncio.Lock())
        async with lock:
            adapter = target.reader.adapter
            url = self._url(target)
            stats.scrapes += 1
            types = TEXT if adapter is not None and adapter.main is None else (*TEXT, *JSON)
            try:
                page = await self._fetcher.fetch(url, types)
            except FetchError as error:
                if adapter is None and (error.reason == "content_type" or error.status in (404, 405, 501)):
                    target.path += 1
                raise
            stats.last_duration_s, stats.last_bytes = page.seconds, page.size
            stats.bytes += page.size
            read_from = time.perf_counter()
            seen = target.reader.feed(page.body, page.at)
            target.reading += time.perf_counter() - read_from
            stats.dropped = target.reader.counts
            if not seen.recognised:
                self._lost(target)
                reason = next(iter(seen.dropped), "unrecognised")
                raise FetchError(reason, f"the page is not one of engine {target.endpoint.engine}: {reason}")
            target.unrecognised = 0
            stats.engine = seen.source
            stats.last_ok_at = page.at
            stats.consecutive_failures = 0
            self._on_observations(target.endpoint, seen)
            adapter = target.reader.adapter
            for extra in adapter.extras if adapter is not None else ():
                await self._scrape_extra(target, extra)
        return seen.values

    async def _scrape_extra(self, target: _Target, extra: Extra) -> None:
        """One further page. That an engine does not have it is no failure of the engine."""
        now = time.monotonic()
        if target.extras_due.get(extra.name, 0.0) > now:
            return
        url = target.url.origin().join(URL(extra.path, encoded=True))
        try:
            page = await self._fetcher.fetch(url, JSON)
        except FetchError as error:
            _count(target.stats.errors, f"{extra.name}:{error.reason}")
            target.extras_due[extra.name] = now + _EXTRA_RETRY_S * self._random.uniform(0.8, 1.2)
            return
        read_from = time.perf_counter()
        seen = target.reader.feed_extra(extra.name, page.body, page.at)
        target.reading += time.perf_counter() - read_from
        every = 0.0 if extra.every == "scrape" else extra.every * self._random.uniform(0.8, 1.2)
        target.extras_due[extra.name] = now + (every if seen.recognised else _EXTRA_RETRY_S)
        if seen.recognised:
            self._on_observations(target.endpoint, seen)

    def _url(self, target: _Target) -> URL:
        """The page's URL; while the engine is unknown, the usual places are tried in turn."""
        url = target.url
        if target.path and url.path in AUTO_PATHS:
            url = url.with_path(AUTO_PATHS[(AUTO_PATHS.index(url.path) + target.path) % len(AUTO_PATHS)])
        if url is not target.asked:
            target.asked = url
            target.stats.url = str(url)
        return url

    def _lost(self, target: _Target) -> None:
        """Another engine may have taken the address: after some foreign pages the engine is recognised anew."""
        if target.reader.adapter is None:
            target.path += 1
        target.unrecognised += 1
        if target.unrecognised >= _LOST_AFTER and target.endpoint.engine == "auto":
            target.reader = self._reader(target.endpoint, "auto")
            target.unrecognised = 0

    def _failed(self, target: _Target, reason: str, text: str) -> None:
        stats = target.stats
        stats.last_error_at = time.monotonic()
        stats.last_error, stats.last_error_reason = text[:300], reason
        stats.consecutive_failures += 1
        _count(stats.errors, reason)
        if stats.consecutive_failures == 1:
            log.info("scrape failed", endpoint=target.endpoint.address, reason=reason, error=text[:300])
        if self._on_failure is not None:
            self._on_failure(target.endpoint, reason, text[:300])


def _same_page(a: Endpoint, b: Endpoint) -> bool:
    return (a.engine, a.metrics_url, a.pool, dict(a.labels)) == (b.engine, b.metrics_url, b.pool, dict(b.labels))


def _count(counts: dict[str, int], reason: str) -> None:
    counts[reason] = counts.get(reason, 0) + 1
