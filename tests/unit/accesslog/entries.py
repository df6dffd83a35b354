"""Access-log entries as Envoy 1.40 writes them, for tests and the benchmark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from envoy.data.accesslog.v3 import accesslog_pb2

DOWNSTREAM_END = 6
UPSTREAM_END = 9


def _duration(target: Any, seconds: float | None) -> None:
    if seconds is not None:
        target.seconds = int(seconds)
        target.nanos = round((seconds - int(seconds)) * 1e9)


def entry(
    *,
    endpoint: str | None = "10.0.0.1:8000",
    cluster: str = "chat",
    code: int | None = 200,
    flags: tuple[str, ...] = (),
    attempts: int = 1,
    kind: int = DOWNSTREAM_END,
    received_s: float = 0.001,
    sent_s: float | None = 0.003,
    ttft_s: float | None = 0.3,
    decode_s: float | None = 0.4,
    duration_s: float = 0.71,
    content_type: str | None = "text/event-stream",
    headers: dict[str, str] | None = None,
    metadata: Mapping[str, str | float] | None = None,
) -> Any:
    """One HTTP entry. Times are seconds from the start of the request, `ttft_s` and `decode_s` the custom tags."""
    made = accesslog_pb2.HTTPAccessLogEntry()
    common = made.common_properties
    common.access_log_type = kind
    common.upstream_cluster = cluster
    common.upstream_request_attempt_count = attempts
    if endpoint is not None:
        host, _, port = endpoint.rpartition(":")
        common.upstream_remote_address.socket_address.address = host.strip("[]")
        common.upstream_remote_address.socket_address.port_value = int(port)
    _duration(common.time_to_last_rx_byte, received_s)
    _duration(common.time_to_first_upstream_tx_byte, sent_s)
    if sent_s is not None and ttft_s is not None and decode_s is not None:
        _duration(common.time_to_last_upstream_rx_byte, sent_s + ttft_s + decode_s)
    _duration(common.duration, duration_s)
    for flag in flags:
        setattr(common.response_flags, flag, True)
    if ttft_s is not None:
        common.custom_tags["ttft_us"] = str(round(ttft_s * 1e6))
        common.custom_tags["ttfb_us"] = "1425"
    if decode_s is not None:
        common.custom_tags["decode_us"] = str(round(decode_s * 1e6))
    if code is not None:
        made.response.response_code.value = code
    if content_type is not None:
        made.response.response_headers["content-type"] = content_type
    for name, value in (headers or {}).items():
        made.response.response_headers[name] = value
    if metadata:
        fields = common.metadata.filter_metadata["xds_control"].fields
        for name, item in metadata.items():
            if isinstance(item, str):
                fields[name].string_value = item
            else:
                fields[name].number_value = item
    return made


DECIDED: dict[str, str | float] = {
    "id": "00f1a2b3c4d5e6f7",
    "pool": "chat",
    "model": "llama-3.1-8b",
    "class": "high",
    "tenant": "acme",
    "api": "openai.chat",
    "rule": "default",
    "processor": "node-1/0",
    "pick": "10.0.0.1:8000",
    "session": "0123456789abcdef",
    "prefix": "fedcba9876543210",
    "prompt_bytes": 4096.0,
    "prompt_tokens_est": 1024.0,
    "output_tokens_est": 200.0,
    "matched_tokens": 512.0,
}
"""What a processor writes at request time."""

USED: dict[str, str | float] = {"prompt_tokens": 1000.0, "completion_tokens": 101.0, "cached_tokens": 640.0}
"""What Envoy reads from an answer."""
