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


async def explain(processors: Sequence[ProcessorFacts], request: pb.ExplainRequestRequest) -> pb.ExplainRequestResponse:
    """A recorded request from whichever processor keeps it; a new one is tried by the first that answers.

    Raises Unknown for an id that nobody keeps, NotReady when no processor answers.
    """
    if not processors:
        raise NotReady("no processor watches the fleet, so nobody decides requests")
    answers = await asyncio.gather(*(_ask(one, "ExplainRequest", request) for one in processors))
    for answer in answers:
        if isinstance(answer, pb.ExplainRequestResponse):
            return answer
    silent = [one.name for one, answer in zip(processors, answers, strict=True) if answer is None]
    if not request.request_id:
        raise NotReady(f"no processor answers: {', '.join(silent)}")
    words = f"; {', '.join(silent)} did not answer" if silent else ""
    raise Unknown(
        f"no processor keeps a request {request.request_id!r}{words}. Kept are sampled requests and those that were "
        "slow, failed, fell back or were refused (`processors.requests`)"
    )


async def list_requests(
    processors: Sequence[ProcessorFacts], request: pb.ListRequestsRequest
) -> pb.ListRequestsResponse:
    """Requests of all processors, newest first."""
    asked = [one for one in processors if request.processor in ("", one.name)]
    if request.processor and not asked:
        raise Unknown(f"there is no processor {request.processor!r}")
    answers = await asyncio.gather(*(_ask(one, "ListRequests", request) for one in asked))
    found = [item for answer in answers if isinstance(answer, pb.ListRequestsResponse) for item in answer.requests]
    found.sort(key=lambda one: one.at_unix_s, reverse=True)
    silent = [
        one.name for one, answer in zip(asked, answers, strict=True) if not isinstance(answer, pb.ListRequestsResponse)
    ]
    return pb.ListRequestsResponse(requests=found[: request.limit or LIST_DEFAULT], unreachable=silent)


async def _ask(processor: ProcessorFacts, method: str, request: Any) -> Any:
    """The answer; "not-kept" where it has no such request, None when it does not answer."""
    async with grpc.aio.insecure_channel(processor.address, options=(("grpc.enable_http_proxy", 0),)) as channel:
        stub = admin_pb2_grpc.AdminStub(channel)  # type: ignore[no-untyped-call]
        try:
            return await getattr(stub, method)(request, timeout=TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            return "not-kept" if error.code() is grpc.StatusCode.NOT_FOUND else None
