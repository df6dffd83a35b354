"""Request bytes and headers to facts: the one entry point of ring 2."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from xds_control.inspect.canonical import CanonicalJson, Prompt
from xds_control.inspect.document import read, read_leniently
from xds_control.inspect.encodings import decode_body
from xds_control.inspect.envelope import Envelopes
from xds_control.inspect.errors import WrongShape
from xds_control.inspect.facts import BodyProblem, RequestFacts
from xds_control.inspect.formats import Match, Paths
from xds_control.inspect.keys import chain, fingerprint, namespace, session_key
from xds_control.inspect.profile import profile
from xds_control.inspect.scalars import as_int
from xds_control.inspect.sources import FINGERPRINT, SessionSources, first_header
from xds_control.inspect.specs import COMMON, SPECS, Spec
from xds_control.inspect.tags import Tagger
from xds_control.inspect.tokens import TokenEstimator
from xds_control.policy.inspect import InspectPolicy

_BOM: Final = b"\xef\xbb\xbf"


class Inspector:
    """Reads requests into `RequestFacts`. Never raises for anything a client can send, and is linear in its size.

    Not thread-safe: one per event loop. `estimator` is shared with what feeds returned usage back into it.
    """

    def __init__(
        self,
        policy: InspectPolicy,
        estimator: TokenEstimator,
        exact_counters: Mapping[str, Callable[[str], int]] | None = None,
    ) -> None:
        self._policy = policy
        self._estimator = estimator
        self._exact = dict(exact_counters or {})
        self._paths = Paths()
        self._json = CanonicalJson()
        self._sessions = SessionSources(policy.session_sources, policy.session_max_bytes)
        self._headers = frozenset((*policy.tenant_sources, *policy.class_sources, *policy.priority_headers))
        self._tagger = Tagger(policy.tags, policy.tag_scan_bytes) if policy.tags else None
        self._readers = {api: (_decoder(spec, self._sessions.fields), Envelopes()) for api, spec in SPECS.items()}

    def inspect(self, path: str, headers: Mapping[str, str], body: bytes) -> RequestFacts:
        """Facts of one request. path: `:path`. headers: by lower-case name. body: as it came, encoded or not."""
        policy = self._policy
        match = self._paths.match(path)
        facts = RequestFacts(
            api=match.api,
            path=path,
            model=match.model,
            body_bytes=len(body),
            stream=match.stream or False,
        )
        spec = SPECS.get(match.api)
        top = prompt = None
        if spec is not None:
            encoding = headers.get("content-encoding")
            data, facts.problem = decode_body(body, encoding, policy.max_decoded_bytes, policy.zstd_window_bytes)
            if facts.problem is BodyProblem.NONE:
                top, prompt = self._read_json(facts, match, spec, data)
        if not self._headers.isdisjoint(headers):
            self._read_headers(facts, headers)
        value, source = self._sessions.find(headers, top)
        if value:
            facts.session_key, facts.session_source = session_key(value), source
        if prompt is not None and spec is not None:
            self._finish(facts, spec, prompt, source == FINGERPRINT)
        return facts

    def _read_headers(self, facts: RequestFacts, headers: Mapping[str, str]) -> None:
        policy = self._policy
        facts.tenant = first_header(headers, policy.tenant_sources)
        facts.service_class = first_header(headers, policy.class_sources)
        for name in policy.priority_headers:
            priority = as_int(headers.get(name, "").strip().encode("utf-8", "replace"))
            if priority is not None:
                facts.priority = priority
                return

    def _read_json(self, facts: RequestFacts, match: Match, spec: Spec, data: bytes) -> tuple[Any, Prompt | None]:
        """The top level and the prompt; fills the facts that stand around the prompt."""
        decode, envelopes = self._readers[spec.api]
        shift = 0
        if data[:3] == _BOM:
            data = data[3:]
            shift = 3
        lenient_limit = self._policy.max_lenient_bytes
        document = read(data, decode, spec.heavy, lenient_limit)
        for attempt in (1, 2):
            top = document.top
            facts.problem, facts.detail = document.problem, document.detail
            if top is None:
                break
            envelope, span = envelopes.read(document, data)
            if not match.model:
                facts.model = envelope.model
                if span is not None:
                    facts.model_span = span if shift == 0 else (span[0] + shift, span[1] + shift)
            if match.stream is None:
                facts.stream = spec.stream if envelope.stream is None else envelope.stream
            facts.max_output_tokens = envelope.max_output_tokens
            facts.n = envelope.n
            facts.temperature = envelope.temperature
            facts.priority = envelope.priority
            facts.lora = envelope.lora
            facts.cache_salt = envelope.cache_salt
            facts.ambiguous = envelope.ambiguous
            facts.extra = envelope.extra
            prompt = Prompt(self._json, self._policy.media_digest_bytes)
            try:
                spec.reader(top, prompt, facts)
                return top, prompt
            except (WrongShape, msgspec.ValidationError) as error:
                facts.problem, facts.detail = BodyProblem.WRONG_SHAPE, str(error)[:200]
                break
            except RecursionError:
                facts.problem, facts.detail = BodyProblem.TOO_DEEP, "the body is nested too deep"
                break
            except ValueError as error:
                # Invalid UTF-8 shows only when a string is looked at: once more, tolerantly.
                facts.problem, facts.detail = BodyProblem.NOT_JSON, str(error)[:200]
                if attempt == 1:
                    document = read_leniently(data, decode, lenient_limit)
        return document.top, None

    def _finish(self, facts: RequestFacts, spec: Spec, prompt: Prompt, wants_fingerprint: bool) -> None:
        """Keys and estimates from the canonical prompt."""
        policy = self._policy
        head = "".join(prompt.head).encode("utf-8", "surrogatepass")
        body = "".join(prompt.body).encode("utf-8", "surrogatepass")
        size = len(head) + len(body)
        facts.prompt_bytes = max(0, size - prompt.marks)
        facts.messages = prompt.messages
        facts.tools = prompt.tools
        facts.images = prompt.images
        facts.media_count = len(prompt.media)
        facts.media_bytes = prompt.media_bytes
        if wants_fingerprint:
            first = prompt.user_message()
            if first:
                facts.session_key = fingerprint(head, "".join(first))
                facts.session_source = FINGERPRINT
        facts.text_profile = profile(head, body, prompt.messages)
        if prompt.exact_tokens is not None:
            tokens = prompt.exact_tokens
            facts.tokens_exact = not prompt.media
        else:
            tokens = self._count(facts, spec, prompt, size)
        keys, ends = chain(
            head,
            body,
            namespace(facts.model, facts.lora, facts.cache_salt),
            policy.prefix_block_bytes,
            policy.prefix_growth,
            policy.prefix_max_keys,
        )
        facts.prefix_keys = tuple(keys)
        per_byte = tokens / size if size else 0.0
        if prompt.media:
            places, media_tokens = self._media(facts.model, prompt)
            facts.prefix_tokens = _with_media(ends, per_byte, places)
            tokens += media_tokens
        else:
            facts.prefix_tokens = tuple([int(end * per_byte) for end in ends])
        facts.prompt_tokens = tokens
        if spec.generates:
            cap = facts.max_output_tokens if facts.max_output_tokens is not None else spec.output_cap
            facts.expected_output_tokens = self._estimator.expected_output(facts.model, facts.service_class, cap)
        if self._tagger is not None:
            facts.tags = self._tagger.tags(prompt)

    def _count(self, facts: RequestFacts, spec: Spec, prompt: Prompt, size: int) -> int:
        """Tokens of the text: by the model's own tokenizer where there is one, else estimated."""
        counter = self._exact.get(facts.model) if self._exact else None
        if counter is None or size > self._policy.tokens.tokenizer_max_bytes:
            return self._estimator.estimate(facts.model, facts.prompt_bytes, profile=facts.text_profile)
        tokens = counter("".join(prompt.head + prompt.body))
        # What the chat template adds is not in the text, so only plain prompts are exact.
        facts.tokens_exact = spec.plain and not prompt.media
        return tokens if spec.plain else tokens + int(prompt.messages * self._policy.tokens.message_tokens)

    def _media(self, model: str, prompt: Prompt) -> tuple[list[tuple[int, float]], int]:
        """Where each image, clip and file lies in the canonical bytes with its tokens, and the tokens of all."""
        tokens = self._policy.tokens
        costs = {
            "image": self._estimator.image_tokens(model),
            "audio": tokens.audio_tokens,
            "video": tokens.video_tokens,
            "file": tokens.file_tokens,
        }
        head_ends = _ends(prompt.head)
        body_ends = _ends(prompt.body)
        head_size = head_ends[-1] if head_ends else 0
        places = []
        total = 0.0
        for in_head, index, kind in prompt.media:
            place = head_ends[index] if in_head else head_size + body_ends[index]
            cost = costs.get(kind, 0.0)
            places.append((place, cost))
            total += cost
        places.sort()
        return places, int(total)


def _decoder(spec: Spec, session_fields: tuple[str, ...]) -> Callable[[bytes], Any]:
    """Decoder of a struct of raw values: everything that is not named is skipped without being looked at."""
    names = tuple(dict.fromkeys((*COMMON, *spec.fields, *session_fields)))
    # Field names of any form are allowed in JSON, not in Python: those are reached by getattr only.
    struct = msgspec.defstruct("Body", [(name, msgspec.Raw, None) for name in names], gc=False)
    return msgspec.json.Decoder(struct).decode


def _ends(pieces: list[str]) -> list[int]:
    ends = []
    place = 0
    for piece in pieces:
        place += len(piece) if piece.isascii() else len(piece.encode("utf-8", "surrogatepass"))
        ends.append(place)
    return ends


def _with_media(ends: list[int], per_byte: float, places: list[tuple[int, float]]) -> tuple[int, ...]:
    tokens = []
    media = 0.0
    index = 0
    for end in ends:
        while index < len(places) and places[index][0] <= end:
            media += places[index][1]
            index += 1
        tokens.append(int(end * per_byte + media))
    return tuple(tokens)
