"""The endpoint picker (ring 3): which endpoint of the pool serves a request, and what stands ready if it cannot."""

from __future__ import annotations

import fnmatch
from typing import Annotated, Literal

import msgspec

from xds_control.policy.base import Section, meta

SCORERS: tuple[str, ...] = (
    "queue",
    "queue-depth",
    "running",
    "kv",
    "load-aware",
    "lora",
    "prefix",
    "active-request",
    "token-load",
    "context-length",
    "session-affinity",
    "no-hit-lru",
    "least-latency",
    "lmetric",
    "topology",
)
"""Names of the scorers that a profile may weigh. `routing/scorers.py` has their formulas."""


class CostPolicy(Section, frozen=True):
    """Weights of the least-total-cost rule. Everything is in seconds; docs/picker.md has the formula."""

    interference: Annotated[
        float,
        meta(
            "share of this request's prefill time that each running sequence is taken to lose by it; 0 makes the rule "
            "selfish, which costs goodput near capacity",
            ge=0,
            le=2,
        ),
    ] = 0.02
    congestion: Annotated[
        float,
        meta(
            "share of this request's prefill time that each request which arrives while the backlog lasts is taken to "
            "lose by it; keeps prefixes together when the pool is short of time, and does nothing when it is not",
            ge=0,
            le=10,
        ),
    ] = 0.5
    eviction: Annotated[
        float,
        meta(
            "share of the prefill time of each new token that is lost again because it pushes another prefix out; "
            "counts in proportion to how full the endpoint's prefix cache is",
            ge=0,
            le=2,
        ),
    ] = 0.3
    balance: Annotated[
        float,
        meta(
            "evens out the work given over the last quarter of an hour: cost, in usual prefill times, of an endpoint "
            "that got twice its share (at most that of half as much more)",
            ge=0,
            le=100,
        ),
    ] = 4.0
    decode: Annotated[
        float,
        meta("weight of one expected output token's decode time, the added time of the others included", ge=0, le=2),
    ] = 0.05
    memory_knee: Annotated[
        float, meta("KV use above which holding KV memory has a price", unit="ratio", ge=0, lt=1)
    ] = 0.6
    memory_price: Annotated[
        float,
        meta("price of the whole KV cache at full use, in replica-seconds for each second it is held", ge=0, le=100),
    ] = 1.0
    kv_margin: Annotated[
        float,
        meta(
            "predicted KV need is taken this much larger before it is held against free memory",
            unit="ratio",
            ge=0,
            le=2,
        ),
    ] = 0.2
    tie_s: Annotated[float, meta("costs this close are a tie", unit="s", ge=0, le=1)] = 0.005
    tie_ratio: Annotated[float, meta("costs within this share of the least are a tie", unit="ratio", ge=0, le=1)] = 0.03
    lora_load_s: Annotated[
        float, meta("cost of an adapter that is not resident but has a free slot", unit="s", ge=0, le=60)
    ] = 0.2
    lora_evict_s: Annotated[float, meta("cost of an adapter for which another one must go", unit="s", ge=0, le=60)] = (
        1.0
    )
    stale_s: Annotated[
        float,
        meta(
            "cost added to an endpoint whose load is unknown or too old while others' is known", unit="s", ge=0, le=60
        ),
    ] = 0.02


class AffinityPolicy(Section, frozen=True):
    """The affinity rule: stay with the longest match, a switch with release by endpoint. Never a blended term."""

    min_match_ratio: Annotated[
        float, meta("share of the prompt that must be cached, from its beginning on", unit="ratio", ge=0, le=1)
    ] = 0.5
    min_match_tokens: Annotated[int, meta("or this many tokens; 0 = only the share counts", unit="tokens", ge=0)] = 0
    max_penalty_s: Annotated[
        float,
        meta(
            "affinity ends when its expected time to first token exceeds the best other's by this",
            unit="s",
            ge=0,
            le=600,
        ),
    ] = 2.0


class SessionPolicy(Section, frozen=True):
    """Sessions: requests of one key go to one endpoint, found by rendezvous hashing, without any table."""

    mode: Annotated[
        Literal["off", "auto", "prefer", "strict"],
        meta(
            "off; auto = prefer where the prompt gives no prefix keys, else only to settle ties; prefer = with bounded "
            "load and release by max_penalty_s; strict = leaves only when its endpoint takes no traffic"
        ),
    ] = "auto"
    ttl_s: Annotated[
        float, meta("how long a place that is not the session's home is remembered", unit="s", gt=0, le=86400)
    ] = 300.0
    load_bound: Annotated[
        float, meta("a home is passed over when its requests exceed this multiple of the pool's mean...", ge=1, le=100)
    ] = 1.25
    load_margin: Annotated[float, meta("...and exceed the mean by this many requests", unit="requests", ge=0)] = 4.0
    max_penalty_s: Annotated[
        float,
        meta("or when its expected time to first token exceeds the best other's by this", unit="s", ge=0, le=600),
    ] = 5.0
    remembered: Annotated[int, meta("most sessions away from home that are remembered", ge=0, le=10_000_000)] = 100_000
    token_header: Annotated[
        str,
        meta(
            "request and response header with an opaque token of the endpoint; empty switches it off",
            example="x-session-token",
        ),
    ] = ""


class ShedPolicy(Section, frozen=True):
    """Refusing by prediction: worth more than any balancing once the pool is over its capacity."""

    enabled: Annotated[bool, meta("whether requests are refused (429) by predicted time to first token")] = False
    slo_share: Annotated[
        float,
        meta(
            "refuse when even the best endpoint's expected TTFT exceeds this share of the class's TTFT target",
            gt=0,
            le=10,
        ),
    ] = 0.5
    classes: Annotated[
        tuple[str, ...],
        meta("service classes that are refused (429) while the pool is saturated", example=["batch"]),
    ] = ()
    saturation: Annotated[
        float,
        meta("saturation from which they are: mean of max(waiting ÷ queue, KV use ÷ kv) over the endpoints", gt=0),
    ] = 1.0
    queue: Annotated[float, meta("waiting requests that saturate an endpoint", unit="requests", gt=0)] = 5.0
    kv: Annotated[float, meta("KV use that saturates an endpoint", unit="ratio", gt=0, le=1)] = 0.8
    retry_after_s: Annotated[float, meta("shortest Retry-After", unit="s", ge=0, le=3600)] = 1.0


class LimitPolicy(Section, frozen=True):
    """Hard limits of one endpoint. When they leave nobody, the request is refused with 429."""

    max_concurrency: Annotated[
        int, meta("most requests in flight on one endpoint; 0 = no limit", unit="requests", ge=0)
    ] = 0
    cooldown_s: Annotated[
        float,
        meta(
            "an endpoint that got a request is passed over for this long while another one of equal standing is there; "
            "0 = off, 0.2 is usual",
            unit="s",
            ge=0,
            le=10,
        ),
    ] = 0.0
    rest_s: Annotated[
        float, meta("an endpoint that refused or failed is left alone for this long, doubling", unit="s", ge=0, le=60)
    ] = 1.0
    rest_max_s: Annotated[float, meta("longest rest after repeated failures", unit="s", ge=0, le=600)] = 10.0
    stale_s: Annotated[
        float,
        meta(
            "a load older than this says nothing: the endpoint counts as average and stands back; keep it well above "
            "the longest scrape interval",
            unit="s",
            gt=0,
            le=600,
        ),
    ] = 10.0
    context_length: Annotated[
        bool, meta("whether endpoints whose context is too short for prompt and allowed output are left out")
    ] = True


class PrefixPolicy(Section, frozen=True):
    """What is believed about prefix caches."""

    enabled: Annotated[bool, meta("whether prefixes are remembered and matched")] = True
    budget_bytes: Annotated[
        int, meta("memory of the index in one processor", unit="bytes", ge=1 << 20, le=1 << 36, example=268435456)
    ] = 256 << 20
    ttl_s: Annotated[float, meta("a prefix that nobody used for this long is forgotten", unit="s", gt=0, le=604800)] = (
        3600.0
    )
    cache_tokens: Annotated[
        int,
        meta("cache size of an engine that does not tell its own", unit="tokens", ge=1024, example=400000),
    ] = 400_000
    output_cached: Annotated[bool, meta("whether generated tokens take room in the engine's prefix cache too")] = True
    shrink: Annotated[
        float,
        meta("the believed cache shrinks by this share when an answer reports far fewer cached tokens", gt=0, lt=1),
    ] = 0.1
    events_port: Annotated[
        int,
        meta(
            "port on each endpoint's host where its engine publishes KV events (ZMQ PUB, usually 5557); 0 = none. "
            "Needs the `kv-events` extra. Where several engines share a host, labels of the endpoint say it instead: "
            "`kv-events-port`, `kv-replay-port`",
            ge=0,
            le=65535,
        ),
    ] = 0
    events_ranks: Annotated[
        int, meta("data-parallel ranks of an endpoint; rank r publishes at the port plus r", ge=1, le=1024)
    ] = 1
    events_replay_port: Annotated[
        int, meta("port of the first rank's replay socket (ZMQ ROUTER); 0 = none", ge=0, le=65535)
    ] = 0
    events_topic: Annotated[str, meta("topic prefix of the events; empty = all", example="kv@")] = ""
    exact: Annotated[
        Literal["off", "auto"],
        meta("auto = where engines publish KV events and these are received, they replace the belief"),
    ] = "auto"


class RatesPolicy(Section, frozen=True):
    """Speeds: priors, and how they are learned from access logs and scrapes."""

    learn: Annotated[bool, meta("whether speeds are learned; false keeps the priors")] = True
    prefill_s_per_token: Annotated[
        float, meta("prior: prefill time of one uncached token", unit="s", gt=0, le=1, example=0.0001)
    ] = 0.0001
    step_base_s: Annotated[float, meta("prior: decode step of an empty batch", unit="s", gt=0, le=10)] = 0.01
    step_per_sequence_s: Annotated[float, meta("prior: added by each sequence", unit="s", ge=0, le=1)] = 0.0002
    step_per_kv_token_s: Annotated[float, meta("prior: added by each KV token", unit="s", ge=0, le=0.01)] = 2e-8
    memory_s: Annotated[float, meta("time after which an observation counts 1/e", unit="s", ge=1, le=86400)] = 300.0
    speed_band: Annotated[
        float,
        meta("an endpoint within this share of the pool's speed counts as equal to it", unit="ratio", ge=0, le=1),
    ] = 0.3
    output_tokens: Annotated[
        int, meta("expected output of a request about which nothing is known", unit="tokens", ge=1)
    ] = 200


class DisaggPolicy(Section, frozen=True):
    """Prefill and decode on different endpoints (roles come from the endpoints)."""

    mode: Annotated[
        Literal["off", "auto", "always"],
        meta("off = decode endpoints do both; auto = above the bounds; always = whenever a prefill endpoint is there"),
    ] = "auto"
    uncached_tokens: Annotated[
        int, meta("auto: more uncached tokens than this go to a prefill endpoint", unit="tokens", ge=0)
    ] = 512
    prompt_tokens: Annotated[int, meta("auto: and the prompt has at least this many", unit="tokens", ge=0)] = 0
    transfer_s_per_token: Annotated[
        float, meta("time to move one token's KV from prefill to decode", unit="s", ge=0, le=0.01)
    ] = 5e-6
    connector: Annotated[
        Literal["llm-d", "vllm", "sglang"],
        meta(
            "who reads the choice: llm-d = x-prefiller-host-port for its sidecar; vllm = both addresses in "
            "x-request-id (P2P NCCL connector); sglang = bootstrap host, port and room headers beside it"
        ),
    ] = "llm-d"
    bootstrap_port: Annotated[int, meta("sglang: bootstrap port of prefill endpoints", ge=1, le=65535)] = 8998


class ProfilePolicy(Section, frozen=True):
    """One way of picking. A profile is chosen by rule, header, model, class or pool."""

    rule: Annotated[
        Literal["least-cost", "affinity", "scorers"],
        meta("least total cost in seconds; affinity with release; or a weighted sum of named scorers"),
    ] = "least-cost"
    picker: Annotated[
        Literal["max-score", "weighted-random", "power-of-two", "random"],
        meta("how one of the scored endpoints is chosen"),
    ] = "max-score"
    scorers: Annotated[
        dict[str, float], meta("weights of the scorers (rule `scorers`)", example={"queue": 2, "kv": 2, "prefix": 3})
    ] = {}
    filters: Annotated[
        tuple[Literal["session-affinity", "kv-fit", "saturation", "prefix-affinity", "lora", "test-header"], ...],
        meta(
            "further filters: session-affinity pins to the session token or key; kv-fit drops endpoints without room; "
            "saturation drops those over queue 5 or KV 0.8; prefix-affinity keeps long matches; lora keeps residents; "
            "test-header obeys `test-epp-endpoint-selection` (conformance only)"
        ),
    ] = ()
    cost: Annotated[CostPolicy, meta("weights of the cost")] = CostPolicy()
    affinity: Annotated[AffinityPolicy, meta("the affinity switch")] = AffinityPolicy()
    session: Annotated[SessionPolicy, meta("sessions")] = SessionPolicy()
    shed: Annotated[ShedPolicy, meta("refusing by prediction")] = ShedPolicy()
    require_labels: Annotated[
        dict[str, str],
        meta(
            "endpoint labels that must be there with this value; none left is refused with 429", example={"gpu": "h200"}
        ),
    ] = {}
    disagg: Annotated[DisaggPolicy, meta("prefill and decode split")] = DisaggPolicy()
    load_aware_threshold: Annotated[int, meta("scorer load-aware: queue that scores 0", ge=1)] = 128
    token_load_threshold: Annotated[
        int, meta("scorer token-load: tokens in flight that score 0", unit="tokens", ge=1)
    ] = 4_194_304
    active_idle: Annotated[int, meta("scorer active-request: requests that still count as idle", ge=0)] = 0
    active_max_busy: Annotated[float, meta("scorer active-request: score of the least busy busy one", ge=0, le=1)] = 1.0
    prefix_length_weight: Annotated[
        float, meta("scorer prefix: weight of matched length against matched share", ge=0, le=1)
    ] = 0.0
    prefix_length_tokens: Annotated[int, meta("scorer prefix: matched length that counts as full", ge=1)] = 8192

    def __post_init__(self) -> None:
        unknown = sorted(set(self.scorers) - set(SCORERS))
        if unknown:
            raise ValueError(f"unknown scorer {unknown[0]!r}; known are {', '.join(SCORERS)}")
        if any(not 0 <= weight < float("inf") for weight in self.scorers.values()):
            raise ValueError("weights of scorers must be finite and at least 0")
        if self.rule == "scorers" and not self.scorers:
            raise ValueError("rule `scorers` needs at least one scorer")

    @property
    def narrows(self) -> bool:
        """Whether it has filters of its own."""
        return bool(self.require_labels or self.filters)


class ProfileChoice(Section, frozen=True):
    """Which requests use a profile. All given conditions must hold; the first entry that matches decides."""

    profile: Annotated[str, meta("name of the profile", min_length=1)]
    model: Annotated[str, meta("model name, `*` and `?` as wildcards; empty = any", example="llama-*")] = ""
    service_class: Annotated[str, meta("service class, one of `classes`; empty = any", example="low")] = msgspec.field(
        default="", name="class"
    )
    pool: Annotated[str, meta("pool; empty = any")] = ""

    def matches(self, model: str, service_class: str, pool: str) -> bool:
        """Whether a request of this model, class and pool uses the profile."""
        return (
            (not self.pool or self.pool == pool)
            and (not self.service_class or self.service_class == service_class)
            and (not self.model or fnmatch.fnmatchcase(model, self.model))
        )


EPP_DEFAULT = ProfilePolicy(rule="scorers", scorers={"queue": 2.0, "kv": 2.0, "prefix": 3.0})
"""The leading picker's default blend, for comparison and for those who move from it."""

STICKY = ProfilePolicy(rule="affinity", affinity=AffinityPolicy(min_match_ratio=0.8, max_penalty_s=18.0))
"""Sticky until saturated, with its published threshold."""


class PickerPolicy(Section, frozen=True):
    """The picker of every pool. `default`, `affinity`, `epp-default` are there unless redefined."""

    profiles: Annotated[
        dict[str, ProfilePolicy], meta("profiles by name; `default` is used where nothing else is said")
    ] = {}
    use: Annotated[tuple[ProfileChoice, ...], meta("which requests use which profile; the first match decides")] = ()
    header: Annotated[str, meta("request header that may name a profile; empty = none may", example="epp-profile")] = ""
    nobody: Annotated[
        Literal["pass", "reject"],
        meta(
            "when no endpoint may be picked: pass leaves the request to Envoy's weights (it is refused with 503 only "
            "where the pool is empty), reject refuses it with 503, as Gateway API data planes expect"
        ),
    ] = "pass"
    fallbacks: Annotated[
        int, meta("endpoints in the answer: the pick and those that stand ready for a retry", ge=1, le=8)
    ] = 3
    limits: Annotated[LimitPolicy, meta("limits of one endpoint")] = LimitPolicy()
    prefix: Annotated[PrefixPolicy, meta("prefix index")] = PrefixPolicy()
    rates: Annotated[RatesPolicy, meta("learned speeds")] = RatesPolicy()
    lease_s: Annotated[
        float,
        meta(
            "a pick whose end is never reported stops counting after this, on endpoints that report no load",
            unit="s",
            gt=0,
            le=86400,
        ),
    ] = 600.0
    record_share: Annotated[
        float, meta("share of picks whose decision is kept for `explain`", unit="ratio", ge=0, le=1)
    ] = 0.005
    records: Annotated[int, meta("decisions that are kept", ge=0, le=100_000)] = 256

    def __post_init__(self) -> None:
        known = self.named()
        for choice in self.use:
            if choice.profile not in known:
                raise ValueError(f"picker.use names profile {choice.profile!r}; known are {', '.join(sorted(known))}")

    @property
    def token_header(self) -> str:
        """The header of session tokens, "" when no profile hands them out."""
        return next((p.session.token_header for p in self.named().values() if p.session.token_header), "")

    def named(self) -> dict[str, ProfilePolicy]:
        """All profiles, the built-in ones included."""
        return {"default": ProfilePolicy(), "affinity": STICKY, "epp-default": EPP_DEFAULT, **self.profiles}
