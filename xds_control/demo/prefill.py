"""The prefill that a decoding demo engine asks another one for, over HTTP (the forms are in `demo.disagg`)."""

from __future__ import annotations

import asyncio

import aiohttp

from xds_control.demo import disagg
from xds_control.demo.openai import JSON, ApiError


class Prefiller:
    """Asks other engines. transfer_s_per_token: time to move one token's KV here."""

    def __init__(self, transfer_s_per_token: float) -> None:
        self._transfer_s_per_token = transfer_s_per_token
        self._client: aiohttp.ClientSession | None = None

    async def prefill(self, path: str, body: bytes, remote: disagg.Remote) -> bool:
        """Has the prompt read by the other engine; whether its KV is here now. Raises ApiError with its error."""
        if self._client is None:
            self._client = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=600.0))
        headers = {"content-type": JSON, **remote.headers}
        try:
            async with self._client.post(
                f"http://{remote.prefiller}{path}", data=disagg.prefill_body(body, remote), headers=headers
            ) as answer:
                text = await answer.read()
                if answer.status != 200:
                    raise ApiError(answer.status, "PrefillError", text.decode("utf-8", "replace")[:500])
                tokens = int(answer.headers.get("x-demo-prompt-tokens", "0"))
        except (aiohttp.ClientError, TimeoutError) as error:
            raise ApiError(502, "PrefillError", f"prefill at {remote.prefiller}: {error}") from error
        if not disagg.moved(remote, text):
            return False
        await asyncio.sleep(self._transfer_s_per_token * tokens)
        return True

    async def stop(self) -> None:
        """Closes the connections to other engines."""
        if self._client is not None:
            await self._client.close()
            self._client = None
