"""CPU per access-log entry, from the bytes on the wire to the drained window: parse, sum, hand over, serialise.

python -m tests.bench.accesslog [--seconds N] [--batch N] [--endpoints N]
"""

from __future__ import annotations

import argparse
import json
import random
import time

from envoy.service.accesslog.v3 import als_pb2

from tests.unit.accesslog.entries import DECIDED, USED, entry
from xds_control.policy.classes import ClassesPolicy
from xds_control.signals.accesslog import AccessLog


def messages(batch: int, endpoints: int, count: int) -> list[bytes]:
    """Serialised StreamAccessLogsMessages: nine streamed answers of ten, one JSON answer with an ORCA report."""
    draw = random.Random(1)
    made = []
    for _ in range(count):
        message = als_pb2.StreamAccessLogsMessage()
        for _ in range(batch):
            endpoint = f"10.0.0.{draw.randrange(endpoints)}:8000"
            decided = {**DECIDED, "pick": endpoint, "class": draw.choice(("critical", "high", "medium", "low"))}
            streamed = draw.random() < 0.9
            one = entry(
                endpoint=endpoint,
                ttft_s=draw.lognormvariate(-1.0, 0.8),
                decode_s=draw.lognormvariate(1.0, 0.8) if streamed else 0.00001,
                content_type="text/event-stream" if streamed else "application/json",
                headers=None
                if streamed
                else {"endpoint-load-metrics": 'JSON {"named_metrics": {"kv_cache_usage_perc": 0.4}}'},
                metadata={**decided, **USED},
            )
            one.request.path = "/v1/chat/completions"
            one.request.authority = "gateway.example.com"
            one.request.user_agent = "OpenAI/Python 1.99.0"
            one.request.request_id = "0b9c1c55-3c1e-4f0e-9d8c-3a1e5f4b2c1d"
            one.common_properties.stream_id = "0b9c1c55-3c1e-4f0e-9d8c-3a1e5f4b2c1d"
            pick = one.common_properties.metadata.filter_metadata["envoy.lb"].fields["x-gateway-destination-endpoint"]
            pick.string_value = f"{endpoint},10.0.0.250:8000,10.0.0.251:8000"
            message.http_logs.log_entry.append(one)
        made.append(message.SerializeToString())
    return made


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--seconds", type=float, default=5.0)
    arguments.add_argument("--batch", type=int, default=20, help="entries per message")
    arguments.add_argument("--endpoints", type=int, default=100)
    options = arguments.parse_args()
    raw = messages(options.batch, options.endpoints, 200)
    classes = ClassesPolicy()
    log = AccessLog(classes.by_name(), classes.default, now=0.0)
    parse = als_pb2.StreamAccessLogsMessage.FromString
    per_drain = max(1, 200 // options.batch)  # 2,000 requests a second, a window each 100 ms
    best = float("inf")
    total = handed = 0
    deadline = time.perf_counter() + options.seconds
    window_bytes = 0
    while time.perf_counter() < deadline:
        before = time.process_time()
        for number, data in enumerate(raw, 1):
            handed += len(log.take(parse(data).http_logs.log_entry).finished)
            if number % per_drain == 0:
                window_bytes = len(log.drain(float(number)).SerializeToString())
        spent = time.process_time() - before
        total += len(raw) * options.batch
        best = min(best, spent / (len(raw) * options.batch))
    if handed != total:
        raise SystemExit(f"{total - handed} of {total} entries were not handed over")
    print(f"{total} entries of {len(raw[0]) / options.batch:.0f} bytes, windows of {window_bytes} bytes")
    print(json.dumps({"us_per_entry": round(best * 1e6, 2), "entries": total, "batch": options.batch}))


if __name__ == "__main__":
    main()
