"""What a processor tells control of requests: two calls of the Admin service, about its own requests only.

`ExplainRequest` looks up a request by its id or tries one, `ListRequests` lists what is kept.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable
from typing import Any, Final

import grpc

from xds_control.admin.request_views import explanation_message
from xds_control.extproc.decision import Decision
from xds_control.extproc.recorder import Kept
from xds_control.extproc.request import RequestView
from xds_control.extproc.state import ProcessorState
from xds_control.proto import admin_pb2 as pb
from xds_control.routing.explain import Record
from xds_control.routing.trail import candidates

SERVICE: Final = "xds_control.admin.v1.Admin"
LIST_DEFAULT: Final = 50
LIST_MOST: Final = 1_000


class RequestsService:
    """Serves the recorder and the decider of a processor."""

    def __init__(self, state: ProcessorState) -> None:
        self._state = state

    def handler(self) -> grpc.GenericRpcHandler:
        """To be added to a server."""
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "ExplainRequest": grpc.unary_unary_rpc_method_handler(
                    self.explain,
                    request_deserializer=pb.ExplainRequestRequest.FromString,
                    response_serializer=pb.ExplainRequestResponse.SerializeToString,
                ),
                "ListRequests": grpc.unary_unary_rpc_method_handler(
                    self.list,
                    request_deserializer=pb.ListRequestsRequest.FromString,
                    response_serializer=pb.ListRequestsResponse.SerializeToString,
                ),
            },
        )

    async def explain(self, request: pb.ExplainRequestRequest, context: Any) -> pb.ExplainRequestResponse:
        """A kept request, or a new one that is tried and not sent. NOT_FOUND for an id that is not kept."""
        await self._admit(context)
        if request.request_id:
            kept = self._state.recorder.find(request.request_id) if self._state.recorder is not None else None
            if kept is None:
                await context.abort(grpc.StatusCode.NOT_FOUND, f"request {request.request_id!r} is not kept")
            assert kept is not None
            return pb.ExplainRequestResponse(explanation=self._message(kept))
        answer = pb.ExplainRequestResponse(explanation=self._dry_run(request.request, self._state.dry_run))
        shadow = self._state.shadow
        if request.shadow and shadow is not None:
            answer.shadow.CopyFrom(self._dry_run(request.request, shadow.dry_run))
        return answer

    async def list(self, request: pb.ListRequestsRequest, context: Any) -> pb.ListRequestsResponse:
        """Kept requests, newest first."""
        await self._admit(context)
        recorder = self._state.recorder
        limit = min(request.limit or LIST_DEFAULT, LIST_MOST)
        found = [one for one in recorder.newest() if _wanted(one, request)] if recorder is not None else []
        return pb.ListRequestsResponse(requests=[self._message(one) for one in found[:limit]])

    async def _admit(self, context: Any) -> None:
        """Lets control in and nobody else: whoever reaches this port is else only heard as an Envoy."""
        given = dict(context.invocation_metadata()).get("authorization", "")
        wanted = f"Bearer {self._state.secret}" if self._state.secret else ""
        if not wanted or not hmac.compare_digest(str(given).encode(), wanted.encode()):
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, "only control may ask about requests")

    def _message(self, kept: Kept) -> pb.RequestExplanation:
        picker = self._state.picker
        decision = kept.decision
        record = picker.picker.records.find(decision.id) if picker is not None else None
        if record is None and decision.priced is not None:
            record = _from_trail(decision, kept.at)
        at = time.time() - (time.monotonic() - kept.at)
        return explanation_message(
            decision,
            at,
            record,
            processor=decision.processor or self._state.processor,
            outcome=kept.outcome,
            notable=kept.notable,
        )

    def _dry_run(
        self, request: pb.HttpRequest, decide: Callable[[RequestView], tuple[Decision, Record | None]]
    ) -> pb.RequestExplanation:
        # what Envoy does not send to the processors decides nothing
        headers = {name.lower(): value for name, value in request.headers.items()}
        forwarded = self._state.forwarded
        if forwarded is not None:
            headers = {name: value for name, value in headers.items() if name in forwarded}
        headers |= {":path": request.path, ":method": request.method or "POST"}
        view = RequestView(headers, request.body, has_body=bool(request.body))
        decision, record = decide(view)
        return explanation_message(decision, time.time(), record, processor=self._state.processor, dry_run=True)


def _from_trail(decision: Decision, at: float) -> Record:
    """A pick with the candidates that its answer named."""
    facts, priced = decision.facts, decision.priced
    assert priced is not None
    return Record(
        at,
        decision.pool,
        decision.id,
        facts.model,
        facts.prompt_tokens,
        facts.expected_output_tokens,
        len(facts.prefix_keys),
        bool(facts.session_key),
        priced,
        candidates(priced),
        total=priced.candidates,
    )


def _wanted(kept: Kept, request: pb.ListRequestsRequest) -> bool:
    if request.notable and kept.notable not in request.notable:
        return False
    if request.pool and kept.decision.pool != request.pool:
        return False
    return not request.endpoint or (
        request.endpoint in kept.decision.destinations
        or (kept.outcome is not None and kept.outcome.endpoint == request.endpoint)
    )
