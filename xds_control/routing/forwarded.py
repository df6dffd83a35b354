"""Which request headers the processors need to see: Envoy sends only these, because each one costs time."""

from __future__ import annotations

from typing import Final

from xds_control.policy import headers
from xds_control.policy.schema import Policy
from xds_control.routing.rules import compile_rules

ALWAYS: Final = (
    ":path",
    ":method",
    "content-type",
    "content-encoding",
    "content-length",
    "x-request-id",
    "x-original-path",
    "inference-header-content-length",
    "prefer",
)
CONTROL: Final = (
    "x-llm-d-inference-objective",
    "x-gateway-inference-objective",
    "x-llm-d-inference-fairness-id",
    "x-gateway-inference-fairness-id",
    "x-llm-d-model-name-rewrite",
    "x-gateway-model-name-rewrite",
    "x-llm-d-slo-ttft-ms",
    "x-slo-ttft-ms",
    "x-llm-d-slo-tpot-ms",
    "x-slo-tpot-ms",
    "x-session-token",
)
TRACE: Final = ("traceparent", "tracestate")


def forwarded_headers(policy: Policy) -> tuple[str, ...] | None:
    """Header names in lower case, sorted; None when a rule looks at all of them.

    Raises PolicyError when a rule does not compile.
    """
    names = {*ALWAYS, *CONTROL, *(name.lower() for name in policy.ext_proc.request_headers)}
    inspect = policy.inspect
    for source in inspect.session_sources:
        kind, _, rest = source.partition(":")
        if kind == "header":
            names.add(rest)
        elif kind == "cookie":
            names.add("cookie")
    names.update(inspect.tenant_sources, inspect.class_sources, inspect.priority_headers)
    if policy.picker.header:
        names.add(policy.picker.header.lower())
    for profile in policy.picker.profiles.values():
        if profile.session.token_header:
            names.add(profile.session.token_header.lower())
    if policy.tracing is not None:
        names.update(TRACE)
    ruled = compile_rules(policy.routing, [pool.name for pool in policy.pools]).header_names
    if ruled is None:
        return None
    # reserved ones are removed before the filter runs; asking for them would only cost time
    return tuple(sorted((names | ruled) - set(headers.RESERVED_REQUEST_HEADERS)))
