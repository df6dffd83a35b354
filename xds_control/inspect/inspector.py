"""Request bytes and headers to facts: the one entry point of ring 2."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from xds_control.inspect.canonical import CanonicalJson, Prompt
from xds_control.inspect.conclude import Conclusions
from xds_control.inspect.document import read, read_leniently
from xds_control.inspect.encodings import decode_body
from xds_control.inspect.envelope import Envelope, Envelopes
from xds_control.inspect.errors import WrongShape
from xds_control.inspect.facts import BodyProblem, RequestFacts
from xds_control.inspect.formats import Match, Paths
from xds_control.inspect.keys import session_key
from xds_control.inspect.multipart import read_form
from xds_control.inspect.readers import grpc
from xds_control.inspect.scalars import as_count, as_flag, as_int, as_number
from xds_control.inspect.sources import FINGERPRINT, SessionSources, attribute, first_header
from xds_control.inspect.specs import COMMON, SPECS, Spec
from xds_control.inspect.tokens import TokenEstimator
from xds_control.policy.inspect import InspectPolicy

_BOM: Final = b"\xef\xbb\xbf"
_BODILESS: Final = frozenset(("GET", "HEAD", "OPTIONS", "DELETE"))
_KSERVE: Final = "kserve.infer"
_KSERVE_JSON_LENGTH: Final = "inference-header-content-length"
_COUNT_FROM: Final = 1 << 20
_TOO_DEEP: Final = "the body is nested too deep"
_DETAILS: Final = {
    BodyProblem.EMPTY: "there is no body",
    BodyProblem.TOO_LARGE: "the body is too large to be read",
    BodyProblem.BAD_ENCODING: "the body cannot be decompressed",
    BodyProblem.UNSUPPORTED_ENCODING: "the body's content-encoding is not known",
}


class Inspector:
    """Reads requests into `RequestFacts`. Never raises for anything a client can send, and is linear in its size.

    Not thread-safe: one per event loop. `estimator` is shared with what feeds returned usage back into it.
    exact_counters: tokens of a text by model, where its own tokenizer is at hand (see `exact.load_counters`).
    encoders: token ids of a text by model, where they are wanted for prompts that no template changes.
    """

    def __init__(
        self,
        policy: InspectPolicy,
        estimator: TokenEstimator,
        exact_counters: Mapping[str, Callable[[str], int]] | None = None,
        encoders: Mapping[str, Callable[[str], list[int]]] | None = None,
    ) -> None:
        self._policy = policy
        self._conclusions = Conclusions(policy, estimator, exact_counters or {}, encoders or {})
        self._paths = Paths()
        self._json = CanonicalJson()
        self._sessions = SessionSources(policy.session_sources, policy.session_max_bytes)
        self._headers = frozenset((*policy.tenant_sources, *policy.class_sources, *policy.priority_headers))
        self._readers: dict[str, tuple[Callable[[bytes], Any], Envelopes]] = {}
        for spec in SPECS.values():
            decode = _decoder(spec, self._sessions.fields)
            self._readers[spec.api] = decode, Envelopes(decode, spec.main)

    def inspect(self, path: str, headers: Mapping[str, str], body: bytes) -> RequestFacts:
        """Facts of one request. path: `:path`. headers: by lower-case name. body: as it came, encoded or not."""
        match = self._paths.match(path)
        facts = RequestFacts(
            api=match.api, path=path, model=match.model, body_bytes=len(body), stream=match.stream or False
        )
        spec = SPECS.get(match.api)
        top = prompt = None
        if (spec is not None or match.grpc) and not match.item and headers.get(":method") not in _BODILESS:
            data = body
            if not 0 < len(body) <= self._policy.max_decoded_bytes or "content-encoding" in headers:
                data, facts.problem = self.decoded(headers, body)
                facts.detail = _DETAILS.get(facts.problem, "")
            if facts.problem is BodyProblem.NONE:
                if spec is None or match.form or match.api == _KSERVE:
                    top, prompt = self._read_body(facts, match, spec, headers, data)
                else:
                    top, prompt = self._read_json(facts, match, spec, data)
            if match.maybe and prompt is None:
                facts = RequestFacts(path=path, body_bytes=len(body))
                top = None
        if not self._headers.isdisjoint(headers):
            self._read_headers(facts, headers)
        value, source = self._sessions.find(headers, top)
        if value:
            facts.session_key, facts.session_source = session_key(value), source
        elif match.item:
            facts.session_key, facts.session_source = session_key(match.item), "path"
        if prompt is not None:
            self._conclusions.conclude(facts, prompt, source == FINGERPRINT)
        return facts

    def decoded(self, headers: Mapping[str, str], body: bytes) -> tuple[bytes, BodyProblem]:
        """The body without its content encoding, which is what `model_span` counts in; b"" and why when there is none.

        Who sends on a changed body sends it without encoding and must remove `content-encoding`.
        """
        policy = self._policy
        encoding = headers.get("content-encoding")
        return decode_body(body, encoding, policy.max_decoded_bytes, policy.zstd_window_bytes)

    def _read_headers(self, facts: RequestFacts, headers: Mapping[str, str]) -> None:
        policy = self._policy
        facts.tenant = first_header(headers, policy.tenant_sources)
        facts.service_class = first_header(headers, policy.class_sources)
        for name in policy.priority_headers:
            priority = as_int(headers.get(name, "").strip().encode("utf-8", "replace"))
            if priority is not None:
                facts.priority = priority
                return

    def _read_body(
        self, facts: RequestFacts, match: Match, spec: Spec | None, headers: Mapping[str, str], data: bytes
    ) -> tuple[Any, Prompt | None]:
        if spec is None:
            return None, self._read_grpc(facts, data)
        if match.form:
            read_as_form = self._read_form(facts, headers, data)
            if read_as_form is not None:
                return None, read_as_form
        elif _KSERVE_JSON_LENGTH in headers:  # means nothing to other APIs, so it must not hide part of their bodies
            length = as_count(headers[_KSERVE_JSON_LENGTH].encode("utf-8", "replace"))
            if length is not None:
                if length > len(data):
                    facts.problem, facts.detail = BodyProblem.TRUNCATED, "the JSON part is not all there"
                    return None, None
                return self._read_json(facts, match, spec, data[:length], data[length:])
        return self._read_json(facts, match, spec, data)

    def _read_json(
        self, facts: RequestFacts, match: Match, spec: Spec, data: bytes, binary: bytes = b""
    ) -> tuple[Any, Prompt | None]:
        """The top level and the prompt; fills the facts that stand around the prompt."""
        # Small members cost many times their length in memory and time, so their number is limited too.
        if len(data) > _COUNT_FROM and data.count(b",") > self._policy.max_items:
            facts.problem, facts.detail = BodyProblem.TOO_LARGE, "the body has too many members"
            return None, None
        decode, envelopes = self._readers[spec.api]
        recalled = envelopes.recall(data)
        if recalled is not None:
            _apply(facts, match, spec, recalled.envelope, recalled.model_span)
            prompt = Prompt(self._json, self._policy.media_digest_bytes)
            prompt.main = recalled.value
            top = recalled.envelope.top
            try:
                spec.reader(top, prompt, facts)
                return top, prompt
            except (ValueError, RecursionError, WrongShape):
                # Something is unusual about it: read it with care, and as if nothing had been read.
                _apply(facts, match, spec, Envelope(stream=False), None)
        shift = 0
        if data[:3] == _BOM:
            data = data[3:]
            shift = 3
        document = read(data, decode, spec.heavy, self._policy.max_lenient_bytes)
        for attempt in (1, 2):
            top = document.top
            facts.problem, facts.detail = document.problem, document.detail
            if top is None:
                break
            envelope, span = envelopes.read(document, data)
            if span is not None and shift:
                span = (span[0] + shift, span[1] + shift)
            _apply(facts, match, spec, envelope, span)
            prompt = Prompt(self._json, self._policy.media_digest_bytes)
            prompt.binary = binary
            try:
                spec.reader(top, prompt, facts)
                return top, prompt
            except (WrongShape, msgspec.ValidationError) as error:
                facts.problem, facts.detail = BodyProblem.WRONG_SHAPE, str(error)[:200]
                break
            except RecursionError:
                facts.problem, facts.detail = BodyProblem.TOO_DEEP, _TOO_DEEP
                break
            except ValueError as error:
                # Invalid UTF-8 shows only when a string is looked at: once more, tolerantly.
                facts.problem, facts.detail = BodyProblem.NOT_JSON, str(error)[:200]
                if attempt == 1:
                    document = read_leniently(data, decode, self._policy.max_lenient_bytes)
        return document.top, None

    def _read_form(self, facts: RequestFacts, headers: Mapping[str, str], data: bytes) -> Prompt | None:
        """Multipart uploads; None when the body is no form."""
        form = read_form(data, headers.get("content-type", ""))
        if form is None:
            return None
        prompt = Prompt(self._json, self._policy.media_digest_bytes)
        prompt.in_head = False
        text = form.fields.get("prompt", "")
        if text:
            prompt.body.append(text)
        kind = "audio" if facts.api == "openai.audio" else "image"
        for _, content in form.files:
            prompt.add_media(prompt.body, kind, content)
        facts.model = form.fields.get("model", "")[:1024]
        facts.stream = as_flag(form.fields.get("stream", "").lower().encode("utf-8", "replace"))
        facts.temperature = as_number(form.fields.get("temperature", "").encode("utf-8", "replace"))
        facts.n = min(as_count(form.fields.get("n", "").encode("utf-8", "replace")) or 1, 1024)
        facts.ambiguous = form.repeated
        if not form.complete:
            facts.problem, facts.detail = BodyProblem.TRUNCATED, "the form has no closing boundary"
        return prompt

    def _read_grpc(self, facts: RequestFacts, data: bytes) -> Prompt | None:
        prompt = Prompt(self._json, self._policy.media_digest_bytes)
        try:
            message = grpc.message_of(data)
            reader = grpc.read_kserve if facts.api == "grpc.kserve" else grpc.read_vllm
            reader(message, prompt, facts)
        except WrongShape as error:
            facts.problem, facts.detail = BodyProblem.WRONG_SHAPE, str(error)
            return None
        except ValueError as error:
            facts.problem, facts.detail = BodyProblem.BAD_ENCODING, str(error)
            return None
        return prompt


def _apply(
    facts: RequestFacts, match: Match, spec: Spec, envelope: Envelope, model_span: tuple[int, int] | None
) -> None:
    """Puts what stands around the prompt into the facts; the path goes before the body."""
    if not match.model:
        facts.model = envelope.model
        facts.model_span = model_span
    if match.stream is None:
        facts.stream = spec.stream if envelope.stream is None else envelope.stream
    facts.priority = envelope.priority
    facts.max_output_tokens = envelope.max_output_tokens
    facts.n = envelope.n
    facts.temperature = envelope.temperature
    facts.lora = envelope.lora
    facts.cache_salt = envelope.cache_salt
    facts.ambiguous = envelope.ambiguous
    facts.extra = envelope.extra


def _decoder(spec: Spec, session_fields: tuple[str, ...]) -> Callable[[bytes], Any]:
    """Decoder of a struct of raw values: everything that is not named is skipped without being looked at."""
    names = tuple(dict.fromkeys((*COMMON, *spec.fields, *spec.heavy, *session_fields)))
    struct = msgspec.defstruct(
        "Body",
        [(attribute(name), msgspec.Raw, None) for name in names],
        rename={attribute(name): name for name in names},
        gc=False,
    )
    return msgspec.json.Decoder(struct).decode
