from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from xds_control.demo import llama
from xds_control.demo.processes import free_ports
from xds_control.errors import ConfigError

needs_llama = pytest.mark.skipif(bool(llama.available()), reason=llama.available() or "llama.cpp is here")


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[aiohttp.ClientSession]:
    model = tmp_path / "demo.gguf"
    llama.write_model(model)
    async with llama.LlamaServer(model, free_ports(1)[0], tmp_path / "llama.log") as server:
        # llama-server closes the connection after a streamed answer, without saying so before.
        connector = aiohttp.TCPConnector(force_close=True)
        async with aiohttp.ClientSession(server.url, connector=connector) as session:
            yield session


def chat(**fields: Any) -> dict[str, Any]:
    messages = [{"role": "system", "content": "You are terse. " * 20}, {"role": "user", "content": "Say something."}]
    return {"model": "demo", "messages": messages, "max_tokens": 40} | fields


@needs_llama
def test_the_model_is_small_and_the_same_each_time(tmp_path: Path) -> None:
    first, second = tmp_path / "a.gguf", tmp_path / "b.gguf"
    llama.write_model(first)
    llama.write_model(second)
    assert first.read_bytes() == second.read_bytes()
    assert first.stat().st_size < 1_000_000


@needs_llama
async def test_real_server_answers_streams_counts_and_caches(client: aiohttp.ClientSession) -> None:
    async with client.post("/v1/chat/completions", json=chat()) as answer:
        assert answer.status == 200
        whole = await answer.json()
    assert whole["choices"][0]["message"]["content"].isascii()
    assert whole["usage"]["prompt_tokens"] > 300
    assert whole["usage"]["prompt_tokens_details"]["cached_tokens"] == 0

    asked = chat(stream=True, stream_options={"include_usage": True}, ignore_eos=True)
    async with client.post("/v1/chat/completions", json=asked) as answer:
        lines = [line[6:] for line in (await answer.text()).split("\n\n") if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    usage = json.loads(lines[-2])["usage"]
    assert usage["completion_tokens"] == 40
    assert usage["prompt_tokens_details"]["cached_tokens"] > 300

    async with client.get("/metrics") as answer:
        page = await answer.text()
    figures = dict(line.rsplit(" ", 1) for line in page.splitlines() if line.startswith("llamacpp:"))
    assert float(figures["llamacpp:tokens_predicted_total"]) == 40 + whole["usage"]["completion_tokens"]
    assert float(figures["llamacpp:requests_processing"]) == 0
    async with client.get("/slots") as answer:
        assert len(await answer.json()) == 4
    async with client.get("/v1/models") as answer:
        assert (await answer.json())["data"][0]["id"] == "demo"


@needs_llama
async def test_a_server_that_cannot_load_its_model_says_why(tmp_path: Path) -> None:
    model = tmp_path / "broken.gguf"
    model.write_bytes(b"not a model")
    with pytest.raises(ConfigError, match="ended with code"):
        async with llama.LlamaServer(model, free_ports(1)[0], tmp_path / "log"):
            pass


def test_without_the_package_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(llama.LlamaMissingError, match=r"xds-control\[llama\]"):
        llama.binary_path()
    assert "xds-control[llama]" in llama.available()
