"""Every format in one table: the fields that are read, which of them may be large, and the reader."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from xds_control.inspect.canonical import Prompt
from xds_control.inspect.facts import RequestFacts
from xds_control.inspect.readers import chat, cloud, native, pooling, responses, tensors, text

Reader = Callable[[Any, Prompt, RequestFacts], None]

COMMON: Final = (
    "model",
    "stream",
    "n",
    "temperature",
    "priority",
    "max_tokens",
    "max_completion_tokens",
    "cache_salt",
    "extra_key",
    "lora_path",
    "service_tier",
)
"""Fields that every format's struct has, so that they may be looked at without asking."""


@dataclass(frozen=True, slots=True)
class Spec:
    """How one format is read.

    fields: small ones, beside COMMON. heavy: those that may be large or hold other objects.
    generates: whether output tokens are made. output_cap: what applies when the client names no limit.
    stream: what applies when the client does not say. plain: the prompt reaches the model without a template.
    main: a heavy field with a list that the reader takes from `prompt.main` when it is there.
    """

    api: str
    reader: Reader
    heavy: tuple[str, ...]
    fields: tuple[str, ...] = ()
    generates: bool = True
    output_cap: int | None = None
    stream: bool = False
    plain: bool = False
    main: str = ""


_CHAT: Final = (
    "messages",
    "tools",
    "functions",
    "documents",
    "chat_template",
    "chat_template_kwargs",
    "response_format",
    "metadata",
)
_COMPLETION: Final = ("prompt", "prompt_embeds", "suffix", "metadata")
_ANTHROPIC: Final = ("messages", "system", "tools", "metadata")
_INPUT: Final = ("input", "messages", "content", "prompt")
_SGLANG: Final = (
    "text",
    "input_ids",
    "input_embeds",
    "prompt",
    "image_data",
    "audio_data",
    "video_data",
    "sampling_params",
    "inputs",
    "parameters",
)
_GEMINI: Final = (
    "contents",
    "systemInstruction",
    "system_instruction",
    "tools",
    "content",
    "requests",
    "generationConfig",
    "generation_config",
)
_CONVERSE: Final = ("messages", "system", "toolConfig", "inferenceConfig")
_INVOKE: Final = (*_CONVERSE, "tools", "prompt", "inputText", "texts", "textGenerationConfig")
_INVOKE_FIELDS: Final = ("anthropic_version", "max_gen_len", "max_tokens_to_sample")
_LLAMACPP: Final = ("prompt", "system_prompt", "input_extra", "input_prefix", "input_suffix")
_RENDER: Final = (*_CHAT, "prompt", "content", "tokens")
_ANY: Final = tuple(dict.fromkeys((*_CHAT, *_COMPLETION, *_SGLANG, *_INPUT)))

SPECS: Final[dict[str, Spec]] = {
    spec.api: spec
    for spec in (
        Spec("openai.chat", chat.read_openai, _CHAT, ("reasoning_effort",), main="messages"),
        Spec("openai.completions", text.read_completion, _COMPLETION, output_cap=16, plain=True),
        Spec(
            "openai.responses",
            responses.read_responses,
            ("input", "instructions", "tools", "prompt", "metadata"),
            ("max_output_tokens", "background", "conversation", "previous_response_id"),
        ),
        Spec("openai.embeddings", pooling.read_input, _INPUT, generates=False, plain=True),
        Spec("openai.classify", pooling.read_input, _INPUT, generates=False, plain=True),
        Spec("openai.pooling", pooling.read_input, _INPUT, generates=False, plain=True),
        Spec("openai.moderations", pooling.read_input, _INPUT, generates=False, plain=True),
        Spec("openai.images", pooling.read_input, _INPUT, generates=False, plain=True),
        Spec("openai.speech", pooling.read_input, _INPUT, generates=False, plain=True),
        Spec("openai.audio", pooling.read_input, _INPUT),
        Spec("openai.rerank", pooling.read_pairs, pooling.SCORE_FIELDS, generates=False),
        Spec("openai.score", pooling.read_pairs, pooling.SCORE_FIELDS, generates=False),
        Spec("anthropic.messages", chat.read_anthropic, _ANTHROPIC, main="messages"),
        Spec("anthropic.count_tokens", chat.read_anthropic, _ANTHROPIC, generates=False),
        Spec("vllm.generate", native.read_vllm_tokens, ("token_ids", "features", "sampling_params"), plain=True),
        Spec("vllm.tokenize", native.read_tokenize, _RENDER, ("reasoning_effort",), generates=False),
        Spec("vllm.detokenize", native.read_tokenize, _RENDER, ("reasoning_effort",), generates=False),
        Spec("vllm.render", native.read_tokenize, _RENDER, ("reasoning_effort",), generates=False),
        Spec("sagemaker.invocations", native.read_invocations, _ANY, ("reasoning_effort",)),
        Spec("sglang.generate", native.read_generate, _SGLANG, plain=True),
        Spec("tgi.generate", native.read_tgi, ("inputs", "parameters"), plain=True),
        Spec(
            "triton.generate",
            tensors.read_triton,
            ("text_input", "prompt", "text", "inputs", "system", "parameters"),
            plain=True,
        ),
        Spec("kserve.infer", tensors.read_infer, ("inputs", "parameters"), plain=True),
        Spec("kserve.predict", tensors.read_predict, ("instances", "parameters")),
        Spec("ollama.chat", native.read_ollama_chat, ("messages", "tools", "options"), stream=True, main="messages"),
        Spec(
            "ollama.generate",
            native.read_ollama_generate,
            ("prompt", "system", "suffix", "context", "images", "options"),
            stream=True,
        ),
        Spec("ollama.embed", pooling.read_input, _INPUT, generates=False, plain=True),
        Spec(
            "cohere.chat",
            cloud.read_cohere_chat,
            ("messages", "message", "tools", "documents", "preamble", "chat_history"),
        ),
        Spec("cohere.embed", pooling.read_cohere_embed, ("texts", "inputs", "images"), generates=False, plain=True),
        Spec("gemini.generate", cloud.read_gemini, _GEMINI, ("cachedContent",)),
        Spec("gemini.count_tokens", cloud.read_gemini, _GEMINI, ("cachedContent",), generates=False),
        Spec("gemini.embed", cloud.read_gemini, _GEMINI, ("cachedContent",), generates=False),
        Spec("bedrock.converse", cloud.read_converse, _CONVERSE),
        Spec("bedrock.invoke", cloud.read_invoke, _INVOKE, _INVOKE_FIELDS),
        Spec("llamacpp.completion", native.read_llamacpp, _LLAMACPP, ("n_predict",), plain=True),
        Spec("llamacpp.embedding", pooling.read_input, _INPUT, generates=False, plain=True),
    )
}
