"""A case's fleet and configuration as this product is configured, and a processor's state over them."""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from xds_control.extproc.decision import Decision
from xds_control.extproc.state import ProcessorState
from xds_control.fleet.endpoint import Endpoint
from xds_control.fleet.readings import ModelInfo, Reading
from xds_control.fleet.snapshot import EndpointSnapshot, PoolSnapshot, Snapshot, State
from xds_control.policy.admission import AdmissionPolicy
from xds_control.policy.classes import ClassesPolicy, ServiceClassPolicy
from xds_control.policy.extproc import ExtProcPolicy, UsageMetadata
from xds_control.policy.inspect import DEFAULT_SESSION_SOURCES, InspectPolicy
from xds_control.policy.load import encode_policy
from xds_control.policy.picker import (
    DisaggPolicy,
    LimitPolicy,
    PickerPolicy,
    PrefixPolicy,
    ProfilePolicy,
    SessionPolicy,
    ShedPolicy,
)
from xds_control.policy.pools import EndpointPolicy, PoolPolicy
from xds_control.policy.routing import ModelRoute, Reject, RoutingPolicy, Rule, Target
from xds_control.policy.schema import Policy
from xds_control.proto import fleet_pb2 as pb

POOL = "pool"
TOKEN = "x-session-token"
AGENT_HEADERS = ("x-claude-code-session-id", "x-session-affinity", "session-id", "session_id")

SCORERS = {
    "queue-scorer": "queue",
    "running-requests-size": "running",
    "running-requests-size-scorer": "running",
    "running-requests": "running",
    "kv-cache-utilization": "kv",
    "kv-cache-utilization-scorer": "kv",
    "kv-utilization": "kv",
    "load-aware-scorer": "load-aware",
    "lora-affinity": "lora",
    "lora-affinity-scorer": "lora",
    "prefix-cache": "prefix",
    "prefix-cache-scorer": "prefix",
    "active-requests": "active-request",
    "active-request-scorer": "active-request",
    "token-load-scorer": "token-load",
    "context-length-aware": "context-length",
    "session-affinity-scorer": "session-affinity",
    "no-hit-lru-scorer": "no-hit-lru",
    "latency": "least-latency",
    "latency-scorer": "least-latency",
    "topology-affinity": "topology",
}


class Unsupported(Exception):
    """The case asks for something that is out of scope; the text says what."""


def address(number: Any) -> str:
    """The address of endpoint n."""
    return f"10.9.0.{number}:8000"


def endpoints_of(case: Mapping[str, Any], saturation: float | None, now: float) -> list[EndpointSnapshot]:
    """The case's pool."""
    found: list[EndpointSnapshot] = []
    config = case.get("config") or {}
    screened = "screeners" in config if isinstance(config, Mapping) else False
    found += [_endpoint(text, 0, 0.0, [], {}, now, screened) for text in case.get("pool_addresses") or ()]
    for row in case.get("pool") or ():
        number, waiting, kv, loras = (*row, *(0, 0.0, [])[len(row) - 1 :])[:4]
        extras = dict(row[4]) if len(row) > 4 else {}
        if saturation is not None:
            waiting, kv = saturation * 5.0, 0.0
        where = [f"10.9.0.{number}:{port}" for port in case.get("pool_ports") or [8000]]
        found += [_endpoint(one, waiting, kv, loras, extras, now, screened) for one in where]
    return sorted(found, key=lambda one: one.endpoint.address)


def _endpoint(
    where: str, waiting: float, kv: float, loras: Sequence[str], extras: dict[str, Any], now: float, screened: bool
) -> EndpointSnapshot:
    readings: dict[str, Reading] = {}
    age = extras.get("age_ms", 0)
    if age is not None:
        at = now - float(age) / 1000.0
        readings = {
            "waiting": Reading(float(waiting), at, "vllm"),
            "running": Reading(float(extras.get("running", 0)), at, "vllm"),
            "kv_usage": Reading(float(kv), at, "vllm"),
        }
    labels = {str(k): str(v) for k, v in (extras.get("labels") or {}).items()}
    if "context_range" in extras:
        labels["llm-d.ai/context-length-range"] = str(extras["context_range"])
    slots = extras.get("max_lora")
    info = ModelInfo(
        lora_running=tuple(loras),
        lora_waiting=tuple(extras.get("waiting_lora", ())),
        lora_max=None if slots is None else int(slots),
        max_model_len=extras.get("max_model_len"),
    )
    state = State(extras.get("state", "ready"))
    pickable = bool(extras.get("ready", state is State.READY)) and not screened
    one = Endpoint(where, POOL, role=str(extras.get("role", "both")), labels=labels, name=str(extras.get("name", "")))
    return EndpointSnapshot(one, state, 100, 0, pickable, 1.0, readings, info)


def config_of(case: Mapping[str, Any], fixtures: Mapping[str, Any]) -> dict[str, Any]:
    """The case's configuration, fixtures resolved."""
    given = case.get("config")
    if given is None:
        return {}
    if isinstance(given, str):
        return dict(fixtures.get(given) or {})
    return dict(given)


def _filters(config: Mapping[str, Any]) -> tuple[list[str], dict[str, str]]:
    names: list[str] = []
    labels: dict[str, str] = {}
    for entry in config.get("filters") or ():
        name = entry if isinstance(entry, str) else next(iter(entry))
        if name in ("session-affinity", "session-affinity-filter"):
            names.append("session-affinity")
        elif name in ("prefix-cache-affinity", "prefix-cache-affinity-filter", "prefix-affinity"):
            names.append("prefix-affinity")
        elif name == "drops-everything":
            labels["no-endpoint-has-this-label"] = "x"
        elif name in ("utilization-filter", "utilization-detector", "saturation"):
            names.append("saturation")
        elif name in ("decode-filter", "prefill-filter", "header-based-testing-filter"):
            names.append("test-header") if name.startswith("header") else None
        else:
            raise Unsupported(f"filter {name!r}")
    return names, labels


def picker_policy(case: Mapping[str, Any], config: Mapping[str, Any]) -> PickerPolicy:
    """The picker's configuration."""
    scorers: dict[str, float] = {}
    for name, weight in (config.get("scorers") or {}).items():
        scorers[SCORERS.get(name, name)] = float(weight)
    filters, labels = _filters(config)
    headers = json.dumps(case.get("headers") or {})
    if "test-epp-endpoint-selection" in headers:
        filters.append("test-header")
    tokens = "session-affinity" in filters or "session-affinity" in scorers or case.get("kind") == "session"
    disagg = str(config.get("disagg", "auto"))
    shed = ShedPolicy(classes=tuple(n for n, value in (case.get("_objectives") or {}).items() if value < 0))
    profile = ProfilePolicy(
        rule="scorers" if scorers else "least-cost",
        picker=config.get("picker", "max-score"),
        scorers=scorers,
        filters=tuple(dict.fromkeys(filters)),  # type: ignore[arg-type]
        require_labels=labels,
        session=SessionPolicy(token_header=TOKEN if tokens else ""),
        disagg=DisaggPolicy(mode={"none": "off"}.get(disagg, disagg)),  # type: ignore[arg-type]
        shed=shed,
    )
    limits = LimitPolicy(
        max_concurrency=int(config.get("max_concurrency", 0)), stale_s=float(config.get("stale_ms", 5000)) / 1000.0
    )
    prefix = PrefixPolicy()
    if "lru_tokens" in config:
        prefix = PrefixPolicy(cache_tokens=int(config["lru_tokens"]))
    return PickerPolicy(
        profiles={"default": profile}, limits=limits, prefix=prefix, nobody="reject", header="epp-profile"
    )


def extproc_policy(case: Mapping[str, Any], config: Mapping[str, Any]) -> ExtProcPolicy:
    """How the processor talks."""
    parser = config.get("parser", "openai")
    path = str((case.get("headers") or {}).get(":path", ""))
    raw = parser in ("passthrough", "vllm-grpc") or path.split("?")[0].endswith("/count_tokens")
    reporter = config.get("reporter")
    metadata: tuple[UsageMetadata, ...] = ()
    if reporter:
        metadata = (
            UsageMetadata(
                namespace=reporter.get("namespace", "envoy.lb"),
                name=reporter["name"],
                value=reporter["expr"],
                when=reporter.get("when", ""),
            ),
        )
    return ExtProcPolicy(
        body_mode="full_duplex",
        on_malformed="pass" if raw else "reject",
        responses="ignore" if parser == "passthrough" else "auto",
        emit_scores=bool(config.get("emit_scores", False)),
        subset_hint=not config.get("disable_subset", False),
        usage_metadata=metadata,
    )


def routing_policy(case: Mapping[str, Any], raw: bool) -> RoutingPolicy:
    """Model rewrites as model routes; a generic one also supplies a missing model."""
    routes: list[ModelRoute] = []
    rules: list[Rule] = []
    for entry in case.get("rewrites") or ():
        targets = entry.get("targets") or [{"to": entry["target"]}]
        to = tuple(Target(pool=POOL, model=str(t["to"]), weight=t.get("weight")) for t in targets)
        match = str(entry.get("match", "*"))
        if match == "*":
            routes.append(ModelRoute(regex=".*", name="generic", to=to))
            rules.append(Rule(name="no-model", when="request.model == ''", model=str(targets[0]["to"])))
        else:
            routes.append(ModelRoute(model=match, to=to))
    if not rules and not raw:
        text = "BadRequest: the request names no model."
        refusal = Reject(status=400, message=text, reason="model-missing")
        rules.append(Rule(name="model", when="request.model == '' && request.api != ''", reject=refusal))
    return RoutingPolicy(models=tuple(routes), rules=tuple(rules), default_pool=POOL)


@dataclass
class World:
    """One processor with the case's policy and fleet."""

    case: Mapping[str, Any]
    fixtures: Mapping[str, Any]
    served_header: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    decisions: list[Decision] = field(default_factory=list)

    def __post_init__(self) -> None:
        objectives = dict(self.fixtures.get("objectives") or {})
        case = {**self.case, "_objectives": objectives}
        self.config = config_of(case, self.fixtures)
        queued = bool(self.config.get("flow_control"))
        wait_s = float(self.config.get("queue_ttl_s", 60.0)) if queued else 0.2
        now = time.monotonic()
        self.endpoints = endpoints_of(case, case.get("saturation"), now)
        inspect = InspectPolicy(
            tenant_sources=(
                "x-llm-d-inference-fairness-id",
                "x-gateway-inference-fairness-id",
                "x-claude-code-session-id",
            ),
            session_sources=tuple(dict.fromkeys((*DEFAULT_SESSION_SOURCES,))),
        )
        low = min([0, *objectives.values()])
        classes = [
            ServiceClassPolicy(name=name, priority=value - low, max_queue_s=wait_s)
            for name, value in objectives.items()
        ]
        classes.append(ServiceClassPolicy(name="standard", priority=-low, max_queue_s=wait_s))
        self.priorities = dict(objectives)
        extproc = msgspec.structs.replace(extproc_policy(case, self.config), served_header=self.served_header)
        self.policy = Policy(
            version="xds-control/v1",
            pools=[
                PoolPolicy(name=POOL, endpoints=[EndpointPolicy(address=e.endpoint.address) for e in self.endpoints])
            ],
            routing=routing_policy(case, extproc.on_malformed == "pass"),
            classes=ClassesPolicy(default="standard", items=tuple(classes)),
            inspect=inspect,
            admission=AdmissionPolicy(enabled=queued, max_requests=int(self.config.get("max_queued", 5000))),
            picker=picker_policy(case, self.config),
            ext_proc=extproc,
        )
        self.state = ProcessorState("p0", now, time.monotonic)
        self.version = 0
        self.tell()
        decider = self.state.decider
        assert decider is not None, self.state.problem
        before = decider.on_decision

        def seen(decision: Decision, at: float) -> None:
            self.decisions.append(decision)
            if before is not None:
                before(decision, at)

        decider.on_decision = seen

    def tell(self, endpoints: list[EndpointSnapshot] | None = None) -> None:
        """Sends a snapshot to the processor."""
        if endpoints is not None:
            self.endpoints = endpoints
        self.version += 1
        now = time.monotonic()
        pools = {POOL: PoolSnapshot(POOL, (), tuple(self.endpoints))}
        snapshot = Snapshot("epoch", self.version, now, pools, "1")
        message = pb.WatchResponse(epoch="epoch", version=self.version, full=True)
        if self.version == 1:
            message.policy.version = "1"
            message.policy.json = encode_policy(self.policy)
        self.state.on_message(snapshot, message, now)

    @property
    def last(self) -> Decision:
        """The newest decision."""
        return self.decisions[-1]


def request_headers(
    case: Mapping[str, Any], fixtures: Mapping[str, Any], extra: Mapping[str, Any] | None = None
) -> dict[str, str]:
    """Request headers of a case: the base ones, the case's, pseudo headers."""
    header_only = bool(case.get("header_eos"))
    path = "/v1/models" if header_only else _default_path(case)
    found = {
        ":method": "GET" if header_only else "POST",
        ":path": path,
        ":authority": "example.test",
        ":scheme": "http",
    }
    found.update({str(k): str(v) for k, v in (fixtures.get("base_headers") or {}).items()})
    if not header_only:
        found["content-type"] = "application/json"
    found.update({str(k): str(v) for k, v in (case.get("headers") or {}).items()})
    found.update({str(k): str(v) for k, v in (extra or {}).items()})
    if found[":path"].startswith("/vllm.grpc"):
        found["content-type"] = "application/grpc"
    return found


def _default_path(case: Mapping[str, Any]) -> str:
    body = case.get("body")
    if isinstance(body, Mapping):
        if "messages" in body:
            return "/v1/chat/completions"
        if "input" in body:
            return "/v1/embeddings"
    return "/v1/completions"


def request_body(case: Mapping[str, Any], fixtures: Mapping[str, Any]) -> list[bytes]:
    """The request body in the pieces in which it is sent."""
    if "body_chunks" in case:
        return [str(piece).encode() for piece in case["body_chunks"]]
    if "body_raw" in case:
        raw = str(case["body_raw"])
        frame = re.fullmatch(r"<5-byte frame \+ (\w+)\{text:(.*)\}>", raw)
        if frame:
            text = frame.group(2).encode()
            message = b"\x12" + bytes((len(text),)) + text
            return [b"\x00" + len(message).to_bytes(4, "big") + message]
        return [raw.encode()]
    if "body" in case:
        return [json.dumps(case["body"], separators=(",", ":"), ensure_ascii=False).encode()]
    standard = dict(fixtures.get("body_std") or {"model": "<model>", "prompt": "<prompt>"})
    text = json.dumps(standard).replace("<model>", "base-m").replace("<prompt>", str(case.get("id", "p")))
    return [text.encode()]


def encode_token(text: str) -> str:
    """A session token for `namespace/name`."""
    return base64.b64encode(text.encode()).decode()
