"""gRPC requests: vLLM's Generate and KServe's ModelInfer, in one length-prefixed message."""

from __future__ import annotations

from xds_control.inspect.canonical import Prompt
from xds_control.inspect.errors import WrongShape
from xds_control.inspect.facts import RequestFacts
from xds_control.inspect.protowire import fields, packed_count

_TEXT_NAMES = (b"text_input", b"prompt", b"text", b"query", b"input", b"inputs")


def message_of(data: bytes) -> bytes:
    """The first message of a gRPC body. ValueError when it is compressed (a codec that nobody named) or cut off."""
    if len(data) < 5:
        raise ValueError("there is no whole gRPC message")
    size = int.from_bytes(data[1:5], "big")
    if data[0] != 0:
        raise ValueError("the gRPC message is compressed")
    if len(data) < 5 + size:
        raise ValueError("the gRPC message is cut off")
    return data[5 : 5 + size]


def read_vllm(message: bytes, prompt: Prompt, facts: RequestFacts) -> None:
    """GenerateRequest{tokenized{original_text=1, input_ids=2}=2, text=3, sampling_params=4{max_tokens=8}, stream=5}."""
    prompt.in_head = False
    ids = b""
    unpacked = 0
    text = ""
    for number, value in fields(message):
        if isinstance(value, int):
            if number == 5:
                facts.stream = value != 0
        elif number == 2:
            for inner, content in fields(value):
                if inner == 2 and isinstance(content, bytes):
                    ids += content
                elif inner == 2:
                    unpacked += 1
                elif inner == 1 and isinstance(content, bytes):
                    text = content.decode("utf-8", "replace")
        elif number == 3:
            text = value.decode("utf-8", "replace")
        elif number == 4:
            for inner, content in fields(value):
                if inner == 8 and isinstance(content, int):
                    facts.max_output_tokens = content if content < 1 << 31 else None
        elif number == 7:
            prompt.add_media(prompt.body, "image", value)
    count = packed_count(ids) + unpacked
    if not text and not count:
        raise WrongShape("there is neither text nor input_ids")
    prompt.messages = 1
    if count:
        prompt.exact_tokens = count
    prompt.body.append(text or ids.hex())


def read_kserve(message: bytes, prompt: Prompt, facts: RequestFacts) -> None:
    """ModelInferRequest{model_name=1, parameters=4, inputs=5{name=1, datatype=2, contents=5{bytes_contents=8}},
    raw_input_contents=7}."""
    prompt.in_head = False
    inputs: list[tuple[bytes, bytes, list[bytes]]] = []
    raws: list[bytes] = []
    for number, value in fields(message):
        if isinstance(value, int):
            continue
        if number == 1:
            facts.model = value.decode("utf-8", "replace")[:1024]
        elif number == 5:
            inputs.append(_tensor(value))
        elif number == 7:
            raws.append(value)
        elif number == 4:
            _parameter(value, facts)
    if not inputs:
        raise WrongShape("there are no inputs")
    texts: list[tuple[bytes, list[bytes]]] = []
    for place, (name, datatype, strings) in enumerate(inputs):
        if datatype == b"BYTES":
            texts.append((name, strings or (_strings(raws[place]) if place < len(raws) else [])))
    named = [strings for name, strings in texts if name in _TEXT_NAMES]
    for strings in named or [strings for _, strings in texts]:
        for text in strings:
            prompt.body.append(text.decode("utf-8", "replace"))
            prompt.body.append("\x1e")
            prompt.marks += 1
            prompt.messages += 1


def _tensor(data: bytes) -> tuple[bytes, bytes, list[bytes]]:
    name = datatype = b""
    strings: list[bytes] = []
    for number, value in fields(data):
        if isinstance(value, int):
            continue
        if number == 1:
            name = value
        elif number == 2:
            datatype = value
        elif number == 5:
            strings.extend(content for inner, content in fields(value) if inner == 8 and isinstance(content, bytes))
    return name, datatype, strings


def _strings(data: bytes) -> list[bytes]:
    found = []
    place = 0
    while place + 4 <= len(data):
        size = int.from_bytes(data[place : place + 4], "little")
        found.append(data[place + 4 : place + 4 + size])
        place += 4 + size
    return found


def _parameter(entry: bytes, facts: RequestFacts) -> None:
    """A map entry {key=1, value=2{int64_param=2, ...}}."""
    key = b""
    number: int | None = None
    for field, value in fields(entry):
        if field == 1 and isinstance(value, bytes):
            key = value
        elif field == 2 and isinstance(value, bytes):
            for inner, content in fields(value):
                if inner == 2 and isinstance(content, int):
                    number = content
    if number is not None and number < 1 << 31:
        if key == b"max_tokens":
            facts.max_output_tokens = number
        elif key == b"priority":
            facts.priority = number
