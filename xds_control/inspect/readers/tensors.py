"""Triton's generate extension and the KServe protocols: prompts as named tensors."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from xds_control.inspect.canonical import Prompt, sorted_json
from xds_control.inspect.errors import WrongShape
from xds_control.inspect.facts import RequestFacts
from xds_control.inspect.readers.text import add_text
from xds_control.inspect.scalars import count_in, flag_in, given, number_in, options

Raw = msgspec.Raw
_NONE: Any = None
_PROMPT_NAMES: Final = ("text_input", "prompt", "text", "query", "input", "inputs", "input_ids")
_MAX_TENSORS: Final = 256
_MAX_STRINGS: Final = 1 << 16


class Tensor(msgspec.Struct, gc=False):
    """An input tensor; `data` is absent when it follows in binary."""

    name: Any = None
    datatype: Any = None
    data: Raw = _NONE
    parameters: dict[str, Any] = {}


_decode_tensors = msgspec.json.Decoder(list[Tensor]).decode


def read_triton(top: Any, prompt: Prompt, facts: RequestFacts) -> None:
    """Triton generate: `text_input`, and any other key is a parameter."""
    if given(top.system):
        add_text(prompt, top.system)
    for raw in (top.text_input, top.prompt, top.text, top.inputs):
        if given(raw):
            add_text(prompt, raw)
            break
    else:
        raise WrongShape("there is no text_input")
    settings = options(top.parameters)
    _apply_settings(settings, facts)
    stream = flag_in(settings, "stream")
    if stream is not None and not facts.stream:
        facts.stream = stream


def _apply_settings(settings: dict[str, Any], facts: RequestFacts) -> None:
    limit = count_in(settings, "max_tokens", "max_new_tokens", "max_output_len", "request_output_len")
    if limit is not None:
        facts.max_output_tokens = limit
    temperature = number_in(settings, "temperature")
    if temperature is not None:
        facts.temperature = temperature
    priority = count_in(settings, "priority")
    if priority is not None:
        facts.priority = priority


def read_infer(top: Any, prompt: Prompt, facts: RequestFacts) -> None:
    """KServe v2 infer. Text tensors that are named as prompts are come first; without one, all text is prompt."""
    if not given(top.inputs):
        raise WrongShape("there are no inputs")
    tensors = _decode_tensors(top.inputs)
    if not tensors:
        raise WrongShape("inputs is empty")
    prompt.in_head = False
    texts: list[tuple[str, list[str]]] = []
    offset = 0
    for tensor in tensors[:_MAX_TENSORS]:
        name = tensor.name if isinstance(tensor.name, str) else ""
        size = count_in(tensor.parameters, "binary_data_size")
        if size is not None and tensor.data is None:
            part = prompt.binary[offset : offset + size]
            offset += size
            if tensor.datatype == "BYTES":
                texts.append((name, _strings(part)))
            elif name in _PROMPT_NAMES:
                prompt.add_media(prompt.body, "tensor", part)
        elif tensor.data is not None and (tensor.datatype == "BYTES" or name in _PROMPT_NAMES):
            if tensor.datatype == "BYTES":
                texts.append((name, _texts(tensor.data)))
            else:
                add_text(prompt, tensor.data)
    named = [strings for name, strings in texts if name in _PROMPT_NAMES]
    for strings in named or [strings for _, strings in texts]:
        for text in strings:
            prompt.body.append(text)
            prompt.body.append("\x1e")
            prompt.marks += 1
            prompt.messages += 1
    _apply_settings(options(top.parameters), facts)
    for tensor in tensors[:_MAX_TENSORS]:  # TensorRT-LLM takes its settings as tensors
        if tensor.name in ("max_tokens", "request_output_len") and tensor.data is not None:
            digits = bytes(tensor.data)[:32].translate(None, b"[] \t\r\n")
            if digits.isdigit() and len(digits) < 10:
                facts.max_output_tokens = int(digits)
        elif tensor.name in ("stream", "streaming") and tensor.data is not None:
            facts.stream = facts.stream or b"true" in bytes(tensor.data)[:16]


def _texts(raw: Any) -> list[str]:
    """Strings of a tensor's JSON data, which may be nested lists."""
    found: list[str] = []
    pending = [msgspec.json.decode(raw)]
    while pending and len(found) < _MAX_STRINGS:
        item = pending.pop()
        if isinstance(item, list):
            pending.extend(reversed(item))
        elif isinstance(item, str):
            found.append(item)
    return found


def _strings(data: bytes) -> list[str]:
    """Strings of a binary BYTES tensor: four bytes of length, little-endian, before each."""
    found: list[str] = []
    place = 0
    while place + 4 <= len(data) and len(found) < _MAX_STRINGS:
        size = int.from_bytes(data[place : place + 4], "little")
        place += 4
        found.append(data[place : place + size].decode("utf-8", "replace"))
        place += size
    return found


def read_predict(top: Any, prompt: Prompt, facts: RequestFacts) -> None:
    """KServe v1 predict: instances of any shape, taken as canonical JSON."""
    if not given(top.instances):
        raise WrongShape("there are no instances")
    prompt.in_head = False
    prompt.body.append(sorted_json(top.instances))
    prompt.messages += 1
    _apply_settings(options(top.parameters), facts)
