"""What a demo engine is made of, and what it tells of a request that it served."""

from __future__ import annotations

from dataclasses import dataclass, field

from xds_control.demo.model import ModelConfig


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """A demo engine.

    model: the served name. timing: speed and sizes. max_model_len: tokens of prompt and answer, at most what the cache
    holds. answer_tokens, answer_spread: mean and log-sigma of the answer's length where the client does not set
    `ignore_eos`. stream_interval: tokens per streamed chunk. engine_label: vLLM's data-parallel rank. seed: makes
    answers and injected faults repeatable. loras: adapters that may be asked for by name. record: how many last
    requests `requests` keeps. name: comes back in `x-demo-engine`. early_role_chunk: send the role chunk before
    prefill ends, as some servers do. kv_events_port, kv_replay_port: where vLLM's KV events are published and sent
    again (extra `kv-events`); 0 = not. decodes: whether it asks another engine for a prefill where a request says so
    (see `demo.disagg`). transfer_s_per_token: time to move one token's KV here.
    """

    model: str = "demo"
    timing: ModelConfig = field(default_factory=ModelConfig)
    max_model_len: int = 32768
    answer_tokens: float = 120.0
    answer_spread: float = 0.6
    stream_interval: int = 1
    engine_label: str = "0"
    seed: int = 0
    loras: tuple[str, ...] = ()
    record: int = 0
    name: str = ""
    early_role_chunk: bool = False
    kv_events_port: int = 0
    kv_replay_port: int = 0
    decodes: bool = False
    transfer_s_per_token: float = 5e-6


@dataclass(slots=True)
class ServedRequest:
    """One recorded request: as it arrived, and how it ended. Header names are lower-case; times are seconds."""

    path: str
    headers: dict[str, str]
    body: bytes
    status: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    ttft_s: float | None = None
    total_s: float | None = None
