"""Windows over Envoy's gRPC access log: what became of every request, without touching a response byte.

An entry carries Envoy's own times and flags, the custom tags below, and in dynamic metadata what the processor
decided and which usage Envoy read from the answer. `AccessLog` sums entries into one row per pool, endpoint and
service class, and hands each finished request on to whoever learns from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from xds_control.policy import headers as names
from xds_control.policy.classes import ServiceClassPolicy
from xds_control.proto import fleet_pb2
from xds_control.signals import entry_fields as fields
from xds_control.signals import orca
from xds_control.signals.finished import FailedAttempt, Finished, Kind, outcome_of
from xds_control.signals.sketch import Sketch

CUSTOM_TAGS: Final[Mapping[str, str]] = {
    names.TAG_TTFT_US: "%COMMON_DURATION(US_TX_END:US_RX_BODY_BEG:us)%",
    names.TAG_TTFB_US: "%COMMON_DURATION(US_TX_END:US_RX_BEG:us)%",
    names.TAG_DECODE_US: "%COMMON_DURATION(US_RX_BODY_BEG:US_RX_END:us)%",
}
"""Custom tags that Envoy's access log must carry: tag → substitution format."""

LOGGED_RESPONSE_HEADERS: Final = ("content-type", orca.HEADER, orca.HEADER_BIN, "x-prompt-tokens", "x-generated-tokens")
"""Response headers that the access log must carry (`additional_response_headers_to_log`): whether the answer was
streamed, the engine's load report, and TGI's token counts."""

OTHER: Final = "other"
"""Service class of requests whose class the policy does not list."""

MAX_ROWS: Final = 20_000
"""Rows of one window; what comes beyond is counted in the row of no pool, no endpoint and class `other`."""

SILENCE: Final = 1000
"""Answers without a word about cached tokens after which an endpoint is taken not to tell of them."""

_UPSTREAM_END: Final = 9  # AccessLogType.UpstreamEnd: one attempt ended
_REQUEST_ENDS: Final = frozenset({0, 6})  # NotSet (older Envoys) and DownstreamEnd
_STREAMED_TYPES: Final = ("text/event-stream", "application/x-ndjson", "application/stream+json", "application/jsonl")

_ERROR_FIELD: Final[Mapping[Kind, str]] = {
    "connect": "errors_connect",
    "timeout": "errors_timeout",
    "reset": "errors_reset",
    "5xx": "errors_5xx",
    "4xx": "errors_4xx",
    "backpressure": "backpressure",
    "aborted": "aborted",
}
_ATTEMPT_FIELD: Final[Mapping[Kind, str]] = {
    "connect": "attempts_connect",
    "timeout": "attempts_timeout",
    "reset": "attempts_reset",
    "5xx": "attempts_5xx",
    "backpressure": "attempts_backpressure",
}
_MISSES_SLO: Final[frozenset[Kind]] = frozenset({"connect", "timeout", "reset", "5xx"})


class Taken(msgspec.Struct, frozen=True):
    """What a batch of entries told: finished requests and failed single attempts, in the order logged."""

    finished: list[Finished]
    failed_attempts: list[FailedAttempt]


class _Row:
    """Sums of one (pool, endpoint, class): counters live in the message itself, sketches beside it."""

    __slots__ = ("e2e", "message", "queue", "tpot", "ttft")

    def __init__(self, message: fleet_pb2.Outcomes) -> None:
        self.message = message
        self.ttft = Sketch()
        self.tpot = Sketch()
        self.queue = Sketch()
        self.e2e = Sketch()


class AccessLog:
    """Sums access-log entries into windows. Memory is bounded by `MAX_ROWS` rows until `drain`.

    classes: service classes by name, with their targets. default_class: of requests that carry none.
    now: monotonic seconds at which the first window begins.
    """

    def __init__(self, classes: Mapping[str, ServiceClassPolicy], default_class: str, now: float) -> None:
        self._classes = dict(classes)
        self._default = default_class
        self._began = now
        self._window = fleet_pb2.Window()
        self._rows: dict[tuple[str, str, str], _Row] = {}
        self._tell_cache: dict[str, int] = {}
        """Endpoint that tells of cached tokens → answers with usage since it last did."""
        self.entries = 0
        """Entries taken since the start."""
        self.trouble: Counter[str] = Counter()
        """What could not be used, by reason, since the start; the reasons are a fixed set."""

    def use_classes(self, classes: Mapping[str, ServiceClassPolicy], default_class: str) -> None:
        """Judges from now on by these classes (a new policy)."""
        self._classes = dict(classes)
        self._default = default_class

    def take(self, entries: Iterable[Any]) -> Taken:
        """Sums a batch of `HTTPAccessLogEntry` messages. An entry that makes no sense is counted in `trouble`."""
        finished: list[Finished] = []
        failed: list[FailedAttempt] = []
        for entry in entries:
            self.entries += 1
            common = entry.common_properties
            kind_of_entry = common.access_log_type
            if kind_of_entry in _REQUEST_ENDS and not common.intermediate_log_entry:
                finished.append(self._request(entry, common))
            elif kind_of_entry == _UPSTREAM_END:
                attempt = self._attempt(entry, common)
                if attempt is not None:
                    failed.append(attempt)
            else:
                self.trouble["not-an-end"] += 1
        return Taken(finished, failed)

    def add(self, one: Finished) -> None:
        """Sums an outcome that was learned elsewhere than from an access log."""
        service_class = self._class_of(one.service_class)
        self._sum(
            *(one.pool, one.endpoint, service_class, one.kind, one.status, one.streamed, one.attempts),
            *(one.ttft_s, one.decode_s, one.e2e_s, one.queue_s),
            *(one.prompt_tokens, one.completion_tokens, one.cached_tokens),
        )

    def drain(self, now: float) -> fleet_pb2.Window:
        """The window since the last call, and begins a new one. Rows without requests do not exist."""
        window = self._window
        window.period_s = max(0.0, now - self._began)
        for row in self._rows.values():
            message = row.message
            for sketch, into in (
                (row.ttft, message.ttft_s),
                (row.tpot, message.tpot_s),
                (row.queue, message.queue_s),
                (row.e2e, message.e2e_s),
            ):
                if sketch.count:
                    sketch.to_proto(into)
        self._window = fleet_pb2.Window()
        self._rows = {}
        self._began = now
        return window

    def _row(self, pool: str, endpoint: str, service_class: str) -> _Row:
        key = (pool, endpoint, service_class)
        row = self._rows.get(key)
        if row is None:
            if len(self._rows) >= MAX_ROWS:
                self.trouble["too-many-rows"] += 1
                key = ("", "", OTHER)
                row = self._rows.get(key)
                if row is not None:
                    return row
            row = _Row(self._window.outcomes.add(pool=key[0], endpoint=key[1], service_class=key[2]))
            self._rows[key] = row
        return row

    def _class_of(self, named: str) -> str:
        if not named:
            return self._default
        if named in self._classes:
            return named
        self.trouble["unknown-class"] += 1
        return OTHER

    def _attempt(self, entry: Any, common: Any) -> FailedAttempt | None:
        kind = outcome_of(
            entry.response.response_code.value, common.response_flags if common.HasField("response_flags") else None
        )
        field = _ATTEMPT_FIELD.get(kind)
        endpoint = fields.address(common.upstream_remote_address)
        if field is None or not endpoint:
            return None
        # Entries of attempts carry no dynamic metadata: the cluster tells the pool, the class is unknown.
        pool = common.upstream_cluster[: fields.MAX_STRING]
        message = self._row(pool, endpoint, "").message
        setattr(message, field, getattr(message, field) + 1)
        return FailedAttempt(pool, endpoint, kind)

    def _request(self, entry: Any, common: Any) -> Finished:
        response = entry.response
        status = response.response_code.value
        kind = outcome_of(status, common.response_flags if common.HasField("response_flags") else None)
        ok = kind == "ok"
        endpoint = fields.address(common.upstream_remote_address)
        attempts = common.upstream_request_attempt_count

        request_id = pool = model = named_class = tenant = api = processor = pick = prefill = ""
        prompt_bytes = prompt_est = output_est = matched = None
        prompt = completion = cached = ahead = batch = None
        profile = images = 0
        metadata = common.metadata.filter_metadata.get(names.NAMESPACE)
        if metadata is not None:
            get = metadata.fields.get
            request_id = fields.text(get(names.META_ID))
            pool = fields.text(get(names.META_POOL))
            model = fields.text(get(names.META_MODEL))
            named_class = fields.text(get(names.META_CLASS))
            tenant = fields.text(get(names.META_TENANT))
            api = fields.text(get(names.META_API))
            processor = fields.text(get(names.META_PROCESSOR))
            pick = fields.text(get(names.META_PICK))
            prefill = fields.text(get(names.META_PREFILL))
            ahead = fields.number(get(names.META_AHEAD_TOKENS))
            batch = fields.number(get(names.META_BATCH))
            prompt_bytes = fields.number(get(names.META_PROMPT_BYTES))
            prompt_est = fields.number(get(names.META_PROMPT_TOKENS_ESTIMATE))
            output_est = fields.number(get(names.META_OUTPUT_TOKENS_ESTIMATE))
            matched = fields.number(get(names.META_MATCHED_TOKENS))
            profile = fields.integer(get(names.META_TEXT_PROFILE))
            images = fields.number(get(names.META_IMAGES)) or 0
            prompt = fields.number(get(names.META_USAGE_PROMPT))
            completion = fields.number(get(names.META_USAGE_COMPLETION))
            cached = fields.number(get(names.META_USAGE_CACHED))
            read = fields.number(get(names.META_USAGE_CACHE_READ))
            if prompt is not None and read is not None:
                prompt += read + (fields.number(get(names.META_USAGE_CACHE_CREATION)) or 0)
                cached = read
        pool = pool or common.upstream_cluster[: fields.MAX_STRING]
        service_class = self._class_of(named_class)

        headers = response.response_headers
        if prompt is None:
            prompt = fields.count(headers.get("x-prompt-tokens"))
            completion = completion if completion is not None else fields.count(headers.get("x-generated-tokens"))
        if prompt is not None:
            if cached is None:
                cached = self._unsaid(endpoint)
            else:
                if len(self._tell_cache) < MAX_ROWS or endpoint in self._tell_cache:
                    self._tell_cache[endpoint] = 0
                if cached > prompt:
                    self.trouble["cached-over-prompt"] += 1
                    cached = prompt

        tags = common.custom_tags
        body_s = fields.micros(tags.get(names.TAG_TTFT_US))
        decode_s = fields.micros(tags.get(names.TAG_DECODE_US))
        content_type = headers.get("content-type")
        if content_type is not None:
            streamed = content_type.startswith(_STREAMED_TYPES)
        else:
            # Not logged: an answer whose body took a fair share of the time was streamed.
            streamed = decode_s is not None and body_s is not None and decode_s > 0.2 * (body_s + decode_s)
        ttft_s = body_s if streamed else None
        if not streamed:
            decode_s = None

        received = fields.seconds(common.time_to_last_rx_byte) or 0.0
        sent = fields.seconds(common.time_to_first_upstream_tx_byte)
        ended = fields.seconds(common.time_to_last_upstream_rx_byte)
        e2e_s = None if ended is None or ended < received else ended - received
        if e2e_s is None:
            e2e_s = fields.seconds(common.duration)
        queue_s = None if sent is None else max(0.0, sent - received)
        ended_unix_s = None
        if common.HasField("start_time"):
            lasted = fields.seconds(common.duration) or ended or 0.0
            ended_unix_s = common.start_time.seconds + common.start_time.nanos * fields.NANO + lasted

        message = self._sum(
            *(pool, endpoint, service_class, kind, status, streamed, attempts),
            *(ttft_s, decode_s, e2e_s, queue_s, prompt, completion, cached),
        )
        if headers:
            self._orca(message, headers)

        return Finished(
            id=request_id,
            pool=pool,
            endpoint=endpoint,
            model=model,
            service_class=service_class,
            tenant=tenant,
            api=api,
            processor=processor,
            pick=pick,
            kind=kind,
            ok=ok,
            streamed=streamed,
            status=status,
            attempts=attempts,
            prompt_bytes=prompt_bytes,
            prompt_tokens_est=prompt_est,
            output_tokens_est=output_est,
            matched_tokens=matched,
            prompt_tokens=prompt,
            completion_tokens=completion,
            cached_tokens=cached,
            ttft_s=ttft_s,
            decode_s=decode_s,
            e2e_s=e2e_s,
            queue_s=queue_s,
            text_profile=profile,
            images=images,
            ahead_tokens=ahead,
            batch=batch,
            prefill=prefill,
            ended_unix_s=ended_unix_s,
        )

    def _sum(
        self,
        pool: str,
        endpoint: str,
        service_class: str,
        kind: Kind,
        status: int,
        streamed: bool,
        attempts: int,
        ttft_s: float | None,
        decode_s: float | None,
        e2e_s: float | None,
        queue_s: float | None,
        prompt: int | None,
        completion: int | None,
        cached: int | None,
    ) -> fleet_pb2.Outcomes:
        """Adds one outcome to its row; the row's message."""
        ok = kind == "ok"
        row = self._row(pool, endpoint, service_class)
        message = row.message
        message.requests += 1
        if attempts > 1:
            message.retries += attempts - 1
        elif queue_s is not None:
            row.queue.add(queue_s)
        if streamed:
            message.streamed += 1
        if ok:
            message.ok += 1
            if e2e_s is not None:
                row.e2e.add(e2e_s)
        else:
            field = _ERROR_FIELD[kind]
            setattr(message, field, getattr(message, field) + 1)
        if ttft_s is not None and status < 400:
            row.ttft.add(ttft_s)  # also when the client went away later: the token was seen
        tpot_s = None
        if ok:
            if decode_s is not None and completion is not None and completion > 1:
                tpot_s = decode_s / (completion - 1)
                row.tpot.add(tpot_s)
                message.decode_seconds += decode_s
                message.timed_decode_tokens += completion - 1
            if prompt is not None:
                message.usage_known += 1
                message.prompt_tokens += prompt
                if cached is not None:
                    message.cached_known += prompt
                    message.cached_tokens += cached
                if ttft_s is not None:
                    message.prefill_seconds += ttft_s
                    message.timed_prefill_tokens += prompt - (cached or 0)
            if completion is not None:
                message.completion_tokens += completion
        self._judge(message, service_class, kind, ttft_s, queue_s, tpot_s, e2e_s)
        return message

    def _unsaid(self, endpoint: str) -> int | None:
        """Cached tokens of an answer with usage that does not mention them. vLLM and SGLang leave a zero out: it is one
        where the endpoint has told of cached tokens before, and lately."""
        silent = self._tell_cache.get(endpoint)
        if silent is None:
            return None
        if silent >= SILENCE:
            del self._tell_cache[endpoint]  # started anew without the option
            return None
        self._tell_cache[endpoint] = silent + 1
        return 0

    def _judge(
        self,
        message: fleet_pb2.Outcomes,
        service_class: str,
        kind: Kind,
        ttft_s: float | None,
        queue_s: float | None,
        tpot_s: float | None,
        e2e_s: float | None,
    ) -> None:
        """Holds a request against its class's targets. A failed one missed them; one that the client broke off or
        that was refused is not judged. The client's time to first token includes the wait before the engine."""
        targets = self._classes.get(service_class)
        if targets is None:
            return
        if kind != "ok":
            if kind in _MISSES_SLO and not (targets.ttft_s is targets.tpot_s is targets.e2e_s is None):
                message.slo_known += 1
            return
        judged = False
        met = True
        if targets.ttft_s is not None and ttft_s is not None:
            judged = True
            message.ttft_known += 1
            if ttft_s + (queue_s or 0.0) <= targets.ttft_s:
                message.ttft_met += 1
            else:
                met = False
        if targets.tpot_s is not None and tpot_s is not None:
            judged = True
            message.tpot_known += 1
            if tpot_s <= targets.tpot_s:
                message.tpot_met += 1
            else:
                met = False
        if targets.e2e_s is not None and e2e_s is not None:
            judged = True
            met = met and e2e_s <= targets.e2e_s
        if judged:
            message.slo_known += 1
            message.slo_met += met

    def _orca(self, message: fleet_pb2.Outcomes, headers: Mapping[str, str]) -> None:
        header = headers.get(orca.HEADER)
        if header is not None:
            report = orca.parse(header)
        else:
            header = headers.get(orca.HEADER_BIN)
            if header is None:
                return
            report = orca.parse_bin(header)
        if report is None:
            self.trouble["bad-orca"] += 1
            return
        sums = message.orca
        for name, value in report.items():
            if name not in sums and len(sums) >= orca.MAX_METRICS:
                self.trouble["too-many-orca-names"] += 1
                continue
            total = sums[name]
            total.last = value
            total.sum += value
            total.count += 1
