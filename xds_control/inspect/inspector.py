"""Request bytes and headers to facts: the one entry point of ring 2."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from xds_control.inspect.canonical import CanonicalJson, Prompt
from xds_control.inspect.document import read, read_leniently
from xds_control.inspect.encodings import decode_body
from xds_control.inspect.errors import WrongShape
from xds_control.inspect.facts import BodyProblem, RequestFacts
from xds_control.inspect.formats import Match, Paths
from xds_control.inspect.keys import chain, fingerprint, namespace, session_key
from xds_control.inspect.profile import profile
from xds_control.inspect.scalars import as_count, as_flag, as_int, as_number, as_text
from xds_control.inspect.sources import FINGERPRINT, SessionSources, first_header
from xds_control.inspect.specs import COMMON, SPECS, Spec
from xds_control.inspect.tags import Tagger
from xds_control.inspect.tokens import TokenEstimator
from xds_control.policy.inspect import InspectPolicy


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
        self._tagger = Tagger(policy.tags, policy.tag_scan_bytes) if policy.tags else None
        self._decoders: dict[str, Callable[[bytes], Any]] = {}
        for spec in SPECS.values():
            self._decoders[spec.api] = _decoder(spec, self._sessions.fields)

    def inspect(self, path: str, headers: Mapping[str, str], body: bytes) -> RequestFacts:
        """Facts of one request. path: `:path`. headers: by lower-case name. body: as it came, encoded or not."""
        policy = self._policy
        match = self._paths.match(path)
        facts = RequestFacts(
            api=match.api,
            path=path,
            model=match.model,
            body_bytes=len(body),
            tenant=first_header(headers, policy.tenant_sources),
            service_class=first_header(headers, policy.class_sources),
            stream=match.stream or False,
        )
        spec = SPECS.get(match.api)
        top = prompt = None
        if spec is not None:
            data, facts.problem = decode_body(
                body, headers.get("content-encoding", ""), policy.max_decoded_bytes, policy.zstd_window_bytes
            )
            if facts.problem is BodyProblem.NONE:
                top, prompt = self._read_json(facts, match, spec, data)
        for name in policy.priority_headers:
            value = headers.get(name)
            if value:
                priority = as_int(value.strip().encode("utf-8", "replace"))
                if priority is not None:
                    facts.priority = priority
                    break
        value, source = self._sessions.find(headers, top)
        if value:
            facts.session_key, facts.session_source = session_key(value), source
        if prompt is not None and spec is not None:
            self._finish(facts, spec, prompt, wants_fingerprint=source == FINGERPRINT)
        return facts

    def _read_json(self, facts: RequestFacts, match: Match, spec: Spec, data: bytes) -> tuple[Any, Prompt | None]:
        decode = self._decoders[spec.api]
        document = read(data, decode, spec.heavy, self._policy.max_lenient_bytes)
        for attempt in (1, 2):
            facts.problem, facts.detail, facts.ambiguous = document.problem, document.detail, document.ambiguous
            top = document.top
            if top is None:
                return None, None
            _apply_common(facts, match, spec, top)
            if not match.model:
                facts.model_span = document.model_span
            prompt = Prompt(self._json, self._policy.media_digest_bytes)
            try:
                spec.reader(top, prompt, facts)
                return top, prompt
            except WrongShape as error:
                facts.problem, facts.detail = BodyProblem.WRONG_SHAPE, str(error)[:200]
                return top, None
            except RecursionError:
                facts.problem, facts.detail = BodyProblem.TOO_DEEP, "the body is nested too deep"
                return top, None
            except ValueError as error:  # a string that cannot be decoded (invalid UTF-8): once more, tolerantly
                if attempt == 2:
                    facts.problem, facts.detail = BodyProblem.NOT_JSON, str(error)[:200]
                    return top, None
                document = read_leniently(data, decode, self._policy.max_lenient_bytes)
        raise AssertionError("not reached")

    def _finish(self, facts: RequestFacts, spec: Spec, prompt: Prompt, *, wants_fingerprint: bool) -> None:
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
        if wants_fingerprint and prompt.first_user >= 0:
            end = prompt.first_user_end if prompt.first_user_end >= 0 else len(prompt.body)
            facts.session_key = fingerprint(head, "".join(prompt.body[prompt.first_user : end]))
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


def _apply_common(facts: RequestFacts, match: Match, spec: Spec, top: Any) -> None:
    """Facts that every format writes alike."""
    if top.model is not None and not match.model:
        facts.model = as_text(top.model, 1024)
    if match.stream is None:
        facts.stream = as_flag(top.stream) if top.stream is not None else spec.stream
    raw = top.max_completion_tokens
    if raw is not None:
        facts.max_output_tokens = as_count(raw)
    if facts.max_output_tokens is None and top.max_tokens is not None:
        facts.max_output_tokens = as_count(top.max_tokens)
    if top.n is not None:
        facts.n = min(as_count(top.n) or 1, 1024)
    if top.temperature is not None:
        facts.temperature = as_number(top.temperature)
    if top.priority is not None:
        facts.priority = as_int(top.priority)
    if top.lora_path is not None:
        facts.lora = as_text(top.lora_path, 1024)
    if top.cache_salt is not None:
        facts.cache_salt = as_text(top.cache_salt, 1024)
    if top.extra_key is not None:
        facts.cache_salt += as_text(top.extra_key, 1024)
    if top.service_tier is not None:
        tier = as_text(top.service_tier, 64)
        if tier:
            facts.extra = {"service_tier": tier}


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
