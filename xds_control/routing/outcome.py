"""What became of a request: the word of the access log, from whichever processor's pick it was."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

SICK: Final = frozenset({"connect", "timeout", "reset", "5xx", "backpressure"})
"""Outcomes after which an endpoint rests. A client's own error (4xx) or departure says nothing about it."""


class FinishedLike(Protocol):
    """The fields of `signals.finished.Finished` that the picker reads. None = unknown."""

    @property
    def pool(self) -> str: ...
    @property
    def endpoint(self) -> str: ...
    @property
    def pick(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def attempts(self) -> int: ...
    @property
    def prompt_tokens_est(self) -> int | None: ...
    @property
    def output_tokens_est(self) -> int | None: ...
    @property
    def matched_tokens(self) -> int | None: ...
    @property
    def prompt_tokens(self) -> int | None: ...
    @property
    def completion_tokens(self) -> int | None: ...
    @property
    def cached_tokens(self) -> int | None: ...
    @property
    def ttft_s(self) -> float | None: ...
    @property
    def decode_s(self) -> float | None: ...
    @property
    def e2e_s(self) -> float | None: ...


@dataclass(slots=True)
class Finished:
    """One request that ended, for those who have no access log (simulators, tests).

    endpoint: who answered, "" when nobody was reached. pick: first address of the pick, "" when the weights chose.
    kind: ok, connect, timeout, reset, 5xx, 4xx, aborted, backpressure. attempts: upstream tries.
    *_est, matched_tokens: as predicted at the pick. ttft_s, decode_s, e2e_s: seconds.
    """

    pool: str
    endpoint: str
    pick: str = ""
    kind: str = "ok"
    attempts: int = 1
    prompt_tokens_est: int | None = None
    output_tokens_est: int | None = None
    matched_tokens: int | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    ttft_s: float | None = None
    decode_s: float | None = None
    e2e_s: float | None = None
