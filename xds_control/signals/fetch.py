"""Fetches pages over HTTP within a deadline and a size. Does not follow redirects: the token is for one host."""

from __future__ import annotations

import asyncio
import ssl
import time
import zlib
from pathlib import Path
from typing import NamedTuple

import aiohttp
from yarl import URL

from xds_control.errors import ConfigError, XdsControlError
from xds_control.policy.security import no_password
from xds_control.policy.signals import ScrapePolicy, ScrapeTlsPolicy

TEXT = ("text/plain", "application/openmetrics-text")
JSON = ("application/json", "text/json")
_TOKEN_CHECK_S = 1.0


class FetchError(XdsControlError):
    """A page could not be had. `reason` is one word for counters, the text is for people, `status` HTTP's if any."""

    code = "scrape-failed"

    def __init__(self, reason: str, text: str, status: int | None = None) -> None:
        super().__init__(text)
        self.reason = reason
        self.status = status


class Fetched(NamedTuple):
    """A page, when its first byte came (monotonic seconds), how long all of it took, its size on the wire."""

    body: bytes
    at: float
    seconds: float
    size: int


class _Token:
    """A bearer token in a file that may be replaced while we run."""

    def __init__(self, path: str | None) -> None:
        self._path = None if path is None else Path(path)
        self._stamp: tuple[int, int] | None = None
        self._checked = -_TOKEN_CHECK_S
        self._value: str | None = None

    def value(self) -> str | None:
        """The token now. Raises FetchError when the file cannot be read."""
        if self._path is None:
            return None
        now = time.monotonic()
        if now - self._checked >= _TOKEN_CHECK_S:
            try:
                stat = self._path.stat()
                stamp = (stat.st_mtime_ns, stat.st_size)
                if stamp != self._stamp:
                    self._value = self._path.read_text(encoding="ascii").strip()
                    self._stamp = stamp
            except (OSError, UnicodeDecodeError) as error:
                raise FetchError("token", f"the bearer token cannot be read: {error}") from error
            self._checked = now
        return self._value


def tls_context(policy: ScrapeTlsPolicy) -> ssl.SSLContext:
    """The client side of TLS that the policy describes. Raises ConfigError when a file cannot be used."""
    try:
        context = ssl.create_default_context(cafile=policy.ca_file)
        if policy.cert_file is not None:
            context.load_cert_chain(policy.cert_file, policy.key_file, no_password)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"TLS files of the scraper cannot be used: {error}") from error
    if not policy.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


class Fetcher:
    """One HTTP client for all pages; connections are kept."""

    def __init__(self, policy: ScrapePolicy) -> None:
        self._policy = policy
        self._token = _Token(policy.bearer_token_file)
        self._tls = tls_context(policy.tls)
        self._session: aiohttp.ClientSession | None = None

    async def fetch(self, url: URL, types: tuple[str, ...] = TEXT) -> Fetched:
        """One page. Raises FetchError with a reason: connect, tls, timeout, status, redirect, content_type,
        too_large, encoding, partial, protocol, token."""
        policy = self._policy
        began = time.monotonic()
        try:
            async with asyncio.timeout(policy.timeout_s):
                try:
                    return await self._get(url, types, began)
                except (aiohttp.ServerDisconnectedError, aiohttp.ClientConnectionResetError):
                    # The engine closed a kept connection just as we used it: once more, over a new one.
                    return await self._get(url, types, began)
        except FetchError:
            raise
        except TimeoutError:
            raise FetchError("timeout", f"no full answer within {policy.timeout_s:g} s") from None
        except aiohttp.ClientSSLError as error:
            raise FetchError("tls", str(error)) from error
        except aiohttp.ClientConnectorError as error:
            why = error.os_error.strerror or str(error.os_error)
            raise FetchError("connect", f"cannot connect to {error.host}:{error.port}: {why}") from error
        except aiohttp.ClientPayloadError as error:
            raise FetchError("partial", f"the answer broke off: {error}") from error
        except (aiohttp.ClientError, ValueError, OSError) as error:
            raise FetchError("protocol", f"{type(error).__name__}: {error}") from error

    async def _get(self, url: URL, types: tuple[str, ...], began: float) -> Fetched:
        # OpenMetrics is understood but not asked for: it is longer by what nobody here reads.
        headers = {"accept": "text/plain;version=0.0.4, */*;q=0.1" if TEXT[0] in types else "application/json"}
        token = self._token.value()
        if token:
            headers["authorization"] = f"Bearer {token}"
        async with self._client().get(
            url,
            headers=headers,
            allow_redirects=False,
            server_hostname=self._policy.tls.server_name if url.scheme == "https" else None,
        ) as response:
            at = time.monotonic()
            self._check(response, types)
            body, size = await self._read(response)
        return Fetched(body, at, time.monotonic() - began, size)

    async def close(self) -> None:
        """Closes all connections."""
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(
                limit=0,
                limit_per_host=0,
                ssl=self._tls,
                keepalive_timeout=max(15.0, 3 * self._policy.max_interval_s),
                ttl_dns_cache=10,
            )
            self._session = aiohttp.ClientSession(
                connector=connector,
                auto_decompress=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"accept-encoding": "identity", "user-agent": "xds-control"},
                timeout=aiohttp.ClientTimeout(total=None),
                trust_env=False,
            )
        return self._session

    def _check(self, response: aiohttp.ClientResponse, types: tuple[str, ...]) -> None:
        if 300 <= response.status < 400:
            raise FetchError("redirect", f"answered {response.status} to {response.headers.get('location', '?')[:200]}")
        if response.status != 200:
            raise FetchError("status", f"answered {response.status}", response.status)
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind and kind not in types:
            raise FetchError("content_type", f"answered content-type {kind[:100]!r}")
        length = response.content_length
        if length is not None and length > self._policy.max_page_bytes:
            raise FetchError("too_large", f"{length} bytes are more than {self._policy.max_page_bytes}")

    async def _read(self, response: aiohttp.ClientResponse) -> tuple[bytes, int]:
        """The body, unpacked, and its size as it came."""
        limit = self._policy.max_page_bytes
        encoding = response.headers.get("content-encoding", "identity").strip().lower()
        if encoding in ("gzip", "x-gzip"):
            unpack = zlib.decompressobj(wbits=31)
        elif encoding == "deflate":
            unpack = zlib.decompressobj()
        elif encoding in ("identity", ""):
            unpack = None
        else:
            raise FetchError("encoding", f"answered content-encoding {encoding[:40]!r}, which was not asked for")
        chunks: list[bytes] = []
        length = size = 0
        async for chunk in response.content.iter_any():
            size += len(chunk)
            if unpack is not None:
                try:
                    chunk = unpack.decompress(chunk, limit + 1 - length)
                except zlib.error as error:
                    raise FetchError("encoding", f"the answer cannot be unpacked: {error}") from error
            length += len(chunk)
            # What follows the packed page comes out as nothing, and is kept all the same.
            if length > limit or size > limit:
                response.close()
                raise FetchError("too_large", f"more than {limit} bytes")
            chunks.append(chunk)
        if unpack is not None and not unpack.eof:
            raise FetchError("partial", "the packed answer broke off")
        return chunks[0] if len(chunks) == 1 else b"".join(chunks), size
