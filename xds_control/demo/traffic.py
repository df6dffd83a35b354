"""What the demo's clients ask: mixed chat traffic, the same for the same seed. Pure."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from xds_control.demo.openai import answer_text


@dataclass(frozen=True, slots=True)
class TrafficConfig:
    """A mix of chats.

    rate: mean requests per second of Poisson arrivals, > 0. models: served name → relative share.
    turns: mean turns of a session, ≥ 1; a turn carries all before it. system_prompts: how many different system
    prompts the sessions share, the first ones more often; system_tokens: length of each. user_tokens, answer_tokens:
    mean lengths; answers are bounded by max_tokens. stream_share: 0..1. exact_answers: ask the engine to ignore its end
    token, so answers have exactly the drawn length. session_header: carries the session's name; "" sends none.
    """

    rate: float = 10.0
    models: Mapping[str, float] = field(default_factory=lambda: {"demo": 1.0})
    turns: float = 3.0
    system_prompts: int = 4
    system_tokens: int = 200
    user_tokens: float = 40.0
    answer_tokens: float = 60.0
    stream_share: float = 0.7
    exact_answers: bool = False
    session_header: str = "x-session-id"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.rate <= 0 or self.turns < 1:
            raise ValueError("rate must be positive and turns at least 1")
        if not self.models or min(self.models.values()) < 0 or sum(self.models.values()) <= 0:
            raise ValueError("models needs at least one name with a positive share")
        if not 0 <= self.stream_share <= 1:
            raise ValueError("stream_share must lie between 0 and 1")
        if self.system_prompts < 1:
            raise ValueError("system_prompts must be at least 1")


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request to come. at: seconds after the start. goes_on: whether it may continue an idle session.

    text: the new user message. model and system: used when it starts a session.
    """

    index: int
    at: float
    goes_on: bool
    model: str
    system: str
    text: str
    max_tokens: int
    stream: bool


@dataclass(slots=True)
class Session:
    """One conversation so far."""

    name: str
    model: str
    messages: list[dict[str, str]]


def arrivals(config: TrafficConfig) -> Iterator[Arrival]:
    """Without end, in order of time."""
    draw = random.Random(config.seed)
    models, shares = list(config.models), list(config.models.values())
    systems = [_text(config.seed, 1_000_000 + i, config.system_tokens) for i in range(config.system_prompts)]
    # Zipf: the second prompt is used half as often as the first, and so on.
    popularity = [1.0 / (rank + 1) for rank in range(config.system_prompts)]
    at = 0.0
    for index in itertools.count():
        at += draw.expovariate(config.rate)
        yield Arrival(
            index=index,
            at=at,
            goes_on=draw.random() < 1.0 - 1.0 / config.turns,
            model=draw.choices(models, shares)[0],
            system=draw.choices(systems, popularity)[0],
            text=_text(config.seed, index, _length(draw, config.user_tokens)),
            max_tokens=_length(draw, config.answer_tokens),
            stream=draw.random() < config.stream_share,
        )


def _length(draw: random.Random, mean: float) -> int:
    """Log-normal with that mean and a sigma of 0.5, as chat lengths roughly are."""
    return max(1, round(draw.lognormvariate(0.0, 0.5) * mean / 1.1331))


def _text(seed: int, index: int, tokens: int) -> str:
    """Words that differ from the first one on between indices."""
    body = answer_text(random.Random(f"{seed}/{index}").getrandbits(64), max(1, tokens - 2)).decode()
    return f"{index:06d}: {body}".rstrip()
