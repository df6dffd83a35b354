"""Every format, and how paths are told apart."""

from __future__ import annotations

import pytest

from tests.unit.inspect.samples import SAMPLES, Sample
from xds_control.inspect import BodyProblem, Inspector, TokenEstimator
from xds_control.inspect.formats import match_path
from xds_control.policy.inspect import InspectPolicy


@pytest.fixture(scope="module")
def inspector() -> Inspector:
    return Inspector(InspectPolicy(), TokenEstimator())


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.name)
def test_format(inspector: Inspector, sample: Sample) -> None:
    facts = inspector.inspect(sample.path, sample.headers, sample.data())
    assert {"problem": BodyProblem.NONE} | {name: getattr(facts, name) for name in sample.expected} == {
        "problem": BodyProblem.NONE
    } | sample.expected, facts
    assert facts.problem is BodyProblem.NONE, facts.detail
    assert len(facts.prefix_keys) == len(facts.prefix_tokens)
    if facts.api not in ("", "openai.files", "openai.batches"):
        assert facts.prompt_tokens > 0
        assert facts.prefix_keys


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.name)
def test_every_format_survives_being_cut(inspector: Inspector, sample: Sample) -> None:
    data = sample.data()
    for length in range(0, len(data), max(1, len(data) // 40)):
        facts = inspector.inspect(sample.path, sample.headers, data[:length])
        assert facts.body_bytes == length


@pytest.mark.parametrize(
    ("path", "api", "model"),
    [
        ("/v1/chat/completions", "openai.chat", ""),
        ("/v1/chat/completions/", "openai.chat", ""),
        ("/v1/chat/completions?x=/completions", "openai.chat", ""),
        ("//v1//chat/completions", "openai.chat", ""),
        ("/some/prefix/v1/chat/completions", "openai.chat", ""),
        ("http://host:8000/v1/chat/completions", "openai.chat", ""),
        ("/v1%2Fchat%2Fcompletions", "openai.chat", ""),
        ("/v1/completions", "openai.completions", ""),
        ("/openai/deployments/a%2Fb/completions?api-version=1", "openai.completions", "a/b"),
        ("/v1/engines/davinci/completions", "openai.completions", "davinci"),
        ("/v1/chat/completions/render", "vllm.render", ""),
        ("/v1/messages", "anthropic.messages", ""),
        ("/anthropic/v1/messages/count_tokens", "anthropic.count_tokens", ""),
        ("/v1/responses/resp_1", "openai.responses", ""),
        ("/v1/responses/resp_1/cancel", "openai.responses", ""),
        ("/v1/conversations/c_1/items", "openai.conversations", ""),
        ("/api/embeddings", "ollama.embed", ""),
        ("/v1/embeddings", "openai.embeddings", ""),
        ("/cohere/v2/chat", "cohere.chat", ""),
        ("/v2/models/m/versions/1/infer", "kserve.infer", "m"),
        ("/v1/projects/p/locations/l/publishers/google/models/g:generateContent", "gemini.generate", "g"),
        ("/model/x%2Fy/invoke", "bedrock.invoke", "x/y"),
        ("/vllm.grpc.engine.VllmEngine/Generate", "grpc.vllm", ""),
        ("/inference.GRPCInferenceService/ModelInfer", "grpc.kserve", ""),
        ("/v1/models", "", ""),
        ("/healthz", "", ""),
        ("", "", ""),
        ("*", "", ""),
        ("/" * 5000, "", ""),
        ("/v1/chat/completionsx", "", ""),
    ],
)
def test_path(path: str, api: str, model: str) -> None:
    match = match_path(path)
    assert (match.api, match.model) == (api, model)


def test_paths_with_ids_do_not_fill_the_memory(inspector: Inspector) -> None:
    for number in range(10_000):
        assert inspector.inspect(f"/v1/responses/{number}", {}, b"").session_source == "path"
    assert len(inspector._paths._known) <= 4096


def test_requests_without_a_body_are_no_problem(inspector: Inspector) -> None:
    facts = inspector.inspect("/v1/responses", {":method": "GET"}, b"")
    assert facts.problem is BodyProblem.NONE
    assert inspector.inspect("/v1/responses", {":method": "POST"}, b"").problem is BodyProblem.EMPTY


def test_kserve_binary_extension(inspector: Inspector) -> None:
    text = b"hello binary world"
    tensor = len(text).to_bytes(4, "little") + text
    head = (
        b'{"inputs":[{"name":"text_input","shape":[1],"datatype":"BYTES","parameters":{"binary_data_size":%d}}]}'
        % len(tensor)
    )
    headers = {"inference-header-content-length": str(len(head))}
    facts = inspector.inspect("/v2/models/m/infer", headers, head + tensor)
    assert (facts.problem, facts.prompt_bytes) == (BodyProblem.NONE, len(text))
    cut = inspector.inspect("/v2/models/m/infer", {"inference-header-content-length": "9999"}, head + tensor)
    assert cut.problem is BodyProblem.TRUNCATED


def test_the_binary_extension_hides_nothing_from_other_apis(inspector: Inspector) -> None:
    first = b'{"model":"allowed","messages":[{"content":"x"}]'
    body = first + b',"model":"forbidden"}'
    facts = inspector.inspect("/v1/chat/completions", {"inference-header-content-length": str(len(first))}, body)
    assert (facts.problem, facts.model, facts.ambiguous) == (BodyProblem.NONE, "forbidden", ("model",))
