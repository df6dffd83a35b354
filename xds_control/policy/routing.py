"""How a request finds its pool: ordered rules, then model routes, then the models that pools serve."""

from __future__ import annotations

import re
from typing import Annotated, Literal

import msgspec

from xds_control.policy import headers
from xds_control.policy.base import Section, bound, meta

_HEADER_NAME = re.compile(r"^[a-z0-9!#$%&'*+.^_`|~-]+$")
_HEADER_VALUE = re.compile(r"^[^\x00\r\n]*$")
_NOT_OURS = ("host", "content-length", "transfer-encoding", "connection", "te", "upgrade")


class Target(Section, frozen=True, kw_only=True):
    """Where a model route sends a share of its requests."""

    pool: Annotated[str, meta("pool that serves this share", min_length=1, example="llama-70b")]
    model: Annotated[
        str,
        meta("model name written into the body for this pool; empty leaves the body alone", example="llama-3.3-70b"),
    ] = ""
    weight: Annotated[
        Annotated[float, bound(ge=0, le=1e6)] | None,
        meta(
            "share of sessions, relative to the other targets; a target without one takes none when another has one",
            example=95,
        ),
    ] = None


class Mirror(Section, frozen=True, kw_only=True):
    """A copy of some requests for a second pool, whose answers are thrown away."""

    pool: Annotated[str, meta("pool that gets the copies", min_length=1, example="llama-70b-next")]
    share: Annotated[float, meta("share of sessions that are copied", unit="ratio", ge=0, le=1, example=0.05)] = 1.0


class ModelRoute(Section, frozen=True, kw_only=True):
    """One model name, or a family of names, and the pools that serve it. Exactly one of `model`, `prefix`, `regex`."""

    name: Annotated[
        str, meta("name in explanations and metrics; made from the match when empty", example="chat-canary")
    ] = ""
    model: Annotated[str, meta("exact model name", example="gpt-4o")] = ""
    prefix: Annotated[
        str, meta("matches every model name that begins so; the longest prefix wins", example="llama-")
    ] = ""
    regex: Annotated[
        str,
        meta(
            "matches model names wholly, by Python's regular expressions; tried in order, last", example="qwen.*-int8"
        ),
    ] = ""
    aliases: Annotated[tuple[str, ...], meta("other exact names that clients use for it", example=["gpt-4"])] = ()
    adapters: Annotated[
        tuple[str, ...],
        meta(
            "LoRA adapters of this base model: their names are served by the same targets, with the name kept",
            example=["sql-lora"],
        ),
    ] = ()
    to: Annotated[tuple[Target, ...], meta("pools, split by weight; a session stays with its pool", min_length=1)]
    fallback: Annotated[
        tuple[Target, ...], meta("pools to use, in this order, when every pool of `to` is out. Weights are ignored")
    ] = ()
    mirror: Annotated[Mirror | None, meta("copies some requests to another pool")] = None

    def __post_init__(self) -> None:
        given = [field for field in ("model", "prefix", "regex") if getattr(self, field)]
        if len(given) != 1:
            found = " and ".join(given) if given else "none"
            message = f"a model route needs exactly one of model, prefix and regex; found {found}"
            raise ValueError(message)
        if self.regex:
            try:
                re.compile(self.regex)
            except re.error as error:
                message = f"regex {self.regex!r} does not compile: {error}"
                raise ValueError(message) from None
        if any(target.weight is not None for target in self.to) and not any(target.weight for target in self.to):
            message = "the weights of a model route are all 0; at least one must be above"
            raise ValueError(message)

    @property
    def label(self) -> str:
        """What explanations call this route."""
        return self.name or self.model or (f"{self.prefix}*" if self.prefix else f"/{self.regex}/")


class Reject(Section, frozen=True, kw_only=True):
    """Refuses the request, in the error form of the API that was called."""

    status: Annotated[int, meta("HTTP status", ge=400, le=599, example=429)] = 403
    message: Annotated[str, meta("what the client is told", max_length=500)] = "The request is not allowed by policy."
    reason: Annotated[
        str, meta("stable reason code for clients and metrics", pattern="^[a-z0-9-]{1,64}$", example="batch-closed")
    ] = "rejected-by-rule"
    retry_after_s: Annotated[
        Annotated[float, bound(ge=0, le=86400)] | None, meta("sent as Retry-After, rounded up", unit="s")
    ] = None


class Limits(Section, frozen=True, kw_only=True):
    """Bounds on what a request may ask for; beyond them it is refused with 400 (413 for the body)."""

    prompt_tokens: Annotated[Annotated[int, bound(ge=1)] | None, meta("largest estimated prompt", unit="tokens")] = None
    output_tokens: Annotated[
        Annotated[int, bound(ge=1)] | None, meta("largest max_tokens that a client may ask for", unit="tokens")
    ] = None
    total_tokens: Annotated[
        Annotated[int, bound(ge=1)] | None, meta("largest prompt plus max_tokens", unit="tokens")
    ] = None
    body_bytes: Annotated[Annotated[int, bound(ge=1)] | None, meta("largest body", unit="bytes")] = None
    images: Annotated[Annotated[int, bound(ge=0)] | None, meta("most images in one request")] = None
    n: Annotated[Annotated[int, bound(ge=1)] | None, meta("most choices (`n`) in one request")] = None


class Rule(Section, frozen=True, kw_only=True):
    """What to do with the requests for which `when` is true. The first match decides; the rest are not tried."""

    name: Annotated[
        str, meta("name in explanations, headers and metrics", min_length=1, max_length=64, example="long-code")
    ]
    when: Annotated[
        str,
        meta(
            "CEL expression over request, headers and pools; one that fails on a request does not match it",
            min_length=1,
            max_length=4096,
            example="request.prompt_tokens > 8000 && 'code' in request.tags",
        ),
    ]
    pool: Annotated[
        str | tuple[str, ...],
        meta(
            "pool to use, or several in order of preference; empty leaves the choice to the model routes",
            example="long-context",
        ),
    ] = ""
    model: Annotated[str, meta("model name written into the body; empty leaves it alone")] = ""
    service_class: Annotated[
        str, meta("service class of the request, one of `classes`; empty leaves it alone", example="low")
    ] = msgspec.field(default="", name="class")
    tenant: Annotated[str, meta("tenant of the request; empty leaves it alone")] = ""
    profile: Annotated[str, meta("picker profile; empty means the pool's", example="low-latency")] = ""
    headers: Annotated[
        dict[str, str], meta("request headers to set on the way to the engine", example={"x-priority": "10"})
    ] = {}
    limits: Annotated[Limits | None, meta("bounds for the requests of this rule")] = None
    reject: Annotated[Reject | None, meta("refuses the requests of this rule")] = None

    def __post_init__(self) -> None:
        for name, value in self.headers.items():
            problem = header_problem(name, value)
            if problem:
                raise ValueError(problem)
        if self.reject is not None and (self.pools or self.model or self.headers):
            message = f"rule {self.name!r} rejects, so it cannot also set pool, model or headers"
            raise ValueError(message)

    @property
    def pools(self) -> tuple[str, ...]:
        """The pools of this rule in order of preference, () when it names none."""
        if isinstance(self.pool, str):
            return (self.pool,) if self.pool else ()
        return self.pool


def header_problem(name: str, value: str) -> str | None:
    """Why policy may not set this request header, or None when it may."""
    if not _HEADER_NAME.match(name):
        return f"header {name!r} is not a lower-case HTTP header name"
    if name in headers.RESERVED_REQUEST_HEADERS:
        return f"header {name!r} is reserved; see the list of reserved headers"
    if name in _NOT_OURS or name.startswith("x-envoy-"):
        return f"header {name!r} cannot be changed by a rule"
    if not _HEADER_VALUE.match(value):
        return f"the value of header {name!r} contains a line break or NUL"
    return None


class RoutingPolicy(Section, frozen=True, kw_only=True):
    """Rules first; then model routes; then the pools that serve the model; then the default pool."""

    rules: Annotated[tuple[Rule, ...], meta("tried in order; the first match decides", max_length=200)] = ()
    models: Annotated[
        tuple[ModelRoute, ...], meta("routes by model name; exact names, then prefixes, then expressions")
    ] = ()
    default_pool: Annotated[
        str,
        meta(
            "pool for requests that name no model or an unknown one; empty means the only pool when there is one",
            example="general",
        ),
    ] = ""
    unknown_model: Annotated[
        Literal[404, "default"],
        meta(
            "what a request gets whose model no pool serves: 404 in the API's error form, or the default pool "
            "(404 when there is none)"
        ),
    ] = "default"
    slo_target: Annotated[
        float,
        meta(
            "share of requests that should meet their SLO; `slo_headroom` in rules counts from here",
            unit="ratio",
            ge=0,
            le=1,
        ),
    ] = 0.95
    max_rule_cost: Annotated[
        int,
        meta(
            "most evaluation steps that one rule may take at worst; loops multiply", unit="steps", ge=10, le=1_000_000
        ),
    ] = 10_000

    @property
    def mirrors(self) -> bool:
        """Whether some model route copies requests to another pool."""
        return any(route.mirror is not None for route in self.models)

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for rule in self.rules:
            if rule.name in seen:
                message = f"two rules are named {rule.name!r}"
                raise ValueError(message)
            seen.add(rule.name)
