"""What the processor decides about one request: data only, encoded for the wire by `answers`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from xds_control.inspect.facts import RequestFacts
from xds_control.policy import headers as names
from xds_control.routing.pick import Pick as Priced

MetadataValue = str | float | int


_LONGEST = 256


def clip(text: str) -> str:
    """Client text, bounded for headers and metadata."""
    return text if len(text) <= _LONGEST else text[:_LONGEST]


@dataclass(slots=True)
class Immediate:
    """An answer that the processor gives instead of an engine. reason: stable code, also in x-xds-control-reason."""

    status: int
    reason: str
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Hold:
    """Admission keeps the answer back, for `wait_s` at most. key: what the edge waits on, given by admission."""

    key: Any
    reason: str = "queued"
    wait_s: float = 0.0


@dataclass(slots=True)
class Decision:
    """Everything that follows from one request's headers and body.

    reason: "picked", "weights" (Envoy balances), "passed" (nothing to change) or "rejected:<code>".
    headers: request headers to set; reserved ones that are not set are removed from every request.
    drop_headers: further request headers to remove (the content-encoding of a rewritten body).
    processor: name of the processor that decided.
    more_metadata: further facts that come back with the outcome, from the picker.
    destinations: the pick, in order of preference; () when Envoy balances by weights.
    body: the body to send instead of the client's, None to leave it.
    original_model: the client's model name when the body names another one, else "".
    hold: set while admission keeps the request back; the decision is then not complete.
    response_headers: headers to set on the answer, where the data plane shows it to the processor.
    priced: the picker's own answer, for explanations.
    """

    id: str
    facts: RequestFacts
    processor: str = ""
    pool: str = ""
    rule: str = ""
    route: str = ""
    model: str = ""
    service_class: str = ""
    tenant: str = ""
    profile: str = ""
    reason: str = "passed"
    headers: dict[str, str] = field(default_factory=dict)
    drop_headers: tuple[str, ...] = ()
    destinations: tuple[str, ...] = ()
    matched_tokens: int = 0
    scores: Mapping[str, float] | None = None
    clear_route_cache: bool = True
    immediate: Immediate | None = None
    body: bytes | None = None
    original_model: str = ""
    more_metadata: Mapping[str, MetadataValue] = field(default_factory=dict)
    hold: Hold | None = None
    response_headers: dict[str, str] = field(default_factory=dict)
    priced: Priced | None = None

    @property
    def destination(self) -> str:
        """The pick as headers and metadata carry it."""
        return ",".join(self.destinations)

    @property
    def facts_metadata(self) -> dict[str, MetadataValue]:
        """The namespace `xds_control`: what returns in the access log with the outcome."""
        facts = self.facts
        found: dict[str, MetadataValue] = {
            names.META_ID: self.id,
            names.META_PROCESSOR: self.processor,
            names.META_POOL: self.pool,
            names.META_MODEL: clip(self.model),
            names.META_CLASS: clip(self.service_class),
            names.META_TENANT: clip(self.tenant),
            names.META_API: facts.api,
            names.META_RULE: self.rule,
            names.META_PICK: self.destinations[0] if self.destinations else "",
            names.META_PROMPT_BYTES: facts.prompt_bytes,
            names.META_PROMPT_TOKENS_ESTIMATE: facts.prompt_tokens,
            names.META_OUTPUT_TOKENS_ESTIMATE: facts.expected_output_tokens,
            names.META_MATCHED_TOKENS: self.matched_tokens,
            names.META_TEXT_PROFILE: facts.text_profile,
            names.META_IMAGES: facts.images,
        }
        if facts.session_key:
            found[names.META_SESSION] = f"{facts.session_key:016x}"
        if facts.prefix_keys:
            found[names.META_PREFIX] = f"{facts.prefix_keys[-1]:016x}"
        found.update(self.more_metadata)
        return found

    @property
    def metadata(self) -> dict[str, dict[str, Any]]:
        """Dynamic metadata by namespace."""
        found: dict[str, dict[str, Any]] = {names.NAMESPACE: self.facts_metadata}
        if self.destinations:
            found[names.LB_NAMESPACE] = {names.DESTINATION: self.destination}
            if self.scores is not None:
                found[names.LB_NAMESPACE][names.DESTINATION_SCORES] = dict(self.scores)
        return found
