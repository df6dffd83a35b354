"""From the canonical prompt to keys and estimates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from xds_control.inspect.canonical import Prompt
from xds_control.inspect.facts import RequestFacts
from xds_control.inspect.keys import chain, fingerprint, namespace
from xds_control.inspect.profile import UNLEARNABLE, profile
from xds_control.inspect.sources import FINGERPRINT
from xds_control.inspect.specs import SPECS
from xds_control.inspect.tags import Tagger
from xds_control.inspect.tokens import TokenEstimator
from xds_control.policy.inspect import InspectPolicy

_EMBEDDING_BYTES: Final = 10923  # of one token in base64: 4096 numbers of two bytes


class Conclusions:
    """Adds to facts what follows from the prompt: sizes, keys, token estimates, tags."""

    def __init__(
        self,
        policy: InspectPolicy,
        estimator: TokenEstimator,
        exact: Mapping[str, Callable[[str], int]],
        encoders: Mapping[str, Callable[[str], list[int]]],
    ) -> None:
        self._policy = policy
        self._estimator = estimator
        self._exact = dict(exact)
        self._encoders = dict(encoders)
        self._tagger = Tagger(policy.tags, policy.tag_scan_bytes) if policy.tags else None

    def conclude(self, facts: RequestFacts, prompt: Prompt, wants_fingerprint: bool) -> None:
        """Fills the facts of one request. wants_fingerprint: the session is known by nothing better."""
        policy = self._policy
        head = "".join(prompt.head).encode("utf-8", "surrogatepass")
        body = "".join(prompt.body).encode("utf-8", "surrogatepass")
        size = len(head) + len(body)
        facts.prompt_bytes = max(0, size - prompt.marks)
        facts.messages = prompt.messages
        facts.tools = prompt.tools
        if wants_fingerprint:
            first = prompt.user_message()
            if first:
                facts.session_key = fingerprint(head, "".join(first))
                facts.session_source = FINGERPRINT
        facts.text_profile = profile(head, body, prompt.messages)
        if prompt.exact_tokens is None:
            if self._exact and facts.model in self._exact and size <= policy.tokens.tokenizer_max_bytes:
                tokens = self._count(facts, prompt)
            else:
                tokens = self._estimator.estimate(facts.model, facts.prompt_bytes, profile=facts.text_profile)
        else:
            tokens = prompt.exact_tokens
            facts.tokens_exact = not prompt.media
            if len(prompt.body) == 1 and prompt.body[0].startswith("[") and not prompt.body[0].startswith("[["):
                facts.token_ids = prompt.body[0]
            facts.text_profile |= UNLEARNABLE
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
            facts.images = prompt.images
            facts.media_count = len(prompt.media)
            facts.media_bytes = prompt.media_bytes
            if prompt.images < len(prompt.media):
                facts.text_profile |= UNLEARNABLE
            places, media_tokens = self._media(facts.model, prompt)
            facts.prefix_tokens = _with_media(ends, per_byte, places)
            tokens += media_tokens
        else:
            facts.prefix_tokens = tuple([int(end * per_byte) for end in ends])
        facts.prompt_tokens = tokens
        spec = SPECS.get(facts.api)
        if spec is None or spec.generates:
            cap = facts.max_output_tokens
            if cap is None and spec is not None:
                cap = spec.output_cap
            facts.expected_output_tokens = self._estimator.expected_output(facts.model, facts.service_class, cap)
        if self._tagger is not None:
            facts.tags = self._tagger.tags(prompt)

    def _count(self, facts: RequestFacts, prompt: Prompt) -> int:
        """Tokens of the text by the model's own tokenizer."""
        encode = self._encoders.get(facts.model)
        one_text = len(prompt.body) == 1 and not (prompt.head or prompt.media or prompt.marks)
        if encode is not None and one_text and facts.api == "openai.completions":
            # No template: these are the ids that the engine makes of it too, and names its blocks by.
            ids = encode(prompt.body[0])
            facts.token_ids = "[" + ",".join(map(str, ids)) + "]"
            facts.tokens_exact = True
            return len(ids)
        tokens = self._exact[facts.model]("".join(prompt.head + prompt.body))
        spec = SPECS.get(facts.api)
        if spec is not None and spec.plain:
            facts.tokens_exact = not prompt.media
            return tokens
        # What the chat template adds is not in the text, so chats are only nearly exact.
        return tokens + int(prompt.messages * self._policy.tokens.message_tokens)

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
        for in_head, index, kind, bytes_sent in prompt.media:
            place = head_ends[index] if in_head else head_size + body_ends[index]
            cost = max(1.0, bytes_sent / _EMBEDDING_BYTES) if kind == "embeds" else costs.get(kind, 0.0)
            places.append((place, cost))
            total += cost
        places.sort()
        return places, int(total)


def _ends(pieces: list[str]) -> list[int]:
    """Where each piece ends, in bytes."""
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
