"""Estimates of prompt tokens: how fast they learn, and what cannot break them."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from functools import cache
from itertools import pairwise

import pytest

from tests.bench import corpora
from xds_control.inspect import Inspector, TokenEstimator
from xds_control.inspect.profile import message_count, profile, shares
from xds_control.policy.inspect import InspectPolicy, TokensPolicy

tokenizers = pytest.importorskip("tokenizers")


@cache
def counter() -> Callable[[str], int]:
    """A byte-level BPE tokenizer trained on other text of the same kinds: the truth that is to be learned."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    rng = random.Random(99)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=3000, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([corpora.prompt(rng, largest=20_000) for _ in range(40)], trainer)
    return lambda text: len(tokenizer.encode(text).ids)


def chat(text: str, turns: int) -> tuple[bytes, int]:
    """A chat that holds the text in some turns, and its true number of tokens with those of a template."""
    cuts = [place * len(text) // turns for place in range(turns + 1)]
    parts = [text[start:end] for start, end in pairwise(cuts)]
    messages = [{"role": "user" if n % 2 == 0 else "assistant", "content": part} for n, part in enumerate(parts)]
    body = json.dumps({"model": "m", "messages": messages}, ensure_ascii=False).encode()
    return body, sum(counter()(part) + 5 for part in parts) + 3


def learn(kinds: list[str], requests: int, seed: int) -> tuple[TokenEstimator, list[float]]:
    """An estimator that saw some requests, and the relative error of each before it was seen."""
    policy = InspectPolicy()
    estimator = TokenEstimator(policy.tokens)
    inspector = Inspector(policy, estimator)
    rng = random.Random(seed)
    errors = []
    for _ in range(requests):
        body, actual = chat(corpora.prompt(rng, rng.choice(kinds), 12_000), rng.randint(1, 6))
        facts = inspector.inspect("/v1/chat/completions", {}, body)
        errors.append(abs(facts.prompt_tokens - actual) / actual)
        estimator.observe("m", facts.prompt_bytes, actual, profile=facts.text_profile)
    return estimator, errors


@pytest.mark.parametrize("kinds", [["english"], ["chinese"], ["code"], ["mixed"], sorted(corpora.KINDS)], ids="-".join)
def test_converges_within_200_requests(kinds: list[str]) -> None:
    estimator, errors = learn(kinds, 260, seed=7)
    late = errors[200:]
    assert sum(late) / len(late) < 0.06
    assert sorted(late)[int(len(late) * 0.95)] < 0.2
    assert (estimator.relative_error("m") or 1) < 0.1


def test_before_anything_is_learned_the_estimate_is_usable() -> None:
    _, errors = learn(sorted(corpora.KINDS), 8, seed=3)
    assert max(errors) < 1.0


def test_wild_counts_do_not_disturb_what_was_learned() -> None:
    estimator, _ = learn(["english"], 100, seed=1)
    facts_bytes, kind = 4000, profile(b"", b"the quick brown fox jumps over it " * 100, 1)
    before = estimator.estimate("m", facts_bytes, profile=kind)
    for count in (0, -5, 10**12, float("nan"), float("inf"), 1, facts_bytes * 50):
        estimator.observe("m", facts_bytes, count, profile=kind)
    assert estimator.estimate("m", facts_bytes, profile=kind) == before
    for _ in range(10):  # possible, but far from what is usual
        estimator.observe("m", facts_bytes, facts_bytes, profile=kind)
    assert abs(estimator.estimate("m", facts_bytes, profile=kind) - before) < 0.35 * before


@pytest.mark.parametrize("seed", range(5))
def test_estimates_stay_within_bounds_whatever_is_observed(seed: int) -> None:
    rng = random.Random(seed)
    estimator = TokenEstimator()
    for _ in range(300):
        size = rng.choice((1, 10, 1000, 10**6, 10**8))
        kind = rng.getrandbits(52)
        estimator.observe("m", size, rng.random() * size * 3, profile=kind, images=rng.choice((0, 0, 3, 1000)))
        size = rng.choice((0, 1, 1000, 10**8))
        tokens = estimator.estimate("m", size, profile=kind)
        assert 0 <= tokens <= 1.3 * size + 1024 * 1023
        assert tokens >= (size > 0)


def test_nothing_is_learned_where_bytes_do_not_explain_tokens() -> None:
    inspector = Inspector(InspectPolicy(), TokenEstimator())
    ids = inspector.inspect("/v1/completions", {}, b'{"model":"m","prompt":[' + b"12345," * 500 + b"1]}")
    audio = {"type": "input_audio", "input_audio": {"data": "AAAA"}}
    heard = inspector.inspect(
        "/v1/chat/completions", {}, json.dumps({"model": "m", "messages": [{"content": [audio]}]}).encode()
    )
    for facts in (ids, heard):
        assert facts.text_profile < 1 << 53
        estimator = TokenEstimator()
        estimator.observe("m", facts.prompt_bytes or 10, 12, profile=facts.text_profile)
        assert estimator.relative_error("m") is None


def test_images_get_their_own_price() -> None:
    estimator = TokenEstimator(TokensPolicy(image_tokens=100))
    kind = profile(b"", b"what is on this picture? " * 20, 1)
    for images in [0, 1, 2, 3] * 60:
        estimator.observe("m", 500, 120 + 1500 * images, profile=kind, images=images)
    assert estimator.image_tokens("m") == pytest.approx(1500, rel=0.05)


def test_processors_share_what_they_learned_without_counting_it_twice() -> None:
    first, _ = learn(["english"], 150, seed=1)
    second, _ = learn(["code"], 150, seed=2)
    control = TokenEstimator()
    for _ in range(3):  # the same state again replaces itself
        control.merge(json.loads(json.dumps(first.export())), "p1")
        control.merge(json.loads(json.dumps(second.export())), "p2")
    english = profile(b"", corpora.english(random.Random(5), 4000).encode(), 1)
    code = profile(b"", corpora.code(random.Random(5), 4000).encode(), 1)
    fresh = TokenEstimator()
    fresh.merge(control.export(without="p3"))
    for estimator in (control, fresh):
        assert estimator.estimate("m", 4000, profile=english) == pytest.approx(
            first.estimate("m", 4000, profile=english), rel=0.1
        )
        assert estimator.estimate("m", 4000, profile=code) == pytest.approx(
            second.estimate("m", 4000, profile=code), rel=0.1
        )
    assert fresh.export()["prompt"] == {}  # what came from elsewhere is not handed on
    assert control.export(without="p1")["prompt"]["m"]["seen"] == second.export()["prompt"]["m"]["seen"]


def test_a_new_policy_goes_on_with_what_was_learned() -> None:
    old, _ = learn(["code"], 120, seed=4)
    old.merge(learn(["english"], 60, seed=5)[0].export())
    for _ in range(50):
        old.observe_output("m", "high", 33)
    new = TokenEstimator(TokensPolicy(image_tokens=5))
    new.adopt(old)
    code = profile(b"", corpora.code(random.Random(5), 4000).encode(), 1)
    assert new.estimate("m", 4000, profile=code) == pytest.approx(old.estimate("m", 4000, profile=code), rel=0.02)
    assert new.expected_output("m", "high", None) == old.expected_output("m", "high", None)
    assert new.export() == old.export()
    for _ in range(20):
        new.observe("m", 4000, 3000, profile=code)
        new.observe_output("m", "high", 500)
    assert old.export() != new.export()


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"version": 2},
        {"version": 1, "prompt": [], "output": {}},
        {"version": 1, "prompt": {"m": {}}},
        {"version": 1, "prompt": {"m": {"moments": [1], "targets": [], "seen": 1}}},
        {"version": 1, "prompt": {"m": {"moments": [float("nan")] * 100, "targets": [0.0] * 10, "seen": 1}}},
        {"version": 1, "prompt": {"m": {"moments": [-1.0] * 100, "targets": [0.0] * 10, "seen": 1}}},
        {"version": 1, "output": [1, {"model": "m"}, {"model": "m", "class": "", "counts": ["x"] * 61}]},
    ],
)
def test_damaged_states_are_ignored(state: dict[str, object]) -> None:
    estimator = TokenEstimator()
    before = estimator.estimate("m", 4000)
    estimator.merge(state)
    assert estimator.estimate("m", 4000) == before
    assert estimator.expected_output("m", "", None) == 256


def test_models_are_bounded() -> None:
    estimator = TokenEstimator(TokensPolicy(max_models=10))
    for number in range(100):
        estimator.observe(f"m{number}", 1000, 250)
        estimator.observe_output(f"m{number}", "high", 50)
    state = estimator.export()
    assert list(state["prompt"]) == [f"m{number}" for number in range(90, 100)]
    assert len(state["output"]) <= 10


def test_learning_can_be_switched_off() -> None:
    estimator = TokenEstimator(TokensPolicy(learn=False))
    before = estimator.estimate("m", 4000)
    for _ in range(50):
        estimator.observe("m", 4000, 3999)
        estimator.observe_output("m", "", 3999)
    assert estimator.estimate("m", 4000) == before
    assert estimator.expected_output("m", "", None) == 256


def test_profile_is_exact_in_a_double_and_reads_the_shares() -> None:
    text = ("Ab 1." * 400 + "\n" * 200 + "é" * 300 + "中" * 300).encode()  # period 5, as the step would be
    packed = profile(b"", text, 5000)
    assert packed < 1 << 53
    assert int(float(packed)) == packed
    assert message_count(packed) == 1023
    assert sum(shares(packed)) == pytest.approx(1.0)
    lower, upper, digit, space, newline, punct, two, wide = shares(packed)
    total = len(text)
    for share, count in (
        (upper, 400),
        (digit, 400),
        (space, 400),
        (newline, 200),
        (punct, 400),
        (two, 600),
        (wide, 900),
    ):
        assert share == pytest.approx(count / total, abs=0.06)
    assert lower == pytest.approx(400 / total, abs=0.08)


def test_exact_counters_are_used_where_they_are() -> None:
    policy = InspectPolicy()
    inspector = Inspector(policy, TokenEstimator(), {"m": lambda text: len(text)})
    facts = inspector.inspect("/v1/completions", {}, b'{"model":"m","prompt":"abcdefg"}')
    assert (facts.prompt_tokens, facts.tokens_exact) == (7, True)
    chat_facts = inspector.inspect("/v1/chat/completions", {}, b'{"model":"m","messages":[{"content":"abcdefg"}]}')
    assert chat_facts.prompt_tokens > 7
    assert not chat_facts.tokens_exact
    other = inspector.inspect("/v1/completions", {}, b'{"model":"x","prompt":"abcdefg"}')
    assert not other.tokens_exact
