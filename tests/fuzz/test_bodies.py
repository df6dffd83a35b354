"""Fuzzed bodies, briefly: XDS_CONTROL_FUZZ_SECONDS lengthens it. Every failure found becomes a test in tests/unit."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.bodies import Checker, run
from xds_control.inspect import BodyProblem

SECONDS = float(os.environ.get("XDS_CONTROL_FUZZ_SECONDS", "4"))

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
PARTS = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["text", "image_url", "tool_use", "tool_result", "thinking", "new"]) | VALUES,
        "text": st.text() | VALUES,
        "image_url": VALUES,
        "source": VALUES,
        "content": VALUES,
        "input": VALUES,
        "name": VALUES,
    },
)
MESSAGES = st.fixed_dictionaries(
    {},
    optional={
        "role": st.sampled_from(["system", "user", "assistant", "tool", "developer"]) | VALUES,
        "content": st.text() | st.none() | st.lists(PARTS, max_size=4) | VALUES,
        "tool_calls": VALUES,
        "images": VALUES,
        "reasoning": VALUES,
    },
)
BODIES = st.fixed_dictionaries(
    {"messages": st.lists(MESSAGES, max_size=5) | VALUES},
    optional=dict.fromkeys(
        (
            "model", "stream", "n", "max_tokens", "temperature", "priority", "tools", "metadata", "user", "prompt",
            "conversation", "session_params", "system", "options", "cache_salt", "functions", "documents",
        ),
        VALUES,
    ),
)  # fmt: skip
CHECKER = Checker()


@pytest.mark.timeout(SECONDS * 2 + 60)
@pytest.mark.parametrize("seed", [1, 2])
def test_mutated_samples(seed: int) -> None:
    assert run(SECONDS / 2, seed) > 100


@settings(max_examples=150, deadline=None)
@given(
    body=BODIES,
    path=st.sampled_from(["/v1/chat/completions", "/v1/messages", "/api/chat", "/model/m/converse", "/v1/responses"]),
    indent=st.sampled_from([None, 2]),
    escaped=st.booleans(),
)
def test_any_json(body: dict[str, Any], path: str, indent: int | None, escaped: bool) -> None:
    data = json.dumps(body, indent=indent, ensure_ascii=escaped).encode("utf-8", "surrogatepass")
    facts = CHECKER.check(path, {}, data)
    assert facts.problem in (BodyProblem.NONE, BodyProblem.WRONG_SHAPE, BodyProblem.NOT_JSON)
