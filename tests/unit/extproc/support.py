"""A small fleet, a reader of JSON bodies, and a peer that speaks ext_proc to a stream machine."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from envoy.config.core.v3 import base_pb2
from envoy.extensions.filters.http.ext_proc.v3 import processing_mode_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as ext_proc

from xds_control.extproc.decide import Decider, Pick, Refusal, Routes
from xds_control.extproc.decision import Decision
from xds_control.extproc.stream import Stream
from xds_control.fleet.endpoint import Endpoint
from xds_control.fleet.readings import ModelInfo, Reading
from xds_control.fleet.snapshot import EndpointSnapshot, PoolSnapshot, State
from xds_control.inspect.facts import BodyProblem, RequestFacts
from xds_control.policy.extproc import ExtProcPolicy
from xds_control.policy.routing import RoutingPolicy
from xds_control.routing.view import RoutingView

MODES = processing_mode_pb2.ProcessingMode
BUFFERED, PARTIAL = MODES.BUFFERED, MODES.BUFFERED_PARTIAL
STREAMED, DUPLEX, NONE = MODES.STREAMED, MODES.FULL_DUPLEX_STREAMED, MODES.NONE


class JsonInspector:
    """Reads `model`, `stream`, `max_tokens` and the sizes of a JSON body."""

    def inspect(self, path: str, headers: Mapping[str, str], body: bytes) -> RequestFacts:
        api = (
            "anthropic.messages" if path.endswith("/messages") else "ollama.chat" if "/api/" in path else "openai.chat"
        )
        facts = RequestFacts(api=api, path=path, body_bytes=len(body))
        facts.service_class = headers.get("x-service-class", "")
        if not body:
            facts.problem = BodyProblem.EMPTY
            return facts
        try:
            document = json.loads(body)
        except ValueError:
            facts.problem = BodyProblem.NOT_JSON
            return facts
        if not isinstance(document, dict):
            facts.problem = BodyProblem.WRONG_SHAPE
            return facts
        facts.model = str(document.get("model", ""))
        facts.stream = bool(document.get("stream"))
        facts.max_output_tokens = document.get("max_tokens")
        facts.prompt_bytes = len(str(document.get("prompt", "")))
        facts.prompt_tokens = facts.prompt_bytes // 4
        facts.tags = tuple(document.get("tags", ()))
        facts.session_key = hash(document["session"]) & 0xFFFFFFFFFFFFFFFF if "session" in document else 0
        return facts

    def rewrite_model(self, headers: Mapping[str, str], body: bytes, facts: RequestFacts, model: str) -> bytes | None:
        document = json.loads(body)
        document["model"] = model
        return json.dumps(document).encode()


@dataclass
class FirstPicker:
    """Picks what it is told to."""

    outcome: Pick | Refusal | None
    subsets: list[tuple[str, ...] | None] = field(default_factory=list)

    def pick(
        self, decision: Decision, headers: Mapping[str, str], subset: tuple[str, ...] | None, now: float
    ) -> Pick | Refusal | None:
        self.subsets.append(subset)
        return self.outcome


def endpoint(
    address: str,
    pool: str,
    *,
    state: State = State.READY,
    weight: int = 100,
    pickable: bool = True,
    info: ModelInfo | None = None,
    **signals: Any,
) -> EndpointSnapshot:
    """An endpoint with signals."""
    readings = {name: Reading(value, 0.0, "test") for name, value in signals.items()}
    return EndpointSnapshot(
        Endpoint(address, pool), state, weight, 0, pickable, 1.0, readings, info if info is not None else ModelInfo()
    )


def pool(name: str, models: Sequence[str], *endpoints: EndpointSnapshot) -> PoolSnapshot:
    """A pool; one ready endpoint when none is given."""
    return PoolSnapshot(name, tuple(models), endpoints or (endpoint("10.9.0.1:8000", name),))


def view_of(*pools: PoolSnapshot) -> RoutingView:
    """A view of these pools."""
    return RoutingView.build({one.name: one for one in pools}, version=1)


def decider_of(
    *pools: PoolSnapshot,
    routing: RoutingPolicy | None = None,
    extproc: ExtProcPolicy | None = None,
    picker: FirstPicker | None = None,
) -> Decider:
    """A decider over these pools; pool-a serves model-a when none are given."""
    view = view_of(*(pools or (pool("pool-a", ["model-a"]), pool("pool-b", ["model-b"]))))
    routes = Routes.compile(routing or RoutingPolicy(), list(view.pools))
    return Decider(view, JsonInspector(), routes, picker, extproc)


class Peer:
    """The data plane's end of one stream: builds messages, feeds the machine, parses what comes back."""

    def __init__(self, decider: Decider, mode: int | None = None, **config: bool | int) -> None:
        self.stream = Stream(decider)
        self.sent: list[ext_proc.ProcessingResponse] = []
        self._config = None
        if mode is not None:
            self._config = ext_proc.ProtocolConfiguration(request_body_mode=mode, **config)

    def send(self, message: ext_proc.ProcessingRequest) -> list[ext_proc.ProcessingResponse]:
        """Feeds a message; the first one carries the configuration."""
        if self._config is not None:
            message.protocol_config.CopyFrom(self._config)
            self._config = None
        answers = [ext_proc.ProcessingResponse.FromString(one) for one in self.stream.receive(message, 0.0)]
        self.sent += answers
        return answers

    def headers(
        self, headers: Mapping[str, str] | None = None, *, end: bool = False, subset: object = None
    ) -> list[ext_proc.ProcessingResponse]:
        """Sends request headers."""
        return self.send(headers_message(headers, end=end, subset=subset))

    def body(self, body: bytes, *, end: bool = True) -> list[ext_proc.ProcessingResponse]:
        """Sends a piece of the request body."""
        part = ext_proc.HttpBody(body=body, end_of_stream=end)
        return self.send(ext_proc.ProcessingRequest(request_body=part))

    def trailers(self) -> list[ext_proc.ProcessingResponse]:
        """Sends request trailers."""
        return self.send(ext_proc.ProcessingRequest(request_trailers=ext_proc.HttpTrailers()))


def headers_message(
    headers: Mapping[str, str] | None = None, *, end: bool = False, subset: object = None
) -> ext_proc.ProcessingRequest:
    """A request-headers message for POST /v1/chat/completions unless `headers` say otherwise."""
    merged = {":method": "POST", ":path": "/v1/chat/completions", **(headers or {})}
    values = [base_pb2.HeaderValue(key=name, raw_value=value.encode()) for name, value in merged.items()]
    part = ext_proc.HttpHeaders(headers=base_pb2.HeaderMap(headers=values), end_of_stream=end)
    message = ext_proc.ProcessingRequest(request_headers=part)
    if subset is not None:
        fields = message.metadata_context.filter_metadata["envoy.lb.subset_hint"]
        fields.update({"x-gateway-destination-endpoint-subset": subset})
    return message


def body_of(model: str = "model-a", **more: object) -> bytes:
    """A JSON body."""
    return json.dumps({"model": model, "prompt": "hello there", **more}).encode()


def set_headers(response: ext_proc.ProcessingResponse) -> dict[str, str]:
    """The headers that a response sets; fails when one is not to overwrite."""
    found: dict[str, str] = {}
    for option in common(response).header_mutation.set_headers:
        assert option.append_action == base_pb2.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
        found[option.header.key] = option.header.raw_value.decode()
    return found


def common(response: ext_proc.ProcessingResponse) -> ext_proc.CommonResponse:
    """The CommonResponse inside a response."""
    kind = response.WhichOneof("response")
    assert kind is not None
    part = getattr(response, kind).response
    assert isinstance(part, ext_proc.CommonResponse)
    return part


def metadata(response: ext_proc.ProcessingResponse) -> dict[str, dict[str, object]]:
    """The dynamic metadata of a response, by namespace."""
    return {name: dict(value.struct_value.items()) for name, value in response.dynamic_metadata.fields.items()}


def pieces(responses: Sequence[ext_proc.ProcessingResponse]) -> list[ext_proc.StreamedBodyResponse]:
    """The streamed pieces of the request body among responses."""
    return [
        one.request_body.response.body_mutation.streamed_response
        for one in responses
        if one.WhichOneof("response") == "request_body"
    ]
