"""Engines that misbehave: raw asyncio servers, for no HTTP library sends what they send."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable

Answer = Callable[["Request", asyncio.StreamWriter], Awaitable[None]]


class Request:
    """One request as it came."""

    def __init__(self, path: str, headers: dict[str, str]) -> None:
        self.path = path
        self.headers = headers


class Engine:
    """A server whose answer can be changed while it runs. It counts connections and requests at once."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.requests: list[Request] = []
        self.connections = 0
        self.open = 0
        self.busy = 0
        self.most_busy = 0
        self.port = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, tls: ssl.SSLContext | None = None) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port, ssl=tls)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def url(self, path: str = "/metrics", scheme: str = "http") -> str:
        return f"{scheme}://{self.address}{path}"

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open += 1
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                headers = dict(line.lower().split(": ", 1) for line in head[1:] if ": " in line)
                request = Request(head[0].split(" ")[1], headers)
                self.requests.append(request)
                self.busy += 1
                self.most_busy = max(self.most_busy, self.busy)
                try:
                    await self.answer(request, writer)
                    await writer.drain()
                finally:
                    self.busy -= 1
                if writer.is_closing():
                    break
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.LimitOverrunError):
            return
        finally:
            self.open -= 1
            writer.close()


@contextlib.asynccontextmanager
async def engine(answer: Answer, tls: ssl.SSLContext | None = None) -> AsyncIterator[Engine]:
    one = Engine(answer)
    await one.start(tls)
    try:
        yield one
    finally:
        await one.stop()


def plain(
    body: bytes | Callable[[Request], bytes],
    status: str = "200 OK",
    kind: str = "text/plain; version=0.0.4; charset=utf-8",
    more: str = "",
) -> Answer:
    """An ordinary answer with a length."""

    async def answer(request: Request, writer: asyncio.StreamWriter) -> None:
        content = body(request) if callable(body) else body
        head = f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(content)}\r\n{more}\r\n"
        writer.write(head.encode() + content)

    return answer
