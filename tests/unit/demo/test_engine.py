from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import pytest

from xds_control.demo.engine import DemoEngine, EngineConfig
from xds_control.demo.model import ModelConfig

DEEP = b"[" * 10_000 + b"]" * 10_000
FAST = ModelConfig(prefill_tps=200_000.0, decode_s=0.001, decode_growth_s=0.0, kv_blocks=400)


def chat(text: str = "hello", **fields: Any) -> dict[str, Any]:
    return {
        "model": "demo",
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 8,
        "ignore_eos": True,
    } | fields


@pytest.fixture
async def engine() -> AsyncIterator[DemoEngine]:
    one = DemoEngine(EngineConfig(timing=FAST, name="one", record=10, loras=("style",)))
    await one.start()
    yield one
    await one.stop()


@pytest.fixture
async def client(engine: DemoEngine) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(engine.url) as session:
        yield session


def events(body: str) -> list[Any]:
    """The data of each event; `[DONE]` stays text."""
    found: list[Any] = []
    for part in body.split("\n\n"):
        if part:
            assert part.startswith("data: ")
            data = part[len("data: ") :]
            found.append(data if data == "[DONE]" else json.loads(data))
    return found


def metric(page: str, name: str, **labels: str) -> float:
    wanted = [f'{key}="{value}"' for key, value in labels.items()]
    for line in page.splitlines():
        if line.startswith(name + "{") and all(pair in line for pair in wanted):
            return float(line.rsplit(" ", 1)[1])
    raise AssertionError(f"{name} {labels} is not on the page")


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(2000):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("did not happen within ten seconds")


async def test_streamed_chat_is_role_text_finish_usage_done(client: aiohttp.ClientSession) -> None:
    body = chat(stream=True, stream_options={"include_usage": True})
    async with client.post("/v1/chat/completions", json=body) as answer:
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        got = events(await answer.text())
    assert got[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert got[0]["object"] == "chat.completion.chunk"
    texts = [e["choices"][0]["delta"]["content"] for e in got[1:-3]]
    assert all(texts)
    assert len("".join(texts)) == 8 * 4
    assert got[-3]["choices"][0]["finish_reason"] == "length"
    assert got[-2]["choices"] == []
    assert got[-2]["usage"]["completion_tokens"] == 8
    assert got[-1] == "[DONE]"
    assert len({e["id"] for e in got[:-1]}) == 1


async def test_without_include_usage_no_chunk_carries_usage(client: aiohttp.ClientSession) -> None:
    async with client.post("/v1/chat/completions", json=chat(stream=True)) as answer:
        got = events(await answer.text())
    assert not any("usage" in e for e in got[:-1])


async def test_streamed_and_whole_answer_hold_the_same_text(client: aiohttp.ClientSession) -> None:
    async with client.post("/v1/chat/completions", json=chat(seed=4)) as answer:
        whole = (await answer.json())["choices"][0]["message"]["content"]
    async with client.post("/v1/chat/completions", json=chat(seed=4, stream=True)) as answer:
        parts = events(await answer.text())[1:-2]
    async with client.post("/v1/chat/completions", json=chat(seed=5)) as answer:
        other = (await answer.json())["choices"][0]["message"]["content"]
    assert "".join(e["choices"][0]["delta"]["content"] for e in parts) == whole
    assert other != whole


async def test_completion_of_text_and_of_token_ids(client: aiohttp.ClientSession) -> None:
    for prompt, tokens in (("x" * 40, 10), (list(range(10)), 10), (["y" * 8], 2), ([[1, 2, 3]], 3)):
        async with client.post("/v1/completions", json={"model": "demo", "prompt": prompt}) as answer:
            body = await answer.json()
        assert body["object"] == "text_completion"
        assert body["usage"]["prompt_tokens"] == tokens
        assert body["usage"]["completion_tokens"] <= 16
        assert body["choices"][0]["text"]


async def test_cached_tokens_are_reported_like_vllm(client: aiohttp.ClientSession) -> None:
    body = chat("long prompt " * 40)
    seen = []
    for _ in range(2):
        async with client.post("/v1/chat/completions", json=body) as answer:
            seen.append((await answer.json())["usage"]["prompt_tokens_details"])
    assert seen[0] is None
    assert seen[1]["cached_tokens"] > 100
    assert seen[1]["cached_tokens"] % 16 == 0


async def test_answers_end_by_themselves_unless_told_not_to(client: aiohttp.ClientSession) -> None:
    reasons = set()
    for seed in range(12):
        asked = chat(seed=seed, max_tokens=130, ignore_eos=False)
        async with client.post("/v1/chat/completions", json=asked) as answer:
            reasons.add((await answer.json())["choices"][0]["finish_reason"])
    assert reasons == {"stop", "length"}


@pytest.mark.parametrize(
    ("path", "body", "status", "kind"),
    [
        ("/v1/chat/completions", b"{", 400, "BadRequestError"),
        ("/v1/chat/completions", b"{}", 400, "BadRequestError"),
        ("/v1/chat/completions", json.dumps(chat(max_tokens=0)).encode(), 400, "BadRequestError"),
        ("/v1/chat/completions", json.dumps(chat(max_tokens=10**6)).encode(), 400, "BadRequestError"),
        ("/v1/chat/completions", json.dumps(chat(model="nope")).encode(), 404, "NotFoundError"),
        ("/v1/completions", b'{"prompt": ["a", "b"]}', 400, "BadRequestError"),
        ("/v1/completions", b'{"prompt": [-1]}', 400, "BadRequestError"),
        *(
            (
                "/v1/chat/completions",
                b'{"messages": [{"role": "user", "content": ' + deep + b"}]}",
                400,
                "BadRequestError",
            )
            for deep in (DEEP, b"[" * 100_000)
        ),
        (
            "/v1/completions",
            b'{"prompt": "a", "x": ' + DEEP + b"}",
            400,
            "BadRequestError",
        ),
        ("/tokenize", b'{"prompt": ' + DEEP + b"}", 400, "BadRequestError"),
        ("/demo/control", b'{"slow": ' + DEEP + b"}", 400, "BadRequestError"),
        ("/v1/nothing", b"{}", 404, "NotFoundError"),
        ("/v1/models", b"{}", 405, "MethodNotAllowed"),
        ("/demo/control", b'{"slow": 0}', 400, "BadRequestError"),
        ("/demo/control", b'{"typo": 1}', 400, "BadRequestError"),
    ],
)
async def test_errors_have_openai_form(
    client: aiohttp.ClientSession, path: str, body: bytes, status: int, kind: str
) -> None:
    async with client.post(path, data=body) as answer:
        assert answer.status == status
        error = (await answer.json())["error"]
    assert error["type"] == kind
    assert error["code"] == status
    assert error["message"]


async def test_gzip_body_is_read_and_recorded_as_sent(client: aiohttp.ClientSession, engine: DemoEngine) -> None:
    raw = gzip.compress(json.dumps(chat()).encode())
    async with client.post("/v1/chat/completions", data=raw, headers={"Content-Encoding": "gzip"}) as answer:
        assert answer.status == 200
    assert engine.requests[-1].body == raw
    async with client.post("/v1/chat/completions", data=raw[:-9], headers={"Content-Encoding": "gzip"}) as answer:
        assert answer.status == 400
    async with client.post("/v1/chat/completions", data=raw, headers={"Content-Encoding": "br"}) as answer:
        assert answer.status == 415


async def test_metrics_page_counts_what_was_served(client: aiohttp.ClientSession, engine: DemoEngine) -> None:
    for _ in range(2):
        async with client.post("/v1/chat/completions", json=chat("long prompt " * 40)) as answer:
            await answer.read()
    async with client.get("/metrics") as answer:
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        page = await answer.text()
    assert metric(page, "vllm:generation_tokens_total", engine="0", model_name="demo") == 16
    assert metric(page, "vllm:request_success_total", finished_reason="length") == 2
    assert metric(page, "vllm:time_to_first_token_seconds_count") == 2
    assert metric(page, "vllm:time_to_first_token_seconds_bucket", le="+Inf") == 2
    assert metric(page, "vllm:inter_token_latency_seconds_count") == 14
    assert metric(page, "vllm:prefix_cache_hits_total") == engine.requests[-1].cached_tokens
    assert metric(page, "vllm:cache_config_info", num_gpu_blocks="400", block_size="16") == 1
    assert metric(page, "vllm:kv_cache_usage_perc") == 0.0


async def test_metrics_page_is_read_by_the_official_parser(client: aiohttp.ClientSession) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    async with client.post("/v1/chat/completions", json=chat()) as answer:
        await answer.read()
    async with client.get("/metrics") as answer:
        families = {f.name: f for f in text_string_to_metric_families(await answer.text())}
    buckets = [s.value for s in families["vllm:time_to_first_token_seconds"].samples if s.name.endswith("_bucket")]
    assert buckets == sorted(buckets)
    assert families["vllm:prompt_tokens"].type == "counter"


async def test_models_health_load_version(client: aiohttp.ClientSession) -> None:
    async with client.get("/v1/models") as answer:
        cards = (await answer.json())["data"]
    assert [(c["id"], c["parent"]) for c in cards] == [("demo", None), ("style", "demo")]
    assert cards[0]["max_model_len"] == 400 * 16 - 1
    async with client.get("/health") as answer:
        assert answer.status == 200
    async with client.get("/load") as answer:
        assert await answer.json() == {"server_load": 0}
    async with client.post("/tokenize", json={"model": "demo", "prompt": "x" * 40}) as answer:
        assert (await answer.json())["count"] == 10


@pytest.mark.parametrize("form", ["TEXT", "json"])
async def test_orca_header_only_when_asked_and_only_unstreamed(client: aiohttp.ClientSession, form: str) -> None:
    asked = {"endpoint-load-metrics-format": form}
    async with client.post("/v1/chat/completions", json=chat(), headers=asked) as answer:
        report = answer.headers["endpoint-load-metrics"]
    assert report.startswith(form.upper() + " ")
    assert "kv_cache_usage_perc" in report
    async with client.post("/v1/chat/completions", json=chat(stream=True), headers=asked) as answer:
        assert "endpoint-load-metrics" not in answer.headers
    async with client.post("/v1/chat/completions", json=chat()) as answer:
        assert "endpoint-load-metrics" not in answer.headers


async def test_lora_has_its_own_cache_and_is_on_the_page(client: aiohttp.ClientSession, engine: DemoEngine) -> None:
    for model in ("demo", "style", "style"):
        async with client.post("/v1/chat/completions", json=chat("long prompt " * 40, model=model)) as answer:
            assert answer.status == 200
    assert [r.cached_tokens > 0 for r in engine.requests] == [False, False, True]
    assert metric(engine.metrics_text(), "vllm:lora_requests_info", max_lora="1") > 0


async def test_filled_cache_makes_requests_wait_and_release_lets_them_go(
    client: aiohttp.ClientSession, engine: DemoEngine
) -> None:
    async with client.post("/demo/control", json={"kv_fill": 1.0}) as answer:
        assert (await answer.json())["kv_fill"] == 1.0
    pending = asyncio.create_task(client.post("/v1/chat/completions", json=chat()))
    await until(lambda: bool(engine.model.waiting))
    async with client.get("/metrics") as answer:
        page = await answer.text()
    assert metric(page, "vllm:num_requests_waiting") == 1
    assert metric(page, "vllm:kv_cache_usage_perc") == 1.0
    async with client.post("/demo/control", json={"kv_release": True}) as answer:
        assert (await answer.json())["kv_fill"] == 0.0
    async with await pending as late:
        assert late.status == 200


async def test_failures_come_at_the_rate_and_with_the_status_asked_for(
    client: aiohttp.ClientSession, engine: DemoEngine
) -> None:
    engine.set_faults(fail_rate=0.5, fail_status=503)
    statuses = []
    for _ in range(40):
        async with client.post("/v1/chat/completions", json=chat(max_tokens=1)) as answer:
            statuses.append(answer.status)
    assert set(statuses) == {200, 503}
    engine.set_faults(heal=True)
    async with client.post("/v1/chat/completions", json=chat()) as answer:
        assert answer.status == 200


async def test_cut_answers_end_in_a_broken_connection(client: aiohttp.ClientSession, engine: DemoEngine) -> None:
    engine.set_faults(cut_rate=1.0)
    for stream in (True, False):
        with pytest.raises(aiohttp.ClientError):
            async with client.post("/v1/chat/completions", json=chat(stream=stream, max_tokens=50)) as answer:
                await answer.read()
    await until(lambda: not engine.model.running)


async def test_hanging_engine_answers_nothing_but_metrics(client: aiohttp.ClientSession, engine: DemoEngine) -> None:
    engine.set_faults(hang="engine")
    pending = asyncio.create_task(client.post("/v1/chat/completions", json=chat()))
    await until(lambda: bool(engine.model.waiting))
    async with client.get("/metrics") as answer:
        assert answer.status == 200
    engine.set_faults(hang="http")
    page = asyncio.create_task(client.get("/metrics"))
    done, _ = await asyncio.wait([pending, page], timeout=0.1)
    assert not done
    engine.set_faults(hang="off")
    async with await pending as late, await page as metrics:
        assert (late.status, metrics.status) == (200, 200)


async def test_sleep_and_wake_up_as_vllm_has_them(client: aiohttp.ClientSession) -> None:
    async with client.post("/sleep?level=1") as answer:
        assert answer.status == 200
    async with client.get("/is_sleeping") as answer:
        assert (await answer.json())["is_sleeping"] is True
    async with client.get("/metrics") as answer:
        page = await answer.text()
    assert metric(page, "vllm:engine_sleep_state", sleep_state="awake") == 0
    assert metric(page, "vllm:engine_sleep_state", sleep_state="weights_offloaded") == 1
    async with client.post("/wake_up") as answer:
        assert answer.status == 200
    async with client.post("/v1/chat/completions", json=chat()) as answer:
        assert answer.status == 200


async def test_restart_resets_counters_and_start_time(client: aiohttp.ClientSession, engine: DemoEngine) -> None:
    async with client.post("/v1/chat/completions", json=chat()) as answer:
        await answer.read()
    before = engine.started_at
    engine.set_faults(restart=True)
    assert engine.started_at > before
    assert metric(engine.metrics_text(), "vllm:generation_tokens_total") == 0


async def test_client_that_leaves_frees_its_place(client: aiohttp.ClientSession, engine: DemoEngine) -> None:
    for stream in (True, False):
        asked = asyncio.create_task(client.post("/v1/chat/completions", json=chat(stream=stream, max_tokens=5000)))
        await until(lambda: bool(engine.model.running))
        if stream:
            (await asked).close()
        else:
            asked.cancel()
        await until(lambda: not engine.model.running)
    assert engine.model.counters.finished["abort"] == 2
    assert engine.model.cache.usage == 0.0


async def test_recorded_requests_are_listed_over_http(client: aiohttp.ClientSession) -> None:
    sent = {"X-Session-Id": "s1"}
    async with client.post("/v1/chat/completions", json=chat(), headers=sent) as answer:
        assert answer.headers["x-demo-engine"] == "one"
    async with client.get("/demo/requests") as answer:
        (record,) = await answer.json()
    assert record["headers"]["x-session-id"] == "s1"
    assert record["completion_tokens"] == 8
    assert record["ttft_s"] > 0


async def test_full_queue_is_refused_with_503() -> None:
    engine = DemoEngine(EngineConfig(timing=ModelConfig(max_queued=1, max_seqs=1)))
    await engine.start()
    engine.set_faults(hang="engine")
    async with aiohttp.ClientSession(engine.url) as client:
        first = asyncio.create_task(client.post("/v1/chat/completions", json=chat()))
        await until(lambda: bool(engine.model.waiting))
        async with client.post("/v1/chat/completions", json=chat()) as answer:
            assert answer.status == 503
        first.cancel()
    await engine.stop()


async def test_many_engines_fit_in_one_process() -> None:
    engines = [DemoEngine(EngineConfig(name=str(i))) for i in range(200)]
    for one in engines:
        await one.start()
    assert len({one.port for one in engines}) == 200
    async with aiohttp.ClientSession() as client:
        for one in engines[::20]:
            async with client.get(one.url + "/health") as answer:
                assert answer.status == 200
    for one in engines:
        await one.stop()


async def test_a_taken_port_is_an_error(engine: DemoEngine) -> None:
    with pytest.raises(OSError, match="in use"):
        await DemoEngine().start(engine.port)
