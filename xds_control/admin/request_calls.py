"""Asks the processors about requests: each keeps its own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import grpc

from xds_control.admin.backend import NotReady, ProcessorFacts, Unknown
from xds_control.proto import admin_pb2 as pb
from xds_control.proto import admin_pb2_grpc

TIMEOUT_S: Final = 3.0
LIST_DEFAULT: Final = 50
_OPTIONS: Final = (("grpc.enable_http_proxy", 0), ("grpc.max_receive_message_length", 64 << 20))


async def explain(
    processors: Sequence[ProcessorFacts], request: pb.ExplainRequestRequest, secret: str
) -> pb.ExplainRequestResponse:
    """A recorded request from whichever processor keeps it; a new one is tried by the first that answers.

    secret: what the processors know control by. Raises Unknown for an id that nobody keeps, NotReady when no processor
    answers.
    """
    if not processors:
        raise NotReady("no processor watches the fleet, so nobody decides requests")
    if not request.request_id:
        return await _try(processors, request, secret)
    answers = await asyncio.gather(*(_ask(one, "ExplainRequest", request, secret) for one in processors))
    given = [answer for answer in answers if isinstance(answer, pb.ExplainRequestResponse)]
    if given:
        return pb.ExplainRequestResponse(explanation=_joined([answer.explanation for answer in given]))
    silent = [one.name for one, answer in zip(processors, answers, strict=True) if answer is None]
    words = f"; {', '.join(silent)} did not answer" if silent else ""
    raise Unknown(
        f"no processor keeps a request {request.request_id!r}{words}. Kept are sampled requests and those that were "
        "slow, failed, fell back or were refused (`processors.requests`)"
    )


async def _try(
    processors: Sequence[ProcessorFacts], request: pb.ExplainRequestRequest, secret: str
) -> pb.ExplainRequestResponse:
    """A new request, tried by one of them: a large body costs each that reads it."""
    for one in sorted(processors, key=lambda facts: facts.load.loop_lag_s if facts.load is not None else 0.0):
        answer = await _ask(one, "ExplainRequest", request, secret)
        if isinstance(answer, pb.ExplainRequestResponse):
            return answer
    raise NotReady(f"no processor answers: {', '.join(one.name for one in processors)}")


async def list_requests(
    processors: Sequence[ProcessorFacts], request: pb.ListRequestsRequest, secret: str
) -> pb.ListRequestsResponse:
    """Requests of all processors, newest first."""
    asked = processors  # any of them may have heard how a request ended
    if request.processor and request.processor not in {one.name for one in processors}:
        raise Unknown(f"there is no processor {request.processor!r}")
    answers = await asyncio.gather(*(_ask(one, "ListRequests", request, secret) for one in asked))
    found = [item for answer in answers if isinstance(answer, pb.ListRequestsResponse) for item in answer.requests]
    if request.processor:
        found = [one for one in found if one.processor == request.processor]
    found = _by_request(found)[: request.limit or LIST_DEFAULT]
    found = list(await asyncio.gather(*(_completed(one, asked, secret) for one in found)))
    silent = [
        one.name for one, answer in zip(asked, answers, strict=True) if not isinstance(answer, pb.ListRequestsResponse)
    ]
    return pb.ListRequestsResponse(requests=found, unreachable=silent)


def _by_request(found: Sequence[pb.RequestExplanation]) -> list[pb.RequestExplanation]:
    """One explanation of each request, newest first."""
    same: dict[str, list[pb.RequestExplanation]] = {}
    for one in found:
        same.setdefault(one.id, []).append(one)
    return sorted(map(_joined, same.values()), key=lambda one: one.at_unix_s, reverse=True)


def _joined(parts: Sequence[pb.RequestExplanation]) -> pb.RequestExplanation:
    """What the processor that decided knows, with the outcome that perhaps another heard of."""
    whole = max(parts, key=_knows)
    for part in parts:
        if part.HasField("outcome") and not whole.HasField("outcome"):
            whole.outcome.CopyFrom(part.outcome)
        if part.notable and whole.notable in ("", "sampled"):
            whole.notable = part.notable
    return whole


def _knows(one: pb.RequestExplanation) -> bool:
    """Whether the answer is of the processor that decided: only there is the path known."""
    return bool(one.facts.path)


async def _completed(one: pb.RequestExplanation, asked: Sequence[ProcessorFacts], secret: str) -> pb.RequestExplanation:
    """The request with what its own processor knows of it, when that keeps it still."""
    decided_by = next((facts for facts in asked if facts.name == one.processor), None)
    if _knows(one) or decided_by is None:
        return one
    answer = await _ask(decided_by, "ExplainRequest", pb.ExplainRequestRequest(request_id=one.id), secret)
    return _joined([answer.explanation, one]) if isinstance(answer, pb.ExplainRequestResponse) else one


async def _ask(processor: ProcessorFacts, method: str, request: Any, secret: str) -> Any:
    """The answer; "not-kept" where it has no such request, None when it does not answer."""
    async with grpc.aio.insecure_channel(processor.address, options=_OPTIONS) as channel:
        stub = admin_pb2_grpc.AdminStub(channel)  # type: ignore[no-untyped-call]
        try:
            return await getattr(stub, method)(
                request, timeout=TIMEOUT_S, metadata=(("authorization", f"Bearer {secret}"),)
            )
        except grpc.aio.AioRpcError as error:
            return "not-kept" if error.code() is grpc.StatusCode.NOT_FOUND else None
