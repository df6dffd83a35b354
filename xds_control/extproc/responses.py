"""Answers that a data plane shows to the processor: usage, the client's model name, what is told back. Pure.

Where Envoy is ours no answer passes here: Envoy reads usage itself and the access log brings it. Gateway API data
planes send answers by default; then this is how outcomes are learned.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import cel

from xds_control.extproc.answers import delimited, struct_fields
from xds_control.extproc.decision import Decision
from xds_control.extproc.restore import ModelNames
from xds_control.extproc.usage import UsageReader
from xds_control.policy import headers as names
from xds_control.policy.extproc import ExtProcPolicy, UsageMetadata
from xds_control.signals.finished import Finished, Kind

_METADATA = b"\x42"
_VALUE = b"\x2a"
_EVENT_STREAMS = ("text/event-stream", "application/x-ndjson", "application/stream+json", "application/jsonl")
_REMEMBERED = 65_536


@dataclass(slots=True)
class Observed:
    """One answer that passed by. endpoint: who gave it. streamed: as an event stream. first_s, last_s: monotonic
    seconds of its first body piece and of its end; 0 when there was none. complete: it was not cut off."""

    decision: Decision | None
    endpoint: str
    status: int
    streamed: bool
    started: float
    first_s: float
    last_s: float
    complete: bool
    prompt_tokens: int | None
    completion_tokens: int | None
    cached_tokens: int | None

    def finished(self) -> Finished | None:
        """The outcome, as the access log would tell it; None when no decision is known."""
        decision = self.decision
        if decision is None or not decision.pool:
            return None
        facts, metadata = decision.facts, decision.facts_metadata
        kind: Kind = "ok"
        if not self.complete:
            kind = "aborted"
        elif self.status in (429, 503):
            kind = "backpressure"
        elif self.status >= 500:
            kind = "5xx"
        elif self.status >= 400:
            kind = "4xx"
        picked = decision.destinations[0] if decision.destinations else ""
        return Finished(
            id=decision.id,
            pool=decision.pool,
            endpoint=self.endpoint or picked,
            model=decision.model,
            service_class=decision.service_class,
            tenant=decision.tenant,
            api=facts.api,
            processor=str(metadata.get(names.META_PROCESSOR, "")),
            pick=picked,
            kind=kind,
            ok=kind == "ok",
            streamed=self.streamed,
            status=self.status,
            attempts=1 if self.endpoint in ("", picked) else 2,
            prompt_bytes=facts.prompt_bytes,
            prompt_tokens_est=facts.prompt_tokens,
            output_tokens_est=facts.expected_output_tokens,
            matched_tokens=decision.matched_tokens,
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
            cached_tokens=self.cached_tokens,
            ttft_s=self.first_s - self.started if self.streamed and self.first_s else None,
            decode_s=self.last_s - self.first_s if self.streamed and self.first_s else None,
            e2e_s=max(0.0, self.last_s - self.started),
            queue_s=None,
            text_profile=_integer(metadata.get(names.META_TEXT_PROFILE)) or 0,
            images=facts.images,
            ahead_tokens=_integer(metadata.get(names.META_AHEAD_TOKENS)),
            batch=_integer(metadata.get(names.META_BATCH)),
            prefill=str(metadata.get(names.META_PREFILL, "")),
        )


def _integer(value: object) -> int | None:
    return int(value) if isinstance(value, int | float) else None


class Reports:
    """The compiled `usage_metadata` of a policy: what is written into the metadata of an answer's last message."""

    def __init__(self, entries: tuple[UsageMetadata, ...]) -> None:
        self._entries = [
            (entry, cel.compile(entry.value), cel.compile(entry.when) if entry.when else None) for entry in entries
        ]

    def __bool__(self) -> bool:
        return bool(self._entries)

    def values(self, usage: Mapping[str, int]) -> dict[str, dict[str, float | str]]:
        """Namespace → name → value for this usage. An expression that fails on it writes nothing."""
        found: dict[str, dict[str, float | str]] = {}
        if not usage:
            return found
        for entry, value, when in self._entries:
            context = {"usage": dict(usage)}
            try:
                if when is not None and when.execute(context) is not True:
                    continue
                result = value.execute(context)
            except (ValueError, TypeError, RuntimeError, KeyError):
                continue
            if isinstance(result, bool) or not isinstance(result, int | float | str):
                continue
            found.setdefault(entry.namespace, {})[entry.name] = result
        return found


class Response:
    """Follows one answer; see `stream.ResponseObserver`."""

    def __init__(
        self,
        decision: Decision | None,
        policy: ExtProcPolicy,
        reports: Reports,
        clock: Callable[[], float],
        on_end: Callable[[Observed], None] | None,
    ) -> None:
        self._decision = decision
        self._reports = reports
        self._clock = clock
        self._on_end = on_end
        self._started = clock()
        self._first = 0.0
        self._status = 0
        self._served = ""
        self._streamed = False
        self._complete = False
        self._reader: UsageReader | None = None
        self._names: ModelNames | None = None
        if decision is not None and policy.restore_model_name and decision.original_model:
            self._names = ModelNames(decision.model, decision.original_model)

    def headers(self, status: str, headers: dict[str, str], served: str, end: bool) -> None:
        """The answer's headers."""
        self._status = int(status) if status.isascii() and status.isdigit() and len(status) == 3 else 0
        self._served = served.split(",")[0].strip()
        kind = headers.get("content-type", "").lower()
        self._streamed = kind.startswith(_EVENT_STREAMS)
        if headers.get("content-encoding", "identity").lower() == "identity":
            self._reader = UsageReader(self._streamed)
        else:
            self._names = None
        self._complete = end

    def body(self, piece: bytes, end: bool) -> bytes:
        """A piece of its body; what the client gets for it."""
        if not self._first and piece:
            self._first = self._clock()
        if self._reader is not None:
            self._reader.feed(piece, end)
        if end:
            self._complete = True
        return piece if self._names is None else self._names.feed(piece, end)

    def last(self) -> bytes:
        """What the answer to the last piece carries besides: encoded dynamic metadata, b"" for none."""
        if not self._reports or self._reader is None:
            return b""
        values: Mapping[str, Any] = self._reports.values(self._reader.usage.as_dict())
        return delimited(_METADATA, struct_fields(values)) if values else b""

    def end(self) -> None:
        """The answer is over, or was cut off."""
        if self._on_end is None:
            return
        reader = self._reader
        usage = reader.usage if reader is not None else None
        observed = Observed(
            self._decision,
            self._served,
            self._status,
            self._streamed,
            self._started,
            self._first,
            self._clock(),
            self._complete,
            reader.whole_prompt if reader is not None else None,
            usage.completion if usage is not None else None,
            usage.cached if usage is not None else None,
        )
        self._on_end(observed)


class Responses:
    """Makes a `Response` per stream, and sees to it that no outcome is counted twice.

    Call it as the edge's `observer_factory`. `fresh(id)` says whether the access log's entry for a decision is news.
    """

    def __init__(self, policy: ExtProcPolicy, clock: Callable[[], float], on_end: Callable[[Observed], None]) -> None:
        self._policy = policy
        self._reports = Reports(policy.usage_metadata)
        self._clock = clock
        self._told = on_end
        self._seen: OrderedDict[str, None] = OrderedDict()

    def __call__(self, decision: Decision | None) -> Response:
        return Response(decision, self._policy, self._reports, self._clock, self._end)

    def _end(self, observed: Observed) -> None:
        decision = observed.decision
        if decision is not None:
            self._seen[decision.id] = None
            if len(self._seen) > _REMEMBERED:
                self._seen.popitem(last=False)
        self._told(observed)

    def fresh(self, identifier: str) -> bool:
        """False when the outcome of this decision was already observed here. Each decision is asked for once."""
        return self._seen.pop(identifier, identifier) is not None
