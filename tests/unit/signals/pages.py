"""Pages for tests: a builder that writes as the Python Prometheus client does, and a vLLM page of any size."""

from __future__ import annotations

from collections.abc import Mapping

BOUNDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0)


class PageBuilder:
    """Adds families; `bytes(builder)` is the page."""

    def __init__(self, **labels: str) -> None:
        self._labels = labels
        self._out: list[str] = []

    def value(self, name: str, value: float | str, kind: str = "gauge", **labels: str) -> PageBuilder:
        self._out.append(f"# HELP {name} Something about {name}.\n# TYPE {name} {kind}\n")
        self._out.append(f"{name}{self._text(labels)} {value}\n")
        return self

    def counter(self, name: str, value: float | str, **labels: str) -> PageBuilder:
        return self.value(name, value, "counter", **labels)

    def more(self, name: str, value: float | str, **labels: str) -> PageBuilder:
        """Another sample of the family before."""
        self._out.append(f"{name}{self._text(labels)} {value}\n")
        return self

    def histogram(
        self, name: str, counts: Mapping[float, float], total: float, seconds: float | None = None, **labels: str
    ) -> PageBuilder:
        """counts: upper bound → cumulative count."""
        self._out.append(f"# HELP {name} Histogram of {name}.\n# TYPE {name} histogram\n")
        for bound, count in counts.items():
            self._out.append(f"{name}_bucket{self._text({**labels, 'le': str(bound)})} {count}\n")
        self._out.append(f"{name}_bucket{self._text({**labels, 'le': '+Inf'})} {total}\n")
        self._out.append(f"{name}_count{self._text(labels)} {total}\n")
        if seconds is not None:
            self._out.append(f"{name}_sum{self._text(labels)} {seconds}\n")
        return self

    def _text(self, labels: Mapping[str, str]) -> str:
        pairs = {**self._labels, **labels}
        return "{" + ",".join(f'{key}="{value}"' for key, value in pairs.items()) + "}" if pairs else ""

    def __bytes__(self) -> bytes:
        return "".join(self._out).encode()


_HISTOGRAMS = (
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "request_time_per_output_token_seconds",
    "request_queue_time_seconds",
    "e2e_request_latency_seconds",
    "request_inference_time_seconds",
    "request_prefill_time_seconds",
    "request_decode_time_seconds",
    "iteration_tokens_total",
    "request_prompt_tokens",
    "request_generation_tokens",
    "request_params_n",
    "request_max_num_generation_tokens",
)


def vllm_page(step: int = 0, size: int = 60_000, model: str = "meta-llama/Llama-3.1-8B-Instruct") -> bytes:
    """A V1 page with all the signals; counters grow with `step`; other families fill it up to `size` bytes."""
    page = PageBuilder(engine="0", model_name=model)
    page.value("vllm:num_requests_running", float(step % 7))
    page.value("vllm:num_requests_waiting", float(step % 3))
    page.value("vllm:num_requests_waiting_by_reason", float(step % 3), reason="capacity")
    page.more("vllm:num_requests_waiting_by_reason", 0.0, reason="deferred")
    page.value("vllm:kv_cache_usage_perc", 0.25 + (step % 10) / 20)
    page.value("vllm:engine_sleep_state", 1.0, sleep_state="awake")
    for index, name in enumerate(("prefix_cache_queries", "prefix_cache_hits", "num_preemptions", "prompt_tokens")):
        page.counter(f"vllm:{name}_total", step * (400.0 - 100.0 * index))
    page.counter("vllm:generation_tokens_total", step * 800.0)
    for index, why in enumerate(("stop", "length", "abort", "error")):
        page.more("vllm:request_success_total", float(step * (4 - index)), finished_reason=why)
    page.value("vllm:cache_config_info", 1.0, block_size="16", num_gpu_blocks="27000", cache_dtype="auto")
    for name in _HISTOGRAMS:
        counts = {bound: float(step * (index + 1)) for index, bound in enumerate(BOUNDS)}
        page.histogram(f"vllm:{name}", counts, float(step * (len(BOUNDS) + 1)), step * 1.7)
    out = b"# HELP process_start_time_seconds Start.\nprocess_start_time_seconds 1.7e+09\n" + bytes(page)
    filler: list[bytes] = []
    length = len(out)
    while length < size:
        line = b'http_requests_%d_total{handler="/v1/chat/completions",method="POST"} %d.0\n' % (len(filler), step)
        filler.append(line)
        length += len(line)
    return out + b"".join(filler)
