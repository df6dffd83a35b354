"""Requests and decisions as admin messages (pure). Never a prompt: counts, keys and names only."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from xds_control.extproc.decision import Decision
from xds_control.inspect.facts import RequestFacts
from xds_control.policy.headers import PROMPT_TOKENS
from xds_control.proto import admin_pb2 as pb
from xds_control.routing.explain import Candidate, Record
from xds_control.signals.finished import Finished

_SECRET_WORDS = ("authorization", "api-key", "apikey", "api_key", "cookie", "auth-token", "secret", "password")


def facts_message(facts: RequestFacts) -> pb.RequestFacts:
    """What was read in a request."""
    return pb.RequestFacts(
        api=facts.api,
        path=facts.path.partition("?")[0],
        model=facts.model,
        body_bytes=facts.body_bytes,
        prompt_bytes=facts.prompt_bytes,
        prompt_tokens=facts.prompt_tokens,
        tokens_exact=facts.tokens_exact,
        max_output_tokens=facts.max_output_tokens,
        expected_output_tokens=facts.expected_output_tokens,
        stream=facts.stream,
        n=max(0, min(facts.n, 0xFFFFFFFF)),
        messages=facts.messages,
        tools=facts.tools,
        images=facts.images,
        media_count=facts.media_count,
        media_bytes=facts.media_bytes,
        priority=None if facts.priority is None else max(-(1 << 63), min(facts.priority, (1 << 63) - 1)),
        lora=facts.lora,
        cache_salted=bool(facts.cache_salt),
        session_key=f"{facts.session_key:016x}" if facts.session_key else "",
        session_source=facts.session_source,
        prefix_blocks=len(facts.prefix_keys),
        prefix_key=f"{facts.prefix_keys[-1]:016x}" if facts.prefix_keys else "",
        tenant=facts.tenant,
        service_class=facts.service_class,
        tags=facts.tags,
        problem=facts.problem.value,
        detail=facts.detail,
    )


def decision_message(decision: Decision, record: Record | None = None) -> pb.Decision:
    """What was decided. record: the picker's own, for expected times."""
    message = pb.Decision(
        rule=decision.rule,
        route=decision.route,
        pool=decision.pool,
        model=decision.model,
        service_class=decision.service_class,
        tenant=decision.tenant,
        profile=decision.profile,
        reason=decision.reason,
        destinations=decision.destinations,
        matched_tokens=decision.matched_tokens,
        headers=shown_headers(decision.headers),
        status=decision.immediate.status if decision.immediate is not None else 0,
    )
    if record is not None:
        message.prefill = record.pick.prefill or ""
        if math.isfinite(record.pick.expected_ttft_s):
            message.expected_ttft_s = record.pick.expected_ttft_s
        if math.isfinite(record.pick.cost_s):
            message.cost_s = record.pick.cost_s
    return message


def shown_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Headers as they may be shown: policy may set credentials for an engine."""
    secret = ("authorization", "auth-", "-auth", "key", "cookie", "token", "secret", "password", "credential")
    return {
        name: "(hidden)" if any(word in name.lower() for word in secret) and name != PROMPT_TOKENS else value
        for name, value in headers.items()
    }


def candidate_message(candidate: Candidate) -> pb.Candidate:
    """One endpoint as it stood for a request. Parts that are not finite (an endpoint that is out) are left at zero."""
    return pb.Candidate(
        endpoint=candidate.address,
        cost_s=_finite(candidate.cost_s),
        expected_ttft_s=_finite(candidate.expected_ttft_s),
        wait_s=_finite(candidate.wait_s),
        prefill_s=_finite(candidate.prefill_s),
        kv_wait_s=_finite(candidate.kv_wait_s),
        interference_s=_finite(candidate.interference_s),
        decode_s=_finite(candidate.decode_s),
        memory_s=_finite(candidate.memory_s),
        fixed_s=_finite(candidate.fixed_s),
        matched_tokens=max(0, int(candidate.matched_tokens)),
        in_flight=_finite(candidate.in_flight),
        speed=_finite(candidate.speed),
        score=None if candidate.score is None else _finite(candidate.score),
        excluded=candidate.excluded,
    )


def _finite(value: float) -> float:
    return float(value) if math.isfinite(value) else 0.0


def outcome_message(finished: Finished) -> pb.RequestOutcome:
    """How a request ended."""
    return pb.RequestOutcome(
        kind=finished.kind,
        status=finished.status,
        endpoint=finished.endpoint,
        attempts=finished.attempts,
        prompt_tokens=finished.prompt_tokens,
        completion_tokens=finished.completion_tokens,
        cached_tokens=finished.cached_tokens,
        ttft_s=finished.ttft_s,
        decode_s=finished.decode_s,
        e2e_s=finished.e2e_s,
        queue_s=finished.queue_s,
    )


def explanation_message(
    decision: Decision,
    at_unix_s: float,
    record: Record | None = None,
    *,
    processor: str = "",
    dry_run: bool = False,
    outcome: Finished | None = None,
    notable: str = "",
) -> pb.RequestExplanation:
    """A request with everything that is known of it."""
    return pb.RequestExplanation(
        id=decision.id,
        at_unix_s=at_unix_s,
        processor=processor,
        dry_run=dry_run,
        facts=facts_message(decision.facts),
        decision=decision_message(decision, record),
        candidates=_cheapest_first(record.candidates) if record is not None else (),
        endpoints=record.total if record is not None else 0,
        why=record.why() if record is not None else _why(decision),
        outcome=None if outcome is None else outcome_message(outcome),
        notable=notable,
    )


def _cheapest_first(candidates: Iterable[Candidate]) -> list[pb.Candidate]:
    order = sorted(candidates, key=lambda one: (bool(one.excluded), one.cost_s if math.isfinite(one.cost_s) else 1e300))
    return [candidate_message(one) for one in order]


def _why(decision: Decision) -> str:
    """The decision in one sentence, where the picker had no part in it."""
    if decision.immediate is not None:
        return f"answered {decision.immediate.status} by the processor: {decision.immediate.reason}"
    if not decision.pool:
        return "nothing was decided: Envoy routes by its own defaults"
    by = f"rule {decision.rule!r}" if decision.rule else (f"model route {decision.route!r}" if decision.route else "")
    place = f"pool {decision.pool}" + (f" by {by}" if by else "")
    if decision.destinations:
        return f"{place}, endpoint {decision.destinations[0]}"
    return f"{place}; Envoy chooses by weights"
