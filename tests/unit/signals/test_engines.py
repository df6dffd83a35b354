"""Every sample page through its adapter, and every engine's tables on pages that move."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.shared import shared_path
from tests.unit.signals.pages import PageBuilder
from xds_control.policy.signals import GenericMapping, MetricMapping, SignalsPolicy
from xds_control.signals.catalogue import spec_of
from xds_control.signals.engines import ADAPTERS, UnknownEngine, adapter_for, default_path, detect
from xds_control.signals.engines.generic import RESERVED, generic_adapter, problems
from xds_control.signals.reader import Observations, PageReader, SloTargets

EXPECTED: dict[str, tuple[str, dict[str, float], tuple[str, ...]]] = {
    "vllm_v0_opt125m.txt": (
        "vllm",
        {
            "running": 0,
            "waiting": 0,
            "kv_usage": 0,
            "block_size": 16,
            "num_blocks": 7281,
            "kv_capacity_tokens": 116496,
        },
        ("facebook/opt-125m",),
    ),
    "vllm_v1_recent_opt125m.txt": (
        "vllm",
        {"running": 0, "waiting": 0, "kv_usage": 0, "asleep": 0},
        ("facebook/opt-125m",),
    ),
    "vllm_docs_design_sample.txt": ("vllm", {"running": 8}, ("meta-llama/Llama-3.1-8B-Instruct",)),
    "vllm_under_ray_v0.txt": (
        "ray",
        {"running": 0, "kv_usage": 5.882698982295764e-05},
        ("neuralmagic/Meta-Llama-3.1-70B-Instruct-FP8",),
    ),
    "sglang_0.5.10.txt": (
        "sglang",
        {"running": 0, "waiting": 0, "kv_usage": 0.25, "decode_tps": 425.5, "kv_capacity_tokens": 430839},
        ("facebook/opt-125m",),
    ),
    "sglang_docs_sample.txt": (
        "sglang",
        {
            "running": 162,
            "waiting": 2826,
            "kv_usage": 0.28,
            "kv_hit_ratio": 0.007507552643049313,
            "decode_tps": 86.50814177726902,
        },
        ("meta-llama/Llama-3.1-8B-Instruct",),
    ),
    "sglang_tp_ranks.txt": ("sglang", {}, ("qwen2.5-32b",)),
    "sglang_underscore_prefix.txt": ("sglang", {"running": 38, "waiting": 3, "kv_usage": 0.81}, ()),
    "tgi_representative.txt": ("tgi", {"running": 1, "waiting": 2}, ()),
    "triton_onnx.txt": (
        "triton",
        {
            "waiting": 0,
            "gpu_util": 0,
            "gpu_mem_used_ratio": 266338304 / 16106127360,
            "gpu_mem_free_bytes": 16106127360 - 266338304,
        },
        ("densenet_onnx", "simple"),
    ),
    "triton_trtllm_backend.txt": (
        "triton",
        {
            "running": 1,
            "waiting": 1,
            "kv_usage": 1 / 6239,
            "block_size": 64,
            "num_blocks": 6239,
            "kv_capacity_tokens": 399296,
            "max_running": 512,
        },
        ("tensorrt_llm",),
    ),
    "triton_trtllm_backend_v1.txt": ("triton", {}, ("tensorrt_llm",)),
    "triton_vllm_backend.txt": ("triton", {}, ("vllm_model",)),
    "triton_first_response_histogram.txt": ("triton", {}, ()),
    "trtllm_serve.txt": ("trtllm", {"kv_usage": 0.62, "kv_hit_ratio": 0.38}, ("llama-3.1-8b",)),
    "nim_trtllm_engine.txt": (
        "nim",
        {"running": 1, "waiting": 0, "kv_usage": 0.0002848191398461977, "max_running": 64},
        ("meta/llama-3.1-8b-instruct",),
    ),
    "llamacpp_old_with_kv.txt": ("llamacpp", {"running": 3, "waiting": 1, "kv_usage": 0.42}, ()),
    "llamacpp_recent_no_kv.txt": ("llamacpp", {"running": 2, "waiting": 0}, ()),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_every_sample_is_recognised_and_read(name: str) -> None:
    engine, values, models = EXPECTED[name]
    page = shared_path(f"samples/{name}").read_bytes()
    reader = PageReader("auto")
    seen = reader.feed(page, 10.0)
    assert seen.recognised
    assert seen.source == engine
    assert seen.values == pytest.approx(values)
    assert seen.info is not None
    assert seen.info.models == models
    again = reader.feed(page, 11.0)
    assert again.values.items() >= {key: pytest.approx(value) for key, value in values.items()}.items()
    idle = {"preemptions", "prefill_tps", "decode_tps", "running"}
    assert {name: value for name, value in again.values.items() if name not in values} == {
        name: 0.0 for name in again.values.keys() - values.keys() if name in idle
    }, "an engine that stands still has rates of 0 and no shares, means or hit ratios"


def test_all_samples_of_engines_are_in_the_table() -> None:
    folder = shared_path("samples")
    assert {path.name for path in folder.glob("*.txt")} - EXPECTED.keys() == {"dcgm_readme.txt", "dcgm_t4_a10g.txt"}


def test_every_signal_of_every_table_is_in_the_catalogue() -> None:
    for adapter in ADAPTERS.values():
        for rule in adapter.rules:
            assert spec_of(rule.signal) is not None, (adapter.name, rule.signal)
        for config in adapter.config:
            assert spec_of(config.signal) is not None


def test_names_and_paths_of_engines() -> None:
    assert adapter_for("llama.cpp") is ADAPTERS["llamacpp"]
    assert default_path("trtllm") == "/prometheus/metrics"
    assert default_path("nim") == "/v1/metrics"
    assert default_path("auto") == "/metrics"
    with pytest.raises(UnknownEngine, match="sglang"):
        adapter_for("vlm")


@pytest.mark.parametrize(
    "page", [b"", b"<html><body>hi</body></html>\n", b'{"error": 1}\n', b"go_goroutines 7\n", b"\x00\xff\n"]
)
def test_foreign_pages_are_not_recognised(page: bytes) -> None:
    assert detect(page) is None
    seen = PageReader("auto").feed(page, 1.0)
    assert not seen.recognised
    assert seen.values == {}
    assert seen.dropped == {"unrecognised": 1}


def after(engine: str, first: PageBuilder, second: PageBuilder, seconds: float = 10.0, **more: object) -> Observations:
    """What an engine's second page says."""
    reader = PageReader(engine, targets=SloTargets(0.5, 0.05), **more)  # type: ignore[arg-type]
    reader.feed(bytes(first), 100.0)
    return reader.feed(bytes(second), 100.0 + seconds)


def test_vllm_data_parallel_ranks_sum_queues_and_take_the_fullest_cache() -> None:
    page = PageBuilder(model_name="m")
    for rank, (running, waiting, kv) in enumerate(((3, 1, 0.2), (5, 4, 0.9))):
        page.value("vllm:num_requests_running", running, engine=str(rank))
        page.value("vllm:num_requests_waiting", waiting, engine=str(rank))
        page.value("vllm:kv_cache_usage_perc", kv, engine=str(rank))
        page.value("vllm:cache_config_info", 1, engine=str(rank), block_size="16", num_gpu_blocks="100")
    seen = PageReader("vllm").feed(bytes(page), 1.0)
    assert (seen.values["running"], seen.values["waiting"], seen.values["kv_usage"]) == (8, 5, 0.9)
    assert (seen.values["num_blocks"], seen.values["block_size"], seen.values["kv_capacity_tokens"]) == (200, 16, 3200)
    mean = PageReader("vllm", kv_combine="mean").feed(bytes(page), 1.0)
    assert mean.values["kv_usage"] == pytest.approx(0.55)


def test_vllm_only_requests_that_wait_for_room_count_as_waiting() -> None:
    page = PageBuilder(model_name="m", engine="0").value("vllm:num_requests_waiting", 9)
    page.value("vllm:num_requests_waiting_by_reason", 2, reason="capacity")
    page.more("vllm:num_requests_waiting_by_reason", 7, reason="deferred")
    assert PageReader("vllm").feed(bytes(page), 1.0).values["waiting"] == 2


@pytest.mark.parametrize("name", ["gpu_cache_usage_perc", "kv_cache_usage_perc"])
def test_vllm_cache_usage_under_its_old_and_new_name(name: str) -> None:
    page = PageBuilder(model_name="m").value(f"vllm:{name}", 0.5)
    assert PageReader("vllm").feed(bytes(page), 1.0).values["kv_usage"] == 0.5


@pytest.mark.parametrize("prefix", ["vllm:", "vllm_", "ray_vllm:", "ray_vllm_"])
@pytest.mark.parametrize("name", ["prefix_cache", "gpu_prefix_cache"])
def test_vllm_hit_ratio_is_of_the_window_whatever_the_name(prefix: str, name: str) -> None:
    def page(queries: float, hits: float) -> PageBuilder:
        built = PageBuilder(model_name="m", engine="0")
        built.counter(f"{prefix}{name}_queries_total", queries)
        return built.counter(f"{prefix}{name}_hits_total", hits)

    assert after("vllm", page(1000, 900), page(3000, 1400)).values["kv_hit_ratio"] == pytest.approx(500 / 2000)


def test_vllm_external_hits_add_to_local_ones() -> None:
    def page(queries: float, hits: float, external: float) -> PageBuilder:
        built = PageBuilder(model_name="m").counter("vllm:prefix_cache_queries_total", queries)
        built.counter("vllm:prefix_cache_hits_total", hits)
        return built.counter("vllm:external_prefix_cache_hits_total", external)

    assert after("vllm", page(0, 0, 0), page(100, 30, 20)).values["kv_hit_ratio"] == pytest.approx(0.5)


def test_vllm_v0_hit_rate_of_minus_one_is_unknown() -> None:
    page = (
        PageBuilder(model_name="m").value("vllm:gpu_prefix_cache_hit_rate", -1.0).value("vllm:num_requests_running", 1)
    )
    seen = PageReader("vllm").feed(bytes(page), 1.0)
    assert "kv_hit_ratio" not in seen.values
    assert seen.dropped == {"unknown": 1}


def test_vllm_a_sleeping_engine_is_asleep() -> None:
    page = PageBuilder(model_name="m").value("vllm:engine_sleep_state", 0.0, sleep_state="awake")
    page.more("vllm:engine_sleep_state", 1.0, sleep_state="weights_offloaded")
    assert PageReader("vllm").feed(bytes(page), 1.0).values["asleep"] == 1.0


def test_vllm_loras_are_those_of_the_newest_series() -> None:
    page = PageBuilder().value("vllm:num_requests_running", 1, model_name="base")
    page.value("vllm:lora_requests_info", 1.7e9, max_lora="4", running_lora_adapters="a", waiting_lora_adapters="")
    page.more("vllm:lora_requests_info", 1.8e9, max_lora="4", running_lora_adapters="b, c", waiting_lora_adapters="d")
    seen = PageReader("vllm").feed(bytes(page), 1.0)
    assert seen.info is not None
    assert (seen.info.lora_running, seen.info.lora_waiting, seen.info.lora_max) == (("b", "c"), ("d",), 4)
    assert (seen.values["lora_loaded"], seen.values["lora_max"]) == (2, 4)


def test_vllm_config_of_none_is_unknown() -> None:
    page = PageBuilder().value("vllm:cache_config_info", 1.0, block_size="16", num_gpu_blocks="None")
    seen = PageReader("vllm").feed(bytes(page), 1.0)
    assert seen.info is not None
    assert (seen.info.block_size, seen.info.num_blocks) == (16, None)
    assert "num_blocks" not in seen.values


def test_vllm_errors_are_a_share_and_aborts_are_no_errors() -> None:
    def page(stop: float, abort: float, error: float) -> PageBuilder:
        built = PageBuilder(model_name="m").counter("vllm:request_success_total", stop, finished_reason="stop")
        built.more("vllm:request_success_total", abort, finished_reason="abort")
        return built.more("vllm:request_success_total", error, finished_reason="error")

    assert after("vllm", page(10, 5, 1), page(90, 15, 11)).values["error_rate"] == pytest.approx(0.1)


def test_sglang_ranks_of_one_group_are_one_and_data_parallel_ranks_add_up() -> None:
    def page(tokens: float) -> PageBuilder:
        built = PageBuilder(model_name="m")
        for dp in ("0", "1"):
            for tp in ("0", "1", "2", "3"):
                ranks = {"tp_rank": tp, "pp_rank": "0", "dp_rank": dp}
                built.value("sglang:num_running_reqs", 5, **ranks).value("sglang:num_queue_reqs", 2, **ranks)
                built.value("sglang:token_usage", 0.3 + 0.4 * int(dp), **ranks)
                built.counter("sglang:generation_tokens_total", tokens, **ranks)
        return built

    seen = after("sglang", page(1000), page(2000))
    assert (seen.values["running"], seen.values["waiting"]) == (10, 4)
    assert seen.values["kv_usage"] == pytest.approx(0.7)
    assert seen.values["decode_tps"] == pytest.approx(2 * 1000 / 10)


def test_sglang_priorities_are_not_added_to_their_total() -> None:
    page = PageBuilder(model_name="m").value("sglang:num_queue_reqs", 5, priority="")
    page.more("sglang:num_queue_reqs", 3, priority="1").more("sglang:num_queue_reqs", 2, priority="2")
    assert PageReader("sglang").feed(bytes(page), 1.0).values["waiting"] == 5


def test_sglang_disaggregated_queues_are_waiting_too() -> None:
    page = PageBuilder(model_name="m").value("sglang:num_queue_reqs", 5)
    page.value("sglang:num_decode_prealloc_queue_reqs", 3).value("sglang:num_decode_transfer_queue_reqs", 2)
    assert PageReader("sglang").feed(bytes(page), 1.0).values["waiting"] == 10


def test_sglang_histogram_of_ranks_is_counted_once() -> None:
    def page(n: float) -> PageBuilder:
        built = PageBuilder(model_name="m")
        for tp in ("0", "1"):
            built.histogram("sglang:time_to_first_token_seconds", {0.5: n / 2, 1.0: n}, n, n * 0.4, tp_rank=tp)
        return built

    seen = after("sglang", page(10), page(110), min_observations=101)
    assert seen.values["ttft"] == pytest.approx(0.4)
    assert "ttft_attainment" not in seen.values, "100 observations, not 200"


def test_trtllm_hit_ratio_from_blocks_before_the_cumulative_gauge() -> None:
    def page(reused: float, missed: float) -> PageBuilder:
        built = PageBuilder(model_name="m", engine_type="trtllm").value("trtllm_kv_cache_hit_rate", 0.9)
        built.counter("trtllm_kv_cache_reused_blocks_total", reused)
        return built.counter("trtllm_kv_cache_missed_blocks_total", missed)

    assert after("trtllm", page(900, 100), page(910, 190)).values["kv_hit_ratio"] == pytest.approx(0.1)


def test_trtllm_bare_names_of_old_builds_are_recognised() -> None:
    page = PageBuilder(model_name="m", engine_type="trtllm")
    page.histogram("time_to_first_token_seconds", {0.5: 3}, 4, 2.0)
    assert detect(bytes(page)) == "trtllm"
    assert PageReader("auto").feed(bytes(page), 1.0).recognised


def test_triton_without_a_gauge_derives_what_runs() -> None:
    def page(request_us: float, queue_us: float, ok: float, failed: float) -> PageBuilder:
        built = PageBuilder(model="onnx", version="1").counter("nv_inference_request_duration_us", request_us)
        built.counter("nv_inference_queue_duration_us", queue_us).counter("nv_inference_request_success", ok)
        built.counter("nv_inference_request_failure", failed, reason="BACKEND")
        return built.more("nv_inference_request_failure", failed * 5, reason="CANCELED")

    seen = after("triton", page(0, 0, 0, 0), page(50e6, 20e6, 90, 10))
    assert seen.values["running"] == pytest.approx(3.0)
    assert seen.values["queue_time"] == pytest.approx(20 / 90)
    assert seen.values["error_rate"] == pytest.approx(0.1)


def test_triton_first_response_in_milliseconds() -> None:
    def page(n: float) -> bytes:
        name = "nv_inference_first_response_histogram_ms"
        return (
            f'{name}_count{{model="m",version="1"}} {n}\n{name}_sum{{model="m",version="1"}} {n * 250}\n'
            f'{name}{{model="m",version="1", le="100"}} {n * 0.2}\n'
            f'{name}{{model="m",version="1", le="500"}} {n * 0.8}\n'
            f'{name}{{model="m",version="1", le="+Inf"}} {n}\n'
        ).encode()

    reader = PageReader("triton", targets=SloTargets(0.5))
    reader.feed(page(100), 1.0)
    seen = reader.feed(page(300), 2.0)
    assert seen.values["ttft"] == pytest.approx(0.25)
    assert seen.values["ttft_attainment"] == pytest.approx(0.8)


def test_tgi_first_token_is_queue_and_prefill_together() -> None:
    def page(n: float) -> PageBuilder:
        built = PageBuilder().value("tgi_queue_size", 0)
        built.histogram("tgi_request_queue_duration", {0.1: n}, n, n * 0.05)
        built.histogram("tgi_batch_forward_duration", {0.1: n}, n, n * 0.2, method="prefill")
        built.histogram("tgi_batch_forward_duration", {0.1: 10 * n}, 10 * n, n * 0.3, method="decode")
        built.histogram("tgi_request_input_length", {100: n}, n, n * 120)
        built.value("tgi_batch_current_max_tokens", 300).value("tgi_batch_max_total_tokens", 1000)
        built.counter("tgi_request_count", 10 * n).counter("tgi_request_failure", n, err="dropped")
        return built.more("tgi_request_failure", 5 * n, err="overloaded")

    seen = after("tgi", page(100), page(200))
    assert seen.values["ttft"] == pytest.approx(0.25)
    assert seen.values["prefill_tps"] == pytest.approx(100 * 120 / 10)
    assert seen.values["kv_usage"] == pytest.approx(0.3)
    assert seen.values["error_rate"] == pytest.approx(0.1)


def test_llamacpp_token_time_and_slots() -> None:
    def page(tokens: float, seconds: float) -> PageBuilder:
        built = PageBuilder().value("llamacpp:requests_processing", 1)
        built.counter("llamacpp:tokens_predicted_total", tokens)
        return built.counter("llamacpp:tokens_predicted_seconds_total", seconds)

    assert after("llamacpp", page(100, 1.0), page(300, 9.0)).values["tpot"] == pytest.approx(0.04)
    reader = PageReader("llamacpp")
    reader.feed(bytes(page(0, 0)), 1.0)
    slots = b'[{"id":0,"is_processing":true,"n_ctx":4096},{"id":1,"is_processing":false,"n_ctx":4096,"params":{}}]'
    seen = reader.feed_extra("slots", slots, 1.1)
    assert seen.values == {"kv_usage": 0.5, "max_running": 2, "kv_capacity_tokens": 8192, "model_len": 4096}
    assert seen.info is not None
    assert seen.info.max_model_len == 4096


def test_lmdeploy_counts_requests_before_the_engine() -> None:
    page = PageBuilder(model_name="m", engine="0").value("lmdeploy:num_requests_waiting", 2)
    page.value("lmdeploy:num_api_requests_waiting", 3).value("lmdeploy:gpu_cache_usage_perc", 0.4)
    seen = PageReader("auto").feed(bytes(page), 1.0)
    assert (seen.source, seen.values) == ("lmdeploy", {"waiting": 5, "kv_usage": 0.4})


@pytest.mark.parametrize(
    ("add", "running"),
    [
        (lambda page: page.value("vllm:num_requests_running", 4), 4),
        (lambda page: page.value("sglang_num_running_reqs", 3, tp_rank="0"), 3),
        (lambda page: page.value("trtllm_num_requests_running", 2), 2),
        (lambda page: page, 7),
    ],
)
def test_dynamo_passes_its_engine_through(add: Callable[[PageBuilder], PageBuilder], running: float) -> None:
    page = PageBuilder(model="m").value("dynamo_component_inflight_requests", 7, dynamo_endpoint="generate")
    seen = PageReader("auto").feed(bytes(add(page)), 1.0)
    assert (seen.source, seen.values["running"]) == ("dynamo", running)


def test_ray_pages_hold_replicas_that_labels_select() -> None:
    page = PageBuilder(model_name="m")
    for replica, running in (("r1", 3), ("r2", 9)):
        page.value("ray_vllm_num_requests_running", running, ReplicaId=replica, WorkerId=f"w{replica}")
    page.more("ray_vllm_kv_cache_usage_perc", "NaN", ReplicaId="r2")
    page.more("ray_vllm_kv_cache_usage_perc", 0.5, ReplicaId="r1")
    assert PageReader("ray").feed(bytes(page), 1.0).values == {"running": 12}
    mine = PageReader("ray", select={"ReplicaId": "r1"}).feed(bytes(page), 1.0)
    assert mine.values == {"running": 3, "kv_usage": 0.5}, "the NaN is the other replica's"


def test_ollama_tells_what_is_loaded() -> None:
    body = b'{"models":[{"name":"llama3:8b","size":5,"size_vram":5,"context_length":8192,"expires_at":"x"}]}'
    seen = PageReader("auto").feed(body, 1.0)
    assert (seen.source, seen.values) == ("ollama", {"model_len": 8192})
    assert seen.info is not None
    assert seen.info.models == ("llama3:8b",)


def test_models_and_context_come_from_the_api() -> None:
    reader = PageReader("vllm")
    reader.feed(bytes(PageBuilder(model_name="base").value("vllm:num_requests_running", 1)), 1.0)
    body = b'{"object":"list","data":[{"id":"base","max_model_len":8192},{"id":"lora-a","parent":"base"}]}'
    seen = reader.feed_extra("models", body, 1.1)
    assert seen.info is not None
    assert (seen.info.models, seen.info.max_model_len) == (("base", "lora-a"), 8192)
    later = reader.feed(bytes(PageBuilder(model_name="base").value("vllm:num_requests_running", 1)), 2.0)
    assert later.info is not None
    assert later.info.max_model_len == 8192
    deep = b'{"data": [], "x": ' + b"[" * 10_000 + b"]" * 10_000 + b"}"
    for junk in (b"<html>", b"[]", b'{"data": 5}', b"", deep):
        assert reader.feed_extra("models", junk, 3.0).dropped == {"bad_models": 1}
    assert reader.feed_extra("nothing", b"", 3.0).dropped == {"unknown_page": 1}


def test_sglang_loads_tell_waiting_tokens() -> None:
    reader = PageReader("sglang")
    body = b'{"loads":[{"dp_rank":0,"num_waiting_uncached_tokens":100},{"dp_rank":1,"num_waiting_uncached_tokens":50}]}'
    assert reader.feed_extra("loads", body, 1.0).values == {"waiting_tokens": 150}


def test_names_in_a_policy_that_do_not_exist_are_told_with_their_place() -> None:
    mapping = GenericMapping(
        signals=[MetricMapping(signal="waitin", metric="a"), MetricMapping(signal="ttft", metric="b")]
    )
    policy = SignalsPolicy(
        age_limits_s={"runing": 1.0, "running": 2.0}, engines={"vllm": mapping}, ignore_sources=["orca", "orka"]
    )
    assert [path for path, _ in problems(policy)] == [
        ("age_limits_s", "runing"),
        ("engines", "vllm"),
        ("engines", "vllm", "signals", 0, "signal"),
        ("ignore_sources", 1),
    ]
    assert problems(SignalsPolicy()) == []
    assert set(ADAPTERS) <= RESERVED


def test_a_generic_engine_is_described_by_the_policy() -> None:
    mapping = GenericMapping(
        signals=[
            MetricMapping(signal="waiting", metric="my:queue", labels={"state": ["queued", "held"]}),
            MetricMapping(signal="kv_usage", metric="my_cache_percent", combine="max", scale=0.01),
            MetricMapping(signal="decode_tps", metric="my_tokens_total", kind="counter"),
            MetricMapping(signal="kv_hit_ratio", metric="my_hits", kind="ratio", over="my_lookups"),
            MetricMapping(signal="ttft", metric="my_first_token_ms", kind="histogram", scale=0.001),
        ]
    )
    adapter = generic_adapter("mine", mapping)

    def page(n: float) -> bytes:
        built = PageBuilder().value("my:queue", 3, state="queued").more("my:queue", 2, state="held")
        built.more("my:queue", 50, state="done").value("my_cache_percent", 40, shard="0")
        built.more("my_cache_percent", 80, shard="1").counter("my_tokens_total", 100 * n)
        built.counter("my_hits_total", 3 * n).counter("my_lookups_total", 4 * n)
        built.histogram("my_first_token_ms", {100: n / 2, 500: n}, n, n * 200)
        return bytes(built)

    reader = PageReader(adapter, targets=SloTargets(ttft_s=0.5))
    reader.feed(page(100), 1.0)
    assert reader.feed(page(200), 11.0).values == pytest.approx(
        {
            "waiting": 5,
            "kv_usage": 0.8,
            "decode_tps": 1000,
            "kv_hit_ratio": 0.75,
            "ttft": 0.2,
            "ttft_attainment": 1.0,
            "slo_attainment": 1.0,
        }
    )
