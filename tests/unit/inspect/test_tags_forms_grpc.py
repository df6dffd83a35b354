"""Tags by keyword, multipart forms, and gRPC messages read by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from xds_control.errors import ConfigError
from xds_control.inspect import BodyProblem, Inspector, RequestFacts, TokenEstimator
from xds_control.inspect.exact import load_counters
from xds_control.inspect.multipart import read_form
from xds_control.policy.inspect import InspectPolicy, TagPolicy

CHAT = "/v1/chat/completions"
AUDIO = "/v1/audio/transcriptions"


def tags_of(policy: InspectPolicy, *messages: tuple[str, Any]) -> tuple[str, ...]:
    body = {"model": "m", "messages": [{"role": role, "content": content} for role, content in messages]}
    return Inspector(policy, TokenEstimator()).inspect(CHAT, {}, json.dumps(body).encode()).tags


TAGS = InspectPolicy(
    tags=(
        TagPolicy(name="legal", keywords=("contract", "plaintiff", "Court of Appeal"), min_hits=2),
        TagPolicy(name="code", keywords=("def ", "c++", "python"), scope="last"),
        TagPolicy(name="tutor", keywords=("teacher",), scope="system"),
        TagPolicy(name="medical", keywords=("药", "diagnosis")),
    )
)


@pytest.mark.parametrize(
    ("messages", "tags"),
    [
        ([("user", "The CONTRACT went to the court of appeal.")], ("legal",)),
        ([("user", "contract contract contract")], ()),
        ([("user", "subcontractor plaintiffs' court of appeals")], ()),
        ([("user", "in python please")], ("code",)),
        ([("user", "pythonic")], ()),
        ([("user", "I know C++, do you?")], ("code",)),
        ([("user", "python"), ("assistant", "ok"), ("user", "never mind")], ()),
        ([("system", "You are a teacher"), ("user", "hi")], ("tutor",)),
        ([("user", "You are a teacher")], ()),
        ([("user", "吃药吗")], ("medical",)),
        ([("user", [{"type": "text", "text": "my diagnosis?"}])], ("medical",)),
        (
            [("system", "teacher of python"), ("user", "diagnosis: plaintiff breaks contract")],
            ("legal", "tutor", "medical"),
        ),
    ],
)
def test_tags(messages: list[tuple[str, Any]], tags: tuple[str, ...]) -> None:
    assert tags_of(TAGS, *messages) == tags


def test_only_the_end_of_a_long_prompt_is_searched() -> None:
    policy = InspectPolicy(tags=(TagPolicy(name="t", keywords=("needle",)),), tag_scan_bytes=1000)
    assert tags_of(policy, ("user", "needle " + "hay " * 1000)) == ()
    assert tags_of(policy, ("user", "hay " * 1000 + "needle")) == ("t",)


@pytest.mark.parametrize(
    ("tags", "message"),
    [
        ([{"name": "a", "keywords": (" ",)}], "blank"),
        ([{"name": "a", "keywords": ("x",), "min_hits": 2}], "min_hits is 2"),
        ([{"name": "a", "keywords": ("x",)}, {"name": "a", "keywords": ("y",)}], "same name"),
    ],
)
def test_wrong_tags_are_refused(tags: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        InspectPolicy(tags=tuple(TagPolicy(**tag) for tag in tags))


def form(*parts: tuple[str, str, bytes], boundary: bytes = b"B-1", end: bytes = b"--\r\n") -> bytes:
    pieces = []
    for name, extra, content in parts:
        head = f'Content-Disposition: form-data; name="{name}"{extra}\r\n\r\n'.encode()
        pieces.append(b"--" + boundary + b"\r\n" + head + content + b"\r\n")
    return b"".join(pieces) + b"--" + boundary + end


@pytest.fixture(scope="module")
def inspector() -> Inspector:
    return Inspector(InspectPolicy(), TokenEstimator())


@pytest.mark.parametrize(
    "content_type", ["multipart/form-data; boundary=B-1", 'x; Boundary="B-1"', "multipart/form-data", ""]
)
def test_model_behind_a_file(inspector: Inspector, content_type: str) -> None:
    file = bytes(range(256)) * 4000 + b"\r\n--B-\r\n--not it\r\n"
    data = form(("file", '; filename="model.wav"', file), ("prompt", "", b"names"), ("model", "", b"whisper"))
    facts = inspector.inspect(AUDIO, {"content-type": content_type}, data)
    assert (facts.problem, facts.model, facts.media_bytes, facts.prompt_bytes) == (
        BodyProblem.NONE,
        "whisper",
        len(file),
        5,
    )


def test_forms_that_are_cut_or_odd(inspector: Inspector) -> None:
    data = form(
        ("model", "", b"a"),
        ("model", "", b"b"),
        ("stream", "", b"True"),
        ("n", "", b"3"),
        ("file", "; filename=x", b"z"),
    )
    headers = {"content-type": "multipart/form-data; boundary=B-1"}
    facts = inspector.inspect(AUDIO, headers, data)
    assert (facts.model, facts.ambiguous, facts.stream, facts.n) == ("b", ("model",), True, 3)
    cut = inspector.inspect(AUDIO, headers, data[:-6])
    assert (cut.model, cut.problem) == ("b", BodyProblem.TRUNCATED)
    assert inspector.inspect(AUDIO, headers, b"\0" * 1000).problem is BodyProblem.NOT_JSON
    for length in range(len(data)):
        inspector.inspect(AUDIO, headers, data[:length])
    many = form(*[("x", "", b"")] * 10_000)
    found = read_form(many, "multipart/form-data; boundary=B-1")
    assert found is not None
    assert not found.complete
    assert read_form(b"--\r\n--\r\n", "") is None


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(out) + bytes([value])


def pb(number: int, value: int | bytes) -> bytes:
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def frame(message: bytes) -> bytes:
    return b"\0" + len(message).to_bytes(4, "big") + message


VLLM = "/vllm.grpc.engine.VllmEngine/Generate"
KSERVE = "/inference.GRPCInferenceService/ModelInfer"


def test_vllm_generate(inspector: Inspector) -> None:
    ids = b"".join(varint(number) for number in (1, 200, 70_000, 5))
    message = pb(1, b"r1") + pb(2, pb(1, b"hello") + pb(2, ids)) + pb(4, pb(8, 77)) + pb(5, 1)
    facts = inspector.inspect(VLLM, {"content-type": "application/grpc"}, frame(message))
    assert (facts.problem, facts.api) == (BodyProblem.NONE, "grpc.vllm")
    assert (facts.prompt_tokens, facts.tokens_exact, facts.max_output_tokens, facts.stream) == (4, True, 77, True)
    unpacked = pb(2, pb(2, 1) + pb(2, 2))
    assert inspector.inspect(VLLM, {}, frame(unpacked)).prompt_tokens == 2
    text = inspector.inspect(VLLM, {}, frame(pb(3, b"some text")))
    assert (text.prompt_bytes, text.tokens_exact) == (9, False)


def test_kserve_infer(inspector: Inspector) -> None:
    text = b"what is it"
    raw = len(text).to_bytes(4, "little") + text
    parameter = pb(1, b"max_tokens") + pb(2, pb(2, 33))
    for contents, raws in ((pb(5, pb(8, text)), b""), (b"", pb(7, raw))):
        tensor = pb(1, b"text_input") + pb(2, b"BYTES") + contents
        message = pb(1, b"ens") + pb(4, parameter) + pb(5, tensor) + raws
        facts = inspector.inspect(KSERVE, {}, frame(message))
        assert (facts.problem, facts.model, facts.prompt_bytes, facts.max_output_tokens) == (
            BodyProblem.NONE,
            "ens",
            10,
            33,
        )


@pytest.mark.parametrize("path", [VLLM, KSERVE])
def test_damaged_messages(inspector: Inspector, path: str) -> None:
    whole = frame(pb(2, pb(1, b"hello")) + pb(5, pb(1, b"text_input")))
    for data in (
        b"\0",
        b"\1" + whole[1:],
        frame(b"\xff" * 20),
        frame(b"\x0b"),
        frame(pb(5, b"\xff\xff") + pb(2, b"\xff\xff")),
        frame(b"\0\0"),
    ):
        assert inspector.inspect(path, {}, data).problem is BodyProblem.BAD_ENCODING, data
    for length in range(1, len(whole)):
        assert inspector.inspect(path, {}, whole[:length]).problem is BodyProblem.BAD_ENCODING
    assert inspector.inspect(path, {}, frame(b"")).problem is BodyProblem.WRONG_SHAPE
    assert inspector.inspect(path, {}, b"").problem is BodyProblem.EMPTY


def test_tokenizer_files(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    model = tokenizers.models.WordLevel({"hello": 0, "world": 1, "?": 2}, unk_token="?")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path))
    counters = load_counters({"m": str(path)})
    assert counters["m"]("hello big world") == 3
    assert counters["m"]("hello \ud83d") == 2
    assert load_counters({}) == {}
    with pytest.raises(ConfigError, match="cannot be used"):
        load_counters({"m": str(tmp_path / "absent.json")})
    problems: list[str] = []
    both = load_counters({"a": str(tmp_path / "absent.json"), "m": str(path)}, lambda model, _: problems.append(model))
    assert (sorted(both), problems) == (["m"], ["a"])


def test_a_text_that_no_template_changes_gets_the_engines_token_ids(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    model = tokenizers.models.WordLevel({"hello": 5, "world": 6, "?": 7, "<s>": 1}, unk_token="?")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer.enable_truncation(2)
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path))
    exact = load_counters({"m": str(path)})
    inspector = Inspector(InspectPolicy(), TokenEstimator(), exact, {name: one.ids for name, one in exact.items()})

    def read(path: str, **body: object) -> RequestFacts:
        return inspector.inspect(path, {}, msgspec.json.encode({"model": "m", **body}))

    text = read("/v1/completions", prompt="hello world hello")
    assert text.token_ids == "[1,5,6,5]"
    assert text.prompt_tokens == 4
    assert text.tokens_exact
    assert read("/v1/completions", prompt=[1, 5, 6, 5]).token_ids == "[1,5,6,5]"
    # Several prompts, templates, other models: the ids are not known.
    assert read("/v1/completions", prompt=["hello", "world"]).token_ids == ""
    assert read("/v1/completions", prompt="hello", suffix="world").token_ids == ""
    assert read("/v1/chat/completions", messages=[{"role": "user", "content": "hello"}]).token_ids == ""
    assert inspector.inspect("/v1/completions", {}, b'{"model": "n", "prompt": "hello"}').token_ids == ""
