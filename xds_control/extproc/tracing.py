"""The span of a decision, joined to the trace that Envoy or the client began. Pure: times come in.

Envoy gives the context of its own span in the metadata of each ext_proc stream. Where it traces nothing, the client's
`traceparent` header counts. The parent's sampled flag decides; a request that is not sampled costs a look at it.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from typing import Final

from xds_control.extproc import otlp
from xds_control.extproc.decision import Decision, clip
from xds_control.policy.tracing import TracingPolicy

PARENT: Final = "traceparent"
STATE: Final = "tracestate"
NAME: Final = "xds-control decide"
_FORM: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?\Z")
_LONGEST_STATE: Final = 512
_NO_TRACE: Final = "0" * 32
_NO_SPAN: Final = "0" * 16


def read_parent(text: str) -> tuple[bytes, bytes, bool] | None:
    """(trace id, span id, sampled) of a W3C traceparent; None when it is not one."""
    found = _FORM.match(text)
    if found is None:
        return None
    version, trace, parent, flags, more = found.groups()
    if version == "ff" or trace == _NO_TRACE or parent == _NO_SPAN or (version == "00" and more):
        return None
    return bytes.fromhex(trace), bytes.fromhex(parent), bool(int(flags, 16) & 1)


class Began:
    """A request under way that may be traced. parent, state: from the stream's metadata, "" when not there."""

    __slots__ = ("at_ns", "parent", "state", "tracer")

    def __init__(self, tracer: Tracer, parent: str, state: str, at_ns: int) -> None:
        self.tracer = tracer
        self.parent = parent
        self.state = state
        self.at_ns = at_ns


class Tracer:
    """Makes the spans of one processor. sink: takes each span in wire form."""

    def __init__(self, policy: TracingPolicy, sink: Callable[[bytes], None], rng: random.Random | None = None) -> None:
        self.policy = policy
        self._sink = sink
        self._rng = rng or random.Random()

    def begin(self, metadata: Mapping[str, str], at_ns: int) -> Began | None:
        """At a stream's start; None when it is known already that nothing will be recorded. at_ns: unix time."""
        parent = metadata.get(PARENT, "")
        if parent and parent.endswith("-00"):
            return None  # the usual case
        return Began(self, parent, metadata.get(STATE, ""), at_ns)

    def end(self, began: Began, headers: Mapping[str, str], decision: Decision | None, error: str, at_ns: int) -> None:
        """At the decision, or at what came instead. headers: the request's. error: our stable code, "" when fine."""
        text, state = began.parent, began.state
        if not text:
            text, state = headers.get(PARENT, ""), headers.get(STATE, "")
        parent = read_parent(text) if text else None
        if parent is None:
            if self._rng.random() >= self.policy.sample_share:
                return
            trace_id, parent_id, state = self._rng.getrandbits(128).to_bytes(16, "big"), b"", ""
        else:
            trace_id, parent_id, sampled = parent
            if not sampled:
                return
        span_id = self._rng.getrandbits(64).to_bytes(8, "big")
        found = {} if decision is None else attributes(decision)
        state = state if len(state) <= _LONGEST_STATE else ""
        self._sink(otlp.span(trace_id, span_id, parent_id, state, NAME, began.at_ns, at_ns, found, error))


def attributes(decision: Decision) -> dict[str, otlp.Value]:
    """What a span tells of a decision: names, numbers and reasons; no prompt, tenant or key."""
    facts, priced = decision.facts, decision.priced
    found: dict[str, otlp.Value] = {
        "xds_control.decision.id": decision.id,
        "xds_control.processor": decision.processor,
        "xds_control.reason": decision.reason,
        "xds_control.pool": decision.pool,
        "xds_control.rule": decision.rule,
        "xds_control.class": clip(decision.service_class),
        "xds_control.api": facts.api,
        "gen_ai.request.model": clip(decision.model),
        "xds_control.prompt_tokens_estimate": facts.prompt_tokens,
        "xds_control.output_tokens_estimate": facts.expected_output_tokens,
    }
    if decision.destinations:
        found["xds_control.pick"] = decision.destinations[0]
        found["xds_control.matched_tokens"] = decision.matched_tokens
    if priced is not None:
        found["xds_control.pick.reason"] = priced.reason
        found["xds_control.pick.candidates"] = priced.candidates
        found["xds_control.pick.expected_ttft_s"] = float(priced.expected_ttft_s)
        found["xds_control.pick.cost_s"] = float(priced.cost_s)
    if decision.immediate is not None:
        found["http.response.status_code"] = decision.immediate.status
    return {name: value for name, value in found.items() if value != ""}
