"""The demo engine: a server that speaks vLLM's HTTP, streaming and metrics formats over a timing model, without a GPU.

In a test:

    engine = DemoEngine(EngineConfig(model="demo"))
    await engine.start()
    ...  # http://{engine.address}/v1/chat/completions
    await engine.stop()

Alone: `python -m xds_control.demo.engine --port 8101 --model demo`.
Told to misbehave: `curl -d '{"slow": 4}' http://127.0.0.1:8101/demo/control` (see `demo.control`).
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque

from aiohttp import web

from xds_control.demo import control
from xds_control.demo.engine_config import EngineConfig, ServedRequest
from xds_control.demo.engine_pages import EnginePages
from xds_control.demo.engine_state import EngineState
from xds_control.demo.generation import MAX_BODY_BYTES, Generation
from xds_control.demo.model import EngineModel
from xds_control.demo.openai import JSON, ApiError, bad_request

__all__ = ["DemoEngine", "EngineConfig", "ServedRequest"]


class DemoEngine:
    """One engine. `start` and `stop` must run in the same event loop; the rest may be read between requests."""

    def __init__(self, config: EngineConfig | None = None) -> None:
        self.config = config or EngineConfig()
        self.state = EngineState(self.config)
        self._generation = Generation(self.state)
        pages = EnginePages(self.state)
        self._gets = pages.gets
        self._posts = {"/v1/chat/completions": self._chat, "/v1/completions": self._completion, **pages.posts}
        self._web: web.Server | None = None
        self._listening: asyncio.Server | None = None

    @property
    def model(self) -> EngineModel:
        """The timing model; a new one after a restart by `set_faults`."""
        return self.state.model

    @property
    def requests(self) -> deque[ServedRequest]:
        """The last `record` generation requests."""
        return self.state.requests

    @property
    def prefilled(self) -> int:
        """Prompts that were read here for another engine."""
        return self.state.prefilled

    @property
    def received(self) -> int:
        """Prompts that another engine read for this one."""
        return self.state.received

    @property
    def started_at(self) -> float:
        """Unix time of the start, in seconds."""
        return self.state.started_at

    @property
    def port(self) -> int:
        """0 before the start."""
        return self.state.port

    @property
    def address(self) -> str:
        """`host:port` once started."""
        return self.state.address

    @property
    def url(self) -> str:
        """`http://host:port` once started."""
        return f"http://{self.address}"

    async def start(self, port: int = 0, host: str = "127.0.0.1") -> None:
        """Listen; port 0 chooses a free one. Raises OSError when the port is taken."""
        loop = asyncio.get_running_loop()
        self.state.publish(host)
        self._web = web.Server(
            self._handle,
            request_factory=lambda message, payload, protocol, writer, task: web.BaseRequest(
                message, payload, protocol, writer, task, loop, client_max_size=MAX_BODY_BYTES
            ),
            handler_cancellation=True,
            access_log=None,
            auto_decompress=False,
            keepalive_timeout=300.0,
        )
        self._listening = await loop.create_server(self._web, host, port, backlog=1024)
        self.state.host, self.state.port = self._listening.sockets[0].getsockname()[:2]

    async def stop(self) -> None:
        """Close the port and every connection, in the middle of an answer too."""
        if self._listening is not None:
            self._listening.close()
            self._listening = None
        self.state.stop_clock()
        if self._web is not None:
            await self._web.shutdown(0.01)  # aiohttp takes 0 for "no limit"
            self._web = None
        await self._generation.stop()
        await self.state.stop_publishing()

    def set_faults(self, **changes: object) -> control.Faults:
        """The same as a POST to /demo/control, for tests in the same process."""
        return self.state.set_faults(**changes)

    def metrics_text(self) -> str:
        """The /metrics page as of the last step."""
        return self.state.metrics_text()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        path = request.path
        known = (self._posts if request.method == "POST" else self._gets).get(path)
        if not path.startswith("/demo/"):
            await self.state.http_open.wait()
        if known is None:
            elsewhere = path in self._posts or path in self._gets
            error = (
                ApiError(405, "MethodNotAllowed", "Method Not Allowed")
                if elsewhere
                else ApiError(404, "NotFoundError", "Not Found")
            )
            return self._error(error)
        try:
            return await known(request)
        except ApiError as error:
            self.state.http_by_status[path, f"{error.http_status // 100}xx"] += 1
            return self._error(error)
        except RecursionError:
            self.state.http_by_status[path, "4xx"] += 1
            return self._error(bad_request("The request body is nested too deeply."))

    def _error(self, error: ApiError) -> web.Response:
        return web.Response(
            status=error.http_status, body=error.body(), content_type=JSON, headers={"x-demo-engine": self.config.name}
        )

    async def _chat(self, request: web.BaseRequest) -> web.StreamResponse:
        return await self._generation.answer(request, chat=True)

    async def _completion(self, request: web.BaseRequest) -> web.StreamResponse:
        return await self._generation.answer(request, chat=False)


if __name__ == "__main__":
    from xds_control.demo.engine_main import main

    sys.exit(main())
