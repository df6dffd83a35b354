"""Reads requests for the decider, and learns token counts from how they ended."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from xds_control.inspect import Inspector, RequestFacts, TokenEstimator
from xds_control.inspect.encodings import decode_body
from xds_control.inspect.exact import load_counters
from xds_control.inspect.facts import BodyProblem
from xds_control.inspect.patch import replace_model
from xds_control.observe.logs import logger
from xds_control.policy.inspect import InspectPolicy
from xds_control.signals.finished import Finished


class RequestReader:
    """The inspector as the decider wants it, with the estimator that it learns by."""

    def __init__(self, policy: InspectPolicy, estimator: TokenEstimator) -> None:
        self.policy = policy
        self.estimator = estimator
        exact = load_counters(policy.tokens.tokenizers, _not_usable)
        self._inspector = Inspector(policy, estimator, exact, {model: one.ids for model, one in exact.items()})
        self._learned = 0
        self._exported = 0

    def inspect(self, path: str, headers: Mapping[str, str], body: bytes) -> RequestFacts:
        """Facts of one request."""
        return self._inspector.inspect(path, headers, body)

    def rewrite_model(self, headers: Mapping[str, str], body: bytes, facts: RequestFacts, model: str) -> bytes | None:
        """The decoded body with another model name, None when that cannot be done in place."""
        data, problem = decode_body(
            body,
            headers.get("content-encoding", ""),
            self.policy.max_decoded_bytes,
            self.policy.zstd_window_bytes,
        )
        return None if problem is not BodyProblem.NONE else replace_model(data, facts, model)

    def learn(self, one: Finished) -> None:
        """Learns from a request that ended. Aborted answers say nothing about lengths."""
        if one.prompt_tokens is not None and one.prompt_bytes:
            self.estimator.observe(
                one.model, one.prompt_bytes, one.prompt_tokens, profile=one.text_profile, images=one.images
            )
            self._learned += 1
        if one.ok and one.completion_tokens is not None:
            self.estimator.observe_output(one.model, one.service_class, one.completion_tokens)
            self._learned += 1

    def export(self, least: int = 50) -> bytes:
        """What was learned, as bytes for control; b"" when fewer than `least` requests were added since then."""
        if self._learned - self._exported < least:
            return b""
        self._exported = self._learned
        return msgspec.json.encode(self.estimator.export())

    def merge(self, state: bytes) -> None:
        """Takes in what control has from the other processors. Raises ValueError when it is not JSON."""
        if state:
            self.estimator.merge(msgspec.json.decode(state, type=dict))


def _not_usable(model: str, problem: str) -> None:
    logger("processor").warning("tokenizer-not-usable", model=model, problem=problem)
