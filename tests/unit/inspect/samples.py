"""One request per format, with what must be read from it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Sample:
    """path, body (bytes, or a value that becomes JSON), headers, and the facts that are expected."""

    name: str
    path: str
    body: Any
    expected: dict[str, Any]
    headers: dict[str, str] = field(default_factory=dict)

    def data(self) -> bytes:
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()


IMAGE = "data:image/png;base64," + "iVBORw0KGgo" * 20
TOOLS = [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}]

SAMPLES = [
    Sample(
        "chat",
        "/v1/chat/completions",
        {
            "model": "llama",
            "messages": [
                {"role": "system", "content": "be brief"},
                {"role": "user", "content": "hello"},
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [{"function": {"name": "f", "arguments": "{bad"}}],
                },
                {"role": "tool", "content": "42", "tool_call_id": "1"},
            ],
            "tools": TOOLS,
            "max_tokens": 10,
            "max_completion_tokens": 20,
            "stream": True,
            "n": 2,
            "temperature": 0.5,
            "priority": -3,
            "cache_salt": "s",
        },
        {
            "api": "openai.chat",
            "model": "llama",
            "messages": 4,
            "tools": 1,
            "max_output_tokens": 20,
            "stream": True,
            "n": 2,
            "temperature": 0.5,
            "priority": -3,
            "cache_salt": "s",
        },
    ),
    Sample(
        "chat with parts",
        "/v1/chat/completions",
        {
            "model": "llama",
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "what is this"},
                        {"type": "image_url", "image_url": {"url": IMAGE, "detail": "low"}},
                        {"type": "image_url", "image_url": "http://x/y.png"},
                        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
                        {"type": "file", "file": {"file_id": "f1"}},
                        {"type": "something_new", "payload": 1},
                    ],
                }
            ],
        },
        {"images": 2, "media_count": 4, "messages": 1},
    ),
    Sample(
        "azure",
        "/openai/deployments/gpt-4/chat/completions?api-version=2024-06-01",
        {"messages": [{"role": "user", "content": "x"}]},
        {"api": "openai.chat", "model": "gpt-4", "model_span": None},
    ),
    Sample(
        "completions",
        "/v1/completions",
        {"model": "m", "prompt": "abcdef", "max_tokens": 7, "suffix": "xy"},
        {"api": "openai.completions", "prompt_bytes": 8, "max_output_tokens": 7},
    ),
    Sample(
        "completions, list",
        "/v1/completions",
        {"model": "m", "prompt": ["abc", "defg"]},
        {"prompt_bytes": 7, "messages": 2, "max_output_tokens": None, "expected_output_tokens": 16},
    ),
    Sample(
        "completions, ids",
        "/v1/completions",
        {"model": "m", "prompt": [1, 22, 333]},
        {"prompt_tokens": 3, "tokens_exact": True},
    ),
    Sample(
        "completions, lists of ids",
        "/v1/completions",
        {"model": "m", "prompt": [[1, 2], [], [3]]},
        {"prompt_tokens": 3, "tokens_exact": True, "messages": 3},
    ),
    Sample(
        "completions, embeds",
        "/v1/completions",
        {"model": "m", "prompt": None, "prompt_embeds": "gASV" * 9},
        {"media_count": 1, "tokens_exact": False},
    ),
    Sample(
        "responses, text",
        "/v1/responses",
        {"model": "m", "instructions": "be brief", "input": "hello", "max_output_tokens": 5, "background": True},
        {"api": "openai.responses", "messages": 1, "max_output_tokens": 5, "extra": {"background": True}},
    ),
    Sample(
        "responses, items",
        "/v1/responses",
        {
            "model": "m",
            "input": [
                {"role": "developer", "content": "d"},
                {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "t"}]},
                {"type": "message", "role": "user", "content": [{"type": "input_image", "image_url": IMAGE}]},
                {"type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}], "encrypted_content": "e"},
                {"type": "function_call", "name": "f", "arguments": "{}", "call_id": "1"},
                {"type": "function_call_output", "call_id": "1", "output": "42"},
                {"type": "item_reference", "id": "r"},
                {"type": "never_seen", "x": 1},
            ],
            "tools": TOOLS,
        },
        {"images": 1, "tools": 1, "messages": 7, "media_count": 2},
    ),
    Sample(
        "embeddings",
        "/v1/embeddings",
        {"model": "e", "input": ["a", "bc"]},
        {"api": "openai.embeddings", "prompt_bytes": 3, "expected_output_tokens": 0},
    ),
    Sample("embeddings, ids", "/v1/embeddings", {"model": "e", "input": [[1, 2], [3]]}, {"prompt_tokens": 3}),
    Sample(
        "embeddings, chat form",
        "/v1/embeddings",
        {"model": "e", "messages": [{"role": "user", "content": "x"}]},
        {"messages": 1},
    ),
    Sample(
        "rerank",
        "/v2/rerank",
        {"model": "r", "query": "q", "documents": ["a", {"text": "bb"}], "top_n": 1},
        {"api": "openai.rerank", "prompt_bytes": 4},
    ),
    Sample("score", "/v1/score", {"model": "r", "text_1": "a", "text_2": ["b", "c"]}, {"prompt_bytes": 3}),
    Sample("classify", "/classify", {"model": "c", "input": "abc"}, {"api": "openai.classify", "prompt_bytes": 3}),
    Sample("pooling", "/pooling", {"model": "c", "input": "abc"}, {"api": "openai.pooling"}),
    Sample("images", "/v1/images/generations", {"model": "i", "prompt": "cat"}, {"api": "openai.images", "model": "i"}),
    Sample("speech", "/v1/audio/speech", {"model": "tts", "input": "hi"}, {"api": "openai.speech", "model": "tts"}),
    Sample(
        "anthropic",
        "/v1/messages",
        {
            "model": "claude",
            "max_tokens": 99,
            "system": [{"type": "text", "text": "sys", "cache_control": {"type": "ephemeral"}}],
            "messages": [
                {"role": "user", "content": "hi"},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "hm", "signature": "x"},
                        {"type": "tool_use", "id": "1", "name": "f", "input": {"b": 1, "a": 2}},
                    ],
                },
                {
                    "role": "user",
                    "content": [
                        {
                            "type": "tool_result",
                            "tool_use_id": "1",
                            "content": [
                                {"type": "text", "text": "r"},
                                {"type": "image", "source": {"type": "base64", "data": "AAAA"}},
                            ],
                        },
                        {"type": "document", "source": {"type": "url", "url": "http://x"}},
                    ],
                },
            ],
            "tools": [{"name": "f", "input_schema": {}}],
            "stream": True,
        },
        {
            "api": "anthropic.messages",
            "model": "claude",
            "max_output_tokens": 99,
            "messages": 3,
            "tools": 1,
            "images": 1,
            "media_count": 2,
            "stream": True,
        },
    ),
    Sample(
        "count_tokens",
        "/v1/messages/count_tokens",
        {"model": "claude", "messages": [{"role": "user", "content": "hi"}]},
        {"api": "anthropic.count_tokens", "expected_output_tokens": 0},
    ),
    Sample(
        "vllm tokens in",
        "/inference/v1/generate",
        {"model": "m", "token_ids": [1, 2, 3, 4], "sampling_params": {"max_tokens": 8}},
        {"api": "vllm.generate", "prompt_tokens": 4, "tokens_exact": True, "max_output_tokens": 8},
    ),
    Sample("tokenize", "/tokenize", {"model": "m", "prompt": "abc"}, {"api": "vllm.tokenize", "prompt_bytes": 3}),
    Sample("detokenize", "/detokenize", {"model": "m", "tokens": [1, 2]}, {"prompt_tokens": 2}),
    Sample(
        "invocations, chat",
        "/invocations",
        {"model": "m", "messages": [{"role": "user", "content": "x"}]},
        {"api": "openai.chat", "messages": 1},
    ),
    Sample(
        "invocations, tgi",
        "/invocations",
        {"inputs": "abc", "parameters": {"max_new_tokens": 4}},
        {"api": "tgi.generate", "prompt_bytes": 3, "max_output_tokens": 4},
    ),
    Sample(
        "sglang",
        "/generate",
        {
            "text": "abc",
            "sampling_params": {"max_new_tokens": 12, "temperature": 0.1, "n": 3},
            "stream": True,
            "lora_path": "ad",
            "image_data": [IMAGE],
            "extra_key": "k",
        },
        {
            "api": "sglang.generate",
            "model": "",
            "max_output_tokens": 12,
            "temperature": 0.1,
            "n": 3,
            "lora": "ad",
            "images": 1,
            "stream": True,
            "cache_salt": "k",
        },
    ),
    Sample(
        "sglang, batch",
        "/generate",
        {"input_ids": [[1, 2], [3]], "sampling_params": [{"max_new_tokens": 12}]},
        {"prompt_tokens": 3, "max_output_tokens": 12},
    ),
    Sample(
        "tgi",
        "/generate",
        {"inputs": "abc", "parameters": {"max_new_tokens": 4, "adapter_id": "ad", "best_of": 2}},
        {"api": "tgi.generate", "max_output_tokens": 4, "lora": "ad", "n": 2, "stream": False},
    ),
    Sample("tgi stream", "/generate_stream", {"inputs": "abc"}, {"api": "tgi.generate", "stream": True}),
    Sample("tgi root", "/", {"inputs": "abc"}, {"api": "tgi.generate", "prompt_bytes": 3}),
    Sample("root, other", "/", {"a": 1}, {"api": "", "problem": ""}),
    Sample(
        "triton",
        "/v2/models/ens/generate",
        {"text_input": "abc", "parameters": {"max_tokens": "6", "stream": True, "priority": 2}},
        {"api": "triton.generate", "model": "ens", "max_output_tokens": 6, "stream": True, "priority": 2},
    ),
    Sample(
        "triton, version and stream",
        "/v2/models/ens/versions/3/generate_stream",
        {"text_input": ["abc"], "max_tokens": 5, "bad_words": ""},
        {"model": "ens", "stream": True, "max_output_tokens": 5, "prompt_bytes": 3},
    ),
    Sample(
        "kserve v2",
        "/v2/models/m/infer",
        {
            "id": "1",
            "inputs": [
                {"name": "text_input", "shape": [1], "datatype": "BYTES", "data": ["hello"]},
                {"name": "stop_words", "shape": [1], "datatype": "BYTES", "data": ["no"]},
                {"name": "max_tokens", "shape": [1, 1], "datatype": "INT32", "data": [[64]]},
            ],
            "parameters": {"priority": 1},
        },
        {"api": "kserve.infer", "model": "m", "prompt_bytes": 5, "max_output_tokens": 64, "priority": 1},
    ),
    Sample(
        "kserve v1",
        "/v1/models/m:predict",
        {"instances": ["a", {"b": 1}]},
        {"api": "kserve.predict", "model": "m", "messages": 1},
    ),
    Sample(
        "ollama chat",
        "/api/chat",
        {
            "model": "llama3:8b",
            "messages": [{"role": "user", "content": "x", "images": ["AAAA"]}],
            "options": {"num_predict": 9, "temperature": 0},
        },
        {
            "api": "ollama.chat",
            "model": "llama3:8b",
            "stream": True,
            "max_output_tokens": 9,
            "images": 1,
            "temperature": 0.0,
        },
    ),
    Sample(
        "ollama generate",
        "/api/generate",
        {
            "model": "m",
            "prompt": "abc",
            "system": "sys",
            "context": [1, 2],
            "stream": False,
            "options": {"num_predict": -1},
        },
        {"api": "ollama.generate", "stream": False, "max_output_tokens": None},
    ),
    Sample("ollama embed", "/api/embed", {"model": "m", "input": "abc"}, {"api": "ollama.embed", "prompt_bytes": 3}),
    Sample(
        "cohere chat",
        "/v2/chat",
        {"model": "c", "messages": [{"role": "user", "content": "x"}], "max_tokens": 3},
        {"api": "cohere.chat", "max_output_tokens": 3},
    ),
    Sample("cohere embed", "/v2/embed", {"model": "c", "texts": ["a", "b"]}, {"prompt_bytes": 2}),
    Sample(
        "gemini",
        "/v1beta/models/gemini-pro:streamGenerateContent?alt=sse",
        {
            "systemInstruction": {"parts": [{"text": "sys"}]},
            "contents": [
                {
                    "role": "user",
                    "parts": [{"text": "hi"}, {"inlineData": {"mimeType": "image/png", "data": "AAAA"}}],
                }
            ],
            "generationConfig": {"maxOutputTokens": 11, "temperature": 0.2},
        },
        {
            "api": "gemini.generate",
            "model": "gemini-pro",
            "stream": True,
            "max_output_tokens": 11,
            "images": 1,
            "temperature": 0.2,
            "messages": 1,
        },
    ),
    Sample(
        "bedrock converse",
        "/model/anthropic.claude-3%3A0/converse-stream",
        {
            "system": [{"text": "sys"}],
            "messages": [{"role": "user", "content": [{"text": "hi"}, {"image": {"format": "png", "source": {}}}]}],
            "inferenceConfig": {"maxTokens": 12},
            "toolConfig": {"tools": [{"toolSpec": {"name": "f"}}]},
        },
        {
            "api": "bedrock.converse",
            "model": "anthropic.claude-3:0",
            "stream": True,
            "max_output_tokens": 12,
            "tools": 1,
            "images": 1,
        },
    ),
    Sample(
        "bedrock invoke, claude",
        "/model/claude/invoke",
        {
            "anthropic_version": "bedrock-2023-05-31",
            "max_tokens": 13,
            "messages": [{"role": "user", "content": "hi"}],
        },
        {"api": "bedrock.invoke", "max_output_tokens": 13, "messages": 1},
    ),
    Sample(
        "bedrock invoke, llama",
        "/model/meta.llama/invoke",
        {"prompt": "abc", "max_gen_len": 14},
        {"max_output_tokens": 14, "prompt_bytes": 3},
    ),
    Sample(
        "bedrock invoke, titan",
        "/model/amazon.titan/invoke",
        {"inputText": "abc", "textGenerationConfig": {"maxTokenCount": 15}},
        {"max_output_tokens": 15, "prompt_bytes": 3},
    ),
    Sample(
        "llama.cpp",
        "/completion",
        {"prompt": [1, "ab", 2], "n_predict": 16},
        {"api": "llamacpp.completion", "max_output_tokens": 16},
    ),
    Sample(
        "llama.cpp, multimodal",
        "/completion",
        {"prompt": {"prompt_string": "abc", "multimodal_data": ["AAAA"]}},
        {"prompt_bytes": 3, "images": 1},
    ),
    Sample(
        "audio",
        "/v1/audio/transcriptions",
        b'--B\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\nContent-Type: audio/wav\r\n\r\n'
        + b"\x00\xff" * 5000
        + b'\r\n--B\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper\r\n'
        + b'--B\r\nContent-Disposition: form-data; name="stream"\r\n\r\ntrue\r\n--B--\r\n',
        {"api": "openai.audio", "model": "whisper", "stream": True, "media_count": 1, "media_bytes": 10000},
        {"content-type": "multipart/form-data; boundary=B"},
    ),
    Sample("unknown", "/v1/models", b"", {"api": "", "problem": ""}),
    Sample("files", "/v1/files", b"--x", {"api": "openai.files", "problem": ""}),
    Sample("batches", "/v1/batches", {"input_file_id": "f"}, {"api": "openai.batches", "problem": ""}),
]
