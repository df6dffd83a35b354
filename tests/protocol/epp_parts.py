"""Cases about single parts: scorers, saturation, metrics pages, health names, block events."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from typing import Any

import grpc
import numpy as np
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.protocol.epp_peer import Failed
from tests.protocol.epp_requests import PROSE, Backend
from tests.protocol.epp_world import SCORERS, Unsupported
from tests.unit.routing.fleet import endpoint, facts, pool
from xds_control.extproc.epp import HealthPort
from xds_control.policy.picker import PickerPolicy
from xds_control.routing import scorers
from xds_control.routing.kv_index import KvIndex
from xds_control.routing.picker import Picker
from xds_control.routing.prefix_index import pack
from xds_control.signals.engines import adapter_for
from xds_control.signals.reader import PageReader


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]


def _close(found: Any, wanted: Any, what: str) -> None:
    left = np.atleast_1d(np.asarray(found, dtype=np.float64))
    right = np.atleast_1d(np.asarray(wanted, dtype=np.float64))
    if left.shape != right.shape or not np.allclose(left, right, rtol=0, atol=1e-3):
        raise Failed(f"{what}: {[round(float(x), 6) for x in left]}, wanted {wanted}")


def _pick(row: Mapping[str, Any], case: Mapping[str, Any], *keys: str, default: Any = None) -> Any:
    for key in keys:
        if key in row:
            return row[key]
    for key in keys:
        if key in case:
            return case[key]
    if default is None:
        raise Unsupported(f"none of {keys} in the row {dict(row)}")
    return default


def _row_scores(name: str, row: Mapping[str, Any], case: Mapping[str, Any]) -> Any:
    if name == "queue":
        return scorers.queue(_pick(row, case, "waiting", "queue"))
    if name == "running":
        return scorers.running(_pick(row, case, "running"))
    if name == "kv":
        return scorers.kv(_list(_pick(row, case, "kv", "kv_used", "usage", "kv_usage")))
    if name == "load-aware":
        return scorers.load_aware(_list(_pick(row, case, "waiting")), float(_pick(row, case, "threshold", default=128)))
    if name == "lora":
        want = str(_pick(row, case, "want", "adapter"))
        return scorers.lora_one(want, row.get("running", []), row.get("waiting", []), int(row.get("max", 0)))
    if name == "prefix":
        total = row.get("total", row.get("total_blocks", row.get("blocks", case.get("total"))))
        matched = _list(_pick(row, case, "matched", "matched_blocks", "match"))
        weight = float(_pick(row, case, "weight", "matchLengthWeight", "w", "length_weight", default=0.0) or 0.0)
        if weight:
            scale = float(_pick(row, case, "scale", "matchLengthScaleTokens", "S", "scale_tokens", default=8192))
            tokens = np.asarray(_list(row.get("matched_tokens", matched)), dtype=np.float64)
            share = scorers.prefix(matched, int(total or 0))
            return (1 - weight) * share + weight * np.minimum(1.0, tokens / scale) ** 2
        return scorers.prefix(matched, int(total or 0))
    if name == "active-request":
        counts = _list(_pick(row, case, "counts", "active"))
        idle = float(_pick(row, case, "idle", "idleThreshold", default=0.0) or 0.0)
        return scorers.active_request(counts, idle, float(_pick(row, case, "max_busy", "maxBusyScore", default=1.0)))
    if name == "token-load":
        threshold = float(_pick(row, case, "threshold", default=4_194_304))
        return scorers.token_load(_list(_pick(row, case, "in_flight")), _list(row.get("uncached", 0)), threshold)
    if name == "context-length":
        label = _pick(row, case, "range", "label", default="")
        span: tuple[float, float] | None = None
        if label not in (None, "", "none"):
            low, _, high = str(label).partition("-")
            try:
                span = (float(low), float(high))
            except ValueError:
                span = (1.0, 0.0)
        return scorers.context_length_one(float(_pick(row, case, "tokens", "length", "context")), span)
    if name == "session-affinity":
        count = int(_pick(row, case, "endpoints", "count"))
        return scorers.session_affinity(count, row.get("pinned"))
    if name == "no-hit-lru":
        return scorers.no_hit_lru(bool(row.get("any_hit", row.get("hit", False))), list(_pick(row, case, "last_used")))
    if name == "topology":
        return scorers.TOPOLOGY[str(_pick(row, case, "common", "level"))]
    if name == "reject-probability":
        return scorers.reject_probability(
            float(_pick(row, case, "saturation")), float(case.get("power", 5)), float(case.get("k", 300))
        )
    raise Unsupported(f"scorer {name!r}")


async def score(case: Mapping[str, Any], fixtures: Mapping[str, Any], backend: Backend) -> None:
    """Kind score: the arithmetic of one scorer."""
    name = SCORERS.get(str(case["scorer"]), str(case["scorer"]))
    for row in case["rows"]:
        wanted = row.get("scores", row.get("score"))
        _close(_row_scores(name, row, case), wanted, f"{name} of {dict(row)}")


async def saturation(case: Mapping[str, Any], fixtures: Mapping[str, Any], backend: Backend) -> None:
    """Kind saturation."""
    for row in case["rows"]:
        pods: list[tuple[float, float, bool] | None] = []
        for entry in row["pods"]:
            if entry == "stale":
                last = pods[-1]
                assert last is not None
                # `stale` marks one more endpoint whose numbers are too old.
                pods.append((last[0], last[1], True))
            elif entry is None:
                pods.append(None)
            else:
                values = list(entry)
                pods.append((float(values[0]), float(values[1]), "stale" in values[2:]))
        found = scorers.saturation(pods, float(case.get("queue_threshold", 5)), float(case.get("kv_threshold", 0.8)))
        _close(found, row["value"], f"saturation of {row['pods']}")


async def scrape(case: Mapping[str, Any], fixtures: Mapping[str, Any], backend: Backend) -> None:
    """Kind scrape: values read off a metrics page."""
    page = ("\n".join(case["text"]) + "\n").encode()
    first = case["text"][0]
    engine = str(case.get("engine", ""))
    if not engine:
        heads = {"vllm:": "vllm", "sglang": "sglang", "nv_trt_llm": "triton", "trtllm_": "trtllm", "nv_": "triton"}
        engine = next((name for head, name in heads.items() if first.startswith(head)), "auto")
    reader = PageReader(adapter_for(engine) if engine != "auto" else "auto")
    found = reader.feed(page, 1.0)
    info = found.info
    facts_of: dict[str, Any] = dict(found.values)
    if info is not None:
        facts_of.update(
            block_size=info.block_size,
            num_blocks=info.num_blocks,
            max_lora=info.lora_max,
            running_lora=sorted(info.lora_running),
            waiting_lora=sorted(info.lora_waiting),
        )
    same = {"kv": "kv_usage", "queue": "waiting"}
    for name, wanted in case["expect"].items():
        if name in PROSE:
            continue
        value = facts_of.get(same.get(name, name))
        if isinstance(wanted, list):
            if list(value or []) != sorted(wanted):
                raise Failed(f"{name} is {value}, wanted {wanted}")
        elif value is None or not math.isclose(float(value), float(wanted), abs_tol=1e-9):
            raise Failed(f"{name} is {value}, wanted {wanted} (read {facts_of})")


async def table(case: Mapping[str, Any], fixtures: Mapping[str, Any], backend: Backend) -> None:
    """Kind table: health names."""
    if not all("service" in row for row in case["rows"]):
        raise Unsupported("plugins that run before the request (PreRequest) do not exist here")
    for row in case["rows"]:
        await _health(str(row["service"]), bool(row["ready"]), str(row["status"]))


async def _health(service: str, ready: bool, wanted: str) -> None:
    port = HealthPort(lambda: ready)
    where = await port.start("127.0.0.1:0")
    try:
        async with grpc.aio.insecure_channel(where) as channel:
            stub: Any = health_pb2_grpc.HealthStub(channel)
            try:
                answer = await stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=5)
                found = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
            except grpc.aio.AioRpcError as error:
                found = "SERVICE_UNKNOWN" if error.code() is grpc.StatusCode.NOT_FOUND else error.code().name
            if wanted == "SERVICE_UNKNOWN":
                # Check says NOT_FOUND for it, Watch says SERVICE_UNKNOWN: that is how the health protocol puts it.
                watch = stub.Watch(health_pb2.HealthCheckRequest(service=service))
                first = await asyncio.wait_for(watch.read(), 5)
                watch.cancel()
                found = health_pb2.HealthCheckResponse.ServingStatus.Name(first.status)
            if found != wanted:
                raise Failed(f"{service!r} is {found}, wanted {wanted}")
    finally:
        await port.stop()


async def index(case: Mapping[str, Any], fixtures: Mapping[str, Any], backend: Backend) -> None:
    """Kind index: block events, and what is forgotten."""
    if "events" in case:
        _events(case)
        return
    held: dict[str, list[int]] = {}
    picker = Picker(PickerPolicy())
    rows = {f"ep{n}": endpoint(n, at=0.0, running=0, waiting=0) for n in range(1, 5)}
    now = 1.0
    picker.update({"p": pool("p", list(rows.values()))}, now)
    for step in case["steps"]:
        words = str(step).split()
        if len(words) == 3 and words[1] == "holds":
            low, high = (int(part[1:]) for part in words[2].split(".."))
            held[words[0]] = [1000 + block for block in range(low, high + 1)]
            slots = picker.pool("p")
            assert slots is not None
            request = facts(keys=held[words[0]])
            slot = slots.by_address[rows[words[0]].endpoint.address]
            slots.index.add(slot.index, request.prefix_keys, pack(request.prefix_keys), request.prefix_tokens, now)
            before = picker.explain(request, "p", now).candidates
            if not any(c.address == slot.address and c.matched_tokens for c in before):
                raise Failed("the prefix was not remembered in the first place")
        elif "leaves" in words:
            gone = rows.pop(words[0])
            now += 1.0
            picker.update({"p": pool("p", list(rows.values()))}, now)
            found = picker.explain(facts(keys=held[words[0]]), "p", now)
            if any(c.address == gone.endpoint.address or c.matched_tokens for c in found.candidates):
                raise Failed("an endpoint that left is still matched")
            # Whoever comes next under its address begins with an empty cache.
            rows[words[0]] = gone
            picker.update({"p": pool("p", list(rows.values()))}, now)
            if any(c.matched_tokens for c in picker.explain(facts(keys=held[words[0]]), "p", now).candidates):
                raise Failed("an endpoint that came back is believed to hold what it held before")
        else:
            raise Unsupported(f"step {step!r}")


def _events(case: Mapping[str, Any]) -> None:
    blocks = KvIndex()
    for event in case["events"]:
        medium = str(event.get("medium") or "gpu")
        if "stored" in event:
            blocks.store(0, event["stored"], event.get("parent"), medium=medium)
        elif "removed" in event:
            blocks.remove(0, event["removed"], medium=medium)
        elif "cleared" in event:
            blocks.clear(0)
        else:
            raise Unsupported(f"event {dict(event)}")
    for name, wanted in case["expect"].items():
        if name == "longest_prefix":
            found = blocks.longest(0, case["query"])
            if found != wanted:
                raise Failed(f"longest prefix {found}, wanted {wanted}")
        elif name == "score":
            _close(blocks.weighted(0, case["query"]), wanted, "tier-weighted length")
        elif name not in PROSE:
            raise Unsupported(f"expectation {name}")
