"""Engines' own formats: SGLang, TGI, vLLM with token ids, llama.cpp, Ollama, and SageMaker, whose body decides."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from xds_control.inspect.canonical import Prompt
from xds_control.inspect.errors import WrongShape
from xds_control.inspect.facts import RequestFacts
from xds_control.inspect.readers.chat import add_images, add_messages, add_tools, read_openai
from xds_control.inspect.readers.pooling import read_input
from xds_control.inspect.readers.text import add_text, read_completion
from xds_control.inspect.scalars import as_count, as_text, count_in, flag_in, given, number_in, options, plain

_MOST_MEDIA: Final = 4096
_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def read_generate(top: Any, prompt: Prompt, facts: RequestFacts) -> None:
    """`/generate`: SGLang by `text` or `input_ids`, TGI by `inputs`."""
    if given(top.inputs) and not given(top.text) and not given(top.input_ids):
        facts.api = "tgi.generate"
        read_tgi(top, prompt, facts)
        return
    for raw in (top.text, top.input_ids, top.prompt):
        if given(raw):
            add_text(prompt, raw)
            break
    else:
        if not given(top.input_embeds):
            raise WrongShape("there is neither text nor input_ids")
        prompt.add_media(prompt.body, "embeds", top.input_embeds)
    for raw, kind in ((top.image_data, "image"), (top.audio_data, "audio"), (top.video_data, "video")):
        if given(raw):
            _add_media_list(prompt, kind, raw)
    settings = options(top.sampling_params)
    limit = count_in(settings, "max_new_tokens", "max_tokens")
    if limit is not None:
        facts.max_output_tokens = limit
    facts.n = min(count_in(settings, "n") or facts.n, 1024)
    temperature = number_in(settings, "temperature")
    if temperature is not None:
        facts.temperature = temperature


def read_tgi(top: Any, prompt: Prompt, facts: RequestFacts) -> None:
    """TGI: `inputs` and `parameters`."""
    if not given(top.inputs):
        raise WrongShape("there is no inputs")
    add_text(prompt, top.inputs)
    settings = options(top.parameters)
    facts.max_output_tokens = count_in(settings, "max_new_tokens")
    facts.temperature = number_in(settings, "temperature")
    facts.n = min(count_in(settings, "best_of") or 1, 1024)
    facts.lora = plain(settings.get("adapter_id"))[:1024] or facts.lora


def read_vllm_tokens(top: Any, prompt: Prompt, facts: RequestFacts) -> None:
    """vLLM's tokens-in endpoint."""
    if not given(top.token_ids):
        raise WrongShape("there is no token_ids")
    add_text(prompt, top.token_ids)
    if given(top.features):
        prompt.add_media(prompt.body, "features", top.features)
    settings = options(top.sampling_params)
    facts.max_output_tokens = count_in(settings, "max_tokens")
    facts.temperature = number_in(settings, "temperature")
    facts.n = min(count_in(settings, "n") or 1, 1024)


def read_tokenize(top: Any, prompt: Prompt, facts: RequestFacts) -> None:
    """Tokenize, detokenize and render: a prompt, messages or tokens."""
    if given(top.messages):
        read_openai(top, prompt, facts)
        return
    for raw in (top.prompt, top.content, top.tokens):
        if given(raw):
            add_text(prompt, raw)
            return
    raise WrongShape("there is nothing to read")


def read_llamacpp(top: Any, prompt: Prompt, facts: RequestFacts) -> None:
    """llama.cpp's completion and infill."""
    found = False
    for raw in (top.system_prompt, top.input_extra, top.input_prefix, top.prompt, top.input_suffix):
        if given(raw):
            _add_llamacpp_prompt(prompt, raw)
            found = True
    if not found:
        raise WrongShape("there is no prompt")
    limit = as_count(top.n_predict)
    if limit is not None:
        facts.max_output_tokens = limit


def _add_llamacpp_prompt(prompt: Prompt, raw: Any) -> None:
    if memoryview(raw)[0] == 0x7B:
        fields = _decode_object(raw)
        add_text(prompt, fields.get("prompt_string"))
        media = fields.get("multimodal_data")
        if media is not None:
            _add_media_list(prompt, "image", media)
        if "prompt_string" not in fields:
            add_text(prompt, raw)
        return
    add_text(prompt, raw)


def _add_media_list(prompt: Prompt, kind: str, raw: Any) -> None:
    """One item of media, or a list of them, which may hold lists; an endless list counts as one item."""
    pending = [raw]
    while pending:
        item = pending.pop()
        if memoryview(item)[0] == 0x5B and len(items := _decode_list(item)) + len(pending) <= _MOST_MEDIA:
            pending.extend(reversed(items))
        elif bytes(item) != b"null":
            prompt.add_media(prompt.body, kind, item)


def read_ollama_chat(top: Any, prompt: Prompt, facts: RequestFacts) -> None:
    """Ollama chat: tools, messages, options."""
    if given(top.tools):
        prompt.tools = add_tools(prompt, top.tools)
    add_messages(prompt, top.messages)
    _ollama_options(top, facts)


def read_ollama_generate(top: Any, prompt: Prompt, facts: RequestFacts) -> None:
    """Ollama generate: system, context of earlier calls, prompt, suffix, images. An empty prompt loads the model."""
    if given(top.system):
        prompt.begin("system").append(as_text(top.system, 1 << 30))
        prompt.messages -= 1
    if given(top.context):
        _add_context(prompt, top.context)
    add_text(prompt, top.prompt)
    if given(top.suffix):
        add_text(prompt, top.suffix)
    if given(top.images):
        add_images(prompt, prompt.body, top.images)
    _ollama_options(top, facts)


def _add_context(prompt: Prompt, raw: Any) -> None:
    # Token ids in front of text: their number is known, but the whole is not exact.
    if len(raw) > 4:
        prompt.in_head = False
        ids = bytes(raw).translate(None, b" \t\r\n[]").decode("ascii", "replace")
        prompt.body.append(ids)


def _ollama_options(top: Any, facts: RequestFacts) -> None:
    settings = options(top.options)
    number = number_in(settings, "num_predict")
    if number is not None and number >= 0:  # -1 and -2: no limit
        facts.max_output_tokens = count_in(settings, "num_predict")
    temperature = number_in(settings, "temperature")
    if temperature is not None:
        facts.temperature = temperature


def read_invocations(top: Any, prompt: Prompt, facts: RequestFacts) -> None:
    """SageMaker: the body says which API it is for."""
    if given(top.messages):
        facts.api = "openai.chat"
        read_openai(top, prompt, facts)
    elif given(top.prompt) or given(top.prompt_embeds):
        facts.api = "openai.completions"
        read_completion(top, prompt, facts)
    elif given(top.inputs):
        facts.api = "tgi.generate"
        settings = options(top.parameters)
        facts.stream = facts.stream or bool(flag_in(settings, "stream"))
        read_tgi(top, prompt, facts)
    elif given(top.input):
        facts.api = "openai.embeddings"
        read_input(top, prompt, facts)
    elif given(top.text) or given(top.input_ids):
        facts.api = "sglang.generate"
        read_generate(top, prompt, facts)
    else:
        raise WrongShape("the body belongs to no API that is known")
