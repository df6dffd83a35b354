"""The demo engine's /metrics page: vLLM V1 names, labels and bucket bounds, hand-written to be cheap."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from xds_control.demo.histogram import Histogram
from xds_control.demo.model import EngineModel

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def number(value: float) -> str:
    """As the Python Prometheus client writes it: `3.0`, `0.25`, `+Inf`."""
    return "+Inf" if math.isinf(value) else repr(float(value))


@dataclass(frozen=True, slots=True)
class PageFacts:
    """What the timing model does not know. `sleep_level`: 0 awake, 1 weights offloaded, 2 discarded."""

    started_at: float
    cpu_seconds: float
    resident_bytes: float
    sleep_level: int
    loras_running: tuple[str, ...]
    loras_waiting: tuple[str, ...]
    loras_max: int
    lora_seen_at: float
    http_by_status: dict[tuple[str, str], int]


class MetricsPage:
    """Renders one engine. The text that never changes is made once."""

    def __init__(self, model_name: str, engine_label: str, config_labels: dict[str, str]) -> None:
        self._labels = f'engine="{engine_label}",model_name="{model_name}"'
        self._model = model_name
        pairs = ",".join(f'{key}="{value}"' for key, value in {**config_labels, "engine": engine_label}.items())
        self._config = _head("vllm:cache_config_info", "gauge", "Information of the LLMEngine CacheConfig") + (
            f"vllm:cache_config_info{{{pairs}}} 1.0\n"
        )
        self._heads: dict[str, tuple[str, list[str], str, str]] = {}

    def render(self, engine: EngineModel, facts: PageFacts) -> str:
        """The whole page; the model must have been advanced to now."""
        counters = engine.counters
        labels = self._labels
        waiting = len(engine.waiting)
        blocked = 0 if not engine.waiting or facts.sleep_level else waiting
        cached = counters.prefix_hits
        out: list[str] = [
            _one("process_resident_memory_bytes", "gauge", "Resident memory size in bytes.", facts.resident_bytes),
            _one(
                "process_start_time_seconds",
                "gauge",
                "Start time of the process since unix epoch in seconds.",
                facts.started_at,
            ),
            _one(
                "process_cpu_seconds_total",
                "counter",
                "Total user and system CPU time spent in seconds.",
                facts.cpu_seconds,
            ),
            self._gauge("num_requests_running", "Number of requests in model execution batches.", len(engine.running)),
            self._gauge("num_requests_waiting", "Number of requests waiting to be processed.", waiting),
            self._family(
                "vllm:num_requests_waiting_by_reason",
                "gauge",
                "Number of requests waiting to be processed, by reason.",
                [(f'{labels},reason="capacity"', blocked), (f'{labels},reason="deferred"', waiting - blocked)],
            ),
            self._family(
                "vllm:engine_sleep_state",
                "gauge",
                "Engine sleep state; awake = 0 means engine is sleeping; awake = 1 means engine is awake; "
                "weights_offloaded = 1 means sleep level 1; discard_all = 1 means sleep level 2.",
                [
                    (f'{labels},sleep_state="{state}"', facts.sleep_level == level)
                    for level, state in enumerate(("awake", "weights_offloaded", "discard_all"))
                ],
            ),
            self._gauge("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", engine.cache.usage),
            self._counter(
                "prefix_cache_queries",
                "Prefix cache queries, in terms of number of queried tokens.",
                counters.prefix_queries,
            ),
            self._counter("prefix_cache_hits", "Prefix cache hits, in terms of number of cached tokens.", cached),
            self._counter("num_preemptions", "Cumulative number of preemption from the engine.", counters.preemptions),
            self._counter("prompt_tokens", "Number of prefill tokens processed.", counters.prompt_tokens),
            self._family(
                "vllm:prompt_tokens_by_source_total",
                "counter",
                "Number of prompt tokens by source.",
                [
                    (f'{labels},source="local_compute"', max(0, counters.prompt_tokens - cached)),
                    (f'{labels},source="local_cache_hit"', cached),
                    (f'{labels},source="external_kv_transfer"', 0),
                ],
            ),
            self._counter("prompt_tokens_cached", "Number of cached prompt tokens (local + external).", cached),
            self._counter("generation_tokens", "Number of generation tokens processed.", counters.generation_tokens),
            self._family(
                "vllm:request_success_total",
                "counter",
                "Count of successfully processed requests.",
                [(f'{labels},finished_reason="{why}"', count) for why, count in counters.finished.items()],
            ),
            self._family(
                "vllm:admission_rejections_total",
                "counter",
                "Number of requests refused at admission.",
                [(f'{labels},reason="max_num_queued_reqs"', counters.rejections)],
            ),
            self._histogram(
                "iteration_tokens_total", "Histogram of number of tokens per engine_step.", counters.iteration
            ),
            self._histogram("request_prompt_tokens", "Number of prefill tokens processed.", counters.request_prompt),
            self._histogram(
                "request_generation_tokens", "Number of generation tokens processed.", counters.request_generation
            ),
            self._histogram(
                "time_to_first_token_seconds", "Histogram of time to first token in seconds.", counters.ttft
            ),
            self._histogram(
                "inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", counters.itl
            ),
            self._histogram(
                "request_time_per_output_token_seconds",
                "Histogram of time_per_output_token_seconds per request.",
                counters.tpot,
            ),
            self._histogram(
                "e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", counters.e2e
            ),
            self._histogram(
                "request_queue_time_seconds", "Histogram of time spent in WAITING phase for request.", counters.queue
            ),
            self._histogram(
                "request_inference_time_seconds",
                "Histogram of time spent in RUNNING phase for request.",
                counters.inference,
            ),
            self._histogram(
                "request_prefill_time_seconds",
                "Histogram of time spent in PREFILL phase for request.",
                counters.prefill,
            ),
            self._histogram(
                "request_decode_time_seconds", "Histogram of time spent in DECODE phase for request.", counters.decode
            ),
            self._config,
        ]
        if facts.loras_max:
            running, idle = ",".join(facts.loras_running), ",".join(facts.loras_waiting)
            out.append(
                self._family(
                    "vllm:lora_requests_info",
                    "gauge",
                    "Running stats on lora requests.",
                    [
                        (
                            f'max_lora="{facts.loras_max}",running_lora_adapters="{running}",'
                            f'waiting_lora_adapters="{idle}"',
                            facts.lora_seen_at,
                        )
                    ],
                )
            )
        out.append(
            self._family(
                "http_requests_total",
                "counter",
                "Total number of requests by method, status and handler.",
                [
                    (f'handler="{handler}",method="POST",status="{status}"', count)
                    for (handler, status), count in facts.http_by_status.items()
                ],
            )
        )
        return "".join(out)

    def _gauge(self, name: str, text: str, value: float) -> str:
        return self._family(f"vllm:{name}", "gauge", text, [(self._labels, value)])

    def _counter(self, name: str, text: str, value: float) -> str:
        return self._family(f"vllm:{name}_total", "counter", text, [(self._labels, value)])

    def _family(self, name: str, kind: str, text: str, samples: Iterable[tuple[str, float]]) -> str:
        lines = "".join(f"{name}{{{labels}}} {float(value)!r}\n" for labels, value in samples)
        return f"# HELP {name} {text}\n# TYPE {name} {kind}\n{lines}"

    def _histogram(self, name: str, text: str, histogram: Histogram) -> str:
        head = self._heads.get(name)
        if head is None:
            full = f"vllm:{name}"
            bounds = [
                f'{full}_bucket{{{self._labels},le="{number(bound)}"}} ' for bound in (*histogram.bounds, math.inf)
            ]
            head = (
                _head(full, "histogram", text),
                bounds,
                f"{full}_count{{{self._labels}}} ",
                f"{full}_sum{{{self._labels}}} ",
            )
            self._heads[name] = head
        start, bounds, count, total = head
        lines = [start]
        running = 0
        for bound, observed in zip(bounds, histogram.counts, strict=True):
            running += observed
            lines.append(f"{bound}{running}.0\n")
        lines.append(f"{count}{running}.0\n{total}{histogram.total!r}\n")
        return "".join(lines)


def _head(name: str, kind: str, text: str) -> str:
    return f"# HELP {name} {text}\n# TYPE {name} {kind}\n"


def _one(name: str, kind: str, text: str, value: float) -> str:
    return f"{_head(name, kind, text)}{name} {float(value)!r}\n"
